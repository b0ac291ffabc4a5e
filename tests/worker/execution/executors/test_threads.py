"""Tasks in threads: they run beside the loop, are asked to stop, and count until they have."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gangline.schemas.errors.base import DeadlineExceeded, TaskCancelled, TaskFailed
from gangline.worker.context.task_context import current_task
from gangline.worker.execution.executors.threads import ThreadExecutor
from gangline.worker.pool.pool import Outcome, Pool

from ....support.rows import in_rows
from ....support.worker.harness import counting, pool_of, running
from ....waiting import PATIENCE_S


async def test_a_function_runs_beside_the_loop():
    def work(x: int) -> dict[str, object]:
        return {"x": x, "beside": threading.current_thread() is not main, "id": current_task().id}

    main = threading.current_thread()
    async with running(pool_of(work)) as harness:
        value = await harness.value("work", options={"id": "r.1"}, x="3")
    assert value == {"x": 3, "beside": True, "id": "r.1"}


async def test_as_many_threads_as_tasks_at_once_are_kept_for_reuse():
    together = threading.Barrier(3)

    def work() -> int:
        together.wait(PATIENCE_S)
        return threading.get_ident()

    async with running(pool_of(work, slots=3)) as harness:
        first = [harness.launch("work") for _ in range(3)]
        threads = {(await one.done).value for one in first}
        assert len(threads) == 3
        second = [harness.launch("work") for _ in range(3)]
        assert {(await one.done).value for one in second} == threads
        assert harness.executors.statistics()["threads"] == 3


@in_rows("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), ValueError()])
async def test_nothing_that_a_thread_raises_ends_its_worker(error):
    pool = Pool("p")

    @pool.task
    def work() -> None:
        raise error

    @pool.task(executor="thread")
    async def work_async() -> None:
        raise error

    @pool.task
    def after() -> str:
        return "alive"

    async with running(pool) as harness:
        for method in ("work", "work_async"):
            outcome = await harness.run(method)
            assert isinstance(outcome.error, TaskFailed)
            expected = (
                "RuntimeError" if isinstance(error, StopIteration) and method == "work_async" else type(error).__name__
            )
            assert outcome.error.remote_type == expected
        assert await harness.value("after") == "alive"


async def test_a_cancelled_threads_caller_is_answered_at_once_and_its_slot_is_used_until_it_returns():
    begun, go_on = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return f"cancelled={current_task().cancelled}"

    loop = asyncio.get_running_loop()
    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await loop.run_in_executor(None, begun.wait, PATIENCE_S)
        reason = launched.cancel()
        await asyncio.sleep(0)
        assert launched.abandoned == [Outcome(error=reason)]
        assert not launched.done.done()
        go_on.set()
        assert await launched.done == Outcome(value="cancelled=True")
        assert launched.abandoned == [Outcome(error=reason)]


async def test_a_thread_that_looks_stops_by_itself():
    begun = threading.Event()

    def work() -> None:
        begun.set()
        while True:
            current_task().check_cancelled()

    loop = asyncio.get_running_loop()
    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await loop.run_in_executor(None, begun.wait, PATIENCE_S)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)


async def test_a_cancel_before_the_thread_begins_starts_nothing():
    ran = []

    def work() -> None:
        ran.append(current_task().cancelled)

    async with running(pool_of(work, slots=2)) as harness:
        for _ in range(50):
            launched = harness.launch("work")
            launched.cancel()
            outcome = await launched.done
            # The thread may have been quicker than the cancel.
            assert isinstance(outcome.error, TaskCancelled) or ran.pop() in (True, False)


@pytest.mark.realtime
async def test_a_thread_is_told_of_its_own_timeout():
    pool = Pool("p")

    @pool.task(timeout_s=0.05)
    def work() -> None:
        remaining_s = current_task().remaining_s()
        assert remaining_s is not None
        assert remaining_s < 0.06
        while True:
            current_task().check_cancelled()

    async with running(pool) as harness:
        error = (await harness.run("work")).error
    assert isinstance(error, DeadlineExceeded)


@pytest.mark.realtime  # on virtual time it runs on the worker's loop
async def test_a_coroutine_in_a_thread_has_a_loop_of_its_own_and_can_be_cancelled():
    pool = Pool("p")
    begun = threading.Event()
    closed = []

    @pool.task(executor="thread")
    async def work() -> str:
        try:
            await asyncio.sleep(0)
            begun.set()
            await asyncio.Event().wait()
        finally:
            closed.append(asyncio.get_running_loop() is not loop)
        return "never"

    loop = asyncio.get_running_loop()
    async with running(pool) as harness:
        launched = harness.launch("work")
        await loop.run_in_executor(None, begun.wait, PATIENCE_S)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)
    assert closed == [True]


@in_rows("method", ["numbers_in_thread", "plain_numbers_in_thread"])
@pytest.mark.realtime
async def test_a_stream_waits_for_its_reader(method):
    pool, _ = counting()
    async with running(pool) as harness:
        launched = harness.launch(method, options={"streams": True, "window": 3}, n=10)
        await launched.until_items(3)
        await asyncio.sleep(0.05)
        assert launched.items == [0, 1, 2]
        launched.execution.credit(2)
        await launched.until_items(5)
        launched.execution.credit(5)
        assert await launched.done == Outcome(items=10)


async def test_virtual_time_passes_while_a_thread_waits_for_its_reader():
    pool, _ = counting()
    async with running(pool) as harness:
        launched = harness.launch("plain_numbers_in_thread", options={"streams": True, "window": 1}, n=5)
        for taken in range(1, 6):
            await asyncio.sleep(60)
            assert launched.items == list(range(taken))
            launched.execution.credit(1)
        assert await launched.done == Outcome(items=5)


def test_idle_threads_end_when_closed_and_busy_ones_after_their_job():
    threads = ThreadExecutor("test")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        ended.set()

    threads.run(job)
    assert begun.wait(PATIENCE_S)
    threads.close()
    assert threads.statistics()["threads"] == 1
    go_on.set()
    assert ended.wait(PATIENCE_S)
    for thread in threading.enumerate():
        if thread.name.startswith("test-"):
            assert thread.daemon
            thread.join(PATIENCE_S)
    assert threads.statistics() == {"threads": 0, "idle": 0}
