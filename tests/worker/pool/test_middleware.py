"""What runs around each execution of a pool's tasks, wherever they run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from gangline.schemas.errors.base import DeadlineExceeded, InvalidResult, InvalidSettings, TaskCancelled, TaskFailed
from gangline.schemas.wire.frames import AnswerOp, TaskFlag
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.pool.pool import CallNext, Pool

from ...support.rows import in_rows
from ...support.worker.harness import running
from ...support.worker.rig import Rig, task
from ...waiting import until

MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")


@pytest.fixture
def pool() -> Pool:
    return make_pool()


def make_pool() -> Pool:
    pool = Pool("images", slots=4)

    @pool.task
    async def echo(value: Any = None) -> Any:
        return value

    @pool.task
    def thread() -> str:
        return threading.current_thread().name

    @pool.task
    async def fail() -> None:
        raise ValueError("no luck")

    @pool.task
    async def forever() -> None:
        await asyncio.Event().wait()

    @pool.task
    async def number(value: Any) -> int:
        return value

    @pool.task
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    @pool.task(timeout_s=1.0)
    async def brief() -> str:
        return "brief"

    return pool


async def test_they_nest_in_the_order_of_their_declaration(pool: Pool):
    log: list[Any] = []

    def logging(name: str) -> None:
        @pool.middleware
        async def around(context: TaskContext, call_next: CallNext) -> Any:
            log.append(f"{name} before {context.method}")
            result = await call_next()
            log.append(f"{name} after {result}")
            return result

    logging("outer")
    logging("inner")
    async with running(pool) as harness:
        assert await harness.value("echo", value="x") == "x"
        assert log == ["outer before echo", "inner before echo", "inner after x", "outer after x"]


async def test_they_run_on_the_event_loop_around_a_thread_with_its_context_variables(pool: Pool):
    mark: ContextVar[str] = ContextVar("mark")
    where: list[str] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        assert current_task() is context
        mark.set("set outside")
        where.append(threading.current_thread().name)
        return await call_next()

    @pool.task
    def marked() -> str:
        return mark.get()

    async with running(pool) as harness:
        assert (await harness.value("thread")).startswith("gangline-images")
        assert await harness.value("marked") == "set outside"
        assert where == [threading.current_thread().name] * 2


async def test_an_object_with_an_async_call_will_do_and_anything_else_is_refused(pool: Pool):

    class Counting:
        calls = 0

        async def __call__(self, context: TaskContext, call_next: CallNext) -> Any:
            self.calls += 1
            return await call_next()

    counting = pool.middleware(Counting())
    async with running(pool) as harness:
        await harness.value("echo")
    assert counting.calls == 1
    for wrong in (lambda context, call_next: call_next(), 7, print):
        with pytest.raises(InvalidSettings, match="middleware is an 'async def'"):
            pool.middleware(wrong)  # type: ignore[type-var]


async def test_what_a_task_raises_comes_out_of_call_next_and_is_still_its_own(pool: Pool):
    seen: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except TaskFailed as error:
            seen.append(error.details["type"])
            raise

    async with running(pool) as harness:
        error = (await harness.run("fail")).error
        assert isinstance(error, TaskFailed)
        assert error.message == "images.fail raised ValueError: no luck"
        assert seen == ["ValueError"]


async def test_what_middleware_raises_is_how_the_task_ends(pool: Pool):

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        await call_next()
        raise PermissionError("not you")

    async with running(pool) as harness:
        error = (await harness.run("echo")).error
        assert isinstance(error, TaskFailed)
        assert error.message == "images.echo raised PermissionError: not you"
        assert "around" in error.details["traceback"]


async def test_a_result_may_be_replaced_and_has_to_fit_the_annotation_no_less(pool: Pool):
    replacement: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        await call_next()
        return replacement[0]

    async with running(pool) as harness:
        replacement[:] = [7]
        assert await harness.value("number", value=1) == 7
        replacement[:] = ["seven"]
        with pytest.raises(InvalidResult):
            await harness.value("number", value=1)
        replacement[:] = [[7, 8, 9]]
        assert await harness.value("count", n=3) == [7, 8, 9]
        replacement[:] = [object()]
        with pytest.raises(InvalidResult):
            await harness.value("count", n=3)


async def test_a_task_that_is_not_called_does_not_run(pool: Pool):
    ran: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        return 42

    @pool.task
    async def run() -> None:
        ran.append(1)

    async with running(pool) as harness:
        assert await harness.value("number", value=1) == 42
        launched = harness.launch("count", options={"streams": True}, n=3)
        assert (await launched.done).items == 0
        with pytest.raises(InvalidResult):
            await harness.value("run")
        assert ran == []


async def test_a_task_runs_once(pool: Pool):

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        await call_next()
        return await call_next()

    async with running(pool) as harness:
        with pytest.raises(TaskFailed, match=r"call_next\(\) was called twice in the middleware of images.echo"):
            await harness.value("echo")


async def test_items_of_a_stream_pass_and_credit_reaches_the_task(pool: Pool):
    ends: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        await asyncio.sleep(1)
        ends.append(await call_next())

    async with running(pool) as harness:
        launched = harness.launch("count", options={"streams": True, "window": 2}, n=10)
        launched.execution.credit(1)
        await launched.until_items(3)
        await asyncio.sleep(1)
        assert launched.items == [0, 1, 2]
        launched.execution.credit(100)
        outcome = await launched.done
        assert (outcome.items, launched.items, ends) == (10, list(range(10)), [None])
        assert await harness.value("count", n=3) is None, "collected, and the middleware returned nothing"


# -- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancelling_stops_the_task_and_lets_middleware_clean_up(pool: Pool):
    log: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except TaskCancelled as error:
            log.append(error.message)
            await asyncio.sleep(1)
            log.append("cleaned up")
            raise

    async with running(pool) as harness:
        launched = harness.launch("forever")
        await asyncio.sleep(1)
        reason = launched.cancel()
        assert (await launched.done).error is reason
        assert log == ["told to stop", "cleaned up"]


@in_rows("before", [True, False])
async def test_middleware_that_waits_beside_the_task_is_cancelled(before: bool):
    pool = make_pool()

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        if not before:
            await call_next()
        await asyncio.Event().wait()

    async with running(pool) as harness:
        for wait_s in (0.0, 1.0):
            launched = harness.launch("echo")
            await asyncio.sleep(wait_s)
            reason = launched.cancel()
            assert (await launched.done).error is reason


async def test_middleware_that_swallows_its_cancellation_starts_no_task_any_more(pool: Pool):
    ran: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return await call_next()

    @pool.task
    async def run() -> None:
        ran.append(1)

    async with running(pool) as harness:
        launched = harness.launch("run")
        await asyncio.sleep(1)
        reason = launched.cancel()
        assert (await launched.done).error is reason
        assert ran == []


async def test_a_timeout_of_the_middleware_waits_until_the_task_has_stopped(pool: Pool):
    log: list[Any] = []

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        try:
            async with asyncio.timeout(1):
                return await call_next()
        except TimeoutError:
            log.append("timed out")
            return "instead"

    @pool.task
    async def slow() -> str:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(2)
            log.append("stopped")
        return "never"

    async with running(pool) as harness:
        assert await harness.value("slow") == "instead"
        assert log == ["stopped", "timed out"]


async def test_the_time_of_a_task_is_that_of_its_middleware_too(pool: Pool):

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        await asyncio.sleep(5)
        return await call_next()

    async with running(pool) as harness:
        with pytest.raises(DeadlineExceeded, match="timeout_s of 1 s"):
            await harness.value("brief")


async def test_a_thread_that_ignores_cancellation_keeps_its_slot_while_the_caller_is_answered(pool: Pool):
    begun, release = threading.Event(), threading.Event()

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        return await call_next()

    @pool.task(executor="thread")
    def stubborn() -> str:
        begun.set()
        release.wait(20)
        return "after all"

    async with running(pool) as harness:
        launched = harness.launch("stubborn")
        for _ in range(3):
            await asyncio.sleep(0)
        begun.wait(20)
        reason = launched.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert [outcome.error for outcome in launched.abandoned] == [reason]
        assert not launched.done.done()
        release.set()
        assert (await launched.done).value == "after all"


# -- with the rest of a worker ----------------------------------------------------------------------------------------


async def test_resources_are_there_around_the_task_and_the_slot_is_in_use_until_all_has_ended():
    rig = Rig()
    pool, gate = rig.worker.pool, asyncio.Event()

    class Database: ...

    @pool.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @pool.middleware
    async def around(context: TaskContext, call_next: CallNext) -> Any:
        context.resource(Database)
        result = await call_next()
        context.resource(Database)
        await context.progress("after")
        await gate.wait()
        return result

    async with rig:
        rig.hand.send(task(1, "double", [4]))
        await rig.hand.quiet()
        assert rig.worker.core.load[:2] == (1, 0)
        gate.set()
        assert await rig.hand.answer(1) == [AnswerOp.OK, 1, 8]
        rig.hand.send(task(2, "count", [3], flags=int(TaskFlag.STREAM)))
        await rig.hand.quiet()
        assert rig.hand.answers_to(2)[-1] == [AnswerOp.END, 2, 3]
        assert (await rig.hand.ask(*task(3, "fail")))[2] == "task_failed"
        assert rig.at_rest()


@pytest.mark.processes
async def test_they_run_here_around_a_task_in_a_child_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(MODULES)
    import job_samples  # type: ignore[import-not-found]

    job_samples.around.clear()
    async with running(job_samples.pool) as harness:
        assert await harness.value("in_child", steps=1) == [None, None, 1, 0]
        assert job_samples.around == ["in_child"]
        launched = harness.launch("hang")
        await until(lambda: job_samples.around == ["in_child", "hang"])
        reason = launched.cancel()
        assert (await launched.done).error is reason
        assert job_samples.around == ["in_child", "hang", "task_cancelled"]
