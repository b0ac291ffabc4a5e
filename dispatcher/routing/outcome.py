"""What became of a try, and whether there may be another. Pure.

=============  ==========================================================  =======================================
fate           how it is known                                             another try
=============  ==========================================================  =======================================
UNSENT         we had no connection                                        yes: nothing was sent
UNHEARD        the server answered 503, nobody listens there               yes: nothing was received
UNSEEN         CHECK: the worker never saw it, and refuses it from now on  yes: nothing started
FULL           REJECTED full                                               yes
DRAINING       REJECTED draining                                           yes
STALE          REJECTED stale                                              yes
LATE           REJECTED expired                                            yes, if there is time left
NOT_HERE       REJECTED unknown_job                                        yes: nothing started
SLOW           a reservation without an answer, now released               yes
GONE           the worker left or died before anything was sent            yes
LOST           the worker vanished and had (or may have had) it            only if the task is idempotent
FORGOTTEN      CHECK: it ran, but its answer is no longer kept             only if the task is idempotent
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
    """Why a try came to nothing. The value is for people."""

    UNSENT = "not sent: no connection to the server"
    UNHEARD = "nobody listens there"
    UNSEEN = "the worker never received it"
    FULL = "the worker is full"
    DRAINING = "the worker is draining"
    STALE = "the worker has a newer epoch"
    LATE = "it arrived after its deadline"
    NOT_HERE = "the worker knows no such job"
    SLOW = "the worker did not answer in time"
    GONE = "the worker is gone"
    LOST = "the worker vanished"
    FORGOTTEN = "the answer is no longer kept"

    @property
    def may_have_started(self) -> bool:
        """Whether some of the task may have run."""
        return self in _UNCERTAIN

    def allows_retry(self, idempotent: bool) -> bool:
        """Whether it may be sent again."""
        return idempotent or self not in _UNCERTAIN

    @classmethod
    def of_reason(cls, reason: str) -> TryOutcome:
        """The fate that a REJECTED frame tells. An unknown reason (a newer worker's) counts as full."""
        return _BY_REASON.get(reason, cls.FULL)


_UNCERTAIN: Final = frozenset((TryOutcome.LOST, TryOutcome.FORGOTTEN))
_BY_REASON: Final[dict[str, TryOutcome]] = {
    Reason.FULL: TryOutcome.FULL,
    Reason.DRAINING: TryOutcome.DRAINING,
    Reason.STALE: TryOutcome.STALE,
    Reason.EXPIRED: TryOutcome.LATE,
    Reason.UNKNOWN_JOB: TryOutcome.NOT_HERE,
}


_ERRORS: Final[dict[TryOutcome, type[GanglineError]]] = {
    TryOutcome.UNSENT: Disconnected,
    TryOutcome.FULL: LeaseBusy,
    TryOutcome.DRAINING: Draining,
    TryOutcome.STALE: StaleEpoch,
    TryOutcome.LATE: DeadlineExceeded,
}
"""Of those after which nothing started. The others are WorkerLost."""


def error_of_fate(
    fate: TryOutcome, worker: str, *, attempts: int = 0, lost: Collection[TryOutcome] = ()
) -> GanglineError:
    """The error for a try of that fate which is not to be followed by another.

    Args:
        worker: who was tried, for people.
        attempts: how often the task was sent; 0: not to be told.
        lost: fates that say that whoever was tried cannot be reached any more.
    """
    details: dict[str, Any] = {"worker": worker}
    if attempts:
        details["attempts"] = attempts
    hint = "check what it did before sending it again, or mark the task idempotent"
    if fate is TryOutcome.FORGOTTEN:
        return ResultLost(f"the task ran on {worker}, but its answer was lost: {hint}", details=details)
    if fate.may_have_started:
        return WorkerLost(f"{worker} vanished with the task, which may have started: {hint}", details=details)
    kind = WorkerLost if fate in lost else _ERRORS.get(fate, WorkerLost)
    return kind(f"{worker}: {fate.value}; nothing started", details=details, may_have_started=False)
