"""Submitting: stored once, whatever happens on the way."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gangline.bus.port.bus import Publication, Published, StorageUnavailable
from gangline.dispatcher.jobs.submitter import job_of_key
from gangline.schemas.errors.base import (
    ClosedError,
    Disconnected,
    GanglineError,
    InvalidArguments,
    InvalidName,
    InvalidRequest,
    InvalidSchedule,
    JobCancelled,
    PayloadTooLarge,
)
from gangline.schemas.messages.jobs import JobInfo
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import JobState, ResultRecord
from gangline.schemas.wire import codec, headers

from ...support.deadlines import deadline
from ...support.dispatcher.jobs_rig import JobsRig, failing, in_memory
from ...waiting import until


@in_memory
async def test_a_submitted_task_stands_in_the_stream(rig: JobsRig) -> None:
    job = await rig.client.options(priority=2, key="u").submit("images.echo", path="a.png", width=3)
    assert (job.endpoint, job.method, job.repeats) == ("images", "echo", False)
    [task] = await rig.stored()
    assert codec.from_json(task.data) == {"path": "a.png", "width": 3}
    read = Submission.parse(rig.names, task.subject, task.headers, sequence=task.sequence, published_at=task.at)
    assert (read.job, read.target, read.priority, read.key) == (job.id, "images.echo", 2, "u")
    assert job.id in repr(job)


@in_memory
async def test_only_a_message_that_was_never_sent_before_says_that_it_is_the_first(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def firsts() -> list[bool]:
        return [headers.FIRST in (task.headers or {}) for task in await rig.stored()]

    await rig.client.submit("images.echo", value=1)
    await rig.client.options(idempotency_key="order-7").submit("images.echo", value=2)
    assert await firsts() == [True, False], "others may have sent a message with that key"
    tasks = await rig.client._submitter._streams.tasks()
    publish, unheard = tasks.publish, StorageUnavailable("no answer", may_have_started=True)

    async def once(*args: Any, **kwargs: Any) -> Published:
        monkeypatch.setattr(tasks, "publish", publish)
        raise unheard

    monkeypatch.setattr(tasks, "publish", once)
    await rig.client.submit("images.echo", value=3)
    assert await firsts() == [True, False, False], "the first may have been stored, have run, and been forgotten"


@in_memory
async def test_the_same_idempotency_key_makes_one_task(rig: JobsRig) -> None:
    client = rig.client.options(idempotency_key="order-7")
    jobs = [await client.submit("images.echo", value=1) for _ in range(3)]
    jobs += await asyncio.gather(*(client.submit("images.echo", value=1) for _ in range(5)))
    assert len({job.id for job in jobs}) == 1
    assert len(await rig.stored()) == 1
    assert [job.created for job in jobs] == [True] + [False] * 7
    assert (await rig.client.submit("images.echo")).created and rig.client.job(jobs[0].id).created is None


@in_memory
async def test_a_key_whose_job_ended_is_not_submitted_again(rig: JobsRig) -> None:
    client = rig.client.options(idempotency_key="order-7")
    job = await client.submit("images.echo")
    await (await rig.tasks()).purge(rig.names.tasks)
    await rig.end(job.id, result="done before")
    again = await client.submit("images.echo")
    assert again.id == job.id and await rig.stored() == []
    assert await again.result() == "done before"
    assert job.created and again.created is False


@in_memory
async def test_a_schedule_that_was_cancelled_while_a_task_waited_is_stored_when_it_is_declared_again(
    rig: JobsRig,
) -> None:
    every = rig.client.options(cron="@every 10s", idempotency_key="ticks")
    job = await every.submit("images.echo")
    await rig.schedule_all()
    await asyncio.sleep(1)
    await rig.client.submit("images.echo")  # perhaps a run of it, and no dispatcher
    assert await job.cancel()
    await asyncio.sleep(1)
    again = await every.submit("images.echo")
    assert again.id == job.id and again.created
    assert (await again.status()).state is JobState.SCHEDULED
    assert len(await rig.stored()) == 2


@in_memory
async def test_a_message_id_that_others_have_used_keeps_no_task_from_the_stream(rig: JobsRig) -> None:
    tasks = await rig.tasks()
    for taken, expected in ((1, 1), (3, 1), (9, 2)):
        key = f"order-{taken}"
        id = job_of_key("images.echo", key)
        for number in range(taken):
            fields = {headers.MESSAGE_ID: f"{id}-{number}" if number else id, headers.JOB: f"words.{number}"}
            assert not (await tasks.publish(rig.names.task("words", "count"), b"", headers=fields)).duplicate
        client = rig.client.options(idempotency_key=key)
        assert [(await client.submit("images.echo", value=1)).id for _ in range(2)] == [id, id]
        stored = [task for task in await rig.stored() if (task.headers or {}).get(headers.JOB) == id]
        assert len(stored) == expected, "if others use all of them, nothing but the job's id tells them apart"


@in_memory
async def test_many_with_one_key_are_submitted_once(rig: JobsRig) -> None:
    client = rig.client.options(idempotency_key="batch")
    first = await client.submit_many("images.echo", [{"value": n} for n in range(3)])
    second = await client.submit_many("images.echo", [{"value": n} for n in range(4)])
    assert [job.id for job in second[:3]] == [job.id for job in first]
    assert [job.created for job in (*first, *second)] == [True] * 3 + [False] * 3 + [True]
    assert len(await rig.stored()) == 4


@in_memory
async def test_of_many_the_first_that_fails_is_told_with_the_ids_of_the_others(rig: JobsRig) -> None:
    huge = "x" * (rig.bus.max_payload + 1)
    with pytest.raises(PayloadTooLarge) as caught:
        await rig.client.submit_many("images.echo", [{"value": 1}, {"value": huge}, {"value": 3}])
    ids = caught.value.details["jobs"]
    assert ids[1] is None and ids[0] and ids[2] and len(await rig.stored()) == 2
    assert caught.value.message.startswith("arguments[1]: ") and caught.value.details["item"] == 1
    with pytest.raises(PayloadTooLarge, match=r"^arguments\[0\]: .*\(1 more item failed\)$"):
        await rig.client.submit_many("images.echo", [{"value": huge}, {"value": 2}, {"value": huge}])


@in_memory
async def test_those_of_many_that_were_not_acknowledged_are_sent_again_and_say_so(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await rig.client._submitter._streams.tasks()
    publish_many = tasks.publish_many

    async def half(messages: list[Publication], **kwargs: Any) -> list[Published | GanglineError]:
        found = await publish_many(messages[::2], **kwargs)
        unheard = [StorageUnavailable("no answer", may_have_started=True) for _ in messages[1::2]]
        return [one for pair in zip(found, unheard, strict=True) for one in pair]

    monkeypatch.setattr(tasks, "publish_many", half)
    jobs = await rig.client.submit_many("images.echo", [{"value": n} for n in range(6)])
    stored = {codec.from_json(task.data)["value"]: task.headers or {} for task in await rig.stored()}
    assert [stored[n][headers.JOB] for n in range(6)] == [job.id for job in jobs]
    assert [headers.FIRST in stored[n] for n in range(6)] == [True, False] * 3


@in_memory
async def test_what_cannot_be_submitted_is_refused_before_anything_is_sent(rig: JobsRig) -> None:
    with pytest.raises(InvalidName):
        await rig.client.submit("images")
    with pytest.raises(InvalidArguments):
        await rig.client.submit("images.echo", 1, value=2)
    with pytest.raises(InvalidRequest):
        await rig.client.submit("images.echo", value=object())
    with pytest.raises(PayloadTooLarge):
        await rig.client.submit("images.echo", value="x" * (rig.bus.max_payload + 1))
    for nonsense in ("nonsense", "0 3 * *", "99 * * * * *", "@every 5ms", ", * * * * *"):
        with pytest.raises(InvalidSchedule):
            await rig.client.options(cron=nonsense).submit("images.echo")
    state = await (await rig.tasks()).state()
    assert state.messages == 0
    await rig.client.close()
    with pytest.raises(ClosedError):
        await rig.client.submit("images.echo")


@in_memory
async def test_a_delayed_task_comes_at_its_time_and_not_before(rig: JobsRig) -> None:
    later = await rig.client.options(delay_s=3600).submit("images.echo", value=1)
    info = await later.status()
    assert (info.state, info.endpoint, info.method) == (JobState.SCHEDULED, "images", "echo")
    assert info.next_try_at is not None and info.reason == "its time has not come"
    await rig.schedule_all()
    info = await later.status()
    assert (info.state, info.endpoint, info.method) == (JobState.SCHEDULED, "images", "echo")
    assert info.next_try_at is not None and info.reason == "its time has not come"
    assert await rig.stored() == []
    [obstacle] = (await later.why()).obstacles
    assert (obstacle.kind, obstacle.until) == ("schedule", info.next_try_at)
    when = rig.wall() + 1
    job = await rig.client.options(at=datetime.fromtimestamp(when, UTC)).submit("images.echo", value=1)
    await rig.schedule_all()
    tasks = await rig.arrivals(1)
    read = Submission.parse(rig.names, tasks[0].subject, tasks[0].headers, sequence=1, published_at=tasks[0].at)
    assert read.job == job.id
    assert tasks[0].at >= when - 0.01
    assert (await job.status()).state is JobState.QUEUED
    assert await job.cancel()
    assert (await job.status()).state is JobState.CANCELLED
    assert len(await rig.stored()) == 1, "left for the next dispatcher, who stops it where it may run"


@in_memory
async def test_a_schedule_can_be_cancelled(rig: JobsRig) -> None:
    later = datetime.now(UTC) + timedelta(days=365)
    job = await rig.client.options(at=later).submit("images.echo")
    await rig.schedule_all()
    assert await job.cancel()
    assert (await (await rig.streams.schedules()).state()).messages == 0
    assert (await job.status()).state is JobState.CANCELLED
    with pytest.raises(JobCancelled):
        await job.result()
    assert not await job.cancel()
    nightly = await rig.client.options(cron="0 0 3 * * *").submit("images.echo")
    await rig.schedule_all()
    info = await nightly.status()
    assert (info.state, info.reason, nightly.repeats) == (JobState.SCHEDULED, "recurring: 0 0 3 * * *", True)
    with pytest.raises(InvalidRequest, match="each of its runs is a job of its own"):
        await nightly.result()
    assert await rig.client.job(nightly.id).cancel()
    assert (await (await rig.streams.schedules()).state()).messages == 0


@in_memory
async def test_a_cancellation_counts_for_all_that_declared_the_schedule_before_it_and_for_nothing_after_it(
    rig: JobsRig,
) -> None:
    async def declare(job: str) -> None:
        given = {headers.JOB: job, headers.CRON: "@daily"}
        await (await rig.tasks()).publish(rig.names.task("images", "echo"), b"", headers=given)

    for job, scheduled in (("nightly", True), ("nightly", True), ("daily", False)):
        await declare(job)
        if scheduled:
            await rig.schedule_all()
        await declare(job)  # by a publisher that could not know that it was stored
        assert await rig.client.job(job).cancel()
        entry = await (await rig.results()).get(rig.names.result_key(job))
        assert entry is not None
        record = ResultRecord.model_validate_json(entry.value)
        waiting = await rig.stored()
        assert waiting and all(record.covers(message.at) for message in waiting)
        assert await rig.client.schedules() == []
        assert record.submitted_at == pytest.approx(waiting[-1].at), "it may be declared anew"
        for message in waiting:
            await (await rig.tasks()).delete(message.sequence)


@in_memory
async def test_a_cancellation_whose_purge_got_no_answer_holds_and_can_be_repeated(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for done in (True, False):
        job = await rig.client.options(delay_s=60).submit("images.echo")
        await rig.schedule_all()
        schedules = await job._queries.streams.schedules()
        purge = schedules.purge

        async def unheard(pattern: str, *, really: bool = done, purge: Any = purge) -> int:
            if really:
                await purge(pattern)
            raise StorageUnavailable("no answer")

        monkeypatch.setattr(schedules, "purge", unheard)
        with pytest.raises(StorageUnavailable):
            await job.cancel()
        monkeypatch.undo()
        assert (await job.status()).state is JobState.CANCELLED, "whoever gets the task by then finds that it is"
        assert await job.cancel() is not done
        assert (await schedules.state()).messages == 0


@in_memory
async def test_a_schedule_whose_time_comes_while_it_is_cancelled_is_stopped_at_its_dispatcher(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await rig.client.options(delay_s=3600).submit("images.echo")
    await rig.schedule_all()
    dispatcher = await rig.take_queue()
    mine = await job._queries.streams.schedules()

    async def too_late(pattern: str) -> int:
        scheduled = await mine.last(rig.names.schedule(job.id))
        assert scheduled is not None
        fields = {**(scheduled.headers or {}), headers.SCHEDULE: "@at 2020-01-01T00:00:00Z"}
        del fields[headers.MESSAGE_ID]
        await mine.publish(scheduled.subject, scheduled.data, headers=fields)
        await until(lambda: dispatcher.messages)
        dispatcher.jobs[job.id] = JobInfo(job=job.id, endpoint="images", state=JobState.RUNNING)
        return 0

    monkeypatch.setattr(mine, "purge", too_late)
    assert await job.cancel()
    assert dispatcher.cancelled == [job.id]
    assert (await job.status()).state is JobState.CANCELLED


# -- trouble on the way -------------------------------------------------------------------------------------------


@in_memory
async def test_an_acknowledgement_that_is_lost_makes_no_second_task(rig: JobsRig) -> None:
    stream = await rig.client._submitter._streams.tasks()
    publish, tries = stream.publish, 0

    async def lossy(*args: Any, **kwargs: Any) -> Published:
        nonlocal tries
        tries += 1
        published = await publish(*args, **kwargs)
        if tries < 3:
            raise StorageUnavailable("the acknowledgement was lost")
        return published

    stream.publish = lossy  # type: ignore[method-assign]
    job = await rig.client.submit("images.echo")
    assert tries == 3
    [task] = await rig.stored()
    assert (await job.status()).sequence == task.sequence


@in_memory
async def test_a_task_that_nobody_acknowledges_is_told_with_what_is_certain(rig: JobsRig) -> None:
    loop = asyncio.get_running_loop()
    stream = await rig.client._submitter._streams.tasks()
    stream.publish = failing(Disconnected("no server"))  # type: ignore[method-assign]
    with deadline(loop.time() + 0.5), pytest.raises(StorageUnavailable, match="nothing was stored") as caught:
        await rig.client.submit("images.echo")
    assert not caught.value.may_have_started
    stream.publish = failing(StorageUnavailable("no answer"))  # type: ignore[method-assign]
    began = loop.time()
    with deadline(began + 0.5), pytest.raises(StorageUnavailable, match="submit it with an idempotency_key") as caught:
        await rig.client.submit("images.echo")
    assert caught.value.may_have_started and loop.time() - began < 1
    assert caught.value.details["job"]


async def test_a_submission_waits_for_a_server_that_comes_back() -> None:
    from gangline.bus.memory.server import MemoryServer
    from gangline.dispatcher.client.client import Client

    hub = MemoryServer()
    async with Client(hub.connect("client"), owns_bus=True) as client:
        await client.submit("images.echo", 1)
        hub.stop()
        asyncio.get_running_loop().call_later(4, hub.start)
        job = await client.submit("images.echo", 2)
        assert (await job.status()).state is JobState.QUEUED
