"""The pools that simulated workers serve. Their tasks sleep, and tell the run that they run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Protocol

from ...worker.context import TaskContext, current_task
from ...worker.pool import Pool
from .plan import POOLS, Ending


class Observer(Protocol):
    """Who is told what task code does."""

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        """Returns a number for this execution."""
        ...

    def body_ended(self, number: int, request: str, *, returned: bool) -> None: ...


OBSERVER: contextvars.ContextVar[Observer] = contextvars.ContextVar("gangline_sim_observer")
"""Set for the whole run; tasks inherit it."""


class TaskBroke(Exception):
    """What a task raises when its plan says so."""


async def _body(request: str, cost: int, duration_s: float, ending: str) -> str:
    observer = OBSERVER.get()
    number = observer.body_started(request, cost, current_task())
    returned = False
    try:
        await asyncio.sleep(duration_s if ending != Ending.NEVER else 1e6)
        if ending == Ending.RAISE:
            raise TaskBroke(request)
        returned = True
        return result_of(request)
    finally:
        observer.body_ended(number, request, returned=returned)


def result_of(request: str) -> str:
    """What every request must answer with."""
    return f"{request} done"


def make_pool(name: str) -> Pool:
    """A pool with every kind of task."""
    pool = Pool(name, slots=4)

    @pool.task
    async def work(request: str, duration_s: float, ending: str) -> str:
        return await _body(request, 1, duration_s, ending)

    @pool.task(idempotent=True)
    async def again(request: str, duration_s: float, ending: str) -> str:
        return await _body(request, 1, duration_s, ending)

    @pool.task(slots=2)
    async def heavy(request: str, duration_s: float, ending: str) -> str:
        return await _body(request, 2, duration_s, ending)

    @pool.task
    async def items(request: str, duration_s: float, ending: str, count: int) -> AsyncIterator[int]:
        observer = OBSERVER.get()
        number = observer.body_started(request, 1, current_task())
        returned = False
        try:
            for item in range(count):
                await asyncio.sleep(duration_s / max(1, count))
                yield item
            if ending == Ending.NEVER:
                await asyncio.sleep(1e6)
            if ending == Ending.RAISE:
                raise TaskBroke(request)
            returned = True
        finally:
            observer.body_ended(number, request, returned=returned)

    return pool


SIM_POOLS = {name: make_pool(name) for name in POOLS}
"""Made once: declaring tasks costs more than many a run."""
COSTS = {"work": 1, "again": 1, "heavy": 2, "items": 1}
IDEMPOTENT = frozenset({"again"})
