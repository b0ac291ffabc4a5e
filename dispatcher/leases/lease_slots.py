"""The slots of one lease: counts those in use and queues requests for them.

A slot is in use until the worker has answered the task (or is lost): a task that was cancelled may still be stopping.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...schemas.errors.base import GanglineError, LeaseBusy
from ...schemas.text import count_of
from ..calls.call import Call
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import WorkerEntry


class SlotConsumer(Protocol):
    """A request or flight that takes `cost` slots."""

    cost: int


class LeaseSlots:
    """Counts slots in use; waiting requests are served in order of arrival."""

    __slots__ = ("_loop", "_waiters", "closed", "total", "used")

    def __init__(self, total: int, loop: asyncio.AbstractEventLoop) -> None:
        self.total = total
        self.used = 0
        self.closed = False
        self._loop = loop
        self._waiters: deque[tuple[RoutedRequest, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def take_nowait(self, routed_request: SlotConsumer) -> bool:
        """Take the request's slots if they are free and no request is waiting."""
        if self._waiters or self.used + routed_request.cost > self.total:
            return False
        self.used += routed_request.cost
        return True

    async def enter(
        self, order: Call, worker: WorkerEntry, whose: object, *, wait: bool, check: Callable[[], None]
    ) -> RoutedRequest:
        """Take slots for one task on that worker, until its flight has ended.

        Args:
            whose: owner of the slots; its str() is used in error texts.
            wait: whether to wait while they are in use.
            check: raises if the slots can no longer be used.

        Raises:
            LeaseBusy: the task takes more slots than there are, or they are in use and `wait` is False.
            DeadlineExceeded: they were in use until the task's deadline.
        """
        check()
        routed_request = order.routed_request(1)
        method = worker.methods.get(order.method)
        routed_request.cost = method.slots if method is not None else 1
        if routed_request.cost > self.total:
            takes = f"{order.target} takes {count_of(routed_request.cost, 'slot')}"
            raise LeaseBusy(f"{takes}, {whose} has {self.total}: ask for more")
        if not self.take_nowait(routed_request):
            if not wait:
                raise LeaseBusy(f"no slot of {whose} is free ({self.total} in use); nothing was sent")
            await self.take(routed_request, order.deadline, order.too_late(may_have_started=False))
            try:
                check()
            except GanglineError:
                if not self.closed:
                    self.give(routed_request)
                raise
        routed_request.worker = worker
        return routed_request

    async def take(self, routed_request: RoutedRequest, deadline: float | None, too_late: GanglineError) -> None:
        """Take the request's slots, waiting if necessary. If the lease is closed meanwhile, returns without slots.

        Raises:
            too_late: at the deadline (loop time).
        """
        if self.take_nowait(routed_request):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (routed_request, waiter)
        self._waiters.append(entry)
        timer = None if deadline is None else self._loop.call_at(deadline, _fail, waiter, too_late)
        try:
            await waiter
        except BaseException:
            if entry in self._waiters:
                self._waiters.remove(entry)
                self.pump()
            elif _served(waiter) and not self.closed:
                self.give(routed_request)  # served and cancelled in one turn of the loop: the slots go to the next
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def give(self, routed_request: SlotConsumer) -> None:
        """Free the request's slots."""
        self.used -= routed_request.cost
        if self._waiters:
            self.pump()

    def settle(self, routed_request: RoutedRequest) -> None:
        """The request's task has ended: see Settlement. Idempotent."""
        if routed_request.worker is not None:
            routed_request.worker = None
            self.give(routed_request)

    def pump(self) -> None:
        """Serve waiting requests while there are free slots."""
        while self._waiters and self.used + self._waiters[0][0].cost <= self.total:
            routed_request, waiter = self._waiters.popleft()
            if not waiter.done():
                self.used += routed_request.cost
                waiter.set_result(None)

    def close(self) -> None:
        """Grant no more slots, and wake all waiting requests."""
        self.closed = True
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _served(waiter: asyncio.Future[None]) -> bool:
    """Whether slots were taken for it: not if its caller had given up before."""
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def _fail(waiter: asyncio.Future[None], error: GanglineError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
