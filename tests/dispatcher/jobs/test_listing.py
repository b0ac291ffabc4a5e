"""The list of jobs: all of them, wherever they are; conditions, pages, abbreviated ids."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.bus.port.bus import BucketSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.jobs import listing
from gangline.schemas.errors.base import InvalidRequest, UnknownJob
from gangline.schemas.records.jobs import JobState

from ...support.dispatcher.jobs_rig import ImagesSystem, on_images
from ...support.durable.site import ServerSite
from ...waiting import until

RUNNING, QUEUED, SCHEDULED = JobState.RUNNING, JobState.QUEUED, JobState.SCHEDULED
DONE, DEAD, CANCELLED = JobState.DONE, JobState.DEAD, JobState.CANCELLED


async def states(client: Client, **wanted: Any) -> list[tuple[str, JobState]]:
    """Ids and states of all pages."""
    found, cursor = [], None
    while True:
        page = await client.jobs(cursor=cursor, **wanted)
        found += [(info.job, info.state) for info in page.jobs]
        if (cursor := page.next) is None:
            return found


async def has(client: Client, job: Any, state: JobState) -> bool:
    return (await job.status()).state is state


async def mixed(client: Client) -> dict[JobState, str]:
    """A job of each state."""
    done = await client.options(key="k").submit("images.echo", 1)
    await done.result()
    dead = await client.submit("images.fail")
    await until(lambda: has(client, dead, DEAD))
    held = await client.submit("images.nap", 1e6)
    await until(lambda: has(client, held, RUNNING))
    queued = await client.options(key="k").submit("images.echo", 2)
    await until(lambda: has(client, queued, QUEUED))
    later = await client.options(delay_s=3600, key="k").submit("images.echo", 3)
    await until(lambda: has(client, later, SCHEDULED))
    gone = await client.submit("images.echo", 4)
    assert await gone.cancel()
    await until(lambda: has(client, gone, CANCELLED))
    ids = {DONE: done, DEAD: dead, RUNNING: held, QUEUED: queued, SCHEDULED: later, CANCELLED: gone}
    return {state: job.id for state, job in ids.items()}


@on_images(slots=1)
async def test_all_jobs_are_listed_unfinished_ones_first_and_the_last_ended_before_others(client: Client) -> None:
    ids = await mixed(client)
    order = (RUNNING, QUEUED, SCHEDULED, CANCELLED, DEAD, DONE)
    assert await states(client) == [(ids[state], state) for state in order]


@on_images(slots=1)
async def test_pages_have_every_job_once(client: Client) -> None:
    await mixed(client)
    for limit in (1, 2, 4):
        assert await states(client, limit=limit) == await states(client), limit


@on_images(slots=1)
async def test_conditions_are_all_met(client: Client) -> None:
    ids = await mixed(client)

    async def found(**wanted: Any) -> set[str]:
        return {job for job, _ in await states(client, **wanted)}

    for state in ids:
        assert await found(states=[state]) == {ids[state]}
        assert await found(states=[state.value]) == {ids[state]}
    assert await found(states=[DONE, RUNNING]) == {ids[DONE], ids[RUNNING]}
    assert await found(key="k") == {ids[DONE], ids[QUEUED], ids[SCHEDULED]}
    assert await found(key="k", states=[QUEUED]) == {ids[QUEUED]}
    assert await found(endpoint="images") == set(ids.values())
    assert await found(endpoint="videos") == set()


@on_images(slots=1)
async def test_jobs_since_a_time_were_submitted_or_ended_then_or_later(client: Client) -> None:
    old = await client.submit("images.echo", 1)
    await old.result()
    await asyncio.sleep(10)
    new = await client.submit("images.echo", 2)
    await new.result()
    wall = client._list._ambient.wall()
    since = datetime.fromtimestamp(wall, UTC) - timedelta(seconds=5)
    assert await states(client, since=since) == [(new.id, DONE)]
    with pytest.raises(InvalidRequest, match="time zone"):
        await client.jobs(since=datetime(2026, 1, 1))  # noqa: DTZ001


@on_images(slots=1)
async def test_errors_in_the_list_are_short_and_name_their_type(client: Client) -> None:
    dead = await client.submit("images.fail")
    await until(lambda: has(client, dead, DEAD))
    [info] = (await client.jobs()).jobs
    assert info.error is not None and len(info.error.message) == 500
    assert info.error.details == {"type": "ValueError"} and info.tries == ()
    assert info.ended_at is not None and info.attempts == 1


@on_images(slots=1, dispatcher=False)
async def test_what_is_known_of_a_task_that_no_dispatcher_has_fetched_is_told_of_one_job_and_in_the_list(
    client: Client,
) -> None:
    job = await client.options(key="k", priority=3).submit("images.echo", 1)
    later = await client.options(key="k", delay_s=3600).submit("images.echo", 2)
    for each in (job, later):
        info = await each.status()
        [listed] = [one for one in (await client.jobs()).jobs if one.job == each.id]
        assert info.key == "k" and info == listed.model_copy(update={"reason": info.reason})
    assert (await job.status()).priority == 3


async def test_a_list_whose_dispatcher_does_not_answer_says_so() -> None:
    async with ImagesSystem(slots=1).cluster(dispatcher=False) as client:
        assert (await client.jobs(endpoint="images")).unanswered == ()
        await client.submit("images.echo", 1)
        for states in ([], [RUNNING]):
            assert (await client.jobs(states=states)).unanswered == ("images",)
    async with ImagesSystem(slots=1).cluster() as client:
        await mixed(client)
        assert (await client.jobs()).unanswered == ()


@pytest.mark.parametrize("delayed", [False, True])
async def test_pages_go_on_behind_those_tasks_that_one_look_goes_through(
    monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    monkeypatch.setattr(listing, "SCANNED", 10)
    async with ImagesSystem(slots=1).cluster(dispatcher=delayed) as client:
        jobs = []
        for number in range(45):
            options = client.options(key=str(number % 15), delay_s=3600 if delayed else None)
            jobs.append((await options.submit("images.echo", number)).id)
        if delayed:
            await asyncio.sleep(1.0)
        state = SCHEDULED if delayed else QUEUED
        for limit in (3, 100):
            assert sorted(await states(client, limit=limit)) == sorted((job, state) for job in jobs)
            assert sorted(await states(client, limit=limit, key="14")) == sorted((job, state) for job in jobs[14::15])


async def test_what_follows_an_endpoint_with_many_unread_tasks_is_in_the_same_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "SCANNED", 4)
    async with ImagesSystem(slots=1).cluster() as client:
        ids = await mixed(client)
        tasks = await client._streams.tasks()
        for endpoint in ("aaa", "bbb", "zzz"):  # without dispatcher
            for number in range(14):
                headers = {"Gangline-Job": f"{endpoint}.{number}", "Gangline-Key": "k" if number in (10, 13) else "no"}
                await tasks.publish(f"gangline.task.{endpoint}.echo", b"", headers=headers)
        found = {ids[state] for state in (DONE, QUEUED, SCHEDULED)}
        page = await client.jobs(key="k", limit=5)
        assert {info.job for info in page.jobs} == found and page.next is not None
        every = found | {f"{endpoint}.{number}" for endpoint in ("aaa", "bbb", "zzz") for number in (10, 13)}
        for limit in (1, 5):
            assert sorted(job for job, _ in await states(client, key="k", limit=limit)) == sorted(every)
        everything = {job for job, _ in await states(client)}
        for limit in (5, 100):
            listed = [job for job, _ in await states(client, limit=limit)]
            assert len(listed) == len(set(listed)) == 3 * 14 + len(ids) and set(listed) == everything
        assert [job for job, _ in await states(client, key="k", endpoint="bbb")] == ["bbb.10", "bbb.13"]


@on_images(slots=1, dispatcher_settings=DispatcherSettings(window_tasks=64))
async def test_tasks_beyond_the_window_of_the_dispatcher_are_listed_too(client: Client) -> None:
    held = await client.submit("images.nap", 1e6)
    await until(lambda: has(client, held, RUNNING))
    jobs = await client.submit_many("images.echo", [{"value": number} for number in range(150)])
    found = await states(client, limit=40)
    assert found == [(held.id, RUNNING), *((job.id, QUEUED) for job in jobs)]


@on_images(slots=1)
async def test_runs_of_a_schedule_are_listed_by_its_name_and_after_its_end_by_its_id(client: Client) -> None:
    ticks = await client.options(cron="@every 10s", idempotency_key="ticks").submit("images.echo", 1)
    await client.submit("images.echo", 2)
    await asyncio.sleep(25)
    runs = await states(client, schedule="ticks")
    assert len(runs) == 2 and runs == await states(client, schedule=ticks.id)
    await client.delete_schedule("ticks")
    assert await states(client, schedule=ticks.id) == runs
    with pytest.raises(UnknownJob):
        await client.jobs(schedule="ticks")
    assert not [job for job, _ in await states(client) if job == ticks.id], "a schedule is not a job"


async def test_what_cannot_be_meant_is_refused() -> None:
    cursors = ("x", "ended//x", "left,x", "left,")
    refused: list[dict[str, Any]] = [{"limit": 0}, {"states": ["gone"]}, *({"cursor": cursor} for cursor in cursors)]
    async with ImagesSystem(slots=1).cluster() as client:
        for wanted in refused:
            with pytest.raises(InvalidRequest):
                await client.jobs(**wanted)


@on_images(slots=1)
async def test_a_job_is_found_by_the_beginning_of_its_id_whatever_its_state(client: Client) -> None:
    ids = await mixed(client)
    for state, id in ids.items():
        for short in (id, id[:-4], id.partition(".")[2][:12]):
            job = await client.find_job(short)
            assert (job.id, (await job.status()).state) == (id, state)


@on_images(slots=1)
async def test_a_beginning_that_is_not_unique_or_of_no_job_is_refused(client: Client) -> None:
    for key in ("a", "b"):
        await client.options(idempotency_key=key).submit("images.echo", key)
    jobs = await states(client)
    same = next(n for n in range(1, 40) if jobs[0][0][:n] != jobs[1][0][:n]) - 1
    assert same < 12, "a beginning of four characters is needed"
    for short in ("images.zzzz", "nope-nope", "images.j", "abc"):
        with pytest.raises(UnknownJob):
            await client.find_job(short)


@on_images(slots=1, dispatcher=False)
async def test_several_jobs_with_one_beginning_are_named(client: Client) -> None:
    tasks = await client._streams.tasks()
    for name in ("order-71", "order-72"):
        await tasks.publish("gangline.task.images.echo", b"", headers={"Gangline-Job": f"images.{name}"})
    with pytest.raises(InvalidRequest, match="several jobs: images.order-71, images.order-72"):
        await client.find_job("images.order-7")
    assert (await client.find_job("order-72")).id == "images.order-72"


@pytest.mark.server
async def test_the_newest_keys_of_a_bucket_come_in_pages(nats_url: str, namespace: str) -> None:
    async with ServerSite(nats_url, namespace) as site:
        bucket = await site.own.bucket(namespace, BucketSettings())
        for number in range(300):
            await bucket.put(f"{'result' if number % 3 else 'try'}.{number % 250}", str(number).encode())
        await bucket.delete("result.1")
        kept = sorted(
            (entry for entry in await bucket.entries("result.*")), key=lambda entry: entry.revision, reverse=True
        )
        found: list[Any] = []
        while page := await bucket.newest("result.*", limit=23, before=found[-1].revision if found else None):
            found += page
        assert found == kept and len(found) > 100
        assert await bucket.newest("nothing.*", limit=5) == []
