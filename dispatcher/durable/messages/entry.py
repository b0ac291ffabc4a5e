"""What a queue keeps of one message, from its arrival to its acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from ....bus.port.bus import StreamMessage
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import MOST_TRIES, FailedTry, JobFailure
from ....telemetry.tracing import NO_SPAN, Span
from ..queue.item_tracker import ItemTracker
from ..queue.job_attempt import JobAttempt
from ..queue.slot_lessor import LeasedSlots
from .parser import Arguments


class QueuedMessage:
    """One message. `submission` is None for one that is no task."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    arguments: Arguments | None = None
    """As they were read when it arrived, if they are small; for its first try."""
    sent_attempt: JobAttempt | None = None
    """The try under way."""
    attempt = 0
    slots: LeasedSlots | None = None
    """The lease that the try is on; None for one that was attached to."""
    feeder_pool = ""
    cost = 0
    fence = 0
    stopped = 0
    """The attempt that is to be stopped, if one is."""
    worker = ""
    """`<pool>.<worker>` of the last try."""
    workers: Sequence[str] = ()
    """... by rank, if it was on all ranks of a gang; empty: of that rank nobody knows."""
    body: bytes | None = None
    """The result of the last try that succeeded, in the format of the submission."""
    items: int | None = None
    """... if it yielded: how many."""
    streams = False
    once = False
    """The worker that has the try does not declare the task idempotent."""
    started = False
    noted = 0
    """The last try that is stored as failed."""
    tries: tuple[FailedTry, ...] = ()
    """That failed: the last ones, oldest first."""
    span: Span = NO_SPAN
    _item_count: ItemTracker | None = None
    _known = True

    def __init__(self, message: StreamMessage, submission: Submission | None) -> None:
        self.message = message
        self.submission = submission
        self.seq = message.sequence

    @property
    def item_count(self) -> ItemTracker:
        """Of the try under way."""
        if self._item_count is None:
            self._item_count = ItemTracker(known=self._known)
        return self._item_count

    def count_items(self, *, known: bool) -> None:
        """A try begins; `known` as of ItemTracker."""
        self._known = known
        if self._item_count is not None:
            self._item_count = None

    def failed(self, attempt: int, error: JobFailure, *, started_at: float | None, ended_at: float) -> None:
        """A try of it failed. No-op if that is known."""
        if self.started and not (self.tries and self.tries[-1].attempt >= attempt):
            last = FailedTry(attempt=attempt, worker=self.worker, started_at=started_at, ended_at=ended_at, error=error)
            self.tries = (*self.tries, last)[-MOST_TRIES:]

    def __repr__(self) -> str:
        target = self.submission.target if self.submission is not None else self.message.subject
        return f"QueuedMessage(#{self.seq} {target}, attempt={self.attempt}, worker={self.worker or '-'})"
