"""Calls made inside a task inherit its deadline, on every executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from gangline.schemas.deadline import current_deadline
from gangline.schemas.errors.base import GanglineError
from gangline.worker.pool.pool import Pool

from ....support.worker.harness import running


def declared() -> Pool:
    pool = Pool("p")

    @pool.task
    async def coroutine() -> float | None:
        return await asyncio.create_task(_inherited())

    @pool.task(executor="async")
    def on_the_loop() -> float | None:
        return current_deadline()

    @pool.task
    def thread() -> float | None:
        return current_deadline()

    @pool.task(executor="thread")
    async def coroutine_in_thread() -> float | None:
        return await asyncio.create_task(_inherited())

    @pool.task
    async def async_generator() -> AsyncIterator[float | None]:
        yield current_deadline()

    @pool.task
    def generator() -> Iterator[float | None]:
        yield current_deadline()

    return pool


async def _inherited() -> float | None:
    return current_deadline()


@pytest.mark.parametrize("method", list(declared().tasks))
async def test_a_task_hands_its_deadline_down_and_leaves_no_trace_of_it(method):
    async with running(declared()) as harness:
        at = asyncio.get_running_loop().time() + 50
        value = await harness.value(method, options={"deadline": at})
        assert value == at or value == [at]
        assert current_deadline() is None
        value = await harness.value(method)
        assert value is None or value == [None]


async def test_children_need_a_real_loop_and_say_so():
    pool = Pool("p", executor="process")
    pool.task(name="work")(_importable)
    with pytest.raises(GanglineError, match="child processes need an event loop with sockets"):
        async with running(pool):
            raise AssertionError("it must not start")


def _importable() -> None: ...
