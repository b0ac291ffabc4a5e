"""What is told of a job while it runs: states, progress, items; from the beginning, also for those who come late."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterable
from typing import Any, cast

import pytest

from gangline.bus.port.bus import StorageUnavailable
from gangline.dispatcher.jobs import job as jobs_feed
from gangline.schemas.errors.base import InvalidRequest, JobCancelled, JobDead, ResultNotKept, StreamBroken, UnknownJob
from gangline.schemas.records.jobs import DeadReason, JobEvent, JobItem, JobProgress, JobState
from gangline.schemas.wire import codec

from ...support.dispatcher.jobs_rig import JobsRig, in_memory


async def collect(source: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in source]


async def tell_items(rig: JobsRig, job: str, values: str, *, attempt: int = 1, start: int = 0) -> None:
    for index, value in enumerate(values, start):
        await rig.tell(JobItem(job=job, attempt=attempt, index=index, value=value))


# -- events -------------------------------------------------------------------------------------------------------


@in_memory
async def test_events_are_read_from_the_first_and_end_with_the_job(rig: JobsRig) -> None:
    job = await rig.client.options(events=True).submit("images.echo")
    early = asyncio.ensure_future(collect(job.events()))
    await rig.tell(JobEvent(job=job.id, state=JobState.RUNNING, attempt=1, at=1.0))
    await rig.tell(JobProgress(job=job.id, attempt=1, number=1, at=2.0, value="half"))
    await rig.tell(JobItem(job=job.id, attempt=1, index=0))
    await rig.tell(JobEvent(job=job.id, state=JobState.DONE, attempt=1, at=3.0))
    await rig.end(job.id)
    late = await collect(rig.client.job(job.id).events())
    assert await early == late
    assert [event.state if isinstance(event, JobEvent) else event.value for event in late] == [
        JobState.RUNNING,
        "half",
        JobState.DONE,
    ]


@in_memory
async def test_a_job_without_events_still_has_progress_and_an_end(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    await rig.tell(JobProgress(job=job.id, attempt=1, number=1, at=2.0, value=1))
    await rig.end(job.id, state=JobState.DEAD, reason=DeadReason.EXPIRED, attempts=2, worker="images.w1")
    progress, end = await collect(job.events())
    assert progress.value == 1
    assert (end.state, end.reason, end.attempt, end.worker) == (JobState.DEAD, "expired", 2, "images.w1")


@in_memory
async def test_what_cannot_be_read_is_left_out(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    await (await rig.streams.jobs()).publish(rig.names.job(job.id, "state"), b"nonsense")
    await rig.end(job.id)
    [end] = await collect(job.events())
    assert end.state is JobState.DONE


@in_memory
async def test_events_of_a_job_that_nobody_knows_end_with_that(rig: JobsRig) -> None:
    with pytest.raises(UnknownJob):
        await collect(rig.client.job("nothing").events())


@in_memory
async def test_a_result_that_is_not_kept_still_has_events_that_were_asked_for(rig: JobsRig) -> None:
    job = await rig.client.options(result_ttl_s=0, events=True).submit("images.echo")
    await rig.tell(JobEvent(job=job.id, state=JobState.DONE, attempt=1, at=3.0))
    [end] = await collect(job.events())
    assert end.state is JobState.DONE
    with pytest.raises(ResultNotKept):
        job.items()


# -- items --------------------------------------------------------------------------------------------------------


@in_memory
async def test_items_come_in_order_early_and_late(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames")
    early = asyncio.ensure_future(collect(job.items()))
    await tell_items(rig, job.id, "abc")
    await tell_items(rig, job.id, "c", start=2)  # told twice
    await tell_items(rig, job.id, "d", start=3)
    await rig.end(job.id, items=4)
    assert await early == list("abcd") == await collect(rig.client.job(job.id).items())


@in_memory
async def test_items_that_are_bytes_come_as_bytes(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames", b"")
    packed = base64.urlsafe_b64encode(codec.pack(b"\xff")).decode()
    await rig.tell(JobItem(job=job.id, attempt=1, index=0, value=packed, encoding="msgpack"))
    await rig.end(job.id, items=1)
    assert await collect(job.items()) == [b"\xff"]


@in_memory
async def test_an_attempt_that_starts_over_is_told_to_who_has_read_of_the_first(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames")
    items = job.items()
    await tell_items(rig, job.id, "ab")
    assert [await anext(items), await anext(items)] == ["a", "b"]
    await tell_items(rig, job.id, "ABC", attempt=2)
    with pytest.raises(StreamBroken, match="starts over \\(attempt 2\\): 2 items so far must be discarded") as caught:
        await anext(items)
    assert caught.value.details["attempt"] == 2
    await rig.end(job.id, items=3, attempts=2)
    assert await collect(job.items()) == list("ABC")


@in_memory
async def test_items_that_each_attempt_yields_alike_are_given_once(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames")
    items = job.items(skip=True)
    await tell_items(rig, job.id, "ab")
    read = [await anext(items), await anext(items)]
    await tell_items(rig, job.id, "abcd", attempt=2)
    await rig.end(job.id, items=4, attempts=2)
    assert read + await collect(items) == list("abcd")


@in_memory
async def test_an_item_that_others_have_overtaken_is_waited_for(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames")
    items = asyncio.ensure_future(collect(job.items()))
    await tell_items(rig, job.id, "cd", start=2)
    await tell_items(rig, job.id, "ab")
    await tell_items(rig, job.id, "f", start=5)
    await rig.end(job.id, items=6)
    await tell_items(rig, job.id, "e", start=4)
    assert await items == list("abcdef")


@in_memory
async def test_an_item_that_comes_after_the_end_is_waited_for(rig: JobsRig) -> None:
    """Storage failed for it at first, and the end was stored before it."""
    job = await rig.client.submit("images.frames")
    items = asyncio.ensure_future(collect(job.items()))
    await tell_items(rig, job.id, "ab")
    await rig.end(job.id, items=4)
    await tell_items(rig, job.id, "d", start=3)
    await asyncio.sleep(jobs_feed.GAP_S - 1)
    assert not items.done()
    await tell_items(rig, job.id, "c", start=2)
    assert await items == list("abcd")


class Leaderless:
    """A stream that has lost its leader."""

    async def next(self, *_: object) -> Any:
        raise StorageUnavailable("no leader")


@in_memory
async def test_what_was_told_before_the_end_is_read_though_storage_has_no_leader_then(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, away = jobs_feed._next, True

    async def next_(jobs: Any, *rest: Any) -> Any:
        return await read(cast("Any", Leaderless()) if away else jobs, *rest)

    monkeypatch.setattr(jobs_feed, "_next", next_)
    job = await rig.client.submit("images.echo")
    await rig.tell(JobProgress(job=job.id, attempt=1, number=1, at=2.0, value="half"))
    await rig.end(job.id)
    events = asyncio.ensure_future(collect(job.events()))
    await asyncio.sleep(5 * jobs_feed.REST_S)
    assert not events.done()
    away = False
    progress, end = await events
    assert (progress.value, end.state) == ("half", JobState.DONE)


@in_memory
async def test_an_item_that_is_missing_is_told(rig: JobsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_feed, "GAP_S", 0.2)
    await rig.take_queue()
    job = await rig.client.submit("images.frames")
    await tell_items(rig, job.id, "ab", start=3)
    with pytest.raises(StreamBroken, match="items 0 to 2 of job"):
        await collect(job.items())
    other = await rig.client.submit("images.frames")
    await tell_items(rig, other.id, "a")
    await rig.end(other.id, items=3)
    with pytest.raises(StreamBroken, match="items 1 to 2 of job"):
        await collect(other.items())


@in_memory
async def test_an_item_that_is_missing_is_waited_for_while_all_dispatchers_restart(rig: JobsRig) -> None:
    job = await rig.client.submit("images.frames")
    items = asyncio.ensure_future(collect(job.items()))
    await tell_items(rig, job.id, "a")
    await tell_items(rig, job.id, "c", start=2)
    await asyncio.sleep(4.5 * jobs_feed.GAP_S)
    dispatcher = await rig.take_queue()
    dispatcher.since = rig.wall()
    await asyncio.sleep(0.9 * jobs_feed.GAP_S)
    assert not items.done()
    await tell_items(rig, job.id, "b", start=1)
    await rig.end(job.id, items=3)
    assert await items == list("abc")


@in_memory
async def test_after_its_items_a_job_says_how_it_ended(rig: JobsRig) -> None:
    dead = await rig.client.submit("images.frames")
    await tell_items(rig, dead.id, "ab")
    await rig.end(dead.id, state=JobState.DEAD, reason=DeadReason.FAILED)
    items = dead.items()
    assert [await anext(items), await anext(items)] == ["a", "b"]
    with pytest.raises(JobDead):
        await anext(items)
    cancelled = await rig.client.submit("images.frames")
    await rig.end(cancelled.id, state=JobState.CANCELLED)
    with pytest.raises(JobCancelled):
        await collect(cancelled.items())
    plain = await rig.client.submit("images.echo")
    await rig.end(plain.id, result=1)
    with pytest.raises(InvalidRequest, match=r"use result\(\) for its result"):
        await collect(plain.items())
