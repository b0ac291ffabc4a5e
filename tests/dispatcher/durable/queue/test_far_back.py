"""Jobs that wait behind the window of their queue are known by their ids, whoever asks, and for few reads."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.jetstream.stream import NatsStream
from gangline.bus.port.bus import StreamMessage
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import JobCancelled, UnknownJob
from gangline.schemas.records.jobs import JobState

from ....support.durable.site import Site, simulated

WINDOW = 16
COUNT = 300


def client_of(site: Site) -> Client:
    return Client(site.hub.connect("other"), names=site.names, settings=RouterSettings(node="n"))


async def begin(site: Site, count: int = COUNT) -> list[str]:
    """Two tasks run for ever, and many wait."""
    site.worker(2)
    site.dispatcher(window_tasks=WINDOW)
    async with client_of(site) as client:
        jobs = await client.submit_many(f"{site.pool}.square", [{"x": n, "seconds": 1e6} for n in range(count)])
    await site.eventually(lambda: len(site.starts) == 2)
    return [job.id for job in jobs]


@simulated()
async def test_jobs_far_back_are_found_and_cancelled_with_one_reading_of_the_queue(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = 0, NatsStream.next

    async def count(stream: NatsStream, pattern: str, sequence: int = 1) -> StreamMessage | None:
        nonlocal reads
        reads += 1
        return await read(stream, pattern, sequence)

    jobs = await begin(site)
    async with client_of(site) as client:
        monkeypatch.setattr(NatsStream, "next", count)
        asked, cancelled = jobs[60:180], jobs[200:280]
        found = await asyncio.gather(*(client.job(job).status() for job in asked))
        assert [(info.job, info.state) for info in found] == [(job, JobState.QUEUED) for job in asked]
        assert all(await asyncio.gather(*(client.job(job).cancel() for job in cancelled)))
        # Each waiting message once, the ends of the 16 parts of a round, and what is due, which is nothing.
        assert reads <= COUNT + 100, reads
        ends = await asyncio.gather(*(client.job(job).status() for job in cancelled))
        assert {info.state for info in ends} == {JobState.CANCELLED}
        with pytest.raises(JobCancelled):
            await client.job(cancelled[0]).result()
        assert reads <= COUNT + 100, reads
        [obstacle] = (await client.job(asked[-1]).why()).obstacles
        assert obstacle.kind == "position" and "read that far" in obstacle.text
        with pytest.raises(UnknownJob):
            await client.job(f"{site.pool}.never").status()
    stream = await site.streams.tasks()
    await site.eventually(lambda: len(site.starts) == 2)
    assert (await stream.state()).messages == COUNT - len(cancelled)


@simulated()
async def test_a_job_far_back_is_known_by_an_idempotency_key_or_a_foreign_id_and_a_delayed_one_is_cancelled(
    site: Site,
) -> None:
    await begin(site, 100)
    async with client_of(site) as client:
        keyed = await client.options(idempotency_key="k").submit(f"{site.pool}.square", x=1)
        delayed: Job = await client.options(delay_s=3600).submit(f"{site.pool}.square", x=1)
        tasks = await site.streams.tasks()
        subject = site.names.task(site.pool, "square")
        plain = await tasks.publish(subject, b'{"x": 1}')
        await tasks.publish(subject, b'{"x": 1}', headers={"Gangline-Job": "order-7"})
    async with client_of(site) as client:
        for job in (keyed.id, str(plain.sequence), "order-7"):
            assert (await client.job(job).status()).state is JobState.QUEUED
            assert await client.job(job).cancel()
            assert (await client.job(job).status()).state is JobState.CANCELLED
        assert (await client.job(delayed.id).status()).state is JobState.SCHEDULED
        assert await client.job(delayed.id).cancel()
        assert (await client.job(delayed.id).status()).state is JobState.CANCELLED
