"""Streamed results: items in order, none lost, and never more than a window ahead of their reader."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from ...schemas.errors.base import GanglineError, InvalidRequest, StreamBroken
from ...schemas.wire.frames import Answer, Frame, Request, TaskFlag
from ...telemetry.tracing import NO_SPAN, Span
from ..pools.pool import RoutedPool
from ..routing.outcome import Fate
from ..routing.pool_core import outcome_unknown
from ..routing.request import Ticket
from ..routing.worker_table import Worker
from ..transport.flights import Books, Flight, Outcome
from .attempts import Caller, fate_of
from .call import Order, error_of

_ITEM: Final = int(Answer.ITEM)


class StreamFlight(Flight):
    """A TASK whose items are read one by one."""

    checked = True

    def __init__(self, id: int, worker: Worker, books: Books, ticket: Ticket) -> None:
        super().__init__(id, worker)
        self.books = books
        self.ticket = ticket
        self.items: deque[Any] = deque()
        """Received and not read yet."""
        self.received = 0
        self.credited = 0
        """Items read and not yet told to the worker."""
        self.end: Outcome | GanglineError | None = None
        """What came after the last item."""
        self.on_stall: Callable[[], None] = _nothing
        """Called when its worker has run on, and nothing came, though all that had come was read."""
        self._seen = -1
        """Items received when its worker last said that it runs."""
        self._wakeup: asyncio.Future[None] | None = None

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == _ITEM:
            sequence = frame[2]
            if sequence > self.received:
                self._finish(self._broken(f"item {self.received} is missing, item {sequence} came"))
                return True
            if sequence == self.received and self.end is None:
                self.received += 1
                self.items.append(frame[3])
                self._wake()
            return False
        if frame[0] == Answer.END and frame[2] != self.received:
            self._finish(self._broken(f"{frame[2]} items were sent, {self.received} came"))
        else:
            self._finish(frame)
        return True

    def runs(self) -> None:
        """Credit or items may have been lost with a connection: then its worker waits for credit, and we for items."""
        if self.received != self._seen:
            self._seen = self.received
            self.check_every_s = 0.0  # look again soon
        elif not self.items and self.end is None:
            self.on_stall()

    def lose(self, fate: Fate) -> None:
        self._finish(fate)

    def fail(self, error: GanglineError) -> None:
        self._finish(error)

    def stop(self, error: GanglineError) -> None:
        """End it from this side."""
        if self.end is None:
            self.end = error
            self._wake()

    async def wait(self) -> None:
        """Until there is an item, or the end."""
        if not self.items and self.end is None:
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    def _finish(self, end: Outcome | GanglineError) -> None:
        self.books.settle(self.ticket)
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


class Streamer:
    """Runs tasks whose results are streamed."""

    def __init__(self, caller: Caller, window: int) -> None:
        self._caller = caller
        self._window = window

    async def run(
        self, pool: RoutedPool, order: Order, ticket: Ticket, span: Span = NO_SPAN
    ) -> AsyncGenerator[Any, None]:
        """The items. Tried again elsewhere like a call, until the first item has come. Closing it cancels the task.

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            StreamBroken: items were lost on the way.
            GanglineError: see Client.call.
        """
        view = pool.core.view
        if view.serves(order.method) and not view.streams(order.method):
            raise no_stream(order)
        fate: Fate | None = None
        try:
            while True:
                worker = await pool.place(ticket, order.deadline, fate)
                if not streams(worker, order):  # nobody, or others, were known before the wait
                    pool.settle(ticket)
                    pool.pump()
                    raise no_stream(order)
                flight = StreamFlight(self._caller.exchange.new_id(), worker, pool, ticket)
                items = self.read(order, flight, trace=span.traceparent())
                async with contextlib.aclosing(items):
                    async for item in items:
                        pool.accepted(ticket)
                        yield item
                fate = stream_fate(flight)
                if fate is None:
                    pool.accepted(ticket)
                    return
                pool.refused(ticket, worker, fate)
        except GanglineError as error:
            if ticket.uncertain is not None:
                error.may_have_started = True
            raise

    async def read(
        self,
        order: Order,
        flight: StreamFlight,
        *,
        token: str | None = None,
        trace: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The items of one try; `flight.end` says afterwards how it ended."""
        exchange = self._caller.exchange
        order.flags |= TaskFlag.STREAM
        try:
            frame = order.frame(flight.id, exchange.loop.time(), token, trace, flight.ticket.attempts, self._window)
            exchange.launch(flight, frame)
        except GanglineError:
            flight.books.settle(flight.ticket)
            flight.books.pump()
            raise
        if flight.ticket.visit is not None:
            flight.ticket.visit.sent()
        flight.on_stall = lambda: self._credit_anew(flight)
        timer = None
        if order.deadline is not None:
            too_late = order.too_late(may_have_started=True)
            timer = exchange.loop.call_at(order.deadline, flight.stop, too_late)
        try:
            while True:
                await flight.wait()
                if not flight.items:
                    break
                item = flight.items.popleft()
                self._credit(flight)
                yield item
        finally:
            if timer is not None:
                timer.cancel()
            self._abandon(flight)

    def _credit(self, flight: StreamFlight) -> None:
        flight.credited += 1
        if flight.credited * 2 >= self._window and flight.end is None:
            self._caller.exchange.post(flight.worker, (Request.CREDIT, flight.id, flight.credited))
            flight.credited = 0

    def _credit_anew(self, flight: StreamFlight) -> None:
        """All that came was read: the whole window is free again, of which the worker takes what it has sent. If the
        last items were lost, the next one shows the gap."""
        flight.credited = 0
        self._caller.exchange.post(flight.worker, (Request.CREDIT, flight.id, self._window))

    def _abandon(self, flight: StreamFlight) -> None:
        """Stop the task if it has not ended. Never fails, never waits."""
        exchange = self._caller.exchange
        if not isinstance(flight.end, StreamBroken) and not exchange.is_open(flight):
            return
        if exchange.recall(flight):
            flight.books.settle(flight.ticket)
            flight.books.pump()
        else:
            exchange.post(flight.worker, (Request.CANCEL, flight.id))


def streams(worker: Worker, order: Order) -> bool:
    """Whether the task streams there, so far as is known."""
    method = worker.methods.get(order.method)
    return method is None or method.streams


def no_stream(order: Order) -> InvalidRequest:
    """The error for a task that answers with one result; nothing was sent."""
    return InvalidRequest(
        f"{order.target} does not stream, it has one result: use call() for it, or have the task yield its items",
        details={"target": order.target},
    )


def stream_fate(flight: StreamFlight) -> Fate | None:
    """Why the stream is to be tried again; None when it is complete.

    Raises:
        GanglineError: it ended with an error.
    """
    end = flight.end
    assert end is not None, "read() ends only at the end"
    if isinstance(end, GanglineError):
        raise end
    fate = fate_of(end)
    if fate is None:
        assert not isinstance(end, Fate)
        if end[0] == Answer.END:
            return None
        if end[0] == Answer.ERROR:
            raise error_of(end)
        raise StreamBroken(
            "the task answered with one result, not with items: use call() for it",
            details={"worker": str(flight.worker.id)},
        )
    if flight.received:
        # What was read cannot be taken back, and a second run would begin anew.
        raise outcome_unknown(Fate.LOST, str(flight.worker.id), flight.ticket.attempts)
    return fate


def _nothing() -> None:
    pass
