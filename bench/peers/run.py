"""One run of everything that needs peers."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from gangline.bench.figures import machine, rounded
from gangline.bench.process import ChildFailed

from .catalogue import OURS, OURS_MANY, PEERS, RAY_SERVE, RESULTS_SAY, Run
from .cell import Cell, Plan, ResultCell
from .durable import Durable, gather, measure_durable
from .environments import NotInstalled, environment
from .ray_serve import RayRates, measure_ray_serve

NAMES: Final = (
    "durable_vs_best_peer",
    "durable_many_vs_best_peer",
    "durable_start_p50_vs_best_peer",
    "submit_result_c64",
    "submit_result_p50_ms",
    "gang8_form_vs_ray_pg",
    "rayserve_call_ratio",
    "rayserve_choose_ratio",
)
"""Figures that it produces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersPlan:
    """Durations of a run."""

    rounds: int = 5
    cell: Plan = field(default_factory=Plan)
    ray_s: float = 1.0
    """Seconds of each load on Ray Serve, and on Gangline."""


FULL: Final = PeersPlan()
QUICK: Final = PeersPlan(rounds=3, cell=Plan(burst_s=0.5, trickle_s=1.0), ray_s=0.5)


async def run(plan: PeersPlan = FULL, *, only: tuple[str, ...] = (), report: Callable[[str], None]) -> dict[str, Any]:
    """Measure; what cannot be measured is in `missing`, with the reason.

    Args:
        only: names of peers; all if empty.
    """
    peers = tuple(peer for peer in PEERS if not only or peer.name in only)
    about = _about(plan)
    found = await gather(peers, report=report)
    durable = await measure_durable(found, rounds=plan.rounds, plan=plan.cell, report=report)
    ray: RayRates | None = None
    if not only or RAY_SERVE.name in only:
        try:
            ray = await measure_ray_serve(rounds=plan.rounds, seconds=plan.ray_s, report=report)
            durable.versions["ray"] = await _version_of_ray()
        except (NotInstalled, ChildFailed) as error:
            durable.missing[RAY_SERVE.name] = str(error)
            report(f"without {RAY_SERVE.name}: {error}")
    return to_json(durable, ray, about)


async def _version_of_ray() -> str:
    made = await environment(RAY_SERVE.name, RAY_SERVE.requirements)
    return (await made.versions(RAY_SERVE.packages))["ray"]


def to_json(durable: Durable, ray: RayRates | None, about: dict[str, Any]) -> dict[str, Any]:
    """`figures` by name, null where not measured; `durable`: each run, with its guarantees."""
    figures = durable.figures() + ([] if ray is None else ray.figures())
    by_name = {item.figure.name: item for item in figures}
    runs = [OURS, OURS_MANY, *(run for peer in PEERS for run in peer.runs)]
    return {
        "figures": {name: rounded(by_name[name].value) if name in by_name else None for name in NAMES},
        "spread": {name: item.spread() for name, item in by_name.items()},
        "durable": {run.name: _row(run, durable.cells[run.name]) for run in runs if run.name in durable.cells},
        "results": {
            run.name: {**_columns(durable.results[run.name]), "says": RESULTS_SAY.get(run.name, run.says)}
            for run in runs
            if run.name in durable.results
        },
        "best": durable.best,
        "soonest": durable.soonest,
        "best_results": durable.best_results,
        "soonest_results": durable.soonest_results,
        "ray_serve": {} if ray is None else {name: _stats(row) for name, row in ray.per_s.items()},
        "gang8_ms": {} if ray is None else {name: _stats(row) for name, row in ray.gang_ms.items()},
        "missing": durable.missing,
        "versions": durable.versions,
        "about": about,
    }


def _about(plan: PeersPlan) -> dict[str, Any]:
    return {
        **machine(),
        "python": platform.python_version(),
        "rounds": plan.rounds,
        **asdict(plan.cell),
    }


def _row(run: Run, cells: list[Cell]) -> dict[str, Any]:
    return {
        **_columns(cells),
        "stores": run.stores,
        "durable": run.durable,
        "acks": run.acks,
        "says": run.says,
    }


def _columns(cells: Sequence[Cell | ResultCell]) -> dict[str, Any]:
    columns = [each.name for each in fields(cells[0]) if each.name != "cpu_us"]
    parts = {name for cell in cells for name in cell.cpu_us}
    return {
        **{column: _stats([float(getattr(cell, column)) for cell in cells]) for column in columns},
        "cpu_us": {part: round(statistics.median([cell.cpu_us[part] for cell in cells]), 1) for part in sorted(parts)},
    }


def _stats(row: list[float]) -> dict[str, float]:
    return {"median": rounded(statistics.median(row)), "low": rounded(min(row)), "high": rounded(max(row))}
