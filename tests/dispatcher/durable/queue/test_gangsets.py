"""Tasks submitted to standing sets, through the whole system: client, dispatchers, coordinator, workers, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline import current_task
from gangline.bus.port.bus import NotPermitted
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gangs.set_registry import SetRegistry
from gangline.schemas.errors.base import JobCancelled, JobDead
from gangline.schemas.records.jobs import JobState
from gangline.worker.pool.pool import Pool

from ....support.dispatcher.gang_rig import PAIR, GangRig, on_gang_rig, pool_of, until

WITHIN_S = 60


def jobs_pool(rig: GangRig, slots: int = 1) -> Pool:
    """That of the rig, with tasks that say which attempt they are."""
    pool = pool_of(rig.probe, slots=slots)

    @pool.task(idempotent=True)
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
    rig.buses[name] = bus
    chosen = DispatcherSettings(node="n", backoff_s=0.1, **settings)
    async with Dispatcher(bus, names=rig.names, settings=chosen) as dispatcher:
        yield dispatcher


@asynccontextmanager
async def serving(
    rig: GangRig, workers: int = 2, *, slots: int = 1, gang: Any = PAIR, **declared: Any
) -> AsyncIterator[None]:
    """Workers, a dispatcher, and the set `llm` of one gang."""
    await small_workers(rig, workers, slots)
    async with dispatching(rig):
        await rig.declare("llm", gangs=1, gang=gang, **declared)
        yield


async def small_workers(rig: GangRig, count: int = 2, slots: int = 1) -> None:
    for number in range(1, count + 1):
        await rig.worker(f"w{number}", jobs_pool(rig, slots))


@on_gang_rig()
async def test_a_submitted_task_runs_on_rank_0_of_a_gang_and_its_result_is_kept(rig: GangRig) -> None:
    async with serving(rig):
        job = await rig.client.submit("llm.who", "x")
        assert await job.result(timeout_s=WITHIN_S) == [0, 2, 1, "x"]
        jobs = [await rig.client.submit("llm.slow", 0.5) for _ in range(4)]
        assert {(await job.result(timeout_s=WITHIN_S))[1] for job in jobs} == {0}
        info = await jobs[0].status()
        assert (info.state, info.attempts) == (JobState.DONE, 1)
        await until(lambda: rig.subleases() == 0)
        assert await rig.client.call("llm.who", "y") == [0, 2, 1, "y"], "nothing is kept that nobody uses"
        await rig.settled("llm")


@on_gang_rig()
async def test_a_submitted_task_runs_on_all_ranks_of_a_set_that_says_so(rig: GangRig) -> None:
    async with serving(rig, route="all"):
        jobs = [await rig.client.submit("llm.gather", value) for value in range(5)]
        for value, job in enumerate(jobs):
            assert await job.result(timeout_s=WITHIN_S) == [[[0, value], [1, value]]] * 2
        assert [item async for item in (await rig.client.submit("llm.flaky", 0)).events()]
        await until(lambda: rig.subleases() == 0)
        assert await rig.client.call("llm.who") == [[0, 2, 1, ""], [1, 2, 1, ""]]


@on_gang_rig()
async def test_a_task_submitted_before_its_set_is_declared_waits_for_it(rig: GangRig) -> None:
    await small_workers(rig)
    async with dispatching(rig, unknown_after_s=15.0):
        early = await rig.client.submit("llm.who", "early")
        await asyncio.sleep(10)
        await rig.declare("llm", gangs=1, gang=PAIR)
        assert await early.result(timeout_s=WITHIN_S) == [0, 2, 1, "early"]
        never = await rig.client.submit("lmm.who", "mistyped")
        with pytest.raises(JobDead) as caught:
            await never.result(timeout_s=WITHIN_S)
        assert caught.value.reason == "unknown_endpoint"


@pytest.mark.parametrize("route", ["rank0", "all"])
@on_gang_rig()
async def test_a_task_that_fails_is_tried_again_and_dies_after_its_last_try(rig: GangRig, route: str) -> None:
    async with serving(rig, route=route):
        job = await rig.client.submit("llm.flaky", 2)
        result = await job.result(timeout_s=WITHIN_S)
        assert result == ([0, 3] if route == "rank0" else [[0, 3], [1, 3]])
        dead = await rig.client.options(max_attempts=2).submit("llm.flaky", 9)
        with pytest.raises(JobDead, match="attempt 2"):
            await dead.result(timeout_s=WITHIN_S)
        unknown = await rig.client.submit("llm.nothing")
        with pytest.raises(JobDead) as caught:
            await unknown.result(timeout_s=WITHIN_S)
        assert caught.value.reason == "unknown_method"


@pytest.mark.parametrize(("route", "method"), [("rank0", "slow"), ("all", "once")])
@on_gang_rig()
async def test_a_task_whose_gang_is_torn_down_under_it_is_tried_again(rig: GangRig, route: str, method: str) -> None:
    """One that is not declared idempotent, only because its submission says how often."""
    async with serving(rig, 3, route=route):
        attempts = None if method == "slow" else 5
        job = await rig.client.options(max_attempts=attempts).submit(f"llm.{method}", 2.0)
        await until(lambda: rig.probe.started)
        info = await job.status()
        gang = (await rig.client.router.sets.find("llm", None)).gangs[0]
        await rig.report(gang, 1)
        result = await job.result(timeout_s=WITHIN_S)
        assert result == ([gang, 0] if route == "rank0" else [[gang, 0], [gang, 1]])
        ranks = 1 if route == "rank0" else 2
        assert sorted(rig.probe.started) == [(g, r) for g in (1, 2) for r in range(ranks)]
        info = await job.status()
        assert (info.state, info.attempts) == (JobState.DONE, 2)
        last = await rig.client.options(max_attempts=1).submit(f"llm.{method}", 2.0)
        await until(lambda: len(rig.probe.started) == 3 * ranks)
        await rig.report(gang, 1, 2)
        with pytest.raises(JobDead, match="torn down") as caught:
            await last.result(timeout_s=WITHIN_S)
        assert caught.value.reason == "crashed"


@pytest.mark.parametrize("route", ["rank0", "all"])
@on_gang_rig()
async def test_a_task_on_a_gang_can_be_cancelled_and_its_slots_come_back(rig: GangRig, route: str) -> None:
    await small_workers(rig)
    ranks = 1 if route == "rank0" else 2
    async with dispatching(rig):
        await rig.declare("llm", gangs=1, gang=PAIR, route=route)
        job = await rig.client.submit("llm.wait")
        waiting = await rig.client.submit("llm.who")
        await until(lambda: len(rig.probe.started) == ranks)
        assert await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(timeout_s=WITHIN_S)
        assert len(rig.probe.stopped) == ranks
        assert await waiting.result(timeout_s=WITHIN_S)


@on_gang_rig()
async def test_a_dispatcher_that_is_killed_leaves_its_tries_to_the_next_which_attaches_to_them(rig: GangRig) -> None:
    await small_workers(rig, 4)
    await rig.declare("llm", gangs=2, gang=PAIR, route="all")
    bus = rig.hub.connect("first")
    first = Dispatcher(bus, names=rig.names, settings=DispatcherSettings(node="n"))
    await first.start()
    jobs = [await rig.client.options(max_attempts=5).submit("llm.once", 12.0) for _ in range(2)]
    await until(lambda: len(rig.probe.started) == 4)
    rig.hub.kill(bus)
    async with dispatching(rig, "second") as second:
        await until(lambda: "llm" in second.queues and second.queues["llm"].core.statistics().running == 2)
        results = [await job.result(timeout_s=WITHIN_S) for job in jobs]
        assert [[rank for _, rank in result] for result in results] == [[0, 1], [0, 1]]
        assert len(rig.probe.started) == 4, "nothing was started again"
    await first.stop()


@on_gang_rig()
async def test_limits_of_a_key_and_of_a_route_count_tries_on_gangs(rig: GangRig) -> None:
    async with serving(rig, slots=2, gang={**PAIR, "slots": 2}):
        await rig.client.set_route("chat", {"to": {"llm": 1}, "queue": {"per_key": 1}})
        await rig.client.set_route("talk", {"to": {"llm": 1}, "limits": {"llm": 1}})
        for client, target in ((rig.client.options(key="k"), "chat.once"), (rig.client, "talk.once")):
            rig.probe.started.clear()
            began_at = asyncio.get_running_loop().time()
            jobs = [await client.submit(target, 1.0) for _ in range(3)]
            for job in jobs:
                assert (await job.result(timeout_s=WITHIN_S))[1] == 0
            assert asyncio.get_running_loop().time() - began_at >= 3.0, "one at a time"


@on_gang_rig()
async def test_a_roll_costs_short_tasks_no_try(rig: GangRig) -> None:
    async with serving(rig, slots=2, route="all"):
        jobs = [await rig.client.submit("llm.slow", 0.2) for _ in range(20)]
        await until(lambda: rig.probe.started)
        await rig.declare("llm", gangs=1, gang={**PAIR, "grace_s": 6}, route="all")
        results = [await job.result(timeout_s=WITHIN_S) for job in jobs]
        gangs = {gang for result in results for gang, _ in result}
        assert len(gangs) == 2, "it was rolled meanwhile"
        assert {(await job.status()).attempts for job in jobs} == {1}


@on_gang_rig()
async def test_where_standing_sets_may_not_be_followed_pools_are_served_as_ever(
    rig: GangRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await small_workers(rig)
    asked: list[str] = []

    async def find(_sets: SetRegistry, name: str, _deadline: float | None) -> None:
        asked.append(name)
        raise NotPermitted("the server forbids it", details={"subject": "gangset"})

    async with dispatching(rig):
        monkeypatch.setattr(SetRegistry, "find", find)
        job = await rig.client.submit("train.flaky", 9)
        with pytest.raises(JobDead):  # it runs, and has no gang
            await job.result(timeout_s=WITHIN_S)
    assert len(asked) == 1, "it is asked for once"
