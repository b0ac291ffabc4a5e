"""Durable tasks: all peers and Gangline in turn, each alone on the machine."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gangline.bench.figures import Measured, measured, ratios
from gangline.bench.process import ChildFailed

from .catalogue import OURS, OURS_MANY, PEERS, Peer, Run
from .cell import Cell, CellFailed, Plan, ResultCell, measure, measure_results
from .environments import Environment, NotInstalled, environment
from .servers import version_of

_GIVE_UP: Final = 2
"""A run that fails this often is left out."""

Report = Callable[[str], None]
T = TypeVar("T")


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
    results: dict[str, list[ResultCell]] = field(default_factory=dict[str, list[ResultCell]])
    """The same with results kept and awaited, of the runs that are measured so."""

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
        found = [
            measured(name, ratios(self._column(ours, "done_per_s"), self._column(best, "done_per_s")))
            for name, ours in (("durable_vs_best_peer", OURS.name), ("durable_many_vs_best_peer", OURS_MANY.name))
            if ours in self.cells
        ]
        starts = ratios(self._column(OURS.name, "start_p50_ms"), self._column(soonest, "start_p50_ms"))
        return [*found, measured("durable_start_p50_vs_best_peer", starts), *self._result_figures()]

    @property
    def best_results(self) -> str | None:
        """The peer's run that answers most per second; None: there is none."""
        rates = {name: statistics.median(self._answers(name, "answered_per_s")) for name in self._with_results()}
        return max(rates, key=rates.__getitem__) if rates else None

    @property
    def soonest_results(self) -> str | None:
        """The one that answers soonest."""
        times = {name: statistics.median(self._answers(name, "answer_p50_ms")) for name in self._with_results()}
        return min(times, key=times.__getitem__) if times else None

    def _result_figures(self) -> list[Measured]:
        best, soonest = self.best_results, self.soonest_results
        if best is None or soonest is None or OURS.name not in self.results:
            return []
        rates = ratios(self._answers(OURS.name, "answered_per_s"), self._answers(best, "answered_per_s"))
        times = ratios(self._answers(OURS.name, "answer_p50_ms"), self._answers(soonest, "answer_p50_ms"))
        return [measured("submit_result_c64", rates), measured("submit_result_p50_ms", times)]

    def _with_results(self) -> list[str]:
        return [run.name for peer in PEERS for run in peer.runs if run.durable and run.name in self.results]

    def _answers(self, name: str, column: str) -> list[float]:
        return [float(getattr(cell, column)) for cell in self.results[name]]

    def _durable(self) -> list[str]:
        runs = [run for peer in PEERS for run in peer.runs]
        return [run.name for run in runs if run.durable and run.name in self.cells]

    def _column(self, name: str, column: str) -> list[float]:
        return [float(getattr(cell, column)) for cell in self.cells[name]]


async def gather(peers: Sequence[Peer] = PEERS, *, report: Report) -> Field:
    """Install missing peers, and check which can run here."""
    found = Field(entrants=[Entrant(run=run, environment=None) for run in (OURS, OURS_MANY)])
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
    """Every run once per round, without results and then with them; the order changes from round to round."""
    missing = dict(found.missing)

    async def one(entrant: Entrant) -> Cell:
        cell = await measure(entrant.run, entrant.environment, plan)
        report(f"{entrant.run.name}: {cell.done_per_s:.0f}/s")
        return cell

    async def with_results(entrant: Entrant) -> ResultCell:
        cell = await measure_results(entrant.run, entrant.environment, plan)
        report(f"{entrant.run.name}, results awaited: {cell.answered_per_s:.0f}/s, {cell.answer_p50_ms:.2f} ms")
        return cell

    cells = await _rounds(found.entrants, one, rounds, missing, report)
    awaited = [entrant for entrant in found.entrants if entrant.run.results]
    results = await _rounds(awaited, with_results, rounds, missing, report)
    return Durable(cells=cells, missing=missing, versions=found.versions, results=results)


async def _rounds(
    entrants: Sequence[Entrant],
    do: Callable[[Entrant], Awaitable[T]],
    rounds: int,
    missing: dict[str, str],
    report: Report,
) -> dict[str, list[T]]:
    """The results of those that could be measured in each round; the others get into `missing`, with the reason."""
    found: dict[str, list[T]] = {}
    failures = dict.fromkeys((one.run.name for one in entrants), 0)
    for number in range(rounds):
        report(f"round {number + 1} of {rounds}")
        for entrant in entrants if number % 2 == 0 else entrants[::-1]:
            name = entrant.run.name
            while name not in missing:
                try:
                    found.setdefault(name, []).append(await do(entrant))
                    break
                except (CellFailed, ChildFailed) as error:
                    failures[name] += 1
                    report(f"{name} failed: {error}")
                    if failures[name] >= _GIVE_UP:
                        missing[name] = str(error)
    return {name: row for name, row in found.items() if len(row) == rounds}
