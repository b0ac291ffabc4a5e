"""One run of the bench, from the first process to the figures."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from .figures import FIGURES, Measured, machine, rounded
from .others import measure_gangs, measure_imported, measure_overload, measure_rest, measure_scale, measure_tracing
from .rates import Rates, Report, measure_ordinary, measure_rates
from .site import opened, part_of

ROUNDS: Final = 5
_PACKAGES: Final = ("gangline", "nats-py", "uvloop", "msgpack", "pydantic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Durations of a run."""

    rounds: int = ROUNDS
    seconds: float = 0.15
    """Seconds of each load in each round."""
    rest_s: float = 3.0
    """How long the idle worker is measured."""


LONG: Final = Plan(rounds=11, rest_s=5.0)
"""For published figures."""
FULL: Final = Plan()
QUICK: Final = Plan(seconds=0.08, rest_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of one run."""

    figures: Sequence[Measured]
    rates: Rates
    gangs_ms: Mapping[str, list[float]] = field(default_factory=dict[str, list[float]])
    traced: Mapping[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Ratios with 64 calls at once."""
    about: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """`figures`: one number per name, null where not measured; `spread`: their medians, worst and best."""
        found = {item.figure.name: item for item in self.figures}
        return {
            "figures": {each.name: rounded(found[each.name].value) if each.name in found else None for each in FIGURES},
            "spread": {name: item.spread() for name, item in found.items()},
            "rates_per_s": {name: round(statistics.median(row)) for name, row in self.rates.per_s.items()},
            "client_cpu_us": {name: round(statistics.median(row), 2) for name, row in self.rates.client_us.items()},
            "worker_cpu_us": {name: round(statistics.median(row), 2) for name, row in self.rates.far_us.items()},
            "latency_ms": {name: round(statistics.median(row), 3) for name, row in self.rates.latency_ms.items()},
            "gangs_ms": {name: round(statistics.median(row), 3) for name, row in self.gangs_ms.items()},
            "tracing": {name: rounded(statistics.median(row)) for name, row in self.traced.items()},
            "about": dict(self.about),
        }


async def run(plan: Plan = FULL, *, report: Report = lambda _: None) -> Results:
    """Measure everything that needs no peers.

    Raises:
        ServerUnreachable: no nats-server to start (the extra `server` brings one).
        ChildFailed: a process of the bench failed.
    """
    rounds, seconds = plan.rounds, plan.seconds
    async with opened() as site:
        async with part_of(site) as part:
            rates = await measure_rates(part, rounds=rounds, seconds=seconds, report=report)
        figures = rates.figures()
        async with part_of(site) as part:
            found, ordinary = await measure_ordinary(part, rounds=rounds, seconds=seconds, report=report)
        figures += found
        found, imported = await measure_imported(rounds=rounds, seconds=seconds, report=report)
        figures += found
        async with part_of(site) as part:
            tracing, traced = await measure_tracing(part, rounds=rounds, seconds=seconds, report=report)
        figures += tracing
        async with part_of(site) as part:
            gangs, gangs_ms = await measure_gangs(part, rounds=rounds, report=report)
        figures += gangs
        async with part_of(site) as part:
            figures += await measure_scale(part, rounds=rounds, report=report)
        figures += await measure_overload(site, report=report)
        figures += await measure_rest(site, seconds=plan.rest_s, report=report)
        return Results(
            figures=figures,
            rates=rates.joined(ordinary).joined(imported),
            gangs_ms=gangs_ms,
            traced=traced,
            about=about(site.server_version, plan),
        )


def about(server_version: str, plan: Plan) -> dict[str, Any]:
    """The machine, the versions, and the method of measurement."""
    return {
        **machine(),
        "python": platform.python_version(),
        "nats-server": server_version,
        **{name: version(name) for name in _PACKAGES},
        "rounds": plan.rounds,
        "seconds_per_load": plan.seconds,
        "payload_bytes": 100,
    }
