"""Calls made inside a task inherit its deadline, on every executor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from gangline.schemas.deadline import current_deadline
from gangline.worker.pool.pool import Pool

from ....support.rows import in_rows
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


@in_rows("method", list(declared().tasks))
async def test_a_task_hands_its_deadline_down_and_leaves_no_trace_of_it(method):
    async with running(declared()) as harness:
        at = asyncio.get_running_loop().time() + 50
        value = await harness.value(method, options={"deadline": at})
        assert value == at or value == [at]
        assert current_deadline() is None
        value = await harness.value(method)
        assert value is None or value == [None]


async def test_on_virtual_time_tasks_of_child_processes_run_in_this_process():
    pool = Pool("p", executor="process")
    pool.task(name="plain")(_process)
    pool.task(name="waits")(_process_later)
    async with running(pool) as harness:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await harness.value("plain") == os.getpid()
        assert await harness.value("waits") == os.getpid()
        assert loop.time() - began == pytest.approx(3600)


def _process() -> int:
    return os.getpid()


async def _process_later() -> int:
    await asyncio.sleep(3600)
    return os.getpid()
