"""Running a task on some worker of a pool: try, and try again where that is safe."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ...schemas.errors.base import GanglineError, Unavailable
from ...schemas.wire.frames import Answer, Frame, Request
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..pools.pool import RoutedPool
from ..routing.outcome import Fate
from ..routing.request import Ticket
from ..routing.settings import RouterSettings
from ..routing.worker_table import Worker
from ..transport.exchange import Exchange
from ..transport.flights import Awaited, Books, Outcome, TaskFlight
from .call import Order, error_of, result_of

_REJECTED: Final = int(Answer.REJECTED)
_ERROR: Final = int(Answer.ERROR)


class Caller:
    """Sends tasks and takes their answers."""

    def __init__(self, exchange: Exchange, settings: RouterSettings) -> None:
        self.exchange = exchange
        self._settings = settings

    async def run(
        self,
        pool: RoutedPool,
        order: Order,
        ticket: Ticket,
        parent: Span = NO_SPAN,
        *,
        tried: tuple[Worker, Outcome] | None = None,
    ) -> Any:
        """The result of the task. Cancelling stops the task, wherever it is, and does not wait for that.

        Args:
            tried: what a first try, made elsewhere, has come to.

        Raises:
            GanglineError: see Client.call.
        """
        fate: Fate | None = None
        try:
            while True:
                if tried is None:
                    worker = await pool.place(ticket, order.deadline, fate)
                    outcome = await self.attempt(pool, order, worker, ticket, parent=parent)
                else:
                    (worker, outcome), tried = tried, None
                fate = fate_of(outcome)
                if fate is None:
                    pool.accepted(ticket)
                    assert not isinstance(outcome, Fate)
                    return result_of(outcome)
                pool.refused(ticket, worker, fate)
        except GanglineError as error:
            if ticket.uncertain is not None:
                error.may_have_started = True  # an earlier try may have, whatever the last one says
            raise

    async def attempt(
        self,
        books: Books,
        order: Order,
        worker: Worker,
        ticket: Ticket,
        *,
        token: str | None = None,
        parent: Span = NO_SPAN,
    ) -> Outcome:
        """One try on one worker. The ticket is settled when the worker has answered, also after a cancellation.

        Raises:
            InvalidRequest: arguments that have no form on the wire; nothing was sent.
            DeadlineExceeded: the deadline passed; the worker was told to stop.
        """
        span = NO_SPAN
        if parent is not NO_SPAN:
            span = _attempt_span(worker, ticket.attempts, parent)
        flight = self.launch(books, order, worker, ticket, token=token, trace=span.traceparent())
        try:
            outcome = await self.answer(order, flight)
        except BaseException as error:
            span.end(error)
            raise
        if span is not NO_SPAN:
            if (fate := fate_of(outcome)) is not None:
                span.event("gangline.refused", {"reason": fate.value})
            span.end()
        return outcome

    def launch(
        self,
        books: Books,
        order: Order,
        worker: Worker,
        ticket: Ticket,
        *,
        token: str | None = None,
        trace: str | None = None,
    ) -> TaskFlight:
        """Send a task. Whatever goes wrong before it is sent settles the ticket.

        Raises:
            InvalidRequest, DeadlineExceeded: nothing was sent.
        """
        exchange = self.exchange
        loop = exchange.loop
        flight = TaskFlight(exchange.new_id(), worker, loop, books, ticket)
        try:
            exchange.launch(flight, order.frame(flight.id, loop.time(), token, trace, ticket.attempts))
        except GanglineError:
            books.settle(ticket)
            books.pump()
            raise
        if ticket.visit is not None:
            ticket.visit.sent()
        return flight

    async def answer(self, order: Order, flight: TaskFlight) -> Outcome:
        """Wait for the answer; on cancellation and at the deadline tell the worker to stop."""
        timer = None
        if order.deadline is not None:
            timer = self.exchange.loop.call_at(order.deadline, self._expire, order, flight)
        try:
            return await flight.future
        except asyncio.CancelledError:
            self.abandon(flight)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def abandon(self, flight: Awaited) -> bool:
        """Nobody wants the answer any more; False when nothing had been sent. Never fails, never waits."""
        exchange = self.exchange
        if not exchange.is_open(flight):
            return True
        if exchange.recall(flight):
            flight.settle()
            flight.books.pump()
            return False
        exchange.post(flight.worker, (Request.CANCEL, flight.id))
        return True

    def _expire(self, order: Order, flight: TaskFlight) -> None:
        if not flight.future.done():
            sent = self.abandon(flight)
            flight.future.set_exception(order.too_late(may_have_started=sent))


def _attempt_span(worker: Worker, attempt: int, parent: Span) -> Span:
    return tracer.start(
        "gangline.attempt",
        kind="producer",
        parent=parent,
        attributes={"gangline.worker": str(worker.id), "gangline.attempt": attempt},
    )


def fate_of(outcome: Outcome) -> Fate | None:
    """Why an outcome is no answer of the task; None when it is one."""
    if isinstance(outcome, Fate):
        return outcome
    if outcome[0] == _REJECTED:
        return Fate.of_reason(outcome[2])
    if outcome[0] == _ERROR and _says_unavailable(outcome):
        return Fate.DRAINING
    return None


def _says_unavailable(frame: Frame) -> bool:
    return frame[5] is False and isinstance(error_of(frame), Unavailable)
