"""The pools that simulated workers serve. Called and submitted tasks do what the plan says, and report to the run."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from ....schemas.records.workers import TaskPolicy
from ....worker.context.task_context import GangContext, TaskContext, current_task
from ....worker.pool.pool import Pool
from ..plan.durable_plan import JobEnding
from ..plan.gang_plan import Breaking
from ..plan.plan import POOLS, TaskEnding


class Observer(Protocol):
    """Receives reports from the tasks' code."""

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        """A task starts; returns a number for this execution."""
        ...

    def body_ended(self, number: int, request: str, *, returned: bool) -> None: ...

    def rank_arrived(self, request: str, gang: GangContext) -> list[object]:
        """A rank of a run reaches the barrier; returns the value that it passes to the others."""
        ...

    def rank_passed(self, request: str, gang: GangContext, values: list[object]) -> None:
        """A rank has passed the barrier, and gathered these values."""
        ...

    async def starts(self, gang: GangContext) -> None:
        """Do what the plan says for the start hook of this member."""

    def hook_started(self, what: str, gang: GangContext) -> int:
        """A hook of a member starts; returns a number for it.

        Raises:
            TaskBroke: according to the plan.
        """
        ...

    def hook_ended(self, number: int) -> None: ...


OBSERVER: contextvars.ContextVar[Observer] = contextvars.ContextVar("gangline_sim_observer")
"""Set for the whole run; tasks inherit it."""


HOOK_S = 0.01
"""How long hooks of members take."""


class TaskBroke(Exception):
    """Raised by a task according to the plan."""


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
    """One rank of a run on a gang. Rank `broken` does what `breaking` says."""
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
                await asyncio.gather(asyncio.sleep(1e6), asyncio.sleep(1e6))  # sees a cancellation some turns later
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
    """The correct result of a rank of a run."""
    return [request, rank, generation]


def result_of(request: str) -> str:
    """The correct result of a request."""
    return f"{request} done"


@functools.lru_cache(maxsize=32)  # because declaring tasks takes longer than some runs
def make_pool(name: str, declared: tuple[tuple[str, TaskPolicy], ...] = ()) -> Pool:
    """A pool with every kind of task.

    Args:
        declared: what tasks declare, by method.
    """
    pool = Pool(name, slots=4)
    policies = {method: policy.model_dump(exclude_defaults=True) for method, policy in declared}

    @pool.task(**policies.get("work", {}))
    async def work(request: str, duration_s: float, ending: str) -> str:
        return await _body(request, 1, duration_s, ending)

    @pool.task(idempotent=True, **policies.get("again", {}))
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

    declare_jobs(pool, policies)

    if name == POOLS[-1]:

        @pool.gang_start
        async def begin(gang: GangContext) -> None:
            await _hook("start hook", gang)

        @pool.gang_stop
        async def end(gang: GangContext) -> None:
            await _hook("stop hook", gang)

    return pool


STOPPING_S = 0.4
"""How long a SLOW attempt takes to stop."""
JOB_COSTS = {"job": 1, "job_heavy": 2, "job_items": 1}


class JobObserver(Protocol):
    """Receives reports from the code of durable tasks."""

    def job_started(self, request: str, cost: int, context: TaskContext) -> int:
        """An attempt starts; returns a number for it."""
        ...

    def job_ended(self, number: int, how: str) -> None:
        """`how`: returned, raised or stopped."""
        ...


JOBS: contextvars.ContextVar[JobObserver] = contextvars.ContextVar("gangline_sim_jobs")
"""Set for the whole run; tasks inherit it."""


class JobBroke(Exception):
    """Raised by an attempt according to the plan."""


async def _sleep(duration_s: float, endings: list[str], request: str) -> None:
    """The body of an attempt."""
    ending = endings[min(current_task().attempt, len(endings)) - 1]
    try:
        await asyncio.sleep(duration_s if ending in (JobEnding.RETURN, JobEnding.RAISE) else 1e6)
    except asyncio.CancelledError:
        if ending == JobEnding.SLOW:
            await asyncio.sleep(STOPPING_S)
        raise
    if ending == JobEnding.RAISE:
        raise JobBroke(request)


async def _run(request: str, cost: int, duration_s: float, endings: list[str], padding: int = 0) -> list[object]:
    observer = JOBS.get()
    number = observer.job_started(request, cost, current_task())
    how = "stopped"
    try:
        await _sleep(duration_s, endings, request)
        how = "returned"
        return job_result(request, number, padding)
    except JobBroke:
        how = "raised"
        raise
    finally:
        observer.job_ended(number, how)


def job_result(request: str, number: int, padding: int) -> list[object]:
    """The result of the attempt with that number."""
    return [request, number, "x" * padding] if padding else [request, number]


def declare_jobs(pool: Pool, declared: Mapping[str, dict[str, Any]]) -> None:
    """Add the submitted tasks to a pool, with options by method."""

    @pool.task(**declared.get("job", {}))
    async def job(
        request: str, duration_s: float, endings: list[str], blob: bytes | None = None, padding: int = 0
    ) -> list[object]:
        return await _run(request, 1, duration_s, endings, padding)

    @pool.task(slots=2)
    async def job_heavy(request: str, duration_s: float, endings: list[str], blob: bytes | None = None) -> list[object]:
        return await _run(request, 2, duration_s, endings)

    @pool.task(**declared.get("job_items", {}))
    async def job_items(
        request: str, duration_s: float, endings: list[str], count: int, blob: bytes | None = None
    ) -> AsyncIterator[int]:
        observer = JOBS.get()
        number = observer.job_started(request, 1, current_task())
        how = "stopped"
        try:
            for item in range(count):
                await asyncio.sleep(duration_s / max(1, count))
                yield item
            await _sleep(0.0, endings, request)
            how = "returned"
        except JobBroke:
            how = "raised"
            raise
        finally:
            observer.job_ended(number, how)


COSTS = {"work": 1, "again": 1, "heavy": 2, "items": 1, "rank": 1, **JOB_COSTS}
IDEMPOTENT = frozenset({"again"})
