"""The single place where requests are sent and retried where that is safe.

`AttemptLoop` sends, waits and retries. The `AttemptTarget` (a pool, a lease, a selection, a member of a gang, a
standing set) decides where each attempt goes and whether there may be another.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Final

from ...runtime.timers import UsualDurations
from ...schemas.errors.base import DeadlineExceeded, GanglineError, LeaseBusy
from ...schemas.names import WorkerId
from ...schemas.wire.frames import AnswerOp, RequestOp, TaskFlag
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import WorkerEntry
from ..transport.channel import AwaitedRequest, Outcome, Settlement, TaskRequest
from ..transport.exchange import RequestExchange
from .call import Call, fate_of, result_of
from .streaming import StreamRequest, no_stream, stream_end, streams

_ENDED: Final = (int(AnswerOp.OK), int(AnswerOp.END))
_STREAM: Final = int(TaskFlag.STREAM)
"""A plain number: arithmetic with enum flags is slow."""


class AttemptTarget:
    """Decides where the attempts of one request go and whether there is another. Made for one request."""

    @property
    def uncertain(self) -> bool:
        """Whether an earlier attempt may have started something, whatever the last one reports."""
        return False

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        """`place` without waiting. None: it would have to wait; call `place`."""
        return None

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        """Place the next attempt; returns the target that takes it: this one, or one that it leads to.

        Args:
            fate: outcome of the previous attempt; None: this is the first.

        Raises:
            GanglineError: there must be no further attempt.
        """
        raise NotImplementedError

    def attempt(self, caller: AttemptLoop, span: Span) -> Coroutine[Any, Any, Any]:
        """Make one attempt; returns its outcome, for `settle` and `result`."""
        raise NotImplementedError

    def settle(self, outcome: Any) -> TryOutcome | None:
        """Account for the outcome of an attempt. Returns why it failed, or None if it is final."""
        raise NotImplementedError

    @staticmethod
    def result(outcome: Any, /) -> Any:
        """The result of the request.

        Raises:
            GanglineError: the outcome is an error.
        """
        raise NotImplementedError


class TaskTarget(AttemptTarget):
    """Target of a task. Each attempt goes to one worker and is accounted for until its flight has ended."""

    books: Settlement
    routed_request: RoutedRequest
    worker: WorkerEntry
    token: str | None = None
    """Token of the slots to use; None: any slots."""
    spans = False
    """Whether each attempt but the first has a span of its own."""
    told = True
    """Whether `sent` and `left` are to be called."""
    ended: Outcome
    """How the last attempt of a stream ended."""
    sent_at = 0.0
    """Loop time, not after the last attempt was sent."""
    usual: UsualDurations | None = None
    """What learns how long the attempts take; None: nothing."""

    def __init__(self, order: Call) -> None:
        self.order = order

    async def attempt(self, caller: AttemptLoop, span: Span) -> Outcome:
        """See AttemptTarget. The request is settled when the worker has answered, even after a cancellation.

        Raises:
            InvalidRequest: the arguments cannot be serialized; nothing was sent.
            DeadlineExceeded: the deadline passed; the worker was told to cancel the task.
        """
        order, exchange = self.order, caller.exchange
        traced = self.spans and span is not NO_SPAN and span.carried is None
        spans = traced and self.routed_request.attempts > 1
        if spans:
            span = _attempt_span(self.worker, self.routed_request.attempts, span)
        elif traced:
            span.set(gangline__worker=str(self.worker.id))
        flight = TaskRequest(exchange.new_id(), self.worker, exchange.loop, self.books, self.routed_request)
        try:
            caller.launch(self, flight, None if span is NO_SPAN else span.traceparent())
        except BaseException as error:
            if spans:
                span.end(error)
            raise
        timer = None
        if order.deadline is not None:
            timer = caller.limit(order, order.deadline, flight)
        try:
            outcome = await flight.future
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                caller.abandon(flight)
            self.learn(error, exchange.loop.time())
            if self.told:
                self.left(flight, error)
            if spans:
                span.end(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        self.learn(outcome, exchange.loop.time())
        if self.told:
            self.left(flight, None)
        if traced and (fate := fate_of(outcome)) is not None:
            span.event("gangline.refused", {"reason": fate.value})
        if spans:
            span.end()
        return outcome

    async def items(self, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        """The items of one attempt of a streaming task; afterwards, `ended` says how it ended.

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
        self.learn(flight.end, caller.exchange.loop.time())
        self.ended = stream_end(flight)

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        return fate_of(outcome)

    result = staticmethod(result_of)

    def learn(self, end: object, now: float) -> None:
        """An attempt ended so: learn how long its task takes. Failures say nothing about it, nor do
        attempts that hung until their `timeout_s`."""
        if self.usual is None:
            return
        if type(end) is list and end[0] in _ENDED:
            self.usual.ended(self.order.method, now - self.sent_at)
        elif isinstance(end, DeadlineExceeded):
            self.usual.cut_short(self.order.method, now - self.sent_at)

    @property
    def where(self) -> tuple[WorkerId, str | None]:
        """The worker of the attempt, and its gang if it is of a standing set."""
        return self.worker.id, None

    def check_streams(self) -> None:
        """
        Raises:
            InvalidRequest: a stream is wanted, and the worker's task returns one result.
        """
        if self.order.flags & _STREAM and not streams(self.worker, self.order):
            raise no_stream(self.order)

    # -- notifications --------------------------------------------------------------------------------------------

    def sent(self, flight: TaskRequest | StreamRequest | None) -> None:
        """An attempt was sent; None: as several flights."""

    def unsent(self) -> None:
        """The attempt could not be sent."""
        self.books.settle(self.routed_request)
        self.books.pump()

    def left(self, flight: TaskRequest | StreamRequest | None, error: BaseException | None) -> None:
        """The attempt is no longer awaited: it has an outcome, or `error` ended the wait."""

    async def failed(self, error: GanglineError) -> TryOutcome:
        """An attempt on several workers failed: return why it may be retried.

        Raises:
            GanglineError: it must not be retried.
        """
        raise error

    def accepted(self) -> None:
        """An item was received."""


