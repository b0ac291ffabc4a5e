"""Declared limits, attempts and schedules on a real server."""

from __future__ import annotations

import asyncio

import pytest

from gangline.schemas.errors.base import JobDead
from gangline.worker.pool.pool import Pool

from ....support.durable.site import ServerSite
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

    async with ServerSite(nats_url, namespace) as site, asyncio.timeout(2 * PATIENCE_S):
        worker = await site.worker("w1", pool)
        await site.dispatcher()
        client = await site.client()
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
