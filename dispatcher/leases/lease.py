"""Slots that are held for many tasks: reserve once, dispatch as often as wanted, at most so many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol

from ...schemas.errors.base import (
    DeadlineExceeded,
    Disconnected,
    GanglineError,
    LeaseBusy,
    LeaseExpired,
    SelectionUsed,
    WorkerLost,
    WrongPool,
)
from ...schemas.text import count_of
from ...telemetry.tracing import Span
from ..calls.attempts import Caller, fate_of
from ..calls.call import CallOptions, Order, refuses_token, result_of
from ..calls.fast_requests import Detour
from ..calls.streaming import Streamer, StreamFlight, no_stream, stream_fate, streams
from ..routing.outcome import Fate
from ..routing.pool_core import outcome_unknown, stale
from ..routing.request import Ticket
from ..transport.flights import Outcome
from .fast_path import HeldExpress
from .held_slots import Held, Hold
from .lease_slots import LeaseSlots

_COMES_BACK_S: Final = 3.0
"""For so long after a server's restart a worker that is not there may only be later than we are."""
_ASK_AGAIN_S: Final = 0.05


class Observe(Protocol):
    """Counts and traces a request; `since`: when it was sent, and counted, elsewhere."""

    def __call__(self, order: Order, since: float | None = None) -> AbstractContextManager[tuple[Ticket, Span]]: ...


MakeOrder = Callable[[str, tuple[Any, ...], dict[str, Any], CallOptions], Order]


