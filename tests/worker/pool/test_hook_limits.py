"""Code of users that does not end: it is cancelled, named in the log, left behind, and nothing of ours waits for it."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import gangline
from gangline.dispatcher.client.client import Client
from gangline.runtime.hooks import HookOverdue
from gangline.schemas.errors.base import GanglineError, InvalidSettings, WorkerUnhealthy
from gangline.testing import cluster
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...support.logs import records_of
from ...support.rows import in_rows
from ...support.worker.gang_rig import Leader
from ...support.worker.rig import Rig, task


class Stubborn:
    """Waits until the test is over, whatever cancels it."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.in_thread = threading.Event()

    async def wait(self) -> None:
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                pass

    async def end(self) -> None:
        self.over.set()
        self.in_thread.set()
        await asyncio.sleep(0.01)

    async def __aenter__(self) -> Stubborn:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()


def rig_of(pool: Pool, **settings: Any) -> Rig:
    """A worker of a pool that a test declares."""
    return Rig(pool=pool, **{"drain_grace_s": 1.0, **settings})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in records_of(caplog, "gangline") if record.levelname == "WARNING"]
    return [record.getMessage() for record in found if str(getattr(record, "action", "")).startswith("hook.")]


async def test_a_gang_stop_that_does_not_end_gives_its_slots_back_when_the_grace_is_over(caplog):
    pool, ran = Pool("images", slots=4), []

    async with Stubborn() as stubborn:

        @pool.gang_stop
        async def hang(gang: gangline.GangContext) -> None:
            await stubborn.wait()

        @pool.gang_stop
        async def never_reached(gang: gangline.GangContext) -> None:
            ran.append(gang.rank)

        async with rig_of(pool) as rig:
            leader = await Leader(rig).listen()
            await leader.gang(ranks=2)
            began = asyncio.get_running_loop().time()
            assert (await leader.teardown(grace_s=3.0))["stopped"]
            assert 3.0 <= asyncio.get_running_loop().time() - began < 4.0
            assert rig.worker.core.load[:2] == (0, 0) and ran == []
            said = warnings(caplog)
            assert [text for text in said if "hang of rank 1 of gang g did not end within 3 s" in text]
            assert [text for text in said if "never_reached of rank 0 of gang g does not run" in text]
            assert (await leader.hold("next", ranks=4))["accepted"]


async def test_the_stop_hooks_of_several_members_run_side_by_side():
    pool, ended = Pool("images", slots=4), []

    @pool.gang_stop
    async def slow(gang: gangline.GangContext) -> None:
        await asyncio.sleep(0.8)
        ended.append(gang.rank)

    async with rig_of(pool) as rig:
        leader = await Leader(rig).listen()
        await leader.gang(ranks=4)
        began = asyncio.get_running_loop().time()
        assert (await leader.teardown(grace_s=1.0))["stopped"]
        assert sorted(ended) == [0, 1, 2, 3] and asyncio.get_running_loop().time() - began < 1.0


async def test_a_gang_start_that_ignores_its_cancellation_does_not_keep_its_slots(caplog):
    pool = Pool("images", slots=4)
    async with Stubborn() as stubborn:

        @pool.gang_start
        async def connect(gang: gangline.GangContext) -> None:
            await stubborn.wait()

        async with rig_of(pool) as rig:
            leader = await Leader(rig).listen()
            await leader.gang()
            await asyncio.sleep(1)
            assert (await leader.teardown(grace_s=2.0))["stopped"]
            assert rig.worker.core.load[:2] == (0, 0)
    assert [text for text in warnings(caplog) if "connect of rank 0 of gang g did not stop within 2 s" in text]


@pytest.mark.realtime
async def test_a_gang_stop_that_hangs_in_a_thread_keeps_neither_slots_nor_the_worker(caplog):
    pool = Pool("images", slots=4)
    async with Stubborn() as stubborn:

        @pool.gang_stop
        def hang(gang: gangline.GangContext) -> None:
            stubborn.in_thread.wait()

        async with rig_of(pool) as rig:
            leader = await Leader(rig).listen()
            await leader.gang(ranks=2)
            assert (await leader.teardown(grace_s=0.1))["stopped"]
            assert rig.worker.core.load[:2] == (0, 0)
            await leader.gang("h")  # ends with the worker
    assert [text for text in warnings(caplog) if "hang of rank 0 of gang h did not end" in text]


