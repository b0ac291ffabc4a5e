"""Tasks submitted to standing sets, through the whole system: client, dispatchers, coordinator, workers, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline import current_task
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.durable.settings import DispatcherSettings
from gangline.schemas.jobs import JobState
from gangline.schemas.task_errors import JobCancelled, JobDead
from gangline.worker.pool import Pool

from ..gang_rig import GangRig, on_gang_rig, pool_of, until
from ..test_gangset_holds import PAIR, balanced, report, subleases


def jobs_pool(rig: GangRig, slots: int = 1) -> Pool:
    """That of the rig, with tasks that say which attempt they are."""
    pool = pool_of(rig.probe, slots=slots)

    @pool.task
    async def flaky(fails: int) -> list[int]:
        task = current_task()
        if task.attempt <= fails:
            raise ValueError(f"attempt {task.attempt}")
        return [task.gang.rank, task.attempt]

    return pool


@asynccontextmanager
async def dispatching(rig: GangRig, name: str = "dispatcher", **settings: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher on a connection of its own."""
    bus = rig.hub.connect(name)
    chosen = DispatcherSettings(**{"node": "n", "backoff_s": 0.1, **settings})
    async with Dispatcher(bus, names=rig.names, settings=chosen) as dispatcher:
        yield dispatcher
    await bus.close()


async def small_workers(rig: GangRig, count: int = 2, slots: int = 1) -> None:
    for number in range(1, count + 1):
        await rig.worker(f"w{number}", jobs_pool(rig, slots))


async def formed(rig: GangRig, gangs: int = 1) -> None:
    await until(lambda: rig.coordinator is not None and rig.coordinator.statistics().gangs.get("formed") == gangs)


@on_gang_rig()
async def test_a_submitted_task_runs_on_rank_0_of_a_gang_and_its_result_is_kept(rig: GangRig) -> None:
    await small_workers(rig)
    async with dispatching(rig):
        await rig.declare("llm", gangs=1, gang=PAIR)
        job = await rig.client.submit("llm.who", "x")
        assert await job.result(timeout_s=30) == [0, 2, 1, "x"]
        jobs = [await rig.client.submit("llm.slow", 0.5) for _ in range(4)]
        assert {(await job.result(timeout_s=30))[1] for job in jobs} == {0}
        info = await jobs[0].status()
        assert (info.state, info.attempt) == (JobState.DONE, 1)
        await until(lambda: subleases(rig) == 0)
        assert await rig.client.call("llm.who", "y") == [0, 2, 1, "y"], "nothing is kept that nobody uses"
        await balanced(rig, "llm")
