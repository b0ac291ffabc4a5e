"""A worker that was chosen and holds a slot for one task, until that is dispatched.

======== =================================== ========
state    event                               becomes
======== =================================== ========
OPEN     dispatched                          USED
OPEN     the `async with` block ends         CLOSED (the slot is released)
USED     the `async with` block ends         USED (the task has the slot)
USED     dispatched                          raises SelectionUsed
CLOSED   dispatched                          raises SelectionClosed
======== =================================== ========
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final

from ...schemas.errors.base import LeaseExpired, SelectionClosed, SelectionUsed, WorkerLost, WrongPool
from ...schemas.names import WorkerId
from ...schemas.wire.frames import Answer
from ...telemetry.tracing import NO_SPAN, Span
from ..calls.attempts import Caller, fate_of
from ..calls.call import Order, refuses_token, result_of
from ..calls.streaming import Streamer, StreamFlight, no_stream, stream_fate, streams
from ..gangs.member_slots import GangHold
from ..gangs.standing_set import no_stream_of_all
from ..routing.outcome import Fate
from ..routing.pool_core import outcome_unknown
from ..routing.request import Ticket
from ..transport.flights import Outcome, TaskFlight
from .held_slots import Held, Hold


class State(Enum):
    OPEN = "open"
    USED = "used"
    CLOSED = "closed"


# Looking a member up in its enumeration costs ten times as much as a name of the module (CPython 3.11).
OPEN: Final = State.OPEN
_USED: Final = State.USED
_CLOSED: Final = State.CLOSED


class Selection(Held):
    """Who was chosen: a worker, or a gang of a standing set. Renewed by itself while it is held."""

    state: State = OPEN
    choice: Choice | None = None
    """What was asked of the worker, if that was anything."""
    _moved: WorkerId | None = None
    _moved_to_gang: str | None = None

    @property
    def gang(self) -> str | None:
        """The gang of a standing set that was chosen; once its task had to run on another one, that. None: of none."""
        return self._moved_to_gang or self.hold.gang

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it: who was chosen; once its task had to run elsewhere, who ran it."""
        return str(self._moved or self.hold.worker.id)

    def moved_to(self, worker: WorkerId | None, gang: str | None = None) -> None:
        """Its task was sent there instead; to the worker of rank 0, if that is of a gang."""
        self._moved, self._moved_to_gang = worker, gang

    def moving(self, fate: Fate) -> None:
        """To be called before its task is sent elsewhere, for what became of it where it was.

        Raises:
            WorkerLost, ResultLost: it is to run on the worker that was chosen, or not at all.
        """
        if self.choice is None or self.choice.move:
            return
        if fate.may_have_started:
            raise outcome_unknown(fate, self.worker, 1)
        raise WorkerLost(
            f"{self.worker} was chosen with move=False, and the task cannot start there ({fate.value}): choose again",
            may_have_started=False,
        )

    def check_usable(self, pool: str) -> None:
        """Whether it can be dispatched; asked before anything is sent.

        Raises:
            SelectionUsed, SelectionClosed, WrongPool, LeaseExpired.
        """
        if self.state is _USED:
            raise SelectionUsed(
                f"this selection of {self.worker} was dispatched already: choose again for another task"
            )
        if self.state is _CLOSED:
            raise SelectionClosed(f"this selection of {self.worker} was closed: dispatch inside its `async with` block")
        if pool != self.pool:
            raise WrongPool(f"this selection is of pool {self.pool!r}, not of {pool!r}: choose a worker of that pool")
        trouble = self.hold.trouble()
        if isinstance(trouble, LeaseExpired):
            raise trouble

    def mark_used(self) -> None:
        self.state = _USED

    def close(self) -> None:
        """Release the slot if it was not used. Idempotent, never fails, never waits."""
        if self.state is OPEN:
            self.state = _CLOSED
            self.hold.release()

    def __repr__(self) -> str:
        return f"Selection({self.worker}, {self.state.value}, epoch={self.epoch}, fence={self.fence})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What holds for the worker that was chosen, and for the one that takes its place."""

    labels: Mapping[str, str] | None = None
    key: str | None = None
    move: bool = True
    """Whether another worker may take its place."""

    def put_on(self, ticket: Ticket) -> None:
        """Have a ticket ask for the same, beside what it asks for itself."""
        if self.labels:
            ticket.labels = {**self.labels, **(ticket.labels or {})}
        if ticket.key is None:
            ticket.key = self.key


