"""Rates and latencies: each round measures the raw wire and Gangline in turn, and the order changes from round to
round."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .figures import Measured, measured, ratios
from .process import Child
from .site import Site

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One kind of load on one system."""

    name: str
    """Share of the rate of this load."""
    system: str
    """`raw`, `ours`, or `gateway` (ours, asked by the raw client)."""
    what: str
    concurrency: int


LOADS: Final = (
    Load(name="raw_serial", system="raw", what="echo", concurrency=1),
    Load(name="call_serial", system="ours", what="call", concurrency=1),
    Load(name="raw_c64", system="raw", what="echo", concurrency=64),
    Load(name="call_c64", system="ours", what="call", concurrency=64),
    Load(name="lease_call_c64", system="ours", what="lease", concurrency=64),
    Load(name="reserve_dispatch_c64", system="ours", what="reserve", concurrency=64),
    Load(name="raw_c256", system="raw", what="echo", concurrency=256),
    Load(name="call_c256", system="ours", what="call", concurrency=256),
    Load(name="call_c256_4w", system="ours", what="call_4w", concurrency=256),
    Load(name="raw_mixed_c256", system="raw", what="nap", concurrency=256),
    Load(name="call_mixed_c256", system="ours", what="nap", concurrency=256),
    Load(name="js_publish_c64", system="raw", what="js_publish", concurrency=64),
    Load(name="submit_c64", system="ours", what="submit", concurrency=64),
    Load(name="kv_put_c64", system="raw", what="kv_put", concurrency=64),
)

ORDINARY: Final = (
    Load(name="call_c64", system="ours", what="call", concurrency=64),
    Load(name="key_c64", system="ours", what="key", concurrency=64),
    Load(name="weighted_route_c64", system="ours", what="routed", concurrency=64),
    Load(name="kwargs_c64", system="ours", what="kwargs", concurrency=64),
    Load(name="model_c64", system="ours", what="model", concurrency=64),
    Load(name="raw_function_c64", system="raw", what="function", concurrency=64),
    Load(name="sync_task_c64", system="ours", what="function", concurrency=64),
    Load(name="raw_json_serial", system="raw", what="json", concurrency=1),
    Load(name="gateway_serial", system="gateway", what="gateway", concurrency=1),
    Load(name="raw_json_c64", system="raw", what="json", concurrency=64),
    Load(name="gateway_c64", system="gateway", what="gateway", concurrency=64),
    Load(name="raw_100k_c16", system="raw", what="large", concurrency=16),
    Load(name="call_100k_c16", system="ours", what="large", concurrency=16),
    Load(name="raw_stream", system="raw", what="stream", concurrency=1),
    Load(name="stream", system="ours", what="stream", concurrency=1),
    Load(name="raw_serial", system="raw", what="echo", concurrency=1),
    Load(name="sync_client_serial", system="ours", what="sync", concurrency=1),
)
"""Typical requests of programs, compared with the plainest of the same run."""

RATIOS: Final = {
    "call_serial_vs_raw": ("call_serial", "raw_serial"),
    "call_c64_vs_raw": ("call_c64", "raw_c64"),
    "call_c256_vs_raw": ("call_c256", "raw_c256"),
    "call_c256_4w_vs_raw": ("call_c256_4w", "raw_c256"),
    "call_mixed_c256_vs_raw": ("call_mixed_c256", "raw_mixed_c256"),
    "lease_call_c64_vs_raw": ("lease_call_c64", "raw_c64"),
    "reserve_dispatch_c64_vs_raw": ("reserve_dispatch_c64", "raw_c64"),
    "submit_vs_js_publish": ("submit_c64", "js_publish_c64"),
}
ORDINARY_RATIOS: Final = {
    "key_c64": ("key_c64", "call_c64"),
    "weighted_route_c64": ("weighted_route_c64", "call_c64"),
    "kwargs_c64": ("kwargs_c64", "call_c64"),
    "model_c64": ("model_c64", "call_c64"),
    "sync_task_c64": ("sync_task_c64", "raw_function_c64"),
    "gateway_c1": ("gateway_serial", "raw_json_serial"),
    "gateway_c64": ("gateway_c64", "raw_json_c64"),
    "payload_100k_c16": ("call_100k_c16", "raw_100k_c16"),
    "stream_items": ("stream", "raw_stream"),
    "sync_client_c1": ("sync_client_serial", "raw_serial"),
}
"""Figure -> (ours, theirs), by the names of loads."""


