"""The verdicts on the demo's second part."""

from __future__ import annotations

from ....schemas.messages.gangs import GangEventKind
from ..acts.gangs import PAIR, PARTS, SIZE, GangShow
from ..checks import calls as checks
from ..checks import gangs as gang_checks
from ..checks.calls import AtRest
from ..fixtures.gang_pool import ALL
from .calls import Verdict


def gang_verdicts(show: GangShow, rest: AtRest) -> list[Verdict]:
    """Hold every claim against the facts."""
    log = show.log
    events = [heard.event for heard in log.heard]
    journals = {m.name: m.journal() for m in show.crew.members.values() if m.journal_file is not None}
    killed = frozenset({show.killed}) - {""}
    again = sum(checks.interrupted(journals[name]) for name in killed)
    torn = log.of(GangEventKind.TORN_DOWN, show.gang)
    after_s = torn[0].at - show.killed_at if torn else 0.0
    words = show.expected.get(ALL, 0)
    return [
        Verdict(
            claim=f"the gang counted {words} words, as this process did by itself; so did the pair together",
            findings=[
                *gang_checks.counts_are_right(show.expected, show.first, wanted=PARTS, size=SIZE),
                *gang_checks.counts_are_right(show.expected, show.pairs, wanted=PAIR, size=PAIR),
            ],
        ),
        Verdict(
            claim=f"kill -9 cut short {again} task{'s'[: again != 1]} of a gang; {after_s * 1000:.0f} ms later it was "
            "torn down, and generation 2 finished",
            findings=[
                *gang_checks.noticed(
                    torn[0].event if torn else None, generation=1, ranks=show.killed_ranks, after_s=after_s
                ),
                *gang_checks.restarted(show.first, generations=2),
            ],
        ),
        Verdict(
            claim=f"members were only ever granted all together (L7), in {len(log.revisions)} revisions of the ledger",
            findings=[*gang_checks.atomic(log.revisions), *gang_checks.within_slots(log.revisions)],
        ),
        Verdict(
            claim="each generation came once and went once, and nothing started in one that had gone (L8)",
            findings=[*gang_checks.fated(log.revisions, events), *gang_checks.dead_stay_dead(journals)],
        ),
        Verdict(
            claim="of two gangs on three slots one ran and one waited, and then had its turn",
            findings=[
                *show.problems,
                *(gang_checks.in_turn(log.revisions, *show.turns) if len(show.turns) == PAIR else ["not two formed"]),
            ],
        ),
        Verdict(
            claim="gangs never had more slots than there are (L1), and what began ended once (L2)",
            findings=[
                *checks.never_over_capacity(journals, None),
                *checks.journals_add_up(journals),
                *checks.balanced(journals, killed),
            ],
        ),
        Verdict(
            claim="after the gangs ledger, limiters, heartbeats and gauges are zero again (L12)",
            findings=checks.all_zero(rest),
        ),
    ]


def gang_figures(show: GangShow) -> str:
    """For the last line."""
    formed = show.log.of(GangEventKind.FORMED)
    return f"{len({heard.event.gang for heard in formed})} gangs, {len(formed)} generations, 1 member killed"