async def test_a_lifespan_that_does_not_open_ends_the_start_and_is_named(caplog):
    pool = Pool("images")
    async with Stubborn() as stubborn:

        @pool.lifespan
        async def database() -> AsyncIterator[str]:
            await stubborn.wait()
            yield ""

        with pytest.raises(GanglineError, match="lifespan database of pool 'images' did not end within 5 s"):
            async with rig_of(pool, lifespan_start_s=5.0):
                pass
    assert len(warnings(caplog)) == 1


async def test_a_lifespan_that_does_not_close_keeps_neither_the_worker_nor_the_others(caplog):
    pool, closed = Pool("images"), []
    async with Stubborn() as stubborn:

        @pool.lifespan
        async def first() -> AsyncIterator[str]:
            yield ""
            closed.append("first")

        @pool.lifespan
        async def second() -> AsyncIterator[int]:
            yield 0
            await stubborn.wait()

        async with rig_of(pool, hook_stop_s=2.0):
            pass
        assert closed == ["first"]
    assert ["the end of lifespan second" in text for text in warnings(caplog)] == [True]


async def test_what_a_lifespan_sets_in_context_variables_is_there_for_the_tasks():
    import contextvars

    pool, variable = Pool("images"), contextvars.ContextVar[str]("variable", default="unset")

    @pool.lifespan
    async def setting() -> AsyncIterator[str]:
        variable.set("set")
        yield ""

    @pool.task
    async def get() -> str:
        return variable.get()

    async with rig_of(pool) as rig:
        assert (await rig.hand.ask(*task(1, "get")))[2] == "set"


async def test_a_model_that_does_not_load_or_unload_keeps_no_room(caplog):
    pool = Pool("images", slots=2, max_models=1)
    async with Stubborn() as stubborn:

        @pool.model_loader
        async def load(model_id: str) -> str:
            if model_id == "bad":
                await stubborn.wait()
            return model_id

        @pool.model_unloader
        async def unload(model_id: str, model: str) -> None:
            await stubborn.wait()

        @pool.task
        async def use() -> str:
            return str(await current_task().model())

        async with rig_of(pool, model_load_s=3.0, hook_stop_s=2.0) as rig:
            bad = await rig.hand.ask(*task(1, "use", meta={"model": "bad"}))
            assert bad[2] == "task_failed" and "load for model 'bad' did not end within 3 s" in bad[3]
            assert (await rig.hand.ask(*task(2, "use", meta={"model": "a"})))[2] == "a"
            assert (await rig.hand.ask(*task(3, "use", meta={"model": "b"})))[2] == "b"
            assert rig.worker.core.load[:2] == (0, 0)
    assert [text for text in warnings(caplog) if "unload for model 'a' did not end within 2 s" in text]


async def test_middleware_that_does_not_end_after_its_task_was_stopped_gives_the_slots_back(caplog):
    pool = Pool("images")
    async with Stubborn() as stubborn:

        @pool.middleware
        async def outer(context: gangline.TaskContext, call_next: gangline.CallNext) -> Any:
            return await call_next()

        @pool.middleware
        async def log_it(context: gangline.TaskContext, call_next: gangline.CallNext) -> Any:
            try:
                return await call_next()
            finally:
                await stubborn.wait()

        @pool.task
        async def nap() -> None:
            await asyncio.sleep(1000)

        async with rig_of(pool) as rig:
            assert (await rig.hand.ask(*task(1, "nap", deadline_ms=1000)))[2] == "deadline_exceeded"
            await asyncio.sleep(11)
            assert rig.worker.core.load[:2] == (0, 0)
    assert ["log_it of images.nap did not end within 10 s" in text for text in warnings(caplog)] == [True]


