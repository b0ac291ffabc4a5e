"""One try of a durable task, as the exchange carries it: its end is a call, and no task waits for it."""

from __future__ import annotations

from typing import Protocol

from ....schemas.errors.base import GanglineError, ResultLost, TaskCancelled, WorkerLost
from ....schemas.wire.frames import AnswerOp, Frame, Reason
from ...calls.call import error_of
from ...routing.outcome import TryOutcome, error_of_fate
from ...routing.worker_table import WorkerEntry
from ...transport.channel import InFlightRequest


class AttemptListener(Protocol):
    """Who is told of a flight's end."""

    def landed(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        """The worker answered, for good."""

    def item(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        """One item of a stream came."""

    def held(self, sent_attempt: JobAttempt) -> None:
        """It has its slots, and waits for BEGIN."""

    def still_runs(self, sent_attempt: JobAttempt) -> None:
        """The worker says so."""

    def crashed(self, sent_attempt: JobAttempt, fate: TryOutcome) -> None:
        """There will be no answer."""


class JobAttempt(InFlightRequest):
    """A TASK frame of a durable task."""

    __slots__ = ("attached", "attempt", "listener", "seq", "sent_at")

    checked = True
    durable = True

    def __init__(
        self,
        id: int,
        worker: WorkerEntry,
        listener: AttemptListener,
        *,
        seq: int,
        attempt: int,
        attached: bool,
        sent_at: float,
    ) -> None:
        self.id = id
        self.worker = worker
        self.seq = seq
        self.attempt = attempt
        self.attached = attached
        """It starts nothing: another dispatcher did."""
        self.listener = listener
        self.sent_at = sent_at

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == AnswerOp.ITEM:
            self.listener.item(self, frame)
            return False
        if frame[0] == AnswerOp.HELD:
            self.listener.held(self)
            return False
        self.listener.landed(self, frame)
        return True

    def runs(self) -> None:
        self.listener.still_runs(self)

    def lose(self, fate: TryOutcome) -> None:
        self.listener.crashed(self, fate)


def error_of_answer(frame: Frame, worker: str) -> GanglineError | None:
    """The error that an answer carries; None: it is a result."""
    if frame[0] in (AnswerOp.OK, AnswerOp.END):
        return None
    if frame[0] == AnswerOp.ERROR:
        return error_of(frame)
    if frame[0] != AnswerOp.REJECTED:
        return GanglineError(f"{worker} answered a task with frame {frame[0]}: versions differ?", may_have_started=True)
    if frame[2] == Reason.UNKNOWN_JOB:
        return ResultLost(f"{worker} does not know the job any more", details={"worker": worker})
    return error_of_fate(TryOutcome.of_reason(frame[2]), worker)


def lost_with_gang(error: GanglineError, worker: str) -> GanglineError:
    """The error of a try that nobody stopped. One that its worker stopped since its gang was torn down was lost, as
    with a worker that died."""
    if not isinstance(error, TaskCancelled) or "gang" not in error.details:
        return error
    return WorkerLost(
        f"{worker}: {error.message}",
        may_have_started=error.may_have_started,
        details={"worker": worker, **error.details},
    )
