"""What a task can ask about itself, and what its worker opened for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from gangline.schemas.errors.base import DeadlineExceeded, TaskCancelled, TaskFailed
from gangline.worker.context.lifespans import Lifespans
from gangline.worker.context.task_context import TaskContext, current_task, stop
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows
from ...support.worker.harness import running


def test_outside_of_a_task_there_is_no_current_task():
    with pytest.raises(LookupError, match="no task runs here: current_task\\(\\) works inside functions declared"):
        current_task()


def test_time_left_counts_down_to_zero_on_the_contexts_clock():
    now = 100.0
    context = TaskContext(deadline=105.0, clock=lambda: now)
    assert context.remaining_s() == 5.0
    now = 104.0
    assert context.remaining_s() == 1.0
    now = 200.0
    assert context.remaining_s() == 0.0
    assert TaskContext(clock=lambda: now).remaining_s() is None


@in_rows("reason", [TaskCancelled("by hand"), DeadlineExceeded("late")])
def test_a_cancelled_context_says_so_and_raises_its_first_reason(reason):
    context = TaskContext(pool="p", method="m", id="r.1", clock=lambda: 0.0)
    assert not context.cancelled
    context.check_cancelled()
    stop(context, reason)
    stop(context, TaskCancelled("later"))
    assert context.cancelled
    with pytest.raises(type(reason)) as caught:
        context.check_cancelled()
    assert caught.value is reason
    assert repr(context) == "TaskContext(p.m, id='r.1', attempt=1, cancelled)"


def test_a_context_that_no_worker_made_has_no_resources_and_no_models():
    context = TaskContext(clock=lambda: 0.0)
    with pytest.raises(LookupError, match="not made by a running worker"):
        context.resource(int)
    with pytest.raises(LookupError, match="not made by a running worker"):
        context.model_blocking()


class Database:
    def __init__(self, log: list[str]) -> None:
        self.log = log


class Cache(Database):
    pass


def opening(pool: Pool) -> list[str]:
    """Lifespans of every kind; the list tells what they did."""
    log: list[str] = []

    @pool.lifespan
    async def database() -> AsyncIterator[Database]:
        log.append("open database")
        await asyncio.sleep(1)
        yield Database(log)
        log.append("close database")

    @pool.lifespan
    def text() -> Iterator[str]:
        log.append("open text")
        yield "text"
        log.append("close text")

    @pool.lifespan
    @contextlib.asynccontextmanager
    async def number() -> AsyncIterator[int]:
        log.append("open number")
        yield 7
        log.append("close number")

    @pool.lifespan
    @contextlib.contextmanager
    def real() -> Iterator[float]:
        log.append("open real")
        yield 0.5
        log.append("close real")

    return log


async def test_lifespans_open_in_order_and_close_in_reverse_around_all_tasks():
    pool = Pool("p", slots=2)
    log = opening(pool)

    @pool.task
    async def work() -> list[object]:
        context = current_task()
        context.resource(Database).log.append("work")
        return [context.resource(str), context.resource(int), context.resource(float)]

    @pool.task
    def work_in_thread() -> str:
        return current_task().resource(str)

    async with running(pool) as harness:
        assert await harness.value("work") == ["text", 7, 0.5]
        assert await harness.value("work_in_thread") == "text"
    assert log == [
        "open database", "open text", "open number", "open real", "work",
        "close real", "close number", "close text", "close database",
    ]  # fmt: skip


async def test_a_resource_that_nobody_yields_is_named_with_those_that_are_there():
    pool = Pool("p")
    opening(pool)

    @pool.task
    async def work() -> None:
        current_task().resource(Cache)

    async with running(pool) as harness:
        error = (await harness.run("work")).error
    assert isinstance(error, TaskFailed)
    assert "no @pool.lifespan of 'p' yields a Cache; they yield: Database, str, int, float" in str(error)


async def test_a_lifespan_that_fails_closes_those_before_it():
    pool = Pool("p")
    log = opening(pool)

    @pool.lifespan
    async def broken() -> AsyncIterator[None]:
        raise OSError("no disk")
        yield

    with pytest.raises(OSError, match="no disk"):
        async with running(pool):
            raise AssertionError("it must not start")
    assert log[-4:] == ["close real", "close number", "close text", "close database"]


async def test_a_scope_can_be_cancelled_while_it_opens():
    pool = Pool("p")
    log = opening(pool)

    @pool.lifespan
    async def slow() -> AsyncIterator[None]:
        await asyncio.sleep(100)
        yield

    opening_task = asyncio.create_task(Lifespans(pool).open())
    await asyncio.sleep(50)
    opening_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening_task
    assert log[-1] == "close database"