class Lease(Held):
    """Some slots of one worker, or of one gang of a standing set, renewed by itself while held. Not for use after its
    `async with` block."""

    def __init__(
        self,
        hold: Hold,
        *,
        caller: Caller,
        express: HeldExpress,
        streamer: Streamer,
        make: MakeOrder,
        observe: Observe,
        options: CallOptions,
        wait: bool,
    ) -> None:
        super().__init__(hold)
        self._caller = caller
        self._express = express
        self._streamer = streamer
        self._make = make
        self._observe = observe
        self._options = options
        self._wait = wait
        self._slots = LeaseSlots(hold.slots, caller.exchange.loop)

    @property
    def used(self) -> int:
        """Slots in use by this lease's tasks now, those included that were cancelled and have not stopped yet."""
        return self._slots.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease cannot be used any more; None while it can."""
        if self.hold.ended:
            return LeaseExpired(f"the lease on {self.worker} was released")
        return self.hold.trouble()

    # -- work -----------------------------------------------------------------------------------------------------

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the lease and return its result. Waits while all slots of the lease are in use.

        Cancelling stops the task; its slot is the lease's again when it has stopped.

        Raises:
            LeaseExpired, StaleEpoch, WorkerLost: the lease is lost; `may_have_started` says whether the task may have
                begun.
            LeaseBusy: all slots are in use and the lease was made with `wait=False`; nothing was sent.
            GanglineError: see Client.call.
        """
        express = self._express
        flight = express.on_lease(self.hold, self._slots, method, args, kwargs, self._options)
        if flight is None:
            order = self._order(method, args, kwargs)
            with self._observe(order) as (request, span):
                return await self._run(order, request, span)
        try:
            outcome = await flight.future
        except BaseException as error:
            express.failed(flight, error)
            raise
        if type(outcome) is Detour:
            order = self._order(method, args, kwargs)
            with self._observe(order, since=flight.sent_at) as (request, span):
                request.attempts = 1
                return await self._run(order, request, span, tried=(outcome.outcome, flight.sent_at))
        if self._caller.exchange.measured:
            express.answered(flight)
        return outcome

    async def stream(self, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run a task on the lease and yield its items. Leaving the loop early cancels the task.

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            GanglineError: as `call`; StreamBroken when items were lost.
        """
        order = self._order(method, args, kwargs)
        with self._observe(order) as (_, span):
            hold, fate = self.hold, Fate.UNSEEN
            if not streams(hold.worker, order):
                raise no_stream(order)
            while await self._may_repeat(fate):
                ticket = await self._enter(order)
                flight = StreamFlight(self._caller.exchange.new_id(), hold.worker, self._slots, ticket)
                items = self._streamer.read(order, flight, token=hold.token, trace=span.traceparent())
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item
                ended = stream_fate(flight)
                if ended is None:
                    return
                fate = ended
            raise self._error(fate)

    def renew(self) -> None:
        """Ask for the full time to live now, rather than when it is due by itself."""
        self.hold.renew()

    def release(self) -> None:
        """Give the slots back now; those in use come back as their tasks end. Idempotent, never waits."""
        self.hold.release()
        self._slots.close()

    def __repr__(self) -> str:
        lost = self.lost
        state = f"lost: {lost.code}" if lost else "held"
        return f"Lease({self.worker}, {self.used}/{self.slots} slots used, {state})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _order(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Order:
        endpoint, dot, name = method.rpartition(".")
        if dot and endpoint not in (self.pool, self.endpoint):
            raise WrongPool(f"this lease is of pool {self.pool!r}, not of {endpoint!r}: lease a worker of that pool")
        order = self._make(f"{endpoint or self.endpoint}.{name}", args, kwargs, self._options)
        order.pool = self.pool
        return order

    def _check(self) -> None:
        if (error := self.lost) is not None:
            raise error

    async def _enter(self, order: Order) -> Ticket:
        """Take slots of the lease for one task; they are given back when its flight has ended."""
        self._check()
        worker = self.hold.worker
        ticket = order.ticket(1)
        method = worker.methods.get(order.method)
        ticket.cost = method.slots if method is not None else 1
        if ticket.cost > self.slots:
            raise LeaseBusy(
                f"{order.target} takes {count_of(ticket.cost, 'slot')}, the lease has {self.slots}: lease more"
            )
        if not self._slots.take_nowait(ticket):
            if not self._wait:
                raise LeaseBusy(
                    f"no slot of the lease on {self.worker} is free ({self.slots} in use); nothing was sent"
                )
            await self._slots.take(ticket, order.deadline, order.too_late(may_have_started=False))
            if (error := self.lost) is not None:
                if not self._slots.closed:
                    self._slots.give(ticket)
                raise error
        ticket.worker = worker
        return ticket

    async def _run(self, order: Order, request: Ticket, span: Span, tried: tuple[Outcome, float] | None = None) -> Any:
        """`tried`: what a first try, sent elsewhere at that time, has come to."""
        hold, caller, fate = self.hold, self._caller, Fate.UNSEEN
        while tried is not None or await self._may_repeat(fate):
            if tried is None:
                ticket = await self._enter(order)
                request.attempts += 1
                ticket.attempts = request.attempts
                sent_at = caller.exchange.loop.time()
                outcome = await caller.attempt(self._slots, order, hold.worker, ticket, token=hold.token, parent=span)
            else:
                (outcome, sent_at), tried = tried, None
            ended = fate_of(outcome)
            if ended is None:
                assert not isinstance(outcome, Fate)
                if not refuses_token(outcome):
                    hold.used(sent_at)
                return result_of(outcome)
            fate = ended
        raise self._error(fate)

    async def _may_repeat(self, fate: Fate) -> bool:
        """Whether a task of that fate may go out on the same lease; waits until it is worth while.

        What never arrived, and never will, may. What nobody listened to after we regained the connection, too: the
        worker may only be later than we are, and has the lease as before.
        """
        exchange = self._caller.exchange
        if fate is Fate.UNHEARD and exchange.loop.time() - exchange.reconnected_at < _COMES_BACK_S:
            await asyncio.sleep(_ASK_AGAIN_S)
            return True
        return fate is Fate.UNSEEN

    def _error(self, fate: Fate) -> GanglineError:
        worker = self.hold.worker
        if fate.may_have_started:
            return outcome_unknown(fate, self.worker, 1)
        if fate is Fate.STALE:
            return stale(worker, self.epoch)
        if fate is Fate.UNSENT:
            return Disconnected("no connection to the server; nothing was sent on the lease")
        if fate is Fate.LATE:
            return DeadlineExceeded(f"the task reached {self.worker} too late; nothing started")
        if fate is Fate.FULL:
            return LeaseBusy(f"{self.worker} says that all slots of the lease are in use; nothing started")
        return WorkerLost(f"{self.worker} is gone, and the lease with it; nothing started", may_have_started=False)


class Leasing:
    """`async with router.lease(...) as lease`: reserves on entry, releases on exit."""

    def __init__(self, make: Callable[[], Awaitable[Lease]]) -> None:
        self._make = make
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        if self._lease is not None:
            raise SelectionUsed("this was entered already: call lease again")
        self._lease = await self._make()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()
