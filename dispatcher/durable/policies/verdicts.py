"""What an error means for a durable task: dead at once, worth another try, or as if nothing had been tried.

Errors of the request itself are permanent: the same message would fail again; so is what a task itself calls so
(NonRetryable). What may have run is counted as an attempt; how many there are depends on whether the task calls itself
idempotent, see retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ....schemas.errors import base as e
from ....schemas.errors import tasks as t
from ....schemas.records.jobs import DeadReason


@dataclass(frozen=True, slots=True)
class Permanent:
    """A dead letter at once."""

    reason: DeadReason


@dataclass(frozen=True, slots=True)
class Retry:
    """Counts as an attempt; a dead letter after the last."""

    reason: DeadReason
    """Of its death, if it was the last."""
    at_once: bool = False
    """The task is not to blame: the first time, the next try does not wait."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Nothing ran: back to its place, and not counted."""


Verdict = Permanent | Retry | NotStarted

_NOT_STARTED: Final = NotStarted()
_FAILED: Final = Retry(DeadReason.FAILED)
_NON_RETRYABLE: Final = Permanent(DeadReason.FAILED)

VERDICTS: Final[dict[type[e.GanglineError], Verdict]] = {
    # The request is wrong.
    e.InvalidRequest: Permanent(DeadReason.MALFORMED),
    e.UnknownMethod: Permanent(DeadReason.UNKNOWN_METHOD),
    e.InvalidArguments: Permanent(DeadReason.INVALID_ARGUMENTS),
    e.PayloadTooLarge: Permanent(DeadReason.INVALID_ARGUMENTS),
    t.InvalidSchedule: Permanent(DeadReason.MALFORMED),
    # It ran, or may have run.
    e.TaskError: _FAILED,
    e.TaskCrashed: Retry(DeadReason.CRASHED),
    e.InvalidResult: Permanent(DeadReason.INVALID_RESULT),
    e.OutcomeUnknown: Retry(DeadReason.CRASHED),
    e.WorkerLost: Retry(DeadReason.CRASHED, at_once=True),
    e.DeadlineExceeded: Retry(DeadReason.TIMED_OUT),
    e.StreamBroken: _FAILED,
    # There was nobody to run it. (Not `Saturated` for ever: see PoolSeen.largest.)
    e.Unavailable: _NOT_STARTED,
    e.LeaseError: _NOT_STARTED,
    e.ClosedError: _NOT_STARTED,
    # What we do not know: a newer worker's.
    e.GanglineError: _FAILED,
}
"""The nearest class of an error counts."""


_SAYS_WHETHER_IT_STARTED: Final = (e.TaskError, e.OutcomeUnknown, e.DeadlineExceeded, e.StreamBroken)


def classify(error: e.GanglineError) -> Verdict:
    """What becomes of a task whose try ended so.

    An error that says "nothing started" and is not permanent is not an attempt (one that we do not know is: it could
    say so for ever), and one of a kind that usually starts nothing is one if it says that something may have.
    """
    if isinstance(error, e.TaskFailed) and not error.retryable:
        return _NON_RETRYABLE
    verdict = next(VERDICTS[each] for each in type(error).__mro__ if each in VERDICTS)  # the base is in it
    match verdict:
        case NotStarted() if error.may_have_started:
            return _FAILED
        case Retry() if isinstance(error, _SAYS_WHETHER_IT_STARTED) and not error.may_have_started:
            return _NOT_STARTED
        case _:
            return verdict
