"""Ray and Gangline in turn: calls to one replica, choosing a replica followed by a dispatch, and forming gangs."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gangline.bench.figures import Measured, measured, ratios
from gangline.bench.process import Child
from gangline.bench.site import opened

from .catalogue import RAY_SERVE
from .cell import ROOT
from .environments import Environment, environment

CONCURRENCY: Final = 64
_START_S: Final = 120.0
_WHAT: Final = {"call": "call", "choose": "reserve"}
"""The loads, by their names there and here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRates:
    """Rates per second, per round: `ours call`, `Ray Serve call`, `Ray Serve, tuned choose` and so on."""

    per_s: dict[str, list[float]]
    gang_ms: dict[str, list[float]]
    """Time to form a gang of 8, per round: `ours`, `Ray` and `Ray, full`."""

    def figures(self) -> list[Measured]:
        """The ratio to the better of its runs, per round."""
        found = []
        for what in _WHAT:
            theirs = [max(pair) for pair in zip(*(self.per_s[f"{name} {what}"] for name in _RUNS), strict=True)]
            found.append(measured(f"rayserve_{what}_ratio", ratios(self.per_s[f"ours {what}"], theirs)))
        return [*found, measured("gang8_form_vs_ray_pg", ratios(self.gang_ms["Ray"], self.gang_ms["ours"]))]


_RUNS: Final = {"Ray Serve": False, "Ray Serve, tuned": True}


async def measure_ray_serve(*, rounds: int, seconds: float, report: Callable[[str], None]) -> RayRates:
    """Both of its runs and ours; each is running only for its part of a round, so that no idle system takes CPU
    time.

    Raises:
        NotInstalled, ChildFailed: it cannot be installed, or does not run here.
    """
    made = await environment(RAY_SERVE.name, RAY_SERVE.requirements)
    per_s: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in ("ours", *_RUNS) if number % 2 == 0 else (*reversed(_RUNS), "ours"):
            report(f"{name} (calls), round {number + 1} of {rounds}")
            async with AsyncExitStack() as stack:
                near = await (
                    _ours(stack) if name == "ours" else _theirs(stack, made, "rayserve_app", tuned=_RUNS[name])
                )
                for theirs, ours in _WHAT.items():
                    what = ours if name == "ours" else theirs
                    per_s[f"{name} {theirs}"].append(await _rate(near, what, seconds))
    return RayRates(per_s=dict(per_s), gang_ms=await _measure_gangs(made, rounds=rounds, report=report))


_FORMED: Final = 20
"""Gangs in each round."""
_CPUS: Final = {"Ray": "256", "Ray, full": "8"}
"""CPUs of its node. If a group needs them all, it waits up to a second after the last one was removed, until Ray looks
again."""


async def _measure_gangs(made: Environment, *, rounds: int, report: Callable[[str], None]) -> dict[str, list[float]]:
    """Gangs of 8 over 4 workers of 2 slots, and Ray's placement groups of 8 bundles on one node."""
    gang_ms: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name in ("ours", *_CPUS) if number % 2 == 0 else (*reversed(_CPUS), "ours"):
            report(f"{name} (gangs), round {number + 1} of {rounds}")
            async with AsyncExitStack() as stack:
                if name == "ours":
                    site = await stack.enter_async_context(opened())
                    await site.start("our_coordinator", url=site.url)
                    await site.worker("gang4", 2, workers=4)
                    near, where = await site.client("gang4"), {"pool": "gang4"}
                else:
                    near, where = await _theirs(stack, made, "raygang_app", _CPUS[name]), {}
                await near.ask("gang", size=8, times=1, **where)  # the first one is slower
                done = await near.ask("gang", size=8, times=5 if name == "Ray, full" else _FORMED, **where)
                gang_ms[name].append(done["form_s"] * 1000)
    return dict(gang_ms)


async def _rate(near: Child, what: str, seconds: float) -> float:
    await near.ask("closed", what=what, concurrency=CONCURRENCY, seconds=seconds / 2)  # the first ones are slower
    done = await near.ask("closed", what=what, concurrency=CONCURRENCY, seconds=seconds)
    return float(done["count"] / done["seconds"])


async def _ours(stack: AsyncExitStack) -> Child:
    site = await stack.enter_async_context(opened())
    await site.worker("one", 512)
    return await site.client("one")


async def _theirs(stack: AsyncExitStack, made: Environment, app: str, *arguments: str, tuned: bool = False) -> Child:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GANGLINE_BENCH_TUNED": "1" if tuned else "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        **({"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"} if tuned else {}),
    }
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gangline-bench-")))
    said = stack.enter_context((folder / "said").open("wb"))
    command = (made.python, "-m", f"bench.peers.apps.{app}", *arguments)
    return await stack.enter_async_context(
        await Child.run(
            command, name="Ray Serve", environment=environ, folder=str(ROOT), errors=said, patience_s=_START_S
        )
    )
