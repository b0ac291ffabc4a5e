"""Slots that are held for many tasks: reserve once, dispatch as often as wanted, at most so many at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from ..schemas.errors import (
    DeadlineExceeded,
    Disconnected,
    GanglineError,
    LeaseBusy,
    LeaseExpired,
    SelectionUsed,
    WorkerLost,
    WrongPool,
)
from ..schemas.frames import Frame
from .caller import Caller, fate_of
from .core import outcome_unknown, stale
from .hold import Hold
from .order import CallOptions, Order, result_of
from .retry import Fate
from .stream import Streamer, StreamFlight

MakeOrder = Callable[[str, tuple[Any, ...], dict[str, Any], CallOptions], Order]


class Lease:
    """Some slots of one worker, renewed by itself while held. Not for use after its `async with` block."""

    def __init__(
        self, hold: Hold, *, caller: Caller, streamer: Streamer, make: MakeOrder, options: CallOptions, wait: bool
    ) -> None:
        self._hold = hold
        self._caller = caller
        self._streamer = streamer
        self._make = make
        self._options = options
        self._wait = wait
        self._used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    # -- who it is ------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> str:
        return self._hold.pool.name

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it."""
        return str(self._hold.worker.id)

    @property
    def node(self) -> str:
        return self._hold.worker.node

    @property
    def zone(self) -> str:
        return self._hold.worker.zone

    @property
    def address(self) -> str:
        """Where others can reach the process, if it told; host or host:port."""
        return self._hold.worker.address

    @property
    def labels(self) -> Mapping[str, str]:
        return MappingProxyType(self._hold.worker.labels)

    @property
    def token(self) -> str:
        """The lease's token, as it stands in the ledger."""
        return self._hold.token

    @property
    def epoch(self) -> int:
        """The worker's epoch; the lease dies with it."""
        return self._hold.epoch

    @property
    def fence(self) -> int:
        """Grows with each lease of the worker; with `ledger="sync"`, over the whole system."""
        return self._hold.fence

    @property
    def slots(self) -> int:
        return self._hold.slots

    @property
    def used(self) -> int:
        """Slots in use by this lease's tasks now."""
        return self._used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease cannot be used any more; None while it can."""
        if self._hold.ended:
            return LeaseExpired(f"the lease on {self.worker} was released")
        return self._hold.trouble()

    # -- work -----------------------------------------------------------------------------------------------------

    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the lease and return its result. Waits while all slots of the lease are in use.

        Cancelling stops the task; the slot stays the lease's.

        Raises:
            LeaseExpired, StaleEpoch, WorkerLost: the lease is lost; `may_have_started` says whether the task may have
                begun.
            LeaseBusy: all slots are in use and the lease was made with `wait=False`; nothing was sent.
            GanglineError: see Client.call.
        """
        order = self._order(method, args, kwargs)
        cost = await self._enter(order)
        try:
            return await self._run(order)
        finally:
            self._leave(cost)

    async def stream(self, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run a task on the lease and yield its items. Leaving the loop early cancels the task.

        Raises:
            GanglineError: as `call`; StreamBroken when items were lost.
        """
        order = self._order(method, args, kwargs)
        cost = await self._enter(order)
        try:
            self._check()
            hold = self._hold
            flight = StreamFlight(self._caller.exchange.new_id(), hold.worker, hold.pool, None)
            async for item in self._streamer.read(hold.pool, order, flight, token=hold.token):
                yield item
            end = flight.end
            if isinstance(end, Fate):
                raise self._error(end)
            fate = self._streamer._fate(flight, False, 1)
            if fate is not None:
                raise self._error(fate)
        finally:
            self._leave(cost)

    def renew(self) -> None:
        """Ask for the full time to live now, rather than when it is due by itself."""
        self._hold.renew()

    def release(self) -> None:
        """Give the slots back now; those in use come back as their tasks end. Idempotent, never waits."""
        self._hold.release()
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        lost = self.lost
        state = f"lost: {lost.code}" if lost else "held"
        return f"Lease({self.worker}, {self._used}/{self.slots} slots used, {state})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _order(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Order:
        endpoint, dot, name = method.rpartition(".")
        if dot and endpoint != self.pool:
            raise WrongPool(f"this lease is of pool {self.pool!r}, not of {endpoint!r}: lease a worker of that pool")
        return self._make(f"{self.pool}.{name}", args, kwargs, self._options)

    def _check(self) -> None:
        if (error := self.lost) is not None:
            raise error

    async def _enter(self, order: Order) -> int:
        """Take slots of the lease for one task, in order of asking."""
        self._check()
        method = self._hold.worker.methods.get(order.method)
        cost = method.slots if method is not None else 1
        if cost > self.slots:
            raise LeaseBusy(f"{order.target} takes {cost} slots, the lease has {self.slots}: lease more")
        if self._used + cost > self.slots or self._waiters:
            if not self._wait:
                raise LeaseBusy(f"all {self.slots} slots of the lease on {self.worker} are in use; nothing was sent")
            await self._line_up(cost, order)
            self._check_after_wait(cost)
            return cost
        self._used += cost
        return cost

    def _check_after_wait(self, cost: int) -> None:
        try:
            self._check()
        except GanglineError:
            self._leave(cost)
            raise

    async def _line_up(self, cost: int, order: Order) -> None:
        loop = self._caller.exchange.loop
        waiter: asyncio.Future[None] = loop.create_future()
        entry = (cost, waiter)
        self._waiters.append(entry)
        timer = None
        if order.deadline is not None:
            timer = loop.call_at(order.deadline, _fail, waiter, order.too_late(may_have_started=False))
        try:
            await waiter
        except BaseException:
            if entry in self._waiters:
                self._waiters.remove(entry)
                self._admit()
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._leave(cost)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self._hold.ended:
            # Woken by release(), which takes nobody's slots.
            self._used += cost

    def _leave(self, cost: int) -> None:
        self._used -= cost
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._used + self._waiters[0][0] <= self.slots:
            cost, waiter = self._waiters.popleft()
            if not waiter.done():
                self._used += cost
                waiter.set_result(None)

    async def _run(self, order: Order) -> Any:
        hold, caller = self._hold, self._caller
        attempt = 1
        while True:
            self._check()
            sent_at = caller.exchange.loop.time()
            outcome = await caller.attempt(hold.pool, order, hold.worker, None, token=hold.token, attempt=attempt)
            fate = fate_of(outcome)
            if fate is None:
                frame: Frame = outcome  # type: ignore[assignment]
                result = result_of(frame)
                hold.used(sent_at)
                return result
            if fate is not Fate.UNSEEN:
                raise self._error(fate)
            attempt += 1  # it never arrived, and never will: once more on the same lease

    def _error(self, fate: Fate) -> GanglineError:
        worker = self._hold.worker
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


def _fail(waiter: asyncio.Future[None], error: GanglineError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
