"""The output at the end of the demo: verdicts, counts and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.messages.gangs import GangEventKind
from ..console.output import table
from .acts.calls import Drive, Show
from .acts.gangs import PAIR, PARTS, SIZE, GangShow
from .acts.tasks import TaskShow
from .checks import calls as checks
from .checks import gangs as gang_checks
from .checks import tasks as task_checks
from .checks.calls import MAX_SHOWN, AtRest, Done
from .fixtures.corpus import Expected
from .fixtures.crew import Crew
from .fixtures.gang_pool import ALL
from .fixtures.pool import SLOTS
from .fixtures.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
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


def verdicts(show: Show, expected: dict[str, Expected], rest: AtRest) -> list[Verdict]:
    """Check every claim against the facts."""
    drive, crew = show.drive, show.crew
    journals = crew.journals()
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
            claim="the tasks themselves never counted more either",
            findings=checks.bodies_agree(drive.done, SLOTS),
        ),
        Verdict(
            claim=f"every task ended once (L2); kill -9 interrupted {again} task{'s'[: again != 1]}, rerun elsewhere",
            findings=[*checks.balanced(journals, killed), *([] if killed else ["no worker was killed"])],
        ),
        Verdict(
            claim="the drained worker granted nothing more, finished its tasks, and exited with code 0 (L11)",
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


def gang_verdicts(show: GangShow, rest: AtRest) -> list[Verdict]:
    """Check every claim against the facts."""
    log = show.log
    events = [heard.event for heard in log.heard]
    journals = show.crew.journals()
    killed = frozenset({show.killed}) - {""}
    again = sum(checks.interrupted(journals[name]) for name in killed)
    torn = log.of(GangEventKind.TORN_DOWN, show.gang)
    after_s = torn[0].at - show.killed_at if torn else 0.0
    words = show.expected.get(ALL, 0)
    return [
        Verdict(
            claim=f"the gang counted {words} words, the same as this process; so did the two gangs together",
            findings=[
                *gang_checks.counts_are_right(show.expected, show.first, wanted=PARTS, size=SIZE),
                *gang_checks.counts_are_right(show.expected, show.pairs, wanted=PAIR, size=PAIR),
            ],
        ),
        Verdict(
            claim=f"kill -9 interrupted {again} task{'s'[: again != 1]} of a gang; {after_s * 1000:.0f} ms later "
            "it was torn down, and generation 2 finished",
            findings=[
                *gang_checks.noticed(
                    torn[0].event if torn else None, generation=1, ranks=show.killed_ranks, after_s=after_s
                ),
                *gang_checks.restarted(show.first, generations=2),
            ],
        ),
        Verdict(
            claim=f"members were only granted all together (L7), in {len(log.revisions)} revisions of the ledger",
            findings=[*gang_checks.atomic(log.revisions), *gang_checks.within_slots(log.revisions)],
        ),
        Verdict(
            claim="each generation was formed and torn down once, and nothing started after its teardown (L8)",
            findings=[*gang_checks.fated(log.revisions, events), *gang_checks.dead_stay_dead(journals)],
        ),
        Verdict(
            claim="of two gangs on three slots, one ran first and the other one after it",
            findings=[
                *show.problems,
                *(gang_checks.in_turn(log.revisions, *show.turns) if len(show.turns) == PAIR else ["not two formed"]),
            ],
        ),
        Verdict(
            claim="gangs never had more slots than there are (L1), and every task ended once (L2)",
            findings=checks.slots_kept(journals, killed),
        ),
        Verdict(
            claim="after the gangs ledger, limiters, heartbeats and gauges are zero again (L12)",
            findings=checks.all_zero(rest),
        ),
    ]


def task_verdicts(show: TaskShow, expected: dict[str, Expected], rest: AtRest) -> list[Verdict]:
    """Check every claim against the facts."""
    journals = show.crew.journals()
    killed = frozenset({show.worker_killed}) - {""}
    again = sum(checks.interrupted(journals[name]) for name in killed)
    letters = {letter.job: str(letter.reason) for letter in show.letters}
    left = show.left.messages if show.left is not None else -1
    return [
        Verdict(
            claim=f"every acknowledged task was done: {len(show.done)} correct results (L10)",
            findings=[
                *show.failures,
                *checks.results_are_right(expected, show.done, {"submit": len(show.given)}),
                *([] if show.worker_killed and show.dispatcher_killed else ["nobody was killed"]),
            ],
        ),
        Verdict(
            claim=f"none was started twice, except the {again} that kill -9 interrupted",
            findings=task_checks.started_once(show.given, journals, killed, show.answered),
        ),
        Verdict(
            claim=f"the other dispatcher took over from the one that was killed: {show.pause_s:.1f} s without a result",
            findings=[] if show.pause_s else ["no result came after that"],
        ),
        Verdict(
            claim="the two tasks that must fail are dead letters, each with its reason, and nothing is left behind",
            findings=[
                *task_checks.buried(show.poisoned, letters),
                *([f"{left} messages are left in the stream"] if left else []),
            ],
        ),
        Verdict(
            claim="no worker exceeded its slots (L1), every task ended once (L2), and all is zero again (L12)",
            findings=[*checks.slots_kept(journals, killed), *checks.all_zero(rest)],
        ),
    ]


def print_work(screen: Screen, done: Sequence[Done], crew: Crew) -> None:
    """Tasks by worker and way."""
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
    """Latencies from the request to the answer, including the wait for a slot."""
    screen.title("Latency in ms, including the wait for a slot")
    rows = []
    for way, seconds in drive.latencies():
        shares = [checks.percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
        rows.append((way, str(len(seconds)), *(f"{value:.1f}" for value in shares)))
    columns = ("WAY", "TASKS", "P50", "P90", "P99", "MAX")
    screen.show(table(columns, rows, right=columns[1:]))


def figures(show: Show, gangs: GangShow, tasks: TaskShow) -> str:
    """Figures for the last line."""
    done = show.drive.done
    megabytes = sum(one.size for one in done) / 1e6
    formed = gangs.log.of(GangEventKind.FORMED)
    return (
        f"{len(done)} tasks, {megabytes:.0f} MB, {show.crew.workers} workers, 1 killed, 1 drained; "
        f"{len({heard.event.gang for heard in formed})} gangs, {len(formed)} generations, 1 member killed; "
        f"{len(tasks.done)} durable tasks, 1 worker and 1 dispatcher killed, {len(tasks.letters)} dead letters; "
        "0 lost, 0 over capacity"
    )


def final_line(told: str, results: Sequence[Verdict], seconds: float) -> str:
    """`demo: ok ...` with the figures, or what failed."""
    failed = [verdict for verdict in results if verdict.findings]
    if failed:
        return f"demo: FAILED  {' | '.join(verdict.text for verdict in failed)}"
    return f"demo: ok  {told}, {seconds:.1f} s"
