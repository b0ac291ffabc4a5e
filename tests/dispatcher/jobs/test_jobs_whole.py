"""Submitted tasks through the whole system, in memory and on virtual time: client, dispatcher, worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import (
    JobCancelled,
    JobDead,
    ResultNotKept,
    StreamBroken,
    TaskFailed,
    UnknownJob,
)
from gangline.schemas.records.jobs import JobProgress, JobState
from gangline.schemas.records.routes import QueueRules, RouteRecord

from ...support.dispatcher.jobs_rig import ImagesSystem, on_images
from ...waiting import until


@on_images()
async def test_what_is_not_idempotent_is_started_once_unless_somebody_says_otherwise(
    system: ImagesSystem, client: Client
) -> None:
    cases: tuple[tuple[dict[str, Any], int], ...] = (({}, 1), ({"max_attempts": 3}, 3), ({"idempotent": True}, 5))
    for options, times in cases:
        system.attempts.clear()
        job = await client.options(backoff_s=0.1, **options).submit("images.charge", "c")
        with pytest.raises(JobDead) as caught:
            await job.result()
        assert (caught.value.reason, system.attempts) == ("failed", list(range(1, times + 1)))
    job = await client.options(idempotent=False).submit("images.flaky", 1)
    with pytest.raises(JobDead):
        await job.result()
    await client.set_route("images", RouteRecord(queue=QueueRules(max_attempts=2, backoff_s=0.1)))
    assert await (await client.submit("images.flaky", 1)).result() == 2


@on_images()
async def test_what_a_task_calls_hopeless_is_not_tried_again(system: ImagesSystem, client: Client) -> None:
    job = await client.options(max_attempts=5).submit("images.charge", "stolen")
    with pytest.raises(JobDead) as caught:
        await job.result()
    cause = caught.value.__cause__
    assert isinstance(cause, TaskFailed) and (cause.remote_type, cause.retryable) == ("CardDeclined", False)
    assert (caught.value.reason, system.attempts) == ("failed", [1])
    with pytest.raises(TaskFailed, match="CardDeclined: stolen"):
        await client.call("images.charge", "stolen")


@on_images()
async def test_the_last_ten_tries_that_failed_are_kept(system: ImagesSystem, client: Client) -> None:
    patient = client.options(max_attempts=12, backoff_s=0.01)
    job = await patient.submit("images.flaky", 11)
    await until(lambda: len(system.attempts) >= 3)  # a look every 50 ms may come after the fourth
    await asyncio.sleep(0.005)
    meanwhile = await job.status()
    assert [each.attempt for each in meanwhile.tries] == list(range(1, len(meanwhile.tries) + 1))
    assert await job.result() == 12
    tries = (await job.status()).tries
    assert [each.attempt for each in tries] == list(range(2, 12))
    last = tries[-1]
    assert last.worker == "images.w1" and last.started_at is not None and last.started_at <= last.ended_at
    assert last.error is not None and last.error.details == {"type": "ValueError"}
    assert "attempt 11" in last.error.message
    dead = await client.options(max_attempts=2, backoff_s=0.01).submit("images.flaky", 9)
    with pytest.raises(JobDead):
        await dead.result()
    [letter] = await client.dead_letters()
    assert [each.attempt for each in letter.tries] == [1, 2] == [t.attempt for t in (await dead.status()).tries]


@on_images()
async def test_a_dead_job_that_is_replayed_has_all_its_attempts_again(system: ImagesSystem, client: Client) -> None:
    job = await client.options(max_attempts=3, backoff_s=0.1).submit("images.flaky", 100)
    for lives in (1, 2):
        with pytest.raises(JobDead, match=f"after {3 * lives} attempts"):
            await job.result()
        assert system.attempts == list(range(1, 3 * lives + 1))
        await client.replay(job.id)


@on_images(slots=1)
async def test_a_running_job_is_cancelled_where_it_runs_and_a_waiting_one_never_starts(
    system: ImagesSystem, client: Client
) -> None:
    running = await client.submit("images.nap", 1000.0, "first")
    waiting = await client.submit("images.nap", 1000.0, "second")
    await until(lambda: system.ran == ["first"])
    await asyncio.sleep(1)
    assert (await running.status()).state is JobState.RUNNING
    assert (await waiting.status()).state is JobState.QUEUED
    assert (await waiting.why()).obstacles
    assert (await running.why()).job == await running.status()
    assert await waiting.cancel() and await running.cancel()
    for job in (running, waiting):
        with pytest.raises(JobCancelled):
            await job.result()
        assert not await job.cancel()
    assert system.ran == ["first"]


@on_images()
async def test_items_and_progress_are_told_and_kept(client: Client) -> None:
    job = await client.submit("images.frames", 200)
    assert [item async for item in job.items()] == list(range(200))
    assert [item async for item in client.job(job.id).items()] == list(range(200))
    steps = await client.submit("images.steps", 5)
    assert await steps.result() == "all"
    told = [event.value async for event in steps.events() if isinstance(event, JobProgress)]
    # What is said in quick succession is told by its newest.
    assert told[0] == {"done": 0} and told[-1] == {"done": 4}


@on_images()
async def test_a_stream_that_fails_half_way_starts_over(client: Client) -> None:
    read: list[int] = []
    job = await client.submit("images.frames", 6, 4)
    with pytest.raises(StreamBroken):
        async for item in job.items():
            read.append(item)
    assert read == [0, 1, 2, 3]
    assert [item async for item in job.items()] == list(range(6))
    skipping = await client.submit("images.frames", 6, 4)
    assert [item async for item in skipping.items(skip=True)] == list(range(6))


@on_images(slots=1)
@pytest.mark.long
async def test_a_key_given_again_long_after_is_still_the_same_job_while_that_waits(
    system: ImagesSystem, client: Client
) -> None:
    keyed = client.options(idempotency_key="order-7")
    blocker = await client.submit("images.nap", 140.0, "blocker")
    await until(lambda: system.ran == ["blocker"])
    first = await keyed.submit("images.echo", "once")
    await asyncio.sleep(130)  # the server has forgotten its id by now
    second = await keyed.submit("images.echo", "once")
    assert first.id == second.id
    assert await blocker.result() == "blocker"
    assert await asyncio.gather(first.result(), second.result()) == ["once", "once"]
    await asyncio.sleep(5)
    assert system.ran == ["blocker", "once"]


@on_images(slots=4)
async def test_order_of_a_key_is_kept_through_failures(system: ImagesSystem, client: Client) -> None:
    ordered = client.options(key="user-7", ordered=True, backoff_s=5)
    first = await ordered.submit("images.flaky", 1)
    rest = [await ordered.submit("images.echo", number) for number in range(5)]
    other = await client.options(key="user-8", ordered=True).submit("images.echo", "other")
    assert await other.result() == "other"
    assert system.ran == ["other"]  # the first of user-7 waits for its second try
    assert await first.result() == 2
    assert [await job.result() for job in rest] == list(range(5))
    assert system.ran[1:] == list(range(5))


@on_images()
async def test_a_result_that_is_not_to_be_kept_is_not(client: Client) -> None:
    job = await client.options(result_ttl_s=0, events=True).submit("images.echo", 1)
    assert [event.state async for event in job.events()][-1] is JobState.DONE
    with pytest.raises(ResultNotKept):
        await job.result()
    short = await client.options(result_ttl_s=5).submit("images.echo", 1)
    assert await short.result() == 1
    await asyncio.sleep(10)
    with pytest.raises(UnknownJob):
        await client.job(short.id).result()