@dataclass(slots=True, kw_only=True)
class Rates:
    """The measurements, round by round."""

    per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By load."""
    client_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """CPU time of the requesting process per request, in microseconds."""
    far_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The same for the answering process, if there is only one."""
    latency_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Percentiles under open-loop load: `call_c64_at_50_p99` and the like."""

    def joined(self, others: Rates) -> Rates:
        """With the loads that only `others` has."""
        return Rates(
            per_s={**others.per_s, **self.per_s},
            client_us={**others.client_us, **self.client_us},
            far_us={**others.far_us, **self.far_us},
            latency_ms=self.latency_ms,
        )

    def figures(self) -> list[Measured]:
        found = [measured(name, ratios(self.per_s[ours], self.per_s[raw])) for name, (ours, raw) in RATIOS.items()]
        if self.latency_ms:
            ours, raw = self.latency_ms["call_c64_at_50_p99"], self.latency_ms["raw_c64_at_50_p99"]
            found.append(measured("call_p99_c64_vs_raw", ratios(ours, raw)))
        return found


async def measure_rates(site: Site, *, rounds: int, seconds: float, report: Report) -> Rates:
    """All loads, then latencies at half and four fifths of each one's own peak."""
    echo = await site.start("raw_echo", url=site.url)
    one = await site.worker("one", 512)
    for _ in range(4):
        await site.worker("four", 512)
    systems = {"raw": await site.start("raw_client", url=site.url), "ours": await site.client("one")}
    far = {"raw": echo, "ours": one}
    found = Rates()
    for load in LOADS:  # the first time is slower
        await _closed(systems[load.system], load, seconds / 4)
    for number in range(rounds):
        report(f"rates, round {number + 1} of {rounds}")
        for load in LOADS if number % 2 == 0 else reversed(LOADS):
            await _measure(load, systems[load.system], far[load.system], seconds, found)
    for number in range(rounds):
        report(f"latencies, round {number + 1} of {rounds}")
        for share in (0.5, 0.8):
            for name, system, what in _by_turns(number):
                await _paced(name, systems[system], what, share, seconds, found)
    return found


async def measure_ordinary(site: Site, *, rounds: int, seconds: float, report: Report) -> tuple[list[Measured], Rates]:
    """Keys, weights, keyword arguments, models, plain functions, the gateway, large bodies, streams, plain threads."""
    echo = await site.start("raw_echo", url=site.url)
    one = await site.worker("one", 512)
    await site.worker("canary", 512)
    gateway = await site.start("our_gateway", url=site.url)
    raw = await site.start("raw_client", url=site.url)
    client = await site.client("one")
    await client.ask("route", endpoint="routed", to={"one": 9, "canary": 1})
    systems = {"raw": raw, "ours": client, "gateway": raw}
    far = {"raw": echo, "ours": one, "gateway": gateway}
    found = Rates()
    for load in ORDINARY:  # the first time is slower
        await _closed(systems[load.system], load, seconds / 4)
    for number in range(rounds):
        report(f"ordinary requests, round {number + 1} of {rounds}")
        for load in ORDINARY if number % 2 == 0 else reversed(ORDINARY):
            await _measure(load, systems[load.system], far[load.system], seconds, found)
    return [
        measured(name, ratios(found.per_s[ours], found.per_s[other])) for name, (ours, other) in ORDINARY_RATIOS.items()
    ], found


def _by_turns(number: int) -> list[tuple[str, str, str]]:
    both = [("raw_c64", "raw", "echo"), ("call_c64", "ours", "call")]
    return both if number % 2 == 0 else both[::-1]


async def _closed(system: Child, load: Load, seconds: float) -> dict[str, Any]:
    return await system.ask("closed", what=load.what, concurrency=load.concurrency, seconds=seconds)


async def _measure(load: Load, system: Child, far: Child, seconds: float, found: Rates) -> None:
    before = await far.ask("cpu")
    done = await _closed(system, load, seconds)
    after = await far.ask("cpu")
    found.per_s[load.name].append(done["count"] / done["seconds"])
    found.client_us[load.name].append(done["cpu_s"] / done["count"] * 1e6)
    found.far_us[load.name].append((after["cpu_s"] - before["cpu_s"]) / done["count"] * 1e6)


async def _paced(name: str, system: Child, what: str, share: float, seconds: float, found: Rates) -> None:
    peak = sorted(found.per_s[name])[len(found.per_s[name]) // 2]
    done = await system.ask("paced", what=what, rate=share * peak, seconds=seconds)
    for which in ("p50", "p99"):
        found.latency_ms[f"{name}_at_{round(share * 100)}_{which}"].append(done[which] * 1000)
