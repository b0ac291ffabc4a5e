"""The slots of one lease: counts those in use and queues requests for them.

A slot is in use until the worker has answered the task (or is lost): a task that was cancelled may still be stopping.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...runtime.timers import Pace, UsualDurations
from ...schemas.errors.base import GanglineError, LeaseBusy, QueueFull, Saturated
from ...schemas.text import count_of
from ..calls.call import Call
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import WorkerEntry


class SlotConsumer(Protocol):
    """A request or flight that takes `cost` slots."""

    cost: int


class LeaseSlots:
    """Counts slots in use; waiting requests are served in order of arrival."""

    __slots__ = ("_loop", "_pace", "_waiters", "closed", "total", "used", "usual")

    def __init__(self, total: int, loop: asyncio.AbstractEventLoop, usual: UsualDurations | None = None) -> None:
        """`usual`: how long tasks take, so that none starts with less time; None: that does not matter."""
        self.total = total
        self.used = 0
        self.closed = False
        self.usual = usual
        self._loop = loop
        self._pace = Pace()
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
            Saturated: they were in use until the task had less time left than it usually needs.
            QueueFull: it would have to wait twice as long as it can.
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
            Saturated, QueueFull: see `enter`.
        """
        if self.take_nowait(routed_request):
            return
        routed_request.asked_at = now = self._loop.time()
        if not self._waiters:
            self._pace = Pace()
        self._pace.size = len(self._waiters)
        if deadline is not None and self.usual is not None:
            self._check_wait(deadline - now, now)
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
        """Serve waiting requests while there are free slots; refuse those that have too little time left."""
        now = self._loop.time()
        while self._waiters and self.used + self._waiters[0][0].cost <= self.total:
            routed_request, waiter = self._waiters.popleft()
            if waiter.done():
                continue
            late = self._late(routed_request, now)
            if late is not None:
                waiter.set_exception(late)
            else:
                self.used += routed_request.cost
                self._pace.took(now)
                waiter.set_result(None)

    def _check_wait(self, left_s: float, now: float) -> None:
        """
        Raises:
            QueueFull: it would wait twice as long as it can.
        """
        wait_s = self._pace.in_vain_s(left_s, now)
        if wait_s is not None:
            waiting = self._pace.size
            raise QueueFull(
                f"too many calls wait for the slots of the lease: {count_of(waiting, 'call')} will take about "
                f"{wait_s:.3g} s, and this one has {left_s:.3g} s: slow down, lease more slots, or give it more time",
                details={"waiting": waiting, "wait_s": round(wait_s, 3)},
            )

    def _late(self, routed_request: RoutedRequest, now: float) -> Saturated | None:
        """The error if it has less time left than its task usually needs."""
        method, deadline, asked_at = routed_request.method, routed_request.deadline, routed_request.asked_at
        if self.usual is None or method is None or deadline is None or asked_at is None:
            return None
        left_s = deadline - now
        if left_s >= self.usual.needed_s(method, deadline - asked_at):
            return None
        return Saturated(
            f"all slots of the lease were in use for too long: {self.usual.shortage(method, left_s)}; "
            "nothing was sent: lease more slots, or wait longer",
            may_have_started=False,
        )

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
