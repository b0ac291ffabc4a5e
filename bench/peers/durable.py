"""Durable tasks: all peers and Gangline in turn, each alone on the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gangline.bench.figures import Measured, measured, ratios
from gangline.bench.process import ChildFailed

from .catalogue import OURS, PEERS, Peer, Run
from .cell import Cell, CellFailed, Plan, measure
from .environments import Environment, NotInstalled, environment
from .servers import version_of

_GIVE_UP: Final = 2
"""A run that fails this often is left out."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One run of one system, and its environment; None: ours."""

    run: Run
    environment: Environment | None


@dataclass(slots=True, kw_only=True)
class Field:
    """All runs, and the systems that cannot take part."""

    entrants: list[Entrant] = field(default_factory=list[Entrant])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    """By system, the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """The results: cells by name of the run, one per round."""

    cells: dict[str, list[Cell]]
    missing: dict[str, str]
    versions: dict[str, str]

    @property
    def best(self) -> str | None:
        """The durable peer's run with the highest median rate; None: there is none."""
        rates = {name: self.rate(name) for name in self._durable()}
        return max(rates, key=rates.__getitem__) if rates else None

    @property
    def soonest(self) -> str | None:
        """The one with the shortest time to a start."""
        times = {name: statistics.median(self._column(name, "start_p50_ms")) for name in self._durable()}
        return min(times, key=times.__getitem__) if times else None

    def rate(self, name: str) -> float:
        return statistics.median(self._column(name, "done_per_s"))

    def figures(self) -> list[Measured]:
        best, soonest = self.best, self.soonest
        if best is None or soonest is None or OURS.name not in self.cells:
            return []
        rates = ratios(self._column(OURS.name, "done_per_s"), self._column(best, "done_per_s"))
        starts = ratios(self._column(OURS.name, "start_p50_ms"), self._column(soonest, "start_p50_ms"))
        return [measured("durable_vs_best_peer", rates), measured("durable_start_p50_vs_best_peer", starts)]

    def _durable(self) -> list[str]:
        runs = [run for peer in PEERS for run in peer.runs]
        return [run.name for run in runs if run.durable and run.name in self.cells]

    def _column(self, name: str, column: str) -> list[float]:
        return [float(getattr(cell, column)) for cell in self.cells[name]]


async def gather(peers: Sequence[Peer] = PEERS, *, report: Report) -> Field:
    """Install missing peers, and check which can run here."""
    found = Field(entrants=[Entrant(run=OURS, environment=None)])
    for peer in peers:
        report(f"looking at {peer.name}")
        try:
            for server in {run.server for run in peer.runs}:
                found.versions[server.value] = await version_of(server)
            made = await environment(peer.name, peer.requirements)
        except NotInstalled as error:
            found.missing[peer.name] = str(error)
            report(f"without {peer.name}: {error}")
            continue
        for package, version in (await made.versions(peer.packages)).items():
            found.versions[f"{peer.name}: {package}"] = version
        found.entrants += [Entrant(run=run, environment=made) for run in peer.runs]
    return found


async def measure_durable(found: Field, *, rounds: int, plan: Plan, report: Report) -> Durable:
    """Every run once per round; the order changes from round to round."""
    cells: dict[str, list[Cell]] = {}
    missing, failures = dict(found.missing), dict.fromkeys((one.run.name for one in found.entrants), 0)
    for number in range(rounds):
        for entrant in found.entrants if number % 2 == 0 else found.entrants[::-1]:
            name = entrant.run.name
            while name not in missing:
                try:
                    cell = await measure(entrant.run, entrant.environment, plan)
                except (CellFailed, ChildFailed) as error:
                    failures[name] += 1
                    report(f"{name} failed: {error}")
                    if failures[name] >= _GIVE_UP:
                        missing[name] = str(error)
                else:
                    cells.setdefault(name, []).append(cell)
                    report(f"round {number + 1} of {rounds}: {name}: {cell.done_per_s:.0f}/s")
                    break
    whole = {name: row for name, row in cells.items() if len(row) == rounds}
    return Durable(cells=whole, missing=missing, versions=found.versions)
