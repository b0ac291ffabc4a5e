"""The slots of one lease: who uses them, and who waits for one.

A slot is in use until the worker has answered its task (or is lost): a task whose caller gave up may still be stopping.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from ...schemas.errors.base import GanglineError
from ..routing.request import Ticket


class Costly(Protocol):
    """What takes so many slots: a ticket, or a flight without one."""

    cost: int


class LeaseSlots:
    """Counts slots in use; whoever waits is served in order of asking."""

    __slots__ = ("_loop", "_waiters", "closed", "total", "used")

    def __init__(self, total: int, loop: asyncio.AbstractEventLoop) -> None:
        self.total = total
        self.used = 0
        self.closed = False
        self._loop = loop
        self._waiters: deque[tuple[Ticket, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def take_nowait(self, ticket: Costly) -> bool:
        """Take the ticket's slots if they are free and nobody waits."""
        if self._waiters or self.used + ticket.cost > self.total:
            return False
        self.used += ticket.cost
        return True

    async def take(self, ticket: Ticket, deadline: float | None, too_late: GanglineError) -> None:
        """Take the ticket's slots, waiting for them if need be. When the lease is closed meanwhile, it takes none.

        Raises:
            too_late: at the deadline (loop time).
        """
        if self.take_nowait(ticket):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (ticket, waiter)
        self._waiters.append(entry)
        timer = None if deadline is None else self._loop.call_at(deadline, _fail, waiter, too_late)
        try:
            await waiter
        except BaseException:
            if entry in self._waiters:
                self._waiters.remove(entry)
                self.pump()
            elif _served(waiter) and not self.closed:
                self.give(ticket)  # served and cancelled in one turn: the slots go to the next
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def give(self, ticket: Costly) -> None:
        """The ticket's slots are free again."""
        self.used -= ticket.cost
        if self._waiters:
            self.pump()

    def settle(self, ticket: Ticket) -> None:
        """The ticket's task is over: see inflight.Books. Idempotent."""
        if ticket.worker is not None:
            ticket.worker = None
            self.give(ticket)

    def pump(self) -> None:
        """Serve whoever waits, as far as there is room."""
        while self._waiters and self.used + self._waiters[0][0].cost <= self.total:
            ticket, waiter = self._waiters.popleft()
            if not waiter.done():
                self.used += ticket.cost
                waiter.set_result(None)

    def close(self) -> None:
        """Nobody gets a slot any more: wake those who wait."""
        self.closed = True
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _served(waiter: asyncio.Future[None]) -> bool:
    """Whether slots were taken for it. One that had given up in the turn in which it came first got none."""
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def _fail(waiter: asyncio.Future[None], error: GanglineError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
