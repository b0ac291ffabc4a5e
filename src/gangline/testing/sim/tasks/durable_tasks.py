"""Tasks of simulated pools that are submitted: each attempt does what the plan says, and reports to the run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from typing import Protocol

from ....worker.context.task_context import TaskContext, current_task
from ....worker.pool.pool import Pool
from ..plan.durable_plan import JobEnding

STOPPING_S = 0.4
"""How long a SLOW attempt takes to stop."""
JOB_COSTS = {"job": 1, "job_heavy": 2, "job_items": 1}


class JobObserver(Protocol):
    """Who is told what the code of durable tasks does."""

    def job_started(self, request: str, cost: int, context: TaskContext) -> int:
        """Returns a number for this attempt."""
        ...

    def job_ended(self, number: int, how: str) -> None:
        """`how`: returned, raised or stopped."""
        ...


JOBS: contextvars.ContextVar[JobObserver] = contextvars.ContextVar("gangline_sim_jobs")
"""Set for the whole run; tasks inherit it."""


class JobBroke(Exception):
    """What an attempt raises when its plan says so."""


async def _sleep(duration_s: float, endings: list[str], request: str) -> None:
    """One attempt, up to what it returns."""
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
    """What the attempt with that number returns."""
    return [request, number, "x" * padding] if padding else [request, number]


def declare_jobs(pool: Pool) -> None:
    """Add the tasks that are submitted."""

    @pool.task
    async def job(
        request: str, duration_s: float, endings: list[str], blob: bytes | None = None, padding: int = 0
    ) -> list[object]:
        return await _run(request, 1, duration_s, endings, padding)

    @pool.task(slots=2)
    async def job_heavy(request: str, duration_s: float, endings: list[str], blob: bytes | None = None) -> list[object]:
        return await _run(request, 2, duration_s, endings)

    @pool.task
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
