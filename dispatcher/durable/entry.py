"""What a queue keeps of one message, from its arrival to its acknowledgement."""

from __future__ import annotations

from ...bus.port import StreamMessage
from ...schemas.submission import Submission
from ...telemetry.tracing import NO_SPAN, Span
from .feeder import Slots
from .item_count import ItemCount
from .job_flight import JobFlight


class Entry:
    """One message. `submission` is None for one that is no task."""

    __slots__ = (
        "attempt",
        "body",
        "cost",
        "feeder_pool",
        "fence",
        "flight",
        "item_count",
        "items",
        "message",
        "slots",
        "span",
        "started",
        "stopped",
        "streams",
        "submission",
        "worker",
    )

    def __init__(self, message: StreamMessage, submission: Submission | None) -> None:
        self.message = message
        self.submission = submission
        self.flight: JobFlight | None = None
        """The try under way."""
        self.attempt = 0
        self.slots: Slots | None = None
        """The lease that the try is on; None for one that was attached to."""
        self.feeder_pool = ""
        self.cost = 0
        self.fence = 0
        self.stopped = 0
        """The attempt that is to be stopped, if one is."""
        self.worker = ""
        """`<pool>.<worker>` of the last try."""
        self.body: bytes | None = None
        """The result of the last try that succeeded, in the format of the submission."""
        self.items: int | None = None
        """... if it yielded: how many."""
        self.item_count = ItemCount(known=True)
        """Of the try under way."""
        self.streams = False
        self.started = False
        self.span: Span = NO_SPAN

    @property
    def seq(self) -> int:
        return self.message.sequence

    def __repr__(self) -> str:
        target = self.submission.target if self.submission is not None else self.message.subject
        return f"Entry(#{self.seq} {target}, attempt={self.attempt}, worker={self.worker or '-'})"
