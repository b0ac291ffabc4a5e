"""The demo's last part: verdicts, counts and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...console.output import table
from ..acts.drive import Drive
from ..checks import calls as checks
from ..checks.calls import MAX_SHOWN, AtRest, Done
from ..fixtures.corpus import Expected
from ..fixtures.crew import Crew
from ..fixtures.pool import SLOTS
from ..fixtures.screen import Screen

if TYPE_CHECKING:
    from ..acts.calls import Show


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One claim and what speaks against it."""

    claim: str
    findings: Sequence[str]

    @property
    def text(self) -> str:
        if not self.findings:
            return self.claim
        shown = "; ".join(self.findings[:MAX_SHOWN])
        more = len(self.findings) - MAX_SHOWN
        return f"{self.claim}: NOT SO. {shown}{f'; and {more} more' if more > 0 else ''}"


def verdicts(show: Show, expected: dict[str, Expected], rest: AtRest) -> list[Verdict]:
    """Hold every claim against the facts."""
    drive, crew = show.drive, show.crew
    journals = {m.name: m.journal() for m in crew.members.values() if m.journal_file is not None}
    killed = frozenset({show.killed}) - {""}
    again = sum(checks.interrupted(journals[name]) for name in killed)
    records = sum(len(journal) for journal in journals.values())
    drained = crew.members[show.drained] if show.drained else None
    return [
        Verdict(
            claim=f"nothing is lost: {len(drive.done)} results, each equal to the local computation",
            findings=[*drive.failures, *checks.results_are_right(expected, drive.done, drive.given)],
        ),
        Verdict(
            claim=f"no worker was ever over its {SLOTS} slots (L1), in {records} records of {len(journals)} journals",
            findings=[*checks.never_over_capacity(journals, SLOTS), *checks.journals_add_up(journals)],
        ),
        Verdict(
            claim="the tasks themselves counted no more than that either",
            findings=checks.bodies_agree(drive.done, SLOTS),
        ),
        Verdict(
            claim=f"what began ended once (L2); kill -9 cut short {again} task{'s'[: again != 1]}, run again elsewhere",
            findings=[*checks.balanced(journals, killed), *([] if killed else ["no worker was killed"])],
        ),
        Verdict(
            claim="the drained worker granted nothing more, finished, and left with exit code 0 (L11)",
            findings=checks.drained_well(drained.name, journals[drained.name], drained.exit_code)
            if drained
            else ["no worker was drained"],
        ),
        Verdict(
            claim=f"while leases were held, ledger = limiters = gauge = {2 * SLOTS}, and nobody else got a slot",
            findings=show.problems,
        ),
        Verdict(
            claim="at rest ledger, limiters, heartbeats and gauges are all zero (L12)",
            findings=checks.all_zero(rest),
        ),
    ]


def print_work(screen: Screen, done: Sequence[Done], crew: Crew) -> None:
    """Who did how much, by which way."""
    screen.title("Who did what")
    ways = list(dict.fromkeys(one.way for one in done))
    rows = []
    for worker, counts in sorted(checks.per_worker(done).items()):
        member = crew.members.get(worker)
        end = "" if member is None else {0: "left", -9: "killed", None: "running"}.get(member.exit_code, "failed")
        rows.append((worker, *(str(counts.get(way, 0)) for way in ways), str(sum(counts.values())), end))
    screen.show(
        table(("WORKER", *(way.upper() for way in ways), "ALL", "END"), rows, right=(*map(str.upper, ways), "ALL"))
    )


def print_latencies(screen: Screen, drive: Drive) -> None:
    """From asking to the answer, waiting for a slot included."""
    screen.title("How long each took, in ms, waiting for a slot included")
    rows = []
    for way, seconds in drive.latencies():
        shares = [checks.percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
        rows.append((way, str(len(seconds)), *(f"{value:.1f}" for value in shares)))
    columns = ("WAY", "TASKS", "P50", "P90", "P99", "MAX")
    screen.show(table(columns, rows, right=columns[1:]))


def figures(show: Show) -> str:
    """Of the first part, for the last line."""
    done = show.drive.done
    megabytes = sum(one.size for one in done) / 1e6
    return f"{len(done)} tasks, {megabytes:.0f} MB, {show.crew.workers} workers, 1 killed, 1 drained"


def final_line(told: str, results: Sequence[Verdict], seconds: float) -> str:
    """`demo: ok ...` with the figures, or what failed."""
    failed = [verdict for verdict in results if verdict.findings]
    if failed:
        return f"demo: FAILED  {' | '.join(verdict.text for verdict in failed)}"
    return f"demo: ok  {told}, {seconds:.1f} s"
