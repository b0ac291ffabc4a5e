"""`gangline.testing.cluster`: what users write in tests of their own."""

from __future__ import annotations

import asyncio

import pytest

from gangline.schemas.errors.base import ClosedError, InvalidSettings, JobDead, NoWorkers, TaskFailed, WorkerIdTaken
from gangline.testing import VirtualLoop, cluster
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool


@pytest.fixture
def pool():
    pool = Pool("math", slots=2)

    @pool.task
    async def add(a: int, b: int) -> int:
        return a + b

    @pool.task
    def add_in_thread(a: int, b: int) -> int:
        return a + b

    @pool.task
    async def fail() -> None:
        raise ValueError("no")

    @pool.task
    async def slow(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @pool.task
    async def count(to: int):
        for number in range(to):
            yield number

    return pool


async def test_calls_streams_selections_and_leases_work_as_in_production(pool):
    async with cluster(pool, workers=2) as client:
        assert await client.call("math.add", 1, b=2) == 3
        assert await client.call("math.add_in_thread", 3, 4) == 7
        with pytest.raises(TaskFailed) as caught:
            await client.call("math.fail")
        assert caught.value.remote_type == "ValueError"
        assert [item async for item in client.stream("math.count", 3)] == [0, 1, 2]
        async with client.choose_worker("math") as selection:
            assert await client.dispatch(selection, "add", 1, 1) == 2
        async with client.lease("math", slots=2) as lease:
            assert await asyncio.gather(lease.call("add", 1, 2), lease.call("add", 3, 4)) == [3, 7]


async def test_several_pools_are_served_together(pool):
    other = Pool("text")

    @other.task
    async def shout(text: str) -> str:
        return text.upper()

    running = cluster(pool, other, workers=2)
    async with running as client:
        assert await client.call("text.shout", "hi") == "HI"
        assert await client.call("math.add", 2, 2) == 4
        assert sorted(running.workers) == ["math.w1", "math.w2", "text.w3", "text.w4"]


async def test_workers_can_be_added_and_drained(pool):
    running = cluster(pool, workers=0)
    async with running as client:
        with pytest.raises(NoWorkers):
            await client.options(timeout_s=1).call("math.add", 1, 1)
        worker = await running.add_worker(pool)
        assert await client.options(timeout_s=10).call("math.add", 1, 1) == 2
        await worker.drain()
        with pytest.raises(NoWorkers):
            await client.options(timeout_s=1).call("math.add", 1, 1)


async def test_leaving_cancels_what_runs(pool):
    async with cluster(pool) as client:
        call = asyncio.create_task(client.call("math.slow", 1e6))
        await asyncio.sleep(1)
    with pytest.raises(ClosedError):
        await call


async def test_a_cluster_is_used_once(pool):
    running = cluster(pool)
    async with running:
        pass
    with pytest.raises(ClosedError):
        await running.__aenter__()


def test_a_negative_number_of_workers_is_refused(pool):
    with pytest.raises(InvalidSettings, match="workers"):
        cluster(pool, workers=-1)


async def test_one_id_for_two_workers_is_refused_and_nothing_stays(pool):
    with pytest.raises(WorkerIdTaken):
        async with cluster(pool, workers=2, worker_settings=WorkerSettings(id="same")):
            pass


@pytest.mark.realtime
async def test_it_works_on_a_users_own_loop(pool):
    async with cluster(pool) as client:
        assert await client.call("math.add", 1, 2) == 3


def test_it_works_without_any_plugin(pool):
    async def main():
        async with cluster(pool) as client:
            return await client.call("math.slow", 600.0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == "done"


async def test_submitted_tasks_run_where_a_dispatcher_was_asked_for(pool):
    async with cluster(pool, dispatcher=True) as client:
        job = await client.submit("math.add", 1, 2)
        assert await job.result() == 3
        counting = await client.submit("math.count", 3)
        assert [item async for item in counting.items()] == [0, 1, 2]
        failing = await client.options(max_attempts=2).submit("math.fail")
        with pytest.raises(JobDead) as caught:
            await failing.result()
        assert isinstance(caught.value.__cause__, TaskFailed)