class Moving:
    """The task of a selection, which may have to run elsewhere."""

    def __init__(self, selection: Selection, order: Order, max_attempts: int) -> None:
        self._selection = selection
        self._order = order
        self._max_attempts = max_attempts

    def ticket(self, fate: Fate) -> Ticket:
        """For another worker or gang: what held for the choice holds for that, too.

        Raises:
            WorkerLost, ResultLost: it is to run on the one that was chosen, or not at all.
        """
        selection = self._selection
        selection.moving(fate)
        ticket = self._order.ticket(self._max_attempts)
        ticket.attempts, ticket.last = 1, selection.hold.counts_on.id
        if selection.choice is not None:
            selection.choice.put_on(ticket)
        if fate.may_have_started:
            ticket.uncertain = fate
        return ticket

    def to_gang(self, rank0: WorkerId, gang: str) -> None:
        """Its task is sent to that gang."""
        self._selection.moved_to(rank0, gang)


class Choosing:
    """`async with router.choose_worker(...) as selection`: reserves on entry, releases on exit if it was not used."""

    selection: Selection | None = None
    """Who was chosen, as soon as `choose` knows."""
    _entered = False

    choice: Choice | None = None
    """What the selection shall remember."""

    def __init__(self, choose: Choose, *args: Any) -> None:
        """`choose`: called with this object and these arguments on entry."""
        self._choose = choose
        self._args = args

    def __aenter__(self) -> Coroutine[Any, Any, Selection]:
        if self._entered:
            raise SelectionUsed("this was entered already: call choose_worker again")
        self._entered = True
        return self._choose(self, *self._args)

    def chosen(self, hold: Hold) -> Selection:
        """This slot is held."""
        self.selection = selection = Selection(hold)
        if self.choice is not None:
            selection.choice = self.choice
        return selection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.selection is not None:
            self.selection.close()


Choose = Callable[..., Coroutine[Any, Any, Selection]]
"""Holds a slot, and tells the Choosing that it gets first."""


