"""The verdicts on the demo's third part."""

from __future__ import annotations

from ..acts.tasks import TaskShow
from ..checks import calls as checks
from ..checks import tasks as task_checks
from ..checks.calls import AtRest
from ..fixtures.corpus import Expected
from .calls import Verdict


def task_verdicts(show: TaskShow, expected: dict[str, Expected], rest: AtRest) -> list[Verdict]:
    """Hold every claim against the facts."""
    journals = {m.name: m.journal() for m in show.crew.members.values() if m.journal_file is not None}
    killed = frozenset({show.worker_killed}) - {""}
    again = sum(checks.interrupted(journals[name]) for name in killed)
    letters = {letter.job: str(letter.reason) for letter in show.letters}
    left = show.left.messages if show.left is not None else -1
    return [
        Verdict(
            claim=f"every task that was acknowledged was done: {len(show.done)} right results (L10)",
            findings=[
                *show.failures,
                *checks.results_are_right(expected, show.done, {"submit": len(show.given)}),
                *([] if show.worker_killed and show.dispatcher_killed else ["nobody was killed"]),
            ],
        ),
        Verdict(
            claim=f"none was started twice, but the {again} that kill -9 cut short",
            findings=task_checks.started_once(show.given, journals, killed, show.answered),
        ),
        Verdict(
            claim=f"the other dispatcher took over from the one that was killed: {show.pause_s:.1f} s without a result",
            findings=[] if show.pause_s else ["no result came after that"],
        ),
        Verdict(
            claim="the two that could not be done are dead letters, each with its reason, and nothing is left behind",
            findings=[
                *task_checks.buried(show.poisoned, letters),
                *([f"{left} messages are left in the stream"] if left else []),
            ],
        ),
        Verdict(
            claim="no worker was over its slots (L1), what began ended once (L2), and all is zero again (L12)",
            findings=[
                *checks.never_over_capacity(journals, None),
                *checks.journals_add_up(journals),
                *checks.balanced(journals, killed),
                *checks.all_zero(rest),
            ],
        ),
    ]


def task_figures(show: TaskShow) -> str:
    """For the last line."""
    return f"{len(show.done)} durable tasks, 1 worker and 1 dispatcher killed, {len(show.letters)} dead letters"