class PoolTarget(TaskTarget):
    """Any worker of a pool."""

    spans = True
    told = False

    def __init__(self, pool: RoutedPool, order: Call, routed_request: RoutedRequest) -> None:
        self.order = order
        self.books: Settlement = pool
        self.pool = pool
        self.routed_request = routed_request
        self.usual = pool.core.usual

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
            self.check_streams()  # the workers known before the wait may have been others, or none
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
    """Sends tasks and receives their answers; retries as the target decides."""

    def __init__(self, exchange: RequestExchange, window: int) -> None:
        """`window`: how many items of a stream may be sent ahead of the reader."""
        self.exchange = exchange
        self.window = window

    async def run(
        self, target: AttemptTarget, span: Span = NO_SPAN, *, tried: tuple[AttemptTarget, Any] | None = None
    ) -> Any:
        """The result of a request. Cancelling cancels the task, wherever it is, without waiting for that.

        Args:
            tried: a first attempt made elsewhere: its target and its outcome.

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
                error.may_have_started = True  # an earlier attempt may have started, whatever the last one reports
            raise

    async def stream(self, order: Call, target: AttemptTarget, span: Span = NO_SPAN) -> AsyncGenerator[Any, None]:
        """The items of a task. Retried like a call until the first item has arrived. Closing it cancels the task.

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            StreamBroken: items were lost.
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
        """Send one attempt.

        Raises:
            InvalidRequest, DeadlineExceeded: nothing was sent.
        """
        exchange, routed_request = self.exchange, target.routed_request
        try:
            target.sent_at = now = exchange.loop.time()
            frame = target.order.frame(flight.id, now, target.token, trace, routed_request.attempts, window)
            exchange.launch(flight, frame)
        except GanglineError:
            target.unsent()
            raise
        if routed_request.admission is not None:
            routed_request.admission.sent()
        if target.told:
            target.sent(flight)

    async def read(self, order: Call, flight: StreamRequest) -> AsyncGenerator[Any, None]:
        """The items of one attempt as they arrive; afterwards, `flight.end` says how it ended."""
        exchange = self.exchange
        flight.on_stall = lambda: self._credit_anew(flight)
        timer = None
        if order.deadline is not None:
            end = min(order.deadline, exchange.loop.time() + (order.attempt_s or math.inf))
            timer = exchange.loop.call_at(end, flight.stop, order.too_late(may_have_started=True))
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
        """The answer is no longer needed. False if nothing had been sent. Never fails or waits."""
        return self._stop(flight) if self.exchange.is_open(flight) else True

    def _stop(self, flight: AwaitedRequest | StreamRequest) -> bool:
        """Take the frame back, or tell the worker to cancel."""
        exchange = self.exchange
        if exchange.recall(flight):
            flight.settle()
            flight.books.pump()
            return False
        exchange.post(flight.worker, (RequestOp.CANCEL, flight.id))
        return True

    def expire(self, order: Call, flight: TaskRequest) -> None:
        """The deadline has passed: tell the worker to cancel."""
        if not flight.future.done():
            sent = self.abandon(flight)
            flight.future.set_exception(order.too_late(may_have_started=sent))

    def limit(self, order: Call, deadline: float, flight: TaskRequest) -> asyncio.TimerHandle:
        """End the attempt when its time or that of the whole is over, whichever comes first."""
        loop = self.exchange.loop
        if order.attempt_s is not None and (end := loop.time() + order.attempt_s) < deadline:
            return loop.call_at(end, self._time_out, flight)
        return loop.call_at(deadline, self.expire, order, flight)

    def _time_out(self, flight: TaskRequest) -> None:
        """The attempt has taken too long: tell the worker to cancel. There may be another one."""
        if not flight.future.done():
            flight.future.set_result(TryOutcome.TIMED_OUT if self.abandon(flight) else TryOutcome.LATE)

    def _credit(self, flight: StreamRequest) -> None:
        flight.credited += 1
        if flight.credited * 2 >= self.window and flight.end is None:
            self.exchange.post(flight.worker, (RequestOp.CREDIT, flight.id, flight.credited))
            flight.credited = 0

    def _credit_anew(self, flight: StreamRequest) -> None:
        """All received items were read, so the whole window is free; the worker subtracts what it has already sent. If
        the last items were lost, the next one reveals the gap."""
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
"""Half of the time for which workers hold slots, so that no rank gives up while another may still get BEGIN."""