class Dispatcher:
    """Sends a task to the slot that a selection holds."""

    def __init__(self, caller: Caller, streamer: Streamer, max_attempts: int) -> None:
        self._caller = caller
        self._streamer = streamer
        self._max_attempts = max_attempts

    async def dispatch(self, selection: Selection, order: Order, span: Span = NO_SPAN) -> Any:
        """The result of the task. If the chosen worker went before the task can have started, it runs on another one.

        Raises:
            SelectionUsed, SelectionClosed, WrongPool, LeaseExpired, InvalidRequest: before anything is sent.
            GanglineError: see Client.call.
        """
        selection.check_usable(order.pool)
        hold, pool = selection.hold, selection.hold.pool
        if isinstance(hold, GangHold):
            order.remaining_ms(self._caller.exchange.loop.time())
            selection.mark_used()
            return await hold.routed.dispatch(hold, order, span, self._moving(selection, order))
        if hold.trouble() is not None:
            # The worker is gone or began anew: nothing was sent, any other will do.
            selection.mark_used()
            hold.release()
            return await self._elsewhere(selection, order, span)
        now = self._caller.exchange.loop.time()
        order.remaining_ms(now)
        flight = self._launch(selection, order, span)
        try:
            outcome = await self._caller.answer(order, flight)
        except BaseException:
            # Cancelled or out of time. The task may not have reached the worker: then the token still has the slot.
            hold.give_back()
            raise
        if not isinstance(outcome, Fate) and outcome[0] in (Answer.OK, Answer.ERROR) and not refuses_token(outcome):
            pool.accepted(hold.ticket)
            return result_of(outcome)
        return await self._after(selection, order, outcome, span)

    async def stream(self, selection: Selection, order: Order, span: Span = NO_SPAN) -> AsyncGenerator[Any, None]:
        """The items of the task. If the chosen worker went before the task can have started, they come from another
        one. Closing it cancels the task.

        Raises:
            SelectionUsed, SelectionClosed, WrongPool, LeaseExpired, InvalidRequest: before anything is sent.
            GanglineError: see Client.stream.
        """
        selection.check_usable(order.pool)
        hold, pool = selection.hold, selection.hold.pool
        order.remaining_ms(self._caller.exchange.loop.time())
        if isinstance(hold, GangHold):
            if hold.on_all:
                raise no_stream_of_all(hold.routed.name)
            selection.mark_used()
            items = hold.routed.stream_held(hold, order, span, self._moving(selection, order))
            async with contextlib.aclosing(items):
                async for item in items:
                    yield item
            return
        fate = Fate.GONE
        if hold.trouble() is None:
            if not streams(hold.worker, order):
                raise no_stream(order)
            flight = StreamFlight(self._caller.exchange.new_id(), hold.worker, pool, hold.ticket)
            selection.mark_used()
            hold.consume()
            try:
                items = self._streamer.read(order, flight, token=hold.token, trace=span.traceparent())
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item
            except BaseException:
                # Left early or out of time. The task may not have reached the worker: then the token has the slot.
                hold.give_back()
                raise
            ended = stream_fate(flight)
            if ended is None:
                pool.accepted(flight.ticket)
                return
            fate = ended
            if fate.may_have_started and not hold.allows_repeat(order):
                raise outcome_unknown(fate, selection.worker, 1)
            hold.give_back()
        else:
            selection.mark_used()
            hold.release()
        ticket = self._moving(selection, order).ticket(fate)
        try:
            items = self._streamer.run(pool, order, ticket, span)
            async with contextlib.aclosing(items):
                async for item in items:
                    selection.moved_to(ticket.last)
                    yield item
        finally:
            selection.moved_to(ticket.last)

    async def go_on(self, selection: Selection, order: Order, outcome: Outcome, span: Span) -> Any:
        """What comes of a dispatch that was sent elsewhere and not simply answered."""
        if not isinstance(outcome, Fate) and outcome[0] == Answer.ERROR and not refuses_token(outcome):
            selection.hold.pool.accepted(selection.hold.ticket)
            return result_of(outcome)
        return await self._after(selection, order, outcome, span)

    def _launch(self, selection: Selection, order: Order, span: Span) -> TaskFlight:
        hold, exchange = selection.hold, self._caller.exchange
        flight = TaskFlight(exchange.new_id(), hold.worker, exchange.loop, hold.pool, hold.ticket)
        frame = order.frame(flight.id, exchange.loop.time(), hold.token, span.traceparent(), 1)
        exchange.launch(flight, frame)  # raises for bad arguments: the selection stays open then, and is released
        selection.mark_used()
        hold.consume()
        return flight

    async def _after(self, selection: Selection, order: Order, outcome: Outcome, span: Span) -> Any:
        hold = selection.hold
        fate = fate_of(outcome)
        if fate is not None and fate.may_have_started and not hold.allows_repeat(order):
            raise outcome_unknown(fate, selection.worker, 1)
        hold.give_back()
        return await self._elsewhere(selection, order, span, fate)

    async def _elsewhere(self, selection: Selection, order: Order, span: Span, fate: Fate | None = None) -> Any:
        ticket = self._moving(selection, order).ticket(fate or Fate.GONE)
        try:
            return await self._caller.run(selection.hold.pool, order, ticket, span)
        finally:
            selection.moved_to(ticket.last)

    def _moving(self, selection: Selection, order: Order) -> Moving:
        return Moving(selection, order, self._max_attempts)
