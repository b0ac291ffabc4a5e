"""Tasks on the event loop: results, errors, cancellation at every await, streams with back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangline.schemas.errors.base import ClosedError, DeadlineExceeded, InvalidResult, TaskCancelled, TaskFailed
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.execution.executor_registry import ExecutorRegistry
from gangline.worker.execution.executors.execution import ExecutorSettings
from gangline.worker.pool.pool import Outcome, Pool

from ....support.rows import in_rows
from ....support.worker.harness import counting, pool_of, running


async def test_what_a_task_raises_comes_with_type_text_and_its_own_traceback():
    async def work() -> None:
        raise ValueError("no such thing")

    async with running(pool_of(work)) as harness:
        error = (await harness.run("work")).error
    assert isinstance(error, TaskFailed)
    assert str(error) == "p.work raised ValueError: no such thing"
    assert error.remote_type == "ValueError"
    assert error.may_have_started
    lines = error.remote_traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in work" in lines[1]
    assert lines[-1] == "ValueError: no such thing"
    assert "worker/executors/" not in error.remote_traceback


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@in_rows(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(),
        Unprintable(),
        BaseException("base"),
        ExceptionGroup("many", [ValueError("a")]),
        ValueError("\ud800"),
        StopAsyncIteration(),
    ],
)
async def test_nothing_that_a_task_raises_ends_its_worker(error):
    async def work() -> None:
        await asyncio.sleep(0)
        raise error

    async def after() -> str:
        return "alive"

    async with running(pool_of(work, after, slots=2)) as harness:
        outcome = await harness.run("work")
        assert isinstance(outcome.error, TaskFailed)
        assert await harness.value("after") == "alive"


async def test_a_task_that_cancels_itself_ends_as_cancelled():
    async def work() -> None:
        raise asyncio.CancelledError

    async with running(pool_of(work)) as harness:
        error = (await harness.run("work")).error
    assert isinstance(error, TaskCancelled)
    assert str(error) == "p.work cancelled itself"


STEPS = 6


@in_rows("step", range(1, STEPS + 1))
async def test_a_cancel_at_any_await_stops_the_task_and_runs_its_cleanup(step):
    seen: list[str] = []

    async def work() -> str:
        try:
            for i in range(STEPS):
                seen.append(f"step {i}")
                await asyncio.sleep(1)
            return "finished"
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await asyncio.sleep(step - 0.5)
        reason = launched.cancel()
        assert launched.context.cancelled
        outcome = await launched.done
    assert outcome == Outcome(error=reason)
    assert seen == [*(f"step {i}" for i in range(step)), "cleaned up"]
    assert not launched.abandoned


async def test_a_cancel_before_the_first_line_starts_nothing_and_leaves_no_warning():
    ran = False

    async def work() -> None:
        nonlocal ran
        ran = True

    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)
    assert not ran


async def test_only_the_first_reason_counts_and_none_after_the_end():
    async def work() -> None:
        await asyncio.sleep(10)

    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await asyncio.sleep(1)
        first = launched.cancel()
        launched.cancel()
        assert await launched.done == Outcome(error=first)
        launched.cancel()
        launched.execution.credit(5)
        await asyncio.sleep(1)


async def test_a_task_that_swallows_its_cancellation_keeps_its_slot_until_it_ends_and_its_result_counts():
    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return "half"

    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await asyncio.sleep(1)
        launched.cancel()
        await asyncio.sleep(4)
        assert not launched.done.done()
        assert await launched.done == Outcome(value="half")


async def test_a_cleanup_that_raises_does_not_hide_why_the_task_was_stopped():
    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise RuntimeError("cleanup")

    async with running(pool_of(work)) as harness:
        launched = harness.launch("work")
        await asyncio.sleep(1)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)


async def test_a_task_is_stopped_after_its_own_timeout():
    pool = Pool("p")

    @pool.task(timeout_s=2.5)
    async def work() -> float | None:
        remaining_s.append(current_task().remaining_s())
        await asyncio.sleep(10)
        return 1.0

    remaining_s: list[float | None] = []
    loop = asyncio.get_running_loop()
    async with running(pool) as harness:
        began = loop.time()
        outcome = await harness.run("work")
        assert loop.time() == pytest.approx(began + 2.5)
    assert remaining_s == [pytest.approx(2.5)]
    assert isinstance(outcome.error, DeadlineExceeded)
    assert "after its timeout_s of 2.5 s" in str(outcome.error)
    assert outcome.error.may_have_started


async def test_the_callers_deadline_stands_when_it_comes_before_the_tasks_own():
    pool = Pool("p")

    @pool.task(timeout_s=100)
    async def work() -> float | None:
        return current_task().remaining_s()

    async with running(pool) as harness:
        deadline = asyncio.get_running_loop().time() + 7
        assert await harness.value("work", options={"deadline": deadline}) == pytest.approx(7)


EACH = in_rows("method", ["numbers", "plain_numbers", "numbers_in_thread", "plain_numbers_in_thread"])
ON_THE_LOOP = in_rows("method", ["numbers", "plain_numbers"])


@EACH
async def test_a_stream_goes_out_item_by_item_and_tells_its_count(method):
    pool, seen = counting()
    async with running(pool) as harness:
        launched = harness.launch(method, options={"streams": True}, n=50)
        assert await launched.done == Outcome(items=50)
        assert launched.items == list(range(50))
        assert await harness.run(method, n=0) == Outcome(value=[])
        assert await harness.launch(method, options={"streams": True}, n=0).done == Outcome(items=0)
    assert seen[-1] == "closed"


@ON_THE_LOOP
async def test_a_stream_waits_for_its_reader(method):
    pool, seen = counting()
    async with running(pool) as harness:
        launched = harness.launch(method, options={"streams": True, "window": 3}, n=10)
        await asyncio.sleep(1)
        assert launched.items == [0, 1, 2]
        assert seen[-1] == "made 3"  # held back, and no further one is made
        launched.execution.credit(2)
        await asyncio.sleep(1)
        assert launched.items == [0, 1, 2, 3, 4]
        launched.execution.credit(5)
        assert await launched.done == Outcome(items=10)


async def test_credit_that_comes_while_an_item_goes_out_is_not_lost():
    pool, _ = counting()
    async with running(pool) as harness:
        launched = harness.launch("numbers", options={"streams": True, "window": 1}, n=20)
        launched.on_arrival = lambda: launched.execution.credit(1)
        assert await launched.done == Outcome(items=20)


@EACH
async def test_a_collected_stream_is_bounded_by_size(method):
    pool, seen = counting()
    async with running(pool, ExecutorSettings(max_collected_bytes=10)) as harness:
        assert await harness.run(method, n=10) == Outcome(value=list(range(10)))
        error = (await harness.run(method, n=1000)).error
    assert isinstance(error, InvalidResult)
    assert "exceed 10 bytes in total: ask for a stream" in str(error)
    assert seen[-2:] == ["made 10", "closed"]


@EACH
async def test_a_cancelled_stream_is_closed(method):
    pool, seen = counting()
    async with running(pool) as harness:
        launched = harness.launch(method, options={"streams": True, "window": 2}, n=10)
        await launched.until_items(2)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)
        assert launched.items == [0, 1]
    assert seen[-1] == "closed"


@ON_THE_LOOP
async def test_an_item_without_a_form_on_the_wire_ends_the_stream(method):
    pool = Pool("p")

    @pool.task(name="numbers")
    async def one():
        yield 1
        yield object()

    @pool.task(name="plain_numbers", executor="async")
    def two():
        yield 1
        yield object()

    async with running(pool) as harness:
        launched = harness.launch(method, options={"streams": True})
        outcome = await launched.done
        assert isinstance(outcome.error, InvalidResult)
        assert launched.items == [1]


@in_rows("streams", [True, False])
@in_rows("method", ["eager", "plain_numbers"])
async def test_a_long_generator_that_awaits_nothing_lets_others_have_the_loop(method, streams):
    pool, _ = counting()

    @pool.task
    async def eager(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    async with running(pool) as harness:
        launched = harness.launch(method, n=1000, options={"streams": streams, "window": 1000})
        turns = 0
        while not launched.done.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 50
        launched = harness.launch(method, n=1 << 40, options={"streams": streams, "window": 1 << 40})
        await asyncio.sleep(0)
        reason = launched.cancel()
        assert await launched.done == Outcome(error=reason)


async def test_executors_that_do_not_run_launch_nothing():
    pool = Pool("p")

    @pool.task
    async def work() -> None: ...

    executors = ExecutorRegistry(pool)
    call = pool.find("work").bind(None, None)
    with pytest.raises(ClosedError, match="are not running"):
        executors.launch(call, TaskContext(), on_done=lambda outcome: None)
    await executors.stop()
    await executors.start()
    await executors.start()
    await executors.stop()
    await executors.stop()
    with pytest.raises(ClosedError):
        executors.launch(call, TaskContext(), on_done=lambda outcome: None)


async def test_each_task_sees_its_own_context_with_many_at_once():
    async def work() -> str:
        await asyncio.sleep(1)
        inner = await asyncio.create_task(_id_of_the_current_task())
        return f"{current_task().id} {inner}"

    async with running(pool_of(work)) as harness:
        launched = [harness.launch("work", options={"id": str(i)}) for i in range(20)]
        assert [(await one.done).value for one in launched] == [f"{i} {i}" for i in range(20)]


async def _id_of_the_current_task() -> str:
    return current_task().id
