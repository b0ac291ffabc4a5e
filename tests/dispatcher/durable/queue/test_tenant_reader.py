"""A tenant whose tasks fill the window of a queue does not hide those that others submit later."""

from __future__ import annotations

import asyncio
import random

import pytest

from gangline.dispatcher.durable.queue.tenant_reader import TenantReader
from gangline.schemas.messages.jobs import ListReply, ListRequest
from gangline.schemas.names import QueueOperation, job_of_tenant
from gangline.schemas.records.jobs import JobState

from ....scale import repetitions
from ....support.durable.site import Site, simulated

WINDOW = 16
SEEDS = range(0, 12, 12 // repetitions(1, whole=2))


def id_of(site: Site, sequence: int, tenant: str) -> str:
    """The id of a job that was published without one."""
    return job_of_tenant(str(sequence), site.pool, tenant) if tenant else str(sequence)


async def fill(site: Site, count: int = 80, seconds: float = 0.2) -> list[str]:
    """The tenant `lab` submits many tasks."""
    stream = await site.streams.tasks()
    subject = site.names.of_tenant(site.names.task(site.pool, "square"), "lab")
    body = f'{{"x": 1, "seconds": {seconds}}}'.encode()
    return [id_of(site, (await stream.publish(subject, body)).sequence, "lab") for _ in range(count)]


async def submit(site: Site, tenant: str = "shop", method: str = "square", body: str = '{"x": 3}', **given: str) -> str:
    stream = await site.streams.tasks()
    subject = site.names.of_tenant(site.names.task(site.pool, method), tenant)
    headers = {name.replace("_", "-"): value for name, value in given.items()}
    return id_of(site, (await stream.publish(subject, body.encode(), headers=headers or None)).sequence, tenant)


async def began(site: Site) -> None:
    await site.serve()


@simulated(window_tasks=WINDOW)
async def test_a_task_behind_a_full_window_starts_at_the_turn_of_its_tenant_and_runs_once(site: Site) -> None:
    await began(site)
    await fill(site)
    await site.eventually(lambda: len(site.starts) > 4)
    for tenant in ("shop", "", "shop"):  # 80 tasks of 0.2 s on two slots: 8 s
        job, at = await submit(site, tenant), site.loop.time()
        record = await site.ended(job)
        assert (record.state, record.result, record.attempts) == (JobState.DONE, 9, 1)
        assert site.loop.time() - at < 2.0
    await site.empty(120.0)
    assert site.twice() == []


@simulated(window_tasks=WINDOW, max_attempts=2)
async def test_a_task_that_was_read_is_retried_and_buried_and_cancelled_like_others(site: Site) -> None:
    await began(site)
    await fill(site)
    await site.eventually(lambda: len(site.starts) > 4)
    again = await submit(site, method="fail", body='{"times": 1}')
    never = await submit(site, method="fail", body='{"times": 5}')
    wrong = await submit(site, method="square", body='"bare"')
    long = await submit(site, body='{"x": 3, "seconds": 500}')
    await site.eventually(lambda: any(job == long for job, _, _, _ in site.starts))
    assert await site.cancel(long)
    records = {job: await site.ended(job) for job in (again, never, wrong, long)}
    assert {job: (record.state, record.attempts) for job, record in records.items()} == {
        again: (JobState.DONE, 2),
        never: (JobState.DEAD, 2),
        wrong: (JobState.DEAD, 0),
        long: (JobState.CANCELLED, 1),
    }
    await site.empty(120.0)
    assert await site.tries() == []


@simulated(window_tasks=WINDOW, backoff_s=100.0)
async def test_tasks_that_were_read_are_listed_as_what_they_do(site: Site) -> None:
    await began(site)
    lab = await fill(site, 30, seconds=100.0)
    await site.eventually(lambda: len(site.starts) == 2)
    jobs = {
        await submit(site, method="fail", body='{"times": 1}'): JobState.WAITING,
        await submit(site, body='{"x": 3, "seconds": 500}'): JobState.RUNNING,
        await submit(site): JobState.QUEUED,
    }
    running, waiting, *_ = jobs
    await asyncio.sleep(1.0)
    site.worker(3)
    await site.eventually(lambda: {running, waiting} <= {job for job, _, _, _ in site.starts})
    await asyncio.sleep(1.0)
    async with site.client() as client:

        async def listed(limit: int, *states: JobState) -> dict[str, JobState]:
            found: dict[str, JobState] = {}
            cursor = None
            while True:
                page = await client.jobs(states=states, endpoint=site.pool, limit=limit, cursor=cursor)
                assert not found.keys() & {info.job for info in page.jobs}
                found |= {info.job: info.state for info in page.jobs}
                if (cursor := page.next) is None:
                    return found

        for limit in (1, 7, 1000):
            everything = await listed(limit)
            assert list(everything) == [*lab, *jobs], limit
            assert {job: everything[job] for job in jobs} == jobs
            for state in (JobState.WAITING, JobState.RUNNING, JobState.QUEUED):
                found = await listed(limit, state)
                assert found == {job: so for job, so in everything.items() if so is state}, limit


@simulated(window_tasks=WINDOW)
async def test_clients_of_earlier_versions_read_the_list_up_to_where_the_stream_was_read(site: Site) -> None:
    """They read on in the stream beyond `read_to`, `next` and each job of the list."""
    await began(site)
    lab = await fill(site, 40, seconds=100.0)
    shop = [await submit(site, body='{"x": 3, "seconds": 500}') for _ in range(6)]
    await asyncio.sleep(5.0)
    async with site.client() as client:

        async def ask(limit: int, after: int, states: tuple[JobState, ...] = ()) -> ListReply:
            wanted = ListRequest(after=after, limit=limit, states=states)
            return await client._queries.ask(site.pool, QueueOperation.LIST, wanted, ListReply, 5.0)

        for limit in (1, 5, 500):
            jobs: list[str] = []
            after: int | None = 0
            while after is not None:
                reply = await ask(limit, after)
                assert all((info.sequence or 0) <= reply.read_to for info in reply.jobs)
                assert after <= reply.read_to < 40 and len(reply.jobs) + len(reply.ahead) <= limit
                assert reply.next is None or not reply.ahead
                jobs += [info.job for info in reply.jobs]
                after = reply.next
            assert jobs == lab[: reply.read_to]
            for states in ((), (JobState.DONE,)):
                reply = await ask(limit, reply.read_to, states)
                ahead = [info.job for info in reply.ahead]
                while reply.ahead_next is not None:
                    reply = await ask(limit, reply.ahead_next, states)
                    ahead += [info.job for info in reply.ahead]
                assert ahead == shop, "whatever they do"


@pytest.mark.parametrize("seed", SEEDS)
@simulated(window_tasks=WINDOW)
async def test_tasks_that_were_read_survive_dispatchers_that_are_killed_and_run_once(site: Site, seed: int) -> None:
    await began(site)
    site.dispatcher()
    chance = random.Random(seed)
    await fill(site, 60)
    jobs = [await submit(site, body='{"x": 3, "seconds": 0.5}') for _ in range(12)]
    long = await submit(site, "zoo", body='{"x": 4, "seconds": 12}')
    await site.eventually(lambda: any(job == long for job, _, _, _ in site.starts))
    for _ in range(3):
        await asyncio.sleep(chance.uniform(0.1, 1.5))
        site.holder().kill()
        site.dispatcher()
        await asyncio.sleep(4.0)
        await site.taken()
    for job in (*jobs, long):
        assert (await site.ended(job, 200.0)).attempts == 1
    await site.empty(200.0)
    assert site.twice() == []
    assert all(site.attempts(job) == [1] for job in (*jobs, long))


def test_without_reading_a_hidden_task_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TenantReader, "wake", lambda self: None)
    with pytest.raises((AssertionError, TimeoutError)):
        test_a_task_behind_a_full_window_starts_at_the_turn_of_its_tenant_and_runs_once()
