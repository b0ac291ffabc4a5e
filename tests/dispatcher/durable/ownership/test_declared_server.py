"""Declared limits, attempts and schedules on a real server."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.client.operations import shared_limits
from gangline.dispatcher.durable.service import Dispatcher
from gangline.schemas.errors.base import JobDead
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ....waiting import PATIENCE_S

pytestmark = pytest.mark.server


async def test_tasks_run_as_they_declare(nats_url: str, namespace: str) -> None:
    pool, ticks, tried = Pool("declared", slots=8), asyncio.Semaphore(0), 0
    running = most = 0

    @pool.task(max_running=2)
    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return number

    @pool.task(max_attempts=3, backoff_s=0.0, retry_on=OSError)
    async def flaky(kind: str) -> None:
        nonlocal tried
        tried += 1
        raise OSError if kind == "network" else ValueError

    @pool.task(cron="@every 1s")
    async def tick() -> None:
        ticks.release()

    names, settings = Names(namespace), ConnectionSettings.from_url(nats_url)
    buses = [await connect(settings, name=name) for name in ("worker", "dispatcher", "client")]
    try:
        async with (
            Worker(pool, bus=buses[0], names=names, settings=WorkerSettings(id="w1")) as worker,
            Dispatcher(buses[1], names=names),
            Client(buses[2], names=names) as client,
            asyncio.timeout(2 * PATIENCE_S),
        ):
            jobs = await client.submit_many("declared.work", [{"number": number} for number in range(10)])
            calls = [asyncio.ensure_future(client.call("declared.work", number)) for number in range(10)]
            assert await asyncio.gather(*calls) == list(range(10))
            assert [await job.result() for job in jobs] == list(range(10))
            assert most == 2
            for kind, times in (("network", 3), ("other", 1)):
                tried = 0
                with pytest.raises(JobDead):
                    await (await client.submit("declared.flaky", kind)).result()
                assert tried == times
            for _ in range(2):
                await ticks.acquire()
            (schedule,) = await client.schedules("declared")
            assert (schedule.method, schedule.name, schedule.cron) == ("tick", "tick", "@every 1s")
            assert await client.delete_schedule("declared.tick")
            worker.core.check()
    finally:
        for bus in buses:
            await bus.close()


async def test_calls_and_submissions_share_one_limit_over_all_workers(nats_url: str, namespace: str) -> None:
    running = most = 0

    def pool() -> Pool:
        found = Pool("shared", slots=4)

        @found.task(max_running=2)
        async def work(number: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            return number

        return found

    names, settings = Names(namespace), ConnectionSettings.from_url(nats_url)
    buses = [await connect(settings, name=f"c{number}") for number in range(6)]
    try:
        async with (
            Worker(pool(), bus=buses[0], names=names, settings=WorkerSettings(id="w1")),
            Worker(pool(), bus=buses[1], names=names, settings=WorkerSettings(id="w2")),
            Worker(pool(), bus=buses[2], names=names, settings=WorkerSettings(id="w3")),
            Dispatcher(buses[3], names=names),
            Client(buses[4], names=names) as first,
            Client(buses[5], names=names) as second,
            asyncio.timeout(2 * PATIENCE_S),
        ):
            jobs = await first.submit_many("shared.work", [{"number": number} for number in range(10)])
            calls = [each.call("shared.work", number) for number in range(30) for each in (first, second)]
            assert await asyncio.gather(*calls) == [number for number in range(30) for _ in range(2)]
            assert [await job.result() for job in jobs] == list(range(10))
            assert most == 2
            limits = await shared_limits(await first.router.ledger(), names)
            record = limits["shared", "work"]
            assert record.limit == 2 and sum(each.units for each in record.shares.values()) <= 2
            assert record.shares.keys() == {"w1", "w2", "w3"}
    finally:
        for bus in buses:
            await bus.close()
