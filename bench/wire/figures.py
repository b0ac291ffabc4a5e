"""The named figures and their targets, and the arithmetic that turns rounds into one figure."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One named figure."""

    name: str
    meaning: str
    target: float
    at_least: bool
    """True: the target is a minimum; False: a maximum."""
    unit: str = ""
    """Empty for ratios."""
    alone: bool = True
    """Measured by `gangline bench`; the others need peers and are measured only by `make bench`."""

    def meets(self, value: float) -> bool:
        return value >= self.target if self.at_least else value <= self.target

    @property
    def shown_target(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.target:g}{' ' + self.unit if self.unit else ''}"


def _least(name: str, target: float, meaning: str, *, alone: bool = True) -> Figure:
    return Figure(name=name, meaning=meaning, target=target, at_least=True, alone=alone)


def _most(name: str, target: float, meaning: str, *, unit: str = "", alone: bool = True) -> Figure:
    return Figure(name=name, meaning=meaning, target=target, at_least=False, unit=unit, alone=alone)


FIGURES: Final = (
    _least("call_serial_vs_raw", 0.9, "calls of a no-op task, one at a time / raw request-reply"),
    _least("call_c64_vs_raw", 2.0, "64 at once, one worker / raw, 64 at once"),
    _least("call_c256_vs_raw", 3.0, "256 at once, one worker / raw, 256 at once"),
    _least("call_c256_4w_vs_raw", 2.0, "256 at once over four workers / raw, 256 at once, one echo"),
    _least("call_mixed_c256_vs_raw", 1.5, "256 at once, tasks that sleep 0 to 2 ms / a raw echo that does the same"),
    _least("lease_call_c64_vs_raw", 2.0, "64 at once on a held lease / raw, 64 at once"),
    _least("reserve_dispatch_c64_vs_raw", 1.0, "choose, then dispatch, 64 at once / raw, 64 at once"),
    _most("call_p99_c64_vs_raw", 2.0, "p99 latency, open loop, each at half of its own peak at 64"),
    _least("submit_vs_js_publish", 0.8, "submit / JetStream publish, same window"),
    _least("durable_vs_best_peer", 2.0, "submit to done, no-op, one worker / best durable peer", alone=False),
    _least("durable_many_vs_best_peer", 3.0, "the same with submit_many / best durable peer", alone=False),
    _most("durable_start_p50_vs_best_peer", 1.0, "submit to start at 100/s, median / best peer", alone=False),
    _least("submit_result_c64", 2.0, "submit and await the result, 64 at once / best peer with results", alone=False),
    _most("submit_result_p50_ms", 1.0, "the same one at a time, median time / best peer with results", alone=False),
    _least("rayserve_call_ratio", 20.0, "calls / Ray Serve handle.remote()", alone=False),
    _least("rayserve_choose_ratio", 20.0, "choose, then dispatch / Ray Serve's", alone=False),
    _most("gang8_form_vs_raw", 8.0, "form a gang of 8 over 4 workers / one raw round trip"),
    _least("gang8_form_vs_ray_pg", 10.0, "time of a Ray placement group of 8 / forming a gang of 8", alone=False),
    _most("gang64_form_vs_gang8", 4.0, "form 64 over 16 workers / 8 over 4"),
    _least("goodput_10x_call", 0.9, "calls that end in time at ten times the capacity / capacity"),
    _least("goodput_10x_stream", 0.9, "the same for streams"),
    _least("goodput_10x_lease", 0.9, "the same for calls on a lease"),
    _least("goodput_10x_job", 0.9, "the same for submitted tasks with deadlines"),
    _most("route_10k_vs_10", 1.3, "a router's choice among 10,000 workers / among 10"),
    _most("form_10k_vs_10", 2.0, "a coordinator's placement among 10,000 workers / among 10"),
    _most("decide_10k_vs_10", 2.0, "all decisions of a coordinator on a gang among 10,000 workers / among 10"),
    _most("router_bytes_per_worker", 1500, "router memory per known worker", unit="B"),
    _most("worker_rss_mb", 60, "memory of an idle worker", unit="MB"),
    _most("idle_msgs_per_s", 2, "messages per second of an idle worker", unit="/s"),
    _least("trace_off_cost", 0.98, "calls one at a time, tracing configured off / no tracing"),
    _least("trace_on_cost", 0.6, "calls one at a time, each traced / no tracing"),
    _least("metrics_on_c64", 0.85, "64 at once with metrics / with nothing observed"),
    _least("trace_1pct_c64", 0.85, "64 at once, 1 % of the traces sampled / with nothing observed"),
    _least("metrics_and_1pct_c64", 0.75, "64 at once with metrics and 1 % of the traces / with nothing observed"),
    _least("trace_100pct_c64", 0.33, "64 at once, each traced / with nothing observed"),
    _least("key_c64", 0.85, "64 at once, each with one of 1,000 keys / plain"),
    _least("weighted_route_c64", 0.85, "64 at once, on a route with weights 9 and 1 / plain"),
    _least("kwargs_c64", 0.85, "64 at once, with a keyword argument / plain"),
    _least("model_c64", 0.75, "64 at once, a pydantic model there and back / plain"),
    _least("sync_task_c64", 0.8, "64 at once, a plain function / a raw echo that runs its function in an executor"),
    _least("gateway_c1", 0.5, "through the gateway, one at a time / raw, same client and body"),
    _least("gateway_c64", 0.45, "through the gateway, 64 at once / raw, same client and body"),
    _least("imported_c1", 0.8, "through the gateway from a tenant's account, one at a time / from Gangline's own"),
    _least("imported_c64", 0.9, "through the gateway from a tenant's account, 64 at once / from Gangline's own"),
    _least("payload_100k_c16", 0.9, "16 at once with 100 kB there and back / raw"),
    _least("stream_items", 0.8, "items of a stream / raw publishes of the same size to one subscriber"),
    _least("sync_client_c1", 0.7, "SyncClient in one thread, one at a time / raw in an event loop"),
)
BY_NAME: Final = {figure.name: figure for figure in FIGURES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A figure over all rounds."""

    figure: Figure
    rounds: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    @property
    def best(self) -> float:
        return max(self.rounds) if self.figure.at_least else min(self.rounds)

    @property
    def worst(self) -> float:
        return min(self.rounds) if self.figure.at_least else max(self.rounds)

    @property
    def met(self) -> bool:
        return self.figure.meets(self.value)

    def spread(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "worst": rounded(self.worst),
            "best": rounded(self.best),
            "rounds": len(self.rounds),
            "target": self.figure.shown_target,
            "met": self.met,
        }


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load_1min": round(os.getloadavg()[0], 2),
    }


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Pairs the rounds, so that a slow period of the machine affects both sides of a ratio.

    Raises:
        ValueError: different numbers of rounds, or none at all.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of ours, {len(theirs)} of theirs: they are measured in pairs")
    return tuple(mine / other for mine, other in zip(ours, theirs, strict=True))


def measured(name: str, rounds: Sequence[float]) -> Measured:
    """The figure of that name.

    Raises:
        KeyError: there is none.
        ValueError: no rounds.
    """
    if not rounds:
        raise ValueError(f"{name} has no rounds")
    return Measured(figure=BY_NAME[name], rounds=tuple(rounds))
