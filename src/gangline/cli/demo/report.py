"""The output at the end of the demo: verdicts, counts and latencies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...schemas.records.gangs import GangState
from ...testing.kit.journals import dead_stay_dead, drained_well, slots_kept
from ...testing.kit.tables import percentile
from ..console.output import Listing
from .calls import Drive, Show
from .checks import buried, counts_are_right, noticed, restarted, results_are_right
from .gangs import PAIR, PARTS, SIZE, GangShow
from .pools import ALL, SLOTS, Squeezed
from .screen import Screen
from .stage import Facts
from .tasks import TaskShow

MAX_SHOWN: Final = 5
"""How many violations of one kind are shown in full."""
CAPACITY: Final = "L1 capacity"
ENDED: Final = "L2, L4, L12 nothing leaks"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One claim and its violations."""

    claim: str
    findings: Sequence[str]

    @property
    def text(self) -> str:
        if not self.findings:
            return self.claim
        shown = "; ".join(self.findings[:MAX_SHOWN])
        more = len(self.findings) - MAX_SHOWN
        return f"{self.claim}: FALSE. {shown}{f'; and {more} more' if more > 0 else ''}"


def verdicts(show: Show, facts: Facts, expected: Mapping[str, Squeezed]) -> list[Verdict]:
    """Check every claim against the facts."""
    done, drained = show.drive.done, show.stage.started[show.drained]
    nobody = [] if facts.killed else ["no worker was killed"]
    return [
        Verdict(
            f"nothing is lost: {len(done)} results, each equal to the local computation",
            [*show.drive.failures, *results_are_right(expected, done, show.drive.given)],
        ),
        Verdict(
            f"no worker was ever over its {SLOTS} slots (L1), in {facts.records} records of {len(facts.journals)}"
            " journals",
            slots_kept(facts.journals, facts.killed, SLOTS),
        ),
        Verdict("the tasks themselves never counted more than that either", facts.broken(CAPACITY)),
        Verdict(
            f"every task ended once (L2); kill -9 interrupted {facts.interrupted}, rerun elsewhere",
            [*facts.broken(ENDED), *nobody],
        ),
        Verdict(
            "the drained worker granted nothing more, finished its tasks, and exited with code 0 (L11)",
            [*drained_well(show.drained, drained.journal(), drained.exit_code), *facts.broken("L11 drain")],
        ),
        Verdict(
            f"while leases were held, ledger = limiters = gauge = {2 * SLOTS}, and no other caller got a slot",
            show.problems,
        ),
        Verdict("at rest ledger, limiters, heartbeats and gauges are all zero (L12)", facts.held),
    ]


def gang_verdicts(show: GangShow, facts: Facts) -> list[Verdict]:
    """Check every claim against the facts."""
    audit, after_s = show.stage.audit, show.told_after_s
    events = [event for _, event in show.stage.events]
    first, second = [*show.turns, "", ""][:2]
    turns = [(first, GangState.FORMED), (first, GangState.TEARING_DOWN), (second, GangState.FORMED)]
    return [
        Verdict(
            f"the gang counted {show.expected.get(ALL, 0)} words, the same as this process; so did the two gangs"
            " together",
            [
                *counts_are_right(show.expected, show.first, wanted=PARTS, size=SIZE),
                *counts_are_right(show.expected, show.pairs, wanted=PAIR, size=PAIR),
            ],
        ),
        Verdict(
            f"kill -9 interrupted {facts.interrupted} of a gang; {after_s * 1000:.0f} ms later it was torn down, and "
            "generation 2 finished",
            [
                *noticed(show.torn, generation=1, ranks=show.killed_ranks, after_s=after_s),
                *restarted(show.first, generations=2),
            ],
        ),
        Verdict(
            f"members were only granted all together (L7), in {audit.revisions} revisions of the ledger", audit.broken
        ),
        Verdict(
            "each generation was formed and torn down once, and nothing started after its teardown (L8)",
            [*audit.deposed, *audit.announced(events), *dead_stay_dead(facts.journals), *facts.broken("L7, L8 gangs")],
        ),
        Verdict(
            "of two gangs on three slots, one ran first and the other one after it",
            [*show.problems, *(audit.in_turn(turns) if len(show.turns) == PAIR else ["not two formed"])],
        ),
        Verdict(
            "gangs never had more slots than there are (L1), and every task ended once (L2)",
            [*slots_kept(facts.journals, facts.killed), *facts.broken(CAPACITY, ENDED)],
        ),
        Verdict("after the gangs ledger, limiters, heartbeats and gauges are zero again (L12)", facts.held),
    ]


