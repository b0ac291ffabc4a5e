"""The pools that simulated workers serve. Their tasks sleep, and report to the run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Protocol

from ....worker.context.task_context import GangContext, TaskContext, current_task
from ....worker.pool.pool import Pool
from ..plan.gang_plan import Breaking
from ..plan.plan import POOLS, TaskEnding
from .durable_tasks import JOB_COSTS, declare_jobs


class Observer(Protocol):
    """Who is told what task code does."""

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        """Returns a number for this execution."""
        ...

    def body_ended(self, number: int, request: str, *, returned: bool) -> None: ...

    def rank_arrived(self, request: str, gang: GangContext) -> list[object]:
        """A rank of a run reaches the barrier. Returns what it gives to the others."""
        ...

    def rank_passed(self, request: str, gang: GangContext, values: list[object]) -> None:
        """It has passed, and gathered these."""
        ...

    async def starts(self, gang: GangContext) -> None:
        """What the plan has a start hook of this member do."""

    def hook_started(self, what: str, gang: GangContext) -> int:
        """A hook of a member begins. Returns a number for it.

        Raises:
            TaskBroke: by the plan.
        """
        ...

    def hook_ended(self, number: int) -> None: ...


OBSERVER: contextvars.ContextVar[Observer] = contextvars.ContextVar("gangline_sim_observer")
"""Set for the whole run; tasks inherit it."""


HOOK_S = 0.01
"""How long hooks of members take."""


class TaskBroke(Exception):
    """What a task raises when its plan says so."""


async def _body(request: str, cost: int, duration_s: float, ending: str) -> str:
    observer = OBSERVER.get()
    number = observer.body_started(request, cost, current_task())
    returned = False
    try:
        await asyncio.sleep(duration_s if ending != TaskEnding.NEVER else 1e6)
        if ending == TaskEnding.RAISE:
            raise TaskBroke(request)
        returned = True
        return result_of(request)
    finally:
        observer.body_ended(number, request, returned=returned)


async def _rank(request: str, duration_s: float, breaking: str, broken: int, meets: bool) -> list[object]:
    """One rank of a run on a gang. The rank `broken` does what `breaking` says."""
    observer, context = OBSERVER.get(), current_task()
    gang = context.gang
    number = observer.body_started(request, 1, context)
    returned = False
    try:
        await asyncio.sleep(duration_s)
        values: list[object] = []
        if meets:
            mine = observer.rank_arrived(request, gang)
            await gang.barrier()
            values = await gang.all_gather(mine)
            observer.rank_passed(request, gang, values)
        if gang.rank == broken:
            await _break(breaking, gang, request)
        returned = True
        return rank_result(request, gang.rank, gang.generation)
    finally:
        observer.body_ended(number, request, returned=returned)


async def _break(breaking: str, gang: GangContext, request: str) -> None:
    match breaking:
        case Breaking.RAISE:
            raise TaskBroke(request)
        case Breaking.FAIL:
            gang.fail("by its plan")
            await asyncio.sleep(1e6)
        case Breaking.NEVER:
            await asyncio.sleep(1e6)
        case Breaking.STUBBORN:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(1e6)
        case _:
            pass


async def _hook(what: str, gang: GangContext) -> None:
    observer = OBSERVER.get()
    number = observer.hook_started(what, gang)
    try:
        await asyncio.sleep(HOOK_S)
        if what == "start hook":
            await observer.starts(gang)
    finally:
        observer.hook_ended(number)


def rank_result(request: str, rank: int, generation: int) -> list[object]:
    """What a rank of a run must answer with."""
    return [request, rank, generation]


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
            if ending == TaskEnding.NEVER:
                await asyncio.sleep(1e6)
            if ending == TaskEnding.RAISE:
                raise TaskBroke(request)
            returned = True
        finally:
            observer.body_ended(number, request, returned=returned)

    @pool.task
    async def rank(request: str, duration_s: float, breaking: str, broken: int, meets: bool) -> list[object]:
        return await _rank(request, duration_s, breaking, broken, meets)

    declare_jobs(pool)

    if name == POOLS[-1]:

        @pool.gang_start
        async def begin(gang: GangContext) -> None:
            await _hook("start hook", gang)

        @pool.gang_stop
        async def end(gang: GangContext) -> None:
            await _hook("stop hook", gang)

    return pool


SIM_POOLS = {name: make_pool(name) for name in POOLS}
"""Made once: declaring tasks costs more than many a run."""
COSTS = {"work": 1, "again": 1, "heavy": 2, "items": 1, "rank": 1, **JOB_COSTS}
IDEMPOTENT = frozenset({"again"})
