"""Schedules that tasks declare: one for each, however many workers and dispatchers there are, as the newest says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gangline.bus.jetstream.stream import NatsStream
from gangline.bus.port.bus import PublishRefused
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.submitter import job_of_declared
from gangline.testing.in_memory import Cluster
from gangline.worker.pool.pool import Pool

from ....support.dispatcher.jobs_rig import virtual_cluster


def version(runs: list[tuple[str, float]] | None = None, **crons: str | None) -> Pool:
    """One version of a pool: its methods, and the schedules that they declare. `runs` gets what runs, and when."""
    pool, noted = Pool("p", slots=2), [] if runs is None else runs
    for name, cron in crons.items():

        async def task(name: str = name) -> None:
            noted.append((name, asyncio.get_running_loop().time()))

        pool.task(name=name, cron=cron)(task)
    return pool


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
    runs = list[tuple[str, float]]()
    running = virtual_cluster(version(runs, tick="@every 10s", plain=None), workers=3)
    async with running as client:
        await running.add_dispatcher()
        await until(client, {"tick": "@every 10s"})
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(35.0)
        assert [name for name, _ in runs] == ["tick"] * 3
        assert all(at > began for _, at in runs)
        assert await client.call("p.plain") is None


async def test_a_newer_registration_changes_and_removes_schedules() -> None:
    running = virtual_cluster(version(a="@every 10s", b="@every 20s"))
    async with running as client:
        await until(client, {"a": "@every 10s", "b": "@every 20s"})
        second = await running.add_worker(version(a="@every 15s", b=None, c="@hourly"))
        await until(client, {"a": "@every 15s", "c": "@hourly"})
        await asyncio.sleep(5.0)
        assert set(await schedules_of(client)) == {"a", "c"}, "an older worker serves, and the newest decides"
        await second.stop()
        await until(client, {"a": "@every 10s", "b": "@every 20s"})


async def test_a_schedule_stays_while_no_worker_serves_and_over_a_takeover() -> None:
    running = virtual_cluster(version(tick="@every 10s"))
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
        await running.add_worker(version(tick=None))
        await until(client, {})


async def test_other_schedules_of_the_endpoint_are_left_alone() -> None:
    running = virtual_cluster(version(tick="@every 10s", plain=None))
    async with running as client:
        await client.options(cron="@every 30s", idempotency_key="mine").submit("p.tick")
        await asyncio.sleep(3.0)
        await running.add_worker(version(tick=None, plain=None))
        await asyncio.sleep(5.0)
        assert [one.name for one in await client.schedules()] == ["mine"]


async def test_a_paused_schedule_stays_paused_when_the_declaration_changes() -> None:
    running = virtual_cluster(version(tick="@every 10s"))
    async with running as client:
        await until(client, {"tick": "@every 10s"})
        await client.pause_schedule("p.tick")
        await running.add_worker(version(tick="0 3 * * *"))
        await until(client, {"tick": "0 0 3 * * *"})
        (schedule,) = await client.schedules()
        assert schedule.paused
        await running.add_worker(version(tick=None))
        await until(client, {})


def _deleted(stream: str) -> Callable[[Cluster], Awaitable[None]]:
    async def lose(running: Cluster) -> None:
        bus = running.hub.connect("operator")
        await bus.api.call(f"STREAM.DELETE.{getattr(running.names, stream)}", what="delete")
        await bus.close()

    return lose


async def _purged(running: Cluster) -> None:
    bus = running.hub.connect("operator")
    await bus.api.call(f"STREAM.PURGE.{running.names.schedules_stream}", what="purge")
    await bus.close()


def _away(seconds: float) -> Callable[[Cluster], Awaitable[None]]:
    async def lose(running: Cluster) -> None:
        running.hub.stop()
        await asyncio.sleep(seconds)
        running.hub.start()

    return lose


@pytest.mark.parametrize(
    "lose",
    [_deleted("tasks_stream"), _deleted("schedules_stream"), _purged, _away(7.0)],
    ids=["tasks deleted", "schedules deleted", "purged", "outage"],
)
async def test_a_schedule_that_the_server_loses_is_stored_again_and_runs(
    lose: Callable[[Cluster], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_STORAGE", "memory")
    runs = list[tuple[str, float]]()
    running = virtual_cluster(version(runs, tick="@every 3s", nightly="@daily"))
    async with running as client:
        await until(client, {"tick": "@every 3s", "nightly": "@daily"})
        await asyncio.sleep(7.0)
        assert runs
        await lose(running)
        await until(client, {"tick": "@every 3s", "nightly": "@daily"})
        runs.clear()
        await asyncio.sleep(10.0)
        assert runs, "the schedule is stored, and runs"


async def test_a_schedule_that_cannot_be_stored_is_logged_once_and_stored_as_soon_as_it_can(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = virtual_cluster(version(tick="@every 10s"))
    async with running as client:
        await until(client, {"tick": "@every 10s"})
        publish = NatsStream.publish

        async def refuse(self: NatsStream, subject: str, *args: Any, **kwargs: Any) -> Any:
            if subject == running.names.schedule(job_of_declared("p", "tick")):
                raise PublishRefused("full")
            return await publish(self, subject, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(NatsStream, "publish", refuse)
            await _purged(running)
            await asyncio.sleep(60.0)
        await until(client, {"tick": "@every 10s"})
        assert [record.levelname for record in caplog.records if "full" in record.getMessage()] == ["ERROR"]


async def test_schedules_tell_whether_their_task_declares_them() -> None:
    running = virtual_cluster(version(tick="@every 10s", plain=None))
    async with running as client:
        await client.options(cron="@every 20s", idempotency_key="tick").submit("p.plain")
        await until(client, {"tick": "@every 10s", "plain": "@every 20s"}, own="plain")
        assert {one.method: one.in_code for one in await client.schedules()} == {"tick": True, "plain": False}
        assert (await client.delete_schedule(job_of_declared("p", "tick"))).in_code