def task_verdicts(show: TaskShow, facts: Facts, expected: Mapping[str, Squeezed], left: list[str]) -> list[Verdict]:
    """Check every claim against the facts; `left`: what is left in the stream."""
    facts.history.requests = [*show.requests.values(), *show.answers.values()]
    facts.history.results = {job: ("done", one.value) for job, one in show.answers.items() if one.ok}
    letters = {letter.job: str(letter.reason) for letter in show.letters}
    return [
        Verdict(
            f"every acknowledged task was done: {len(show.drive.done)} correct results (L10)",
            [
                *show.drive.failures,
                *results_are_right(expected, show.drive.done, {"submit": len(show.requests)}),
                *([] if show.worker_killed and show.dispatcher_killed else ["no process was killed"]),
            ],
        ),
        Verdict(
            f"none was started twice, except the {facts.interrupted.split()[0]} that kill -9 interrupted",
            facts.broken("L10 durable tasks", "answers are right"),
        ),
        Verdict(
            f"the other dispatcher took over from the one that was killed: {show.pause_s:.1f} s without a result",
            [] if show.taken_over else ["it did not take the queue"],
        ),
        Verdict(
            "the two tasks that must fail are dead letters, each with its reason, and nothing is left behind",
            [*buried(show.poisoned, letters), *left],
        ),
        Verdict(
            "no worker exceeded its slots (L1), every task ended once (L2), and all is zero again (L12)",
            [*slots_kept(facts.journals, facts.killed), *facts.broken(CAPACITY, ENDED), *facts.held],
        ),
    ]


def print_work(screen: Screen, drive: Drive, facts: Facts) -> None:
    """Tasks by worker and way."""
    screen.title("Who did what")
    counts = Counter((one.worker, one.way) for one in drive.done)
    rows = []
    for process in facts.processes:
        each = [counts[process.name, way] for way in drive.given]
        end = "killed" if process.name in facts.killed else "left" if process.exit_code == 0 else "failed"
        rows.append((process.name, *map(str, each), str(sum(each)), end))
    ways = [way.upper() for way in drive.given]
    screen.show(Listing(("WORKER", *ways, "ALL", "END"), rows, right=(*ways, "ALL")))


def print_latencies(screen: Screen, drive: Drive) -> None:
    """Latencies from the request to the answer, including the wait for a slot."""
    screen.title("Latency in ms, including the wait for a slot")
    rows = []
    for way, seconds in drive.latencies():
        shares = [percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
        rows.append((way, str(len(seconds)), *(f"{value:.1f}" for value in shares)))
    columns = ("WAY", "TASKS", "P50", "P90", "P99", "MAX")
    screen.show(Listing(columns, rows, right=columns[1:]))


def figures(show: Show, facts: Facts, gangs: GangShow, tasks: TaskShow) -> str:
    """Figures for the last line."""
    done = show.drive.done
    megabytes = sum(one.answer.size for one in done) / 1e6
    formed = gangs.stage.audit.formed
    return (
        f"{len(done)} tasks, {megabytes:.0f} MB, {len(facts.processes)} workers, 1 killed, 1 drained; "
        f"{len(formed)} gangs, {sum(map(len, formed.values()))} generations, 1 member killed; "
        f"{len(tasks.drive.done)} durable tasks, 1 worker and 1 dispatcher killed, {len(tasks.letters)} dead letters; "
        "0 lost, 0 over capacity"
    )


def final_line(told: str, results: Sequence[Verdict], seconds: float) -> str:
    """`demo: ok ...` with the figures, or what failed."""
    failed = [verdict for verdict in results if verdict.findings]
    if failed:
        return f"demo: FAILED  {' | '.join(verdict.text for verdict in failed)}"
    return f"demo: ok  {told}, {seconds:.1f} s"
