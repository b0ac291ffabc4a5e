"""Models: shared loads, the idlest makes room, nobody starves, nothing in use is unloaded."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gangline.schemas.errors.base import TaskFailed
from gangline.worker.context.lifespans import ModelCache
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.pool.pool import Outcome, Pool

from ...scale import repetitions
from ...support.logs import records_of
from ...support.rows import in_rows
from ...support.worker.harness import running
from ...waiting import until


class Models:
    """A loader and unloader that take a second each and keep count."""

    def __init__(self, max_models: int) -> None:
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.in_memory = 0
        self.most_in_memory = 0
        self.failing: set[str] = set()
        self.reported: list[tuple[str, ...]] = []
        self.cache = ModelCache(self.load, self.unload, max_models, self.reported.append)

    async def load(self, model_id: str) -> str:
        self.loads.append(model_id)
        self.in_memory += 1
        self.most_in_memory = max(self.most_in_memory, self.in_memory)
        await asyncio.sleep(1)
        if model_id in self.failing:
            self.in_memory -= 1
            raise OSError(f"no {model_id}")
        return model_id.upper()

    async def unload(self, model_id: str, model: str) -> None:
        assert model == model_id.upper()
        await asyncio.sleep(1)
        self.unloads.append(model_id)
        self.in_memory -= 1

    async def task(self, model_id: str, work_s: float = 0.0) -> str:
        """What a task does that uses a model."""
        context = TaskContext(model_id=model_id)
        try:
            model = await self.cache.use(context)
            assert await self.cache.use(context) is model
            assert model_id in self.cache.loaded
            await asyncio.sleep(work_s)
            assert model_id in self.cache.loaded, "unloaded while in use"
            return str(model)
        finally:
            self.cache.done_with(context)


@pytest.fixture
def models() -> Models:
    return Models(1)


async def test_tasks_that_want_one_model_share_its_load():
    models = Models(2)
    assert await asyncio.gather(*(models.task("a") for _ in range(5))) == ["A"] * 5
    assert models.loads == ["a"]
    assert models.reported == [("a",)]


async def test_the_model_that_was_idle_longest_makes_room():
    models = Models(2)
    for model_id in ("a", "b", "a", "c"):
        await models.task(model_id)
    assert models.cache.loaded == ("a", "c")
    assert models.unloads == ["b"]
    assert models.reported == [("a",), ("a", "b"), ("a",), ("a", "c")]
    assert models.most_in_memory == 2


async def test_a_busy_model_does_not_starve_the_others(models: Models):
    finished: list[str] = []

    async def visitor(model_id: str) -> None:
        await models.task(model_id, work_s=5)
        finished.append(model_id)

    async with asyncio.TaskGroup() as group:
        for i in range(20):
            group.create_task(visitor("a"))
            if i == 3:
                group.create_task(visitor("b"))
            await asyncio.sleep(1)
    assert finished.index("b") < 10
    assert finished.count("a") == 20


async def test_a_load_that_fails_is_told_to_all_who_wait_and_tried_again_by_the_next(models: Models):
    models.failing.add("a")
    results = await asyncio.gather(models.task("a"), models.task("a"), return_exceptions=True)
    assert [str(result) for result in results] == ["no a", "no a"]
    assert models.cache.loaded == ()
    models.failing.clear()
    assert await models.task("a") == "A"
    assert models.loads == ["a", "a"]


async def test_cancelling_one_who_waits_for_a_load_leaves_it_to_the_others(models: Models):
    first, second = (asyncio.create_task(models.task("a")) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert await second == "A"
    assert models.loads == ["a"]


async def test_a_load_that_nobody_waits_for_any_more_still_ends_and_is_used_later(models: Models):
    task = asyncio.create_task(models.task("a"))
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.sleep(5)
    assert models.cache.loaded == ("a",)
    assert await models.task("a") == "A"
    assert models.loads == ["a"]


@in_rows("seed", range(repetitions(2, whole=20)))
async def test_with_any_traffic_bounds_hold_and_everybody_is_served(seed):
    rng = random.Random(seed)
    models = Models(rng.randint(1, 3))

    async def visitor() -> None:
        await asyncio.sleep(rng.uniform(0, 30))
        try:
            async with asyncio.timeout(rng.choice([None, None, rng.uniform(0, 20)])):
                await models.task(rng.choice("abcde"), work_s=rng.uniform(0, 3))
        except (TimeoutError, OSError):
            pass

    models.failing.update(rng.sample("abcde", rng.randint(0, 1)))
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(visitor())
    assert models.most_in_memory <= models.cache._max_models
    await models.cache.close()
    assert models.in_memory == 0
    assert models.cache.loaded == ()


async def test_closing_unloads_everything_and_an_unloader_that_raises_is_logged(caplog):
    unloaded = []

    def unload(model_id: str, model: object) -> None:
        unloaded.append(model_id)
        raise OSError("stuck")

    cache = ModelCache(lambda model_id: object(), unload, 2)
    for model_id in ("a", "b"):
        context = TaskContext(model_id=model_id)
        await cache.use(context)
        cache.done_with(context)
    await cache.close()
    assert unloaded == ["a", "b"]
    assert [record.action for record in records_of(caplog, "gangline.worker")] == ["model_unload_failed"] * 2


async def test_closing_cancels_loads(models: Models):
    task = asyncio.create_task(models.task("a"))
    await asyncio.sleep(0.5)
    await models.cache.close()
    with pytest.raises(RuntimeError, match="the worker stopped while the model was loading"):
        await task


def modelled(max_models: int = 1) -> Pool:
    pool = Pool("p", slots=8, max_models=max_models)

    @pool.model_loader
    async def load(model_id: str) -> dict[str, Any]:
        await asyncio.sleep(1)
        return {"id": model_id}

    @pool.task
    async def use(work_s: float = 0.0) -> str:
        model = await current_task().model()
        await asyncio.sleep(work_s)
        return str(model["id"])

    @pool.task
    def use_in_thread() -> str:
        return str(current_task().model_blocking()["id"])

    @pool.task
    async def use_blocking_on_the_loop() -> str:
        return str(current_task().model_blocking()["id"])

    return pool


async def test_a_task_gets_the_model_that_its_caller_named_and_holds_it_until_it_ends():
    reported: list[tuple[str, ...]] = []
    async with running(modelled(), on_models=reported.append) as harness:
        first = harness.launch("use", work_s=10, options={"model_id": "a"})
        assert await harness.run("use", options={"model_id": "b"}) == Outcome(value="b")
        assert first.done.result() == Outcome(value="a")
        assert harness.executors.models == ("b",)
    assert reported == [("a",), (), ("b",), ()]


async def test_a_cancelled_task_lets_go_of_its_model():
    async with running(modelled()) as harness:
        first = harness.launch("use", work_s=1000, options={"model_id": "a"})
        await asyncio.sleep(5)
        second = harness.launch("use", options={"model_id": "b"})
        await asyncio.sleep(5)
        assert not second.done.done()
        first.cancel()
        assert await second.done == Outcome(value="b")


@pytest.mark.realtime
async def test_a_thread_that_waits_for_room_is_woken_when_it_is_cancelled():
    async with running(modelled()) as harness:
        holding = harness.launch("use", work_s=1000, options={"model_id": "a"})
        await until(lambda: harness.executors.models == ("a",))
        waiting = harness.launch("use_in_thread", options={"model_id": "b"})
        await asyncio.sleep(0.05)
        reason = waiting.cancel()
        assert await waiting.done == Outcome(error=reason)
        holding.cancel()
        await holding.done
        assert await harness.value("use_in_thread", options={"model_id": "b"}) == "b"


async def test_code_that_outlives_its_task_cannot_hold_a_model():
    pool = modelled()
    left: list[asyncio.Task[str]] = []

    @pool.task
    async def leave() -> None:
        left.append(asyncio.create_task(pool.tasks["use"].function(0)))
        await asyncio.sleep(0)

    async with running(pool) as harness:
        holding = harness.launch("use", work_s=10, options={"model_id": "a"})
        await asyncio.sleep(2)
        await harness.value("leave", options={"model_id": "b"})
        with pytest.raises(LookupError, match="the task has ended"):
            await left[0]
        await holding.done
        assert await harness.value("use", options={"model_id": "c"}) == "c"


async def test_asking_wrongly_is_the_tasks_error_and_says_what_to_do():
    plain = Pool("plain")
    use = modelled().tasks["use"].function
    plain.task(use)
    async with running(plain) as harness:
        error = (await harness.run("use", options={"model_id": "a"})).error
        assert isinstance(error, TaskFailed)
        assert "pool 'plain' has no models: declare a loader with @pool.model_loader" in str(error)
    async with running(modelled()) as harness:
        error = (await harness.run("use")).error
        assert "the caller named no model: call with client.options(model=...)" in str(error)
        error = (await harness.run("use_blocking_on_the_loop", options={"model_id": "a"})).error
        assert "would block the event loop: use 'await current_task().model()'" in str(error)
