"""The one place where requests are tried, and tried again where that is safe.

`AttemptLoop` sends, waits and repeats. Who takes a try, and whether there may be another, is for the `AttemptTarget` to
say: of a pool, a lease, a selection, a member of a gang, a standing set.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final

from ...schemas.errors.base import GanglineError, LeaseBusy
from ...schemas.names import WorkerId
from ...schemas.wire.frames import RequestOp, TaskFlag
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome
from ..routing.request import RoutedRequest
from ..routing.worker_table import WorkerEntry
from ..transport.channel import AwaitedRequest, Outcome, Settlement, TaskRequest
from ..transport.exchange import RequestExchange
from .call import Call, fate_of, result_of
from .streaming import StreamRequest, no_stream, stream_end, streams

_STREAM: Final = int(TaskFlag.STREAM)
"""A plain number: arithmetic with flags of an enum takes long."""


class AttemptTarget:
    """Who takes the tries of one request, and whether there is to be another. Made for one request."""

    @property
    def uncertain(self) -> bool:
        """Whether an earlier try may have started something, whatever the last one says."""
        return False

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        """`place`, if that need not wait. None: it has to; ask `place` then."""
        return None

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        """Get the next try a place; returns the target that takes it, which is this one or one that it leads to.

        Args:
            fate: what became of the try before; None: this is the first.

        Raises:
            GanglineError: there is to be none.
        """
        raise NotImplementedError

    def attempt(self, caller: AttemptLoop, span: Span) -> Coroutine[Any, Any, Any]:
        """One try; returns what came of it, for `settle` and `result`."""
        raise NotImplementedError

    def settle(self, outcome: Any) -> TryOutcome | None:
        """A try has ended: why it came to nothing; None: it is the one that counts."""
        raise NotImplementedError

    @staticmethod
    def result(outcome: Any, /) -> Any:
        """What the request has come to.

        Raises:
            GanglineError: the outcome says so.
        """
        raise NotImplementedError


class TaskTarget(AttemptTarget):
    """Takes tries of a task. Each goes to a worker, and counts in books until its flight has ended."""

    books: Settlement
    routed_request: RoutedRequest
    worker: WorkerEntry
    token: str | None = None
    """Of the slots that it is sent on; None: of any."""
    spans = False
    """Each try has a span of its own."""
    told = True
    """Whether it wants to know of `sent` and `left`."""
    ended: Outcome
    """How the last try of a stream ended."""

    def __init__(self, order: Call) -> None:
        self.order = order

    async def attempt(self, caller: AttemptLoop, span: Span) -> Outcome:
        """See AttemptTarget. The ticket is settled when the worker has answered, also after a cancellation.

        Raises:
            InvalidRequest: arguments that have no form on the wire; nothing was sent.
            DeadlineExceeded: the deadline passed; the worker was told to stop.
        """
        order, exchange = self.order, caller.exchange
        spans = self.spans and span is not NO_SPAN
        if spans:
            span = _attempt_span(self.worker, self.routed_request.attempts, span)
        flight = TaskRequest(exchange.new_id(), self.worker, exchange.loop, self.books, self.routed_request)
        try:
            caller.launch(self, flight, None if span is NO_SPAN else span.traceparent())
        except BaseException as error:
            if spans:
                span.end(error)
            raise
        timer = None
        if order.deadline is not None:
            timer = exchange.loop.call_at(order.deadline, caller.expire, order, flight)
        try:
            outcome = await flight.future
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                caller.abandon(flight)
            if self.told:
                self.left(flight, error)
            if spans:
                span.end(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self.told:
            self.left(flight, None)
        if spans:
            if (fate := fate_of(outcome)) is not None:
                span.event("gangline.refused", {"reason": fate.value})
            span.end()
        return outcome

    async def items(self, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        """One try of a task that streams: its items; `ended` tells afterwards how it ended.

        Raises:
            GanglineError: it ended with an error.
        """
        flight = StreamRequest(caller.exchange.new_id(), self.worker, self.books, self.routed_request)
        caller.launch(self, flight, span.traceparent(), caller.window)
        try:
            items = caller.read(self.order, flight)
            async with contextlib.aclosing(items):
                async for item in items:
                    yield item
        except BaseException as error:
            self.left(flight, error)
            raise
        self.left(flight, None)
        self.ended = stream_end(flight)

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        return fate_of(outcome)

    result = staticmethod(result_of)

    @property
    def where(self) -> tuple[WorkerId, str | None]:
        """The worker of the try, and the gang of a standing set, if it is of one."""
        return self.worker.id, None

    def check_streams(self) -> None:
        """
        Raises:
            InvalidRequest: a stream is asked for, and the worker has a task of one result.
        """
        if self.order.flags & _STREAM and not streams(self.worker, self.order):
            raise no_stream(self.order)

    # -- what it is told ------------------------------------------------------------------------------------------

    def sent(self, flight: TaskRequest | StreamRequest | None) -> None:
        """A try was sent; None: as several."""

    def unsent(self) -> None:
        """It could not be."""
        self.books.settle(self.routed_request)
        self.books.pump()

    def left(self, flight: TaskRequest | StreamRequest | None, error: BaseException | None) -> None:
        """Nobody waits for it any more: there is an outcome, or the error that ended the wait."""

    async def failed(self, error: GanglineError) -> TryOutcome:
        """A try on several workers failed: why it may be made again.

        Raises:
            GanglineError: it may not.
        """
        raise error

    def accepted(self) -> None:
        """An item came."""


class PoolTarget(TaskTarget):
    """Any worker of a pool."""

    spans = True
    told = False

    def __init__(self, pool: RoutedPool, order: Call, routed_request: RoutedRequest) -> None:
        self.order = order
        self.books: Settlement = pool
        self.pool = pool
        self.routed_request = routed_request

    @property
    def uncertain(self) -> bool:
        return self.routed_request.uncertain is not None

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        if self.order.flags & _STREAM:
            return None
        worker = self.pool.place_nowait(self.routed_request, fate)
        if worker is None:
            return None
        self.worker = worker
        return self

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        order, pool = self.order, self.pool
        if not order.flags & _STREAM:
            self.worker = await pool.wait(self.routed_request, order.deadline)
            return self
        view = pool.core.view
        if view.serves(order.method) and not view.streams(order.method):
            raise no_stream(order)
        self.worker = await pool.place(self.routed_request, order.deadline, fate)
        try:
            self.check_streams()  # nobody, or others, were known before the wait
        except GanglineError:
            self.unsent()
            raise
        return self

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        fate = fate_of(outcome)
        if fate is None:
            self.pool.accepted(self.routed_request)
        else:
            self.pool.refused(self.routed_request, self.worker, fate)
        return fate

    def accepted(self) -> None:
        self.pool.accepted(self.routed_request)


class AttemptLoop:
    """Sends tasks and takes their answers; repeats what its target wants repeated."""

    def __init__(self, exchange: RequestExchange, window: int) -> None:
        """`window`: items of a stream that may come ahead of their reader."""
        self.exchange = exchange
        self.window = window

    async def run(
        self, target: AttemptTarget, span: Span = NO_SPAN, *, tried: tuple[AttemptTarget, Any] | None = None
    ) -> Any:
        """The result of a request. Cancelling stops the task, wherever it is, and does not wait for that.

        Args:
            tried: a first try that was made elsewhere: who took it, and what came of it.

        Raises:
            GanglineError: see Client.call.
        """
        fate: TryOutcome | None = None
        try:
            while True:
                if tried is None:
                    at = target.place_nowait(fate) or await target.place(fate)
                    outcome = await at.attempt(self, span)
                else:
                    (at, outcome), tried = tried, None
                fate = at.settle(outcome)
                if fate is None:
                    return at.result(outcome)
        except GanglineError as error:
            if target.uncertain:
                error.may_have_started = True  # an earlier try may have, whatever the last one says
            raise

    async def stream(self, order: Call, target: AttemptTarget, span: Span = NO_SPAN) -> AsyncGenerator[Any, None]:
        """The items of a task. Tried again like a call, until the first item has come. Closing it cancels the task.

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            StreamBroken: items were lost on the way.
            GanglineError: see Client.call.
        """
        order.flags |= _STREAM
        fate: TryOutcome | None = None
        try:
            while True:
                at = target.place_nowait(fate) or await target.place(fate)
                assert isinstance(at, TaskTarget)
                items = at.items(self, span)
                async with contextlib.aclosing(items):
                    async for item in items:
                        at.accepted()
                        yield item
                fate = at.settle(at.ended)
                if fate is None:
                    return
        except GanglineError as error:
            if target.uncertain:
                error.may_have_started = True
            raise

    def launch(
        self, target: TaskTarget, flight: TaskRequest | StreamRequest, trace: str | None, window: int | None = None
    ) -> None:
        """Send one try.

        Raises:
            InvalidRequest, DeadlineExceeded: nothing was sent.
        """
        exchange, routed_request = self.exchange, target.routed_request
        try:
            frame = target.order.frame(
                flight.id, exchange.loop.time(), target.token, trace, routed_request.attempts, window
            )
            exchange.launch(flight, frame)
        except GanglineError:
            target.unsent()
            raise
        if routed_request.admission is not None:
            routed_request.admission.sent()
        if target.told:
            target.sent(flight)

    async def read(self, order: Call, flight: StreamRequest) -> AsyncGenerator[Any, None]:
        """The items of one try, as they come; `flight.end` says afterwards how it ended."""
        exchange = self.exchange
        flight.on_stall = lambda: self._credit_anew(flight)
        timer = None
        if order.deadline is not None:
            timer = exchange.loop.call_at(order.deadline, flight.stop, order.too_late(may_have_started=True))
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
            if flight.is_broken or exchange.is_open(flight):
                self._stop(flight)

    def abandon(self, flight: AwaitedRequest | StreamRequest) -> bool:
        """Nobody wants the answer any more; False when nothing had been sent. Never fails, never waits."""
        return self._stop(flight) if self.exchange.is_open(flight) else True

    def _stop(self, flight: AwaitedRequest | StreamRequest) -> bool:
        """Take it back, else tell its worker to stop."""
        exchange = self.exchange
        if exchange.recall(flight):
            flight.settle()
            flight.books.pump()
            return False
        exchange.post(flight.worker, (RequestOp.CANCEL, flight.id))
        return True

    def expire(self, order: Call, flight: TaskRequest) -> None:
        """Its time is up: tell the worker to stop."""
        if not flight.future.done():
            sent = self.abandon(flight)
            flight.future.set_exception(order.too_late(may_have_started=sent))

    def _credit(self, flight: StreamRequest) -> None:
        flight.credited += 1
        if flight.credited * 2 >= self.window and flight.end is None:
            self.exchange.post(flight.worker, (RequestOp.CREDIT, flight.id, flight.credited))
            flight.credited = 0

    def _credit_anew(self, flight: StreamRequest) -> None:
        """All that came was read: the whole window is free again, of which the worker takes what it has sent. If the
        last items were lost, the next one shows the gap."""
        flight.credited = 0
        self.exchange.post(flight.worker, (RequestOp.CREDIT, flight.id, self.window))


def _attempt_span(worker: WorkerEntry, attempt: int, parent: Span) -> Span:
    return tracer.start(
        "gangline.attempt",
        kind="producer",
        parent=parent,
        attributes={"gangline.worker": str(worker.id), "gangline.attempt": attempt},
    )


HELD_WITHIN_S: Final = 1.0
"""Half of what workers hold for: no rank gives up while another may yet be told to begin."""


class TwoPhaseStart:
    """One try of a call on all ranks of a gang: it starts on all of them or on none.

    Several routers may send to one gang, so each rank may be taken by another call when ours comes. Therefore every
    rank first takes its slots and says so (HELD), and when all have, all are told to begin (BEGIN). One that has no
    room, or does not answer in time, ends the try: the others are cancelled, nothing has started anywhere, and it may
    be tried again here or on another gang.
    """

    def __init__(self, caller: AttemptLoop, size: int) -> None:
        self._caller = caller
        self._size = size
        self._flights: dict[TaskRequest, bool] = {}
        """Whether it holds its slots."""
        self._first: asyncio.Future[None] = caller.exchange.loop.create_future()
        self._timer = caller.exchange.loop.call_later(HELD_WITHIN_S, self._give_up)
        self.begun = False
        """All were told to begin. Before that nothing has started."""

    def __repr__(self) -> str:
        return f"TwoPhaseStart({sum(self._flights.values())} of {self._size} held, begun={self.begun})"

    async def first_held(self) -> None:
        """Wait until one rank holds its slots. In a cancelled try nobody comes by."""
        await self._first

    def sent(self, flight: TaskRequest) -> None:
        """The task of one rank was sent."""
        self._flights[flight] = False
        flight.on_held = lambda: self._held(flight)

    def _held(self, flight: TaskRequest) -> None:
        if flight.future.done():
            return
        self._flights[flight] = True
        if not self._first.done():
            self._first.set_result(None)
        if not self.begun and sum(self._flights.values()) == self._size:
            self.begun = True
            self._timer.cancel()
            for one in self._flights:
                self._caller.exchange.post(one.worker, (RequestOp.BEGIN, one.id))

    def _give_up(self) -> None:
        for flight, held in self._flights.items():
            if not held and not flight.future.done():
                self._caller.abandon(flight)
                flight.future.set_exception(
                    LeaseBusy(f"{flight.worker.id} did not say within {HELD_WITHIN_S:g} s that it has room")
                )

    def close(self) -> None:
        """The try is over. Idempotent."""
        self._timer.cancel()
        if not self._first.done():
            self._first.cancel()