async def test_a_health_check_that_ignores_its_cancellation_has_failed():
    pool = Pool("images")
    async with Stubborn() as stubborn:

        @pool.health_check(period_s=1.0, timeout_s=1.0, failures=2)
        async def gpu() -> None:
            await stubborn.wait()

        with pytest.raises(WorkerUnhealthy, match="gpu failed 2 times in a row"):
            async with rig_of(pool) as rig:
                await asyncio.wait_for(rig.worker.wait_closed(), 60)


def nothing() -> None: ...
def one(a: Any) -> None: ...
def two(a: Any, b: Any) -> None: ...
def keyword(a: Any, *, b: Any) -> None: ...
async def no_yield() -> None: ...
async def takes_nothing() -> None: ...


def yields(a: Any) -> Any:
    yield a


def _models(pool: Pool) -> Pool:
    pool.max_models = 1
    return pool


@in_rows(
    "declare, says",
    [
        (lambda pool: pool.gang_start(nothing), "gang_start function takes gang, but nothing"),
        (lambda pool: pool.gang_stop(two), "gang_stop function takes gang, but two"),
        (lambda pool: pool.gang_stop(keyword), "gang_stop function takes gang, but keyword"),
        (lambda pool: pool.gang_start(yields), "yields: calling it would run nothing"),
        (lambda pool: pool.gang_start(5), "gang_start function is a function that takes gang, not 5"),
        (lambda pool: pool.lifespan(one), "lifespan takes no arguments, but one"),
        (lambda pool: pool.lifespan(no_yield), "no_yield is an 'async def' without a yield"),
        (lambda pool: pool.middleware(takes_nothing), "middleware takes context and call_next"),
        (lambda pool: pool.health_check(one), "health check takes no arguments, but one"),
        (lambda pool: _models(pool).model_loader(nothing), "model loader takes model_id"),
        (lambda pool: _models(pool).model_unloader(one), "model unloader takes model_id and model"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_where_it_is_declared(declare: Callable[[Any], object], says: str):
    with pytest.raises(InvalidSettings, match=says):
        declare(Pool("images"))


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def test_a_plain_wrapper_around_an_async_task_is_refused_where_it_is_declared():
    pool = Pool("images")
    with pytest.raises(InvalidSettings, match="images.takes_nothing is a plain function around the async function"):
        pool.task(logged(takes_nothing))
    pool.task(logged(one))
    pool.task(functools.wraps(no_yield)(takes_nothing))


class AsyncPolicy(gangline.PolicyBase):
    async def choose(self, candidates: Any, request: Any) -> Any: ...


class NarrowPolicy(gangline.PolicyBase):
    def choose(self, candidates: Any) -> Any: ...


class NoPolicy:
    pass


@in_rows(
    "policy, says",
    [
        (lambda pool: AsyncPolicy(), "'async def': a policy decides at once"),
        (lambda pool: NarrowPolicy(), "takes candidates and request, but"),
        (lambda pool: NoPolicy(), "choose of policy .* is missing"),
        (NarrowPolicy(), "policy= is a function that takes pool, not"),
    ],
)
async def test_a_policy_that_cannot_be_called_is_refused_and_said_to_the_caller(policy: Any, says: str):
    running = cluster(Pool("images"))
    async with running:
        with pytest.raises(InvalidSettings, match=says):
            async with Client(running.hub.connect("c"), names=running.names, policy=policy) as client:
                await client.call("images.nothing")


@pytest.mark.realtime
async def test_the_log_names_the_task_that_blocked_the_event_loop(caplog):
    pool = Pool("images")

    @pool.task
    async def resize() -> str:
        scale()
        return "done"

    def scale() -> None:
        time.sleep(0.8)

    async with rig_of(pool, freeze_after_s=0.5) as rig:
        assert (await rig.hand.ask(*task(1, "resize")))[2] == "done"
        for _ in range(200):
            said = [record for record in records_of(caplog, "gangline.worker") if record.action == "worker.epoch"]
            if said:
                break
            await asyncio.sleep(0.05)
        assert "images.resize (" in said[0].blocked_in and "in scale" in said[0].blocked_in
        assert "the event loop stood still in images.resize" in said[0].getMessage()


def test_overdue_is_a_timeout():
    assert issubclass(HookOverdue, TimeoutError)
