"""Schedules that tasks declare: one for each, however many workers and dispatchers there are, as the newest says."""

from __future__ import annotations

import asyncio
from typing import Any

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.submitter import job_of_declared
from gangline.runtime.clock import Environment
from gangline.testing.in_memory import Cluster, cluster
from gangline.worker.pool.pool import Pool


class Scene:
    """Versions of a pool, a cluster on virtual time."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, float]] = []

    def version(self, **crons: str | None) -> Pool:
        pool = Pool("p", slots=2)
        for name, cron in crons.items():

            async def task(name: str = name) -> None:
                self.runs.append((name, asyncio.get_running_loop().time()))

            pool.task(name=name, cron=cron)(task)
        return pool

    def cluster(self, pool: Pool, **more: Any) -> Cluster:
        loop = asyncio.get_running_loop()
        ambient = Environment(wall=lambda: 1_700_000_000 + loop.time())
        return cluster(pool, dispatcher=True, ambient=ambient, **more)


async def schedules_of(client: Client, own: str = "") -> dict[str, str]:
    """The stored patterns by method. `own`: the method whose schedule is not declared."""
    found = await client.schedules("p")
    assert all((one.id == job_of_declared("p", one.method)) == (one.method != own) for one in found)
    return {one.method: one.cron for one in found}


async def until(client: Client, expected: dict[str, str], own: str = "") -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + 20.0
    while (found := await schedules_of(client, own)) != expected:
        assert loop.time() < end, f"{found} and not {expected}"
        await asyncio.sleep(0.25)


async def test_a_declared_schedule_runs_and_there_is_one_for_all_workers_and_dispatchers() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s", plain=None), workers=3)
    async with running as client:
        await running.add_dispatcher()
        await until(client, {"tick": "@every 10s"})
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(35.0)
        assert [name for name, _ in scene.runs] == ["tick"] * 3
        assert all(at > began for _, at in scene.runs)
        assert await client.call("p.plain") is None


async def test_a_newer_registration_changes_and_removes_schedules() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(a="@every 10s", b="@every 20s"))
    async with running as client:
        await until(client, {"a": "@every 10s", "b": "@every 20s"})
        second = await running.add_worker(scene.version(a="@every 15s", b=None, c="@hourly"))
        await until(client, {"a": "@every 15s", "c": "@hourly"})
        await asyncio.sleep(5.0)
        assert set(await schedules_of(client)) == {"a", "c"}, "an older worker serves, and the newest decides"
        await second.stop()
        await until(client, {"a": "@every 10s", "b": "@every 20s"})


async def test_a_schedule_stays_while_no_worker_serves_and_over_a_takeover() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s"))
    async with running as client:
        await until(client, {"tick": "@every 10s"})
        (worker,) = running.workers.values()
        await worker.stop()
        await asyncio.sleep(30.0)
        assert await schedules_of(client) == {"tick": "@every 10s"}
        await running.add_dispatcher()
        await running.dispatchers[0].stop()
        await asyncio.sleep(10.0)
        assert await schedules_of(client) == {"tick": "@every 10s"}
        await running.add_worker(scene.version(tick=None))
        await until(client, {})


async def test_other_schedules_of_the_endpoint_are_left_alone() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s", plain=None))
    async with running as client:
        await client.options(cron="@every 30s", idempotency_key="mine").submit("p.tick")
        await asyncio.sleep(3.0)
        await running.add_worker(scene.version(tick=None, plain=None))
        await asyncio.sleep(5.0)
        assert [one.name for one in await client.schedules()] == ["mine"]


async def test_a_paused_schedule_stays_paused_when_the_declaration_changes() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s"))
    async with running as client:
        await until(client, {"tick": "@every 10s"})
        await client.pause_schedule("p.tick")
        await running.add_worker(scene.version(tick="0 3 * * *"))
        await until(client, {"tick": "0 0 3 * * *"})
        (schedule,) = await client.schedules()
        assert schedule.paused
        await running.add_worker(scene.version(tick=None))
        await until(client, {})


async def test_a_schedule_that_somebody_cancels_comes_back_with_the_next_change_only() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s"))
    async with running as client:
        await until(client, {"tick": "@every 10s"})
        assert await client.job(job_of_declared("p", "tick")).cancel()
        await asyncio.sleep(15.0)
        assert await schedules_of(client) == {}
        await running.add_worker(scene.version(tick="@every 11s"))
        await until(client, {"tick": "@every 11s"})


async def test_schedules_tell_whether_their_task_declares_them() -> None:
    scene = Scene()
    running = scene.cluster(scene.version(tick="@every 10s", plain=None))
    async with running as client:
        await client.options(cron="@every 20s", idempotency_key="tick").submit("p.plain")
        await until(client, {"tick": "@every 10s", "plain": "@every 20s"}, own="plain")
        assert {one.method: one.in_code for one in await client.schedules()} == {"tick": True, "plain": False}
        assert (await client.delete_schedule(job_of_declared("p", "tick"))).in_code
