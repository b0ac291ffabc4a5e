"""Outcomes of failed attempts, and whether a retry is safe. Pure.

=============  ==========================================================  =======================================
outcome        how it is known                                             retry
=============  ==========================================================  =======================================
UNSENT         there was no connection                                     yes: nothing was sent
UNHEARD        the server answered 503 (no responders)                     yes: nothing was received
UNSEEN         CHECK: the worker never saw it, and now rejects it          yes: nothing started
FULL           REJECTED full                                               yes
DRAINING       REJECTED draining                                           yes
LIMITED        REJECTED limited                                            yes
STALE          REJECTED stale                                              yes
LATE           REJECTED expired                                            yes, if there is time left
NOT_HERE       REJECTED unknown_job                                        yes: nothing started
SLOW           a reservation was not answered, and was released            yes
GONE           the worker left or died before anything was sent            yes
LOST           the worker disappeared and had (or may have had) it         only if the task is idempotent
FORGOTTEN      CHECK: it ran, but its answer is no longer kept             only if the task is idempotent
TIMED_OUT      it did not end within its `timeout_s`, and was cancelled    only if the task is idempotent
=============  ==========================================================  =======================================
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, Final

from ...schemas.errors.base import (
    DeadlineExceeded,
    Disconnected,
    Draining,
    GanglineError,
    LeaseBusy,
    ResultLost,
    StaleEpoch,
    WorkerLost,
)
from ...schemas.wire.frames import Reason


class TryOutcome(Enum):
    """Why an attempt failed. The value is used in texts."""

    UNSENT = "not sent: no connection to the server"
    UNHEARD = "nobody listens there"
    UNSEEN = "the worker never received it"
    FULL = "the worker is full"
    LIMITED = "the limit that the task declares is reached"
    DRAINING = "the worker is draining"
    STALE = "the worker has a newer epoch"
    LATE = "it arrived after its deadline"
    NOT_HERE = "the worker knows no such job"
    SLOW = "the worker did not answer in time"
    GONE = "the worker is gone"
    LOST = "the worker vanished"
    FORGOTTEN = "the answer is no longer kept"
    TIMED_OUT = "the attempt timed out"

    @property
    def may_have_started(self) -> bool:
        """Whether the task may have run, even in part."""
        return self in _UNCERTAIN

    def allows_retry(self, idempotent: bool) -> bool:
        """Whether it may be sent again."""
        return idempotent or self not in _UNCERTAIN

    @classmethod
    def of_reason(cls, reason: str) -> TryOutcome:
        """The outcome for the reason in a REJECTED frame. An unknown reason (of a newer worker) counts as full."""
        return _BY_REASON.get(reason, cls.FULL)


_UNCERTAIN: Final = frozenset((TryOutcome.LOST, TryOutcome.FORGOTTEN, TryOutcome.TIMED_OUT))
_BY_REASON: Final[dict[str, TryOutcome]] = {
    Reason.FULL: TryOutcome.FULL,
    Reason.LIMITED: TryOutcome.LIMITED,
    Reason.DRAINING: TryOutcome.DRAINING,
    Reason.STALE: TryOutcome.STALE,
    Reason.EXPIRED: TryOutcome.LATE,
    Reason.UNKNOWN_JOB: TryOutcome.NOT_HERE,
}


_ERRORS: Final[dict[TryOutcome, type[GanglineError]]] = {
    TryOutcome.UNSENT: Disconnected,
    TryOutcome.FULL: LeaseBusy,
    TryOutcome.LIMITED: LeaseBusy,
    TryOutcome.DRAINING: Draining,
    TryOutcome.STALE: StaleEpoch,
    TryOutcome.LATE: DeadlineExceeded,
}
"""Errors for outcomes after which nothing started. The others are WorkerLost."""


def error_of_fate(
    fate: TryOutcome,
    worker: str,
    *,
    attempts: int = 0,
    lost: Collection[TryOutcome] = (),
    idempotent: bool = False,
) -> GanglineError:
    """The error for an attempt that must not be retried.

    Args:
        worker: the worker of the attempt, for the text.
        attempts: how often the task was sent; 0: not in the details.
        lost: outcomes that mean that the target can no longer be reached.
        idempotent: whether the task is declared so: then the text does not advise it.
    """
    details: dict[str, Any] = {"worker": worker}
    if attempts:
        details["attempts"] = attempts
    hint = "" if idempotent else ": check what it did before sending it again, or mark the task idempotent"
    if fate is TryOutcome.FORGOTTEN:
        return ResultLost(f"the task ran on {worker}, but its answer was lost{hint}", details=details)
    if fate is TryOutcome.TIMED_OUT:
        return DeadlineExceeded(
            f"the task did not end within its timeout_s on {worker}, and was told to stop{hint}",
            details=details,
            may_have_started=True,
        )
    if fate.may_have_started:
        return WorkerLost(f"{worker} vanished with the task, which may have started{hint}", details=details)
    kind = WorkerLost if fate in lost else _ERRORS.get(fate, WorkerLost)
    return kind(f"{worker}: {fate.value}; nothing started", details=details, may_have_started=False)
