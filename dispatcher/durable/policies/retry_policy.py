"""What an error means for a durable task: how many attempts, how long each may run, how long to wait in between.

The first value counts that is set by the submission, the endpoint's route, the task's declaration or the dispatcher's
settings, in this order.

Errors of the request itself are permanent, since the same message would fail again; so are errors that a task declares
permanent (DoNotRetry, `retry_on`, `no_retry_on`). If it may have run, it counts as an attempt; how many there are
depends on whether the task is declared idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from ....runtime.timers import exponential_s
from ....schemas.errors import base as e
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import DeadReason
from ....schemas.records.routes import QueueRules
from ....schemas.records.workers import TaskPolicy
from .settings import DispatcherSettings

REFUSED_FIRST_S: Final = 0.025
REFUSED_MOST_S: Final = 0.5

T = TypeVar("T")

UNDECLARED: Final = TaskPolicy()


def _first(default: T, *given: T | None) -> T:
    for value in given:
        if value is not None:
            return value
    return default


def max_attempts(
    task: Submission,
    rules: QueueRules,
    settings: DispatcherSettings,
    *,
    once: bool = False,
    declared: TaskPolicy = UNDECLARED,
) -> int:
    """The number of the last attempt, not counting those from before the task was a dead letter.

    Args:
        once: the task is not declared idempotent. If nobody sets a number, it is started once.
        declared: what the task declares.
    """
    if task.idempotent is not None:
        once = not task.idempotent
    default = 1 if once else settings.max_attempts
    return task.attempts + _first(default, task.max_attempts, rules.max_attempts, declared.max_attempts)


def timeout_s(task: Submission, rules: QueueRules) -> float | None:
    """None: an attempt may run for as long as the task declares. Its worker stops it then."""
    return task.timeout_s if task.timeout_s is not None else rules.timeout_s


def result_ttl_s(
    task: Submission, rules: QueueRules, settings: DispatcherSettings, *, declared: TaskPolicy = UNDECLARED
) -> float:
    return _first(settings.result_ttl_s, task.result_ttl_s, rules.result_ttl_s, declared.result_ttl_s)


def backoff_s(
    task: Submission,
    rules: QueueRules,
    settings: DispatcherSettings,
    *,
    attempts: int,
    draw: float,
    declared: TaskPolicy = UNDECLARED,
) -> float:
    """Seconds between the failure of this attempt and the next one: doubles each time, up to a maximum. Jitter shortens
    it by up to half, so that tasks that failed together are not retried together."""
    first = _first(settings.backoff_s, task.backoff_s, rules.backoff_s, declared.backoff_s)
    most = _first(settings.backoff_max_s, rules.backoff_max_s)
    # A task may ask for a longer first wait than the maximum.
    return exponential_s(first, max(first, most), attempts - task.attempts - 1) * (1.0 - draw / 2)


def refused_s(refusals: int) -> float:
    """Seconds until a task that could not be started is tried again: 0 the first time."""
    return 0.0 if refusals <= 1 else exponential_s(REFUSED_FIRST_S, REFUSED_MOST_S, refusals - 2)


@dataclass(frozen=True, slots=True)
class Permanent:
    """A dead letter at once."""

    reason: DeadReason


@dataclass(frozen=True, slots=True)
class Retry:
    """Counts as an attempt; a dead letter after the last one."""

    reason: DeadReason
    """Why it is dead, if it was the last attempt."""
    at_once: bool = False
    """Whether the next attempt need not wait the first time, since the task is not to blame."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Nothing ran: it goes back to its place, and is not counted."""


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
    e.InvalidSchedule: Permanent(DeadReason.MALFORMED),
    # It ran, or may have run.
    e.TaskError: _FAILED,
    e.TaskCrashed: Retry(DeadReason.CRASHED),
    e.InvalidResult: Permanent(DeadReason.INVALID_RESULT),
    e.OutcomeUnknown: Retry(DeadReason.CRASHED),
    e.WorkerLost: Retry(DeadReason.CRASHED, at_once=True),
    e.DeadlineExceeded: Retry(DeadReason.TIMED_OUT),
    e.StreamBroken: _FAILED,
    # No worker could run it. (Not `Saturated` forever: see PoolSeen.largest.)
    e.Unavailable: _NOT_STARTED,
    e.LeaseError: _NOT_STARTED,
    e.ClosedError: _NOT_STARTED,
    # Unknown: an error of a newer worker.
    e.GanglineError: _FAILED,
}
"""The nearest base class of an error counts."""


_SAYS_WHETHER_IT_STARTED: Final = (e.TaskError, e.OutcomeUnknown, e.DeadlineExceeded, e.StreamBroken)


def classify(error: e.GanglineError) -> Verdict:
    """What happens to a task whose attempt ended with this error. An error that says "nothing started" and is not
    permanent does not count as an attempt (an unknown one does: it could say so forever). An error of a kind that
    usually starts nothing counts if it says that something may have started.
    """
    if isinstance(error, e.TaskFailed) and not error.retryable:
        return _NON_RETRYABLE
    verdict = next(VERDICTS[each] for each in type(error).__mro__ if each in VERDICTS)  # the root class is in VERDICTS
    match verdict:
        case NotStarted() if error.may_have_started:
            return _FAILED
        case Retry() if isinstance(error, _SAYS_WHETHER_IT_STARTED) and not error.may_have_started:
            return _NOT_STARTED
        case _:
            return verdict
