"""Streamed results: items in order, none lost, and never more than a window ahead of the reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ...schemas.errors.base import GanglineError, InvalidRequest, StreamBroken
from ...schemas.text import count_of
from ...schemas.wire.frames import AnswerOp, Frame
from ..routing.outcome import TryOutcome, error_of_fate
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import WorkerEntry
from ..transport.channel import InFlightRequest, Outcome, Settlement
from .call import Call, error_of, fate_of

_ITEM: Final = int(AnswerOp.ITEM)


class StreamRequest(InFlightRequest):
    """A TASK whose items are read one at a time."""

    checked = True

    def __init__(self, id: int, worker: WorkerEntry, books: Settlement, routed_request: RoutedRequest) -> None:
        super().__init__(id, worker)
        self.books = books
        self.routed_request = routed_request
        self.items: deque[Any] = deque()
        """Received and not read yet."""
        self.received = 0
        self.credited = 0
        """Items read for which the worker has no credit yet."""
        self.end: Outcome | GanglineError | None = None
        """The frame, outcome or error after the last item."""
        self.on_stall: Callable[[], None] = _nothing
        """Called when the worker reports that the task still runs, but nothing arrived although all received items were
        read."""
        self._seen = -1
        """Items received when the worker last reported that it is running."""
        self._wakeup: asyncio.Future[None] | None = None

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == _ITEM:
            sequence = frame[2]
            if sequence > self.received:
                self._finish(self._broken(f"item {self.received} is missing, item {sequence} arrived"))
                return True
            if sequence == self.received and self.end is None:
                self.received += 1
                self.items.append(frame[3])
                self._wake()
            return False
        if frame[0] == AnswerOp.END and frame[2] != self.received:
            self._finish(self._broken(f"of {count_of(frame[2], 'item')} sent, {self.received} arrived"))
        else:
            self._finish(frame)
        return True

    def runs(self) -> None:
        """Credit or items may have been lost with a connection: then the worker waits for credit, and the reader for
        items."""
        if self.received != self._seen:
            self._seen = self.received
            self.check_every_s = 0.0  # check again soon
        elif not self.items and self.end is None:
            self.on_stall()

    def lose(self, fate: TryOutcome) -> None:
        self._finish(fate)

    def fail(self, error: GanglineError) -> None:
        self._finish(error)

    def stop(self, error: GanglineError) -> None:
        """End it from the caller's side."""
        if self.end is None:
            self.end = error
            self._wake()

    async def wait(self) -> None:
        """Wait for an item or the end."""
        if not self.items and self.end is None:
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    @property
    def is_broken(self) -> bool:
        """Whether items were lost without the worker noticing."""
        return isinstance(self.end, StreamBroken)

    def settle(self) -> None:
        """Stop counting it on its worker. Idempotent."""
        self.books.settle(self.routed_request)

    def _finish(self, end: Outcome | GanglineError) -> None:
        self.settle()
        if self.end is None:
            self.end = end
            self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _broken(self, why: str) -> StreamBroken:
        return StreamBroken(
            f"the stream from {self.worker.id} broke: {why}; ask again", details={"items": self.received}
        )


def streams(worker: WorkerEntry, order: Call) -> bool:
    """Whether the task streams there, as far as is known."""
    method = worker.methods.get(order.method)
    return method is None or method.streams


def no_stream(order: Call) -> InvalidRequest:
    """The error for a task that returns one result; nothing was sent."""
    return InvalidRequest(
        f"{order.target} does not stream, it has one result: use call() for it, or let the task yield its items",
        details={"target": order.target},
    )


def stream_end(flight: StreamRequest) -> Outcome:
    """How a fully read stream ended: with its END, or with an outcome after which it may be retried.

    Raises:
        GanglineError: it ended with an error.
    """
    end = flight.end
    assert end is not None, "it is read until its end"
    if isinstance(end, GanglineError):
        raise end
    if fate_of(end) is not None:
        if flight.received:
            # Items that were read cannot be taken back, and a second run would start from the beginning.
            raise error_of_fate(TryOutcome.LOST, str(flight.worker.id), attempts=flight.routed_request.attempts)
        return end
    assert not isinstance(end, TryOutcome)
    if end[0] == AnswerOp.END:
        return end
    if end[0] == AnswerOp.ERROR:
        raise error_of(end)
    raise StreamBroken(
        "the task answered with one result, not with items: use call() for it",
        details={"worker": str(flight.worker.id)},
    )


def _nothing() -> None:
    pass