class TwoPhaseStart:
    """One attempt of a call on all ranks of a gang: it starts on all of them or on none.

    Several routers may send to one gang, so a rank may be busy with another call. Therefore every rank first takes its
    slots and reports HELD; when all have, all get BEGIN. A rank that has no free slots or does not answer in time ends
    the attempt: the others are cancelled, nothing has started, and it may be retried on this or another gang.
    """

    def __init__(self, caller: AttemptLoop, size: int) -> None:
        self._caller = caller
        self._size = size
        self._flights: dict[TaskRequest, bool] = {}
        """Whether each holds its slots."""
        self._first: asyncio.Future[None] = caller.exchange.loop.create_future()
        self._timer = caller.exchange.loop.call_later(HELD_WITHIN_S, self._give_up)
        self.begun = False
        """BEGIN was sent to all. Before that, nothing has started."""

    def __repr__(self) -> str:
        return f"TwoPhaseStart({sum(self._flights.values())} of {self._size} held, begun={self.begun})"

    async def first_held(self) -> None:
        """Wait until one rank holds its slots. Cancelled if the attempt ends before that."""
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
                    LeaseBusy(f"{flight.worker.id} did not confirm within {HELD_WITHIN_S:g} s that it has free slots")
                )

    def close(self) -> None:
        """The attempt has ended. Idempotent."""
        self._timer.cancel()
        if not self._first.done():
            self._first.cancel()
