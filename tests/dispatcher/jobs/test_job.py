"""Jobs from their producer's side: result, status, cancelling, and why they wait."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterable
from typing import Any

import pytest

from gangline.board.rows import queue_wait
from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import ConsumerSettings, StorageUnavailable, StreamMessage
from gangline.cli.views.jobs import queue_lines
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs import queries as jobs_desk
from gangline.dispatcher.jobs.queries import JobQueries
from gangline.dispatcher.jobs.stored import JobRef
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import (
    ClosedError,
    DeadlineExceeded,
    InvalidName,
    JobCancelled,
    JobDead,
    MalformedMessage,
    ResultNotKept,
    TaskFailed,
    UnknownJob,
)
from gangline.schemas.messages.jobs import JobInfo
from gangline.schemas.names import Names
from gangline.schemas.records.jobs import DeadReason, JobFailure, JobState
from gangline.schemas.wire import codec

from ...support.dispatcher.jobs_rig import STORAGE, JobsRig, failing, in_memory
from ...waiting import PATIENCE_S, until

FAILURE = JobFailure(code="task_failed", message="no such file", details={"type": "OSError", "traceback": "Traceback"})


async def begin(work: Any) -> asyncio.Task[Any]:
    """Start, and let it come to its wait."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


# -- results ------------------------------------------------------------------------------------------------------


@in_memory
async def test_a_result_that_is_there_is_given_at_once(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    await rig.end(job.id, result={"size": 3})
    assert await job.result() == {"size": 3}
    assert await rig.client.job(job.id).result(PATIENCE_S) == {"size": 3}


@in_memory
async def test_a_refused_second_result_is_not_believed(rig: JobsRig) -> None:
    """Whoever watches sees a write before the server has refused it."""
    from gangline.bus.port.bus import Conflict

    job = await rig.client.submit("images.echo")
    wait = await begin(job.result())
    await rig.end(job.id, result="first")
    with pytest.raises(Conflict):
        await rig.end(job.id, result="second")
    assert await wait == "first" == await job.result()


@in_memory
async def test_bytes_come_back_as_bytes(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo", b"\xfb\xff")
    packed = codec.pack({"data": b"\xfb\xff\xfe"})
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        await rig.end(job.id, result=alphabet(packed).decode(), encoding="msgpack", revision=None)
        assert await job.result() == {"data": b"\xfb\xff\xfe"}
    await rig.end(job.id, result="no base64!", encoding="msgpack", revision=None)
    with pytest.raises(MalformedMessage):
        await job.result()


@in_memory
async def test_a_large_result_comes_from_the_object_store(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    value = "x" * 3_000_000
    await (await rig.streams.objects()).put("large", codec.to_json(value))
    await rig.end(job.id, object="large")
    assert await job.result() == value
    await (await rig.streams.objects()).delete("large")
    with pytest.raises(ResultNotKept, match="is gone"):
        await job.result()


@in_memory
async def test_a_dead_job_says_why_with_the_last_error_as_its_cause(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    await rig.end(job.id, state=JobState.DEAD, reason=DeadReason.FAILED, error=FAILURE, attempts=5)
    with pytest.raises(JobDead, match="is a dead letter, failed after 5 attempts: no such file") as caught:
        await job.result()
    cause = caught.value.__cause__
    assert isinstance(cause, TaskFailed) and cause.remote_type == "OSError" and cause.remote_traceback == "Traceback"
    assert caught.value.reason == "failed" and caught.value.details["attempts"] == 5
    assert caught.value.may_have_started
    info = await job.status()
    assert (info.state, info.reason, info.attempts, info.error) == (JobState.DEAD, "failed", 5, FAILURE)


@in_memory
async def test_waiting_ends_at_its_time_and_leaves_the_job_alone(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    with pytest.raises(DeadlineExceeded, match=r"did not end within 0.2 s; it continues"):
        await job.result(0.2)
    assert (await job.status()).state is JobState.QUEUED


@in_memory
async def test_a_limit_too_short_to_wait_still_finds_a_job_that_has_ended(rig: JobsRig) -> None:
    for limit_s in (0, -1, 1e-6):
        job = await rig.client.submit("images.echo")
        with pytest.raises(DeadlineExceeded, match=r"; it continues"):
            await job.result(limit_s)
        await rig.end(job.id, result=41)
        assert await job.result(limit_s) == 41
        assert await rig.client.job(job.id).result(limit_s) == 41
        with pytest.raises(UnknownJob):
            await rig.client.job("images.nosuch").result(limit_s)


@in_memory
async def test_a_result_that_is_not_kept_is_not_waited_for(rig: JobsRig) -> None:
    job = await rig.client.options(result_ttl_s=0).submit("images.echo")
    with pytest.raises(ResultNotKept):
        await job.result()
    with pytest.raises(ResultNotKept):
        job.events()


@in_memory
async def test_a_job_that_nobody_knows_is_told_at_once(rig: JobsRig) -> None:
    with pytest.raises(UnknownJob, match="a cancelled cron, or ended so long ago that .* no longer kept$"):
        await rig.client.job("nothing").result()
    with pytest.raises(UnknownJob, match="start one with 'gangline dispatcher'"):
        await rig.client.job("nothing", "images").status()
    with pytest.raises(UnknownJob):
        await rig.client.job("nothing", "images").cancel()
    with pytest.raises(InvalidName):
        rig.client.job("no.such.thing")


@in_memory
async def test_a_job_that_vanished_is_given_up_after_a_while(rig: JobsRig) -> None:
    """Its result was too short-lived to be seen: waiting for ever would help nobody."""
    job = await rig.client.submit("images.echo")
    await (await rig.tasks()).purge(rig.names.tasks)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(UnknownJob):
        await job.result()
    assert 10 <= loop.time() - began <= 30


async def test_waiting_goes_on_while_storage_is_away() -> None:
    hub = MemoryServer()
    job_id = ""
    async with Client(hub.connect("client"), tasks=STORAGE, owns_bus=True) as first:
        job_id = (await first.submit("images.echo")).id
    names, other = Names(), hub.connect("dispatcher")
    async with Client(hub.connect("client"), tasks=STORAGE, owns_bus=True) as client:
        hub.stop()
        waiting = [asyncio.ensure_future(client.job(job_id).result()) for _ in range(2)]
        events = asyncio.ensure_future(collect(client.job(job_id).events()))
        await asyncio.sleep(20)
        hub.start()
        await asyncio.sleep(1)
        await JobsRig(names, client, other, hub).end(job_id, result=5)
        assert await asyncio.gather(*waiting) == [5, 5]
        assert [event.state for event in await events] == [JobState.DONE]
    await other.close()


async def test_closing_the_client_ends_its_waits() -> None:
    hub = MemoryServer()
    client = await Client(hub.connect("client"), tasks=STORAGE, owns_bus=True).start()
    job = await client.submit("images.echo")
    wait = await begin(job.result())
    await client.close()
    with pytest.raises(ClosedError):
        await wait


async def collect(source: AsyncIterable[Any]) -> list[Any]:
    return [item async for item in source]


# -- status -------------------------------------------------------------------------------------------------------


@in_memory
async def test_status_is_what_the_dispatcher_says(rig: JobsRig) -> None:
    dispatcher = await rig.take_queue()
    job = await rig.client.submit("images.echo")
    told = JobInfo(job=job.id, endpoint="images", method="echo", state=JobState.RUNNING, worker="images.w1", attempts=2)
    dispatcher.jobs[job.id] = told
    assert await job.status() == told
    assert await rig.client.job(job.id).status() == told  # found without the endpoint
    assert (await job.why()).position == 3


@in_memory
async def test_a_queue_that_changes_hands_is_not_called_nobodys(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_desk, "TAKEN_WITHIN_S", 0.0)
        assert (await job.status()).reason == (
            "no dispatcher has the queue of 'images': start one with 'gangline dispatcher'"
        )
        settings = ConsumerSettings(filter=rig.names.tasks_of("images"))
        await (await rig.tasks()).consume("had-by-one-that-died", settings, lambda _message: None)
        assert "is changing hands" in ((await job.status()).reason or "")
        assert "is changing hands" in (await job.why()).obstacles[0].text


@in_memory
async def test_without_a_dispatcher_a_stored_task_is_found_and_the_lack_is_told(rig: JobsRig) -> None:
    for _ in range(5):
        job = await rig.client.submit("images.echo")
    for found in (job, rig.client.job(job.id), rig.client.job(job.id, "images")):
        info = await found.status()
        assert (info.state, info.endpoint, info.method) == (JobState.QUEUED, "images", "echo")
        assert "start one with 'gangline dispatcher'" in (info.reason or "")
        assert "no dispatcher has the queue of 'images' yet" in (info.reason or ""), "it is new"
    [obstacle] = (await job.why()).obstacles
    assert obstacle.kind == "position" and "gangline dispatcher" in obstacle.text


@in_memory
async def test_a_task_that_the_dispatcher_has_not_seen_yet_is_queued(rig: JobsRig) -> None:
    await rig.take_queue()
    job = await rig.client.submit("images.echo")
    info = await job.status()
    assert info.state is JobState.QUEUED
    [obstacle] = (await job.why()).obstacles
    assert info.reason == obstacle.text == "no dispatcher has read that far down the queue yet"


@in_memory
async def test_a_task_published_by_hand_is_found_by_its_sequence(rig: JobsRig) -> None:
    published = await (await rig.tasks()).publish(f"{rig.names.namespace}.task.images.echo", b"{}")
    job = rig.client.job(str(published.sequence))
    assert (await job.status()).sequence == published.sequence
    await rig.end(job.id, result="by hand")
    assert await job.result() == "by hand"
    with pytest.raises(UnknownJob):
        await rig.client.job(str(published.sequence + 1)).status()


@in_memory
async def test_a_job_is_found_wherever_it_stands_in_the_stream(rig: JobsRig) -> None:
    jobs = await rig.client.submit_many("images.echo", [{"value": n} for n in range(100)])
    await rig.client.submit_many("sounds.echo", [{"value": n} for n in range(50)])
    for number in range(1, 100, 7):  # with holes
        await (await rig.tasks()).delete((await jobs[number].status()).sequence or 0)
    for number in (0, 3, 51, 98):
        assert (await rig.client.job(jobs[number].id, "images").status()).endpoint == "images"
        assert (await rig.client.job(jobs[number].id).status()).endpoint == "images"
    with pytest.raises(UnknownJob) as caught:
        await rig.client.job(jobs[1].id).status()
    assert caught.value.details["certain"]


@in_memory
async def test_a_search_that_loses_the_server_says_that(rig: JobsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await rig.client.submit("images.echo")
    stream = await rig.client._queries.streams.tasks()
    monkeypatch.setattr(stream, "next", failing(StorageUnavailable("no answer")), raising=False)
    with pytest.raises(StorageUnavailable):
        await rig.client.job(job.id).status()


# -- cancelling ---------------------------------------------------------------------------------------------------


@in_memory
async def test_the_dispatcher_cancels_what_it_has(rig: JobsRig) -> None:
    dispatcher = await rig.take_queue()
    job = await rig.client.submit("images.echo")
    dispatcher.jobs[job.id] = JobInfo(job=job.id, endpoint="images", state=JobState.RUNNING)
    assert await job.cancel()
    assert dispatcher.cancelled == [job.id]


@in_memory
async def test_a_question_that_dies_with_a_dispatcher_is_asked_again_of_the_next(rig: JobsRig) -> None:
    dispatcher = await rig.take_queue()
    job = await rig.client.submit("images.echo")
    dispatcher.deaf = 1
    began_at = asyncio.get_running_loop().time()
    cancelling = asyncio.ensure_future(job.cancel())
    await until(lambda: dispatcher.asked)
    dispatcher.jobs[job.id] = JobInfo(job=job.id, endpoint="images", state=JobState.RUNNING)
    assert await cancelling and dispatcher.asked == ["cancel", "cancel"]
    took_s = asyncio.get_running_loop().time() - began_at
    assert took_s < 3.0, "well before it would give up"


@in_memory
async def test_a_task_that_its_dispatcher_has_not_seen_is_cancelled_in_the_stream(rig: JobsRig) -> None:
    job, other = [await rig.client.submit("images.echo") for _ in range(2)]
    dispatcher = await rig.take_queue()
    assert await job.cancel()
    assert dispatcher.asked == ["cancel", "cancel"]  # once more: it may have come to the dispatcher meanwhile
    assert [task.sequence for task in await rig.stored()] == [(await other.status()).sequence]
    with pytest.raises(JobCancelled):
        await job.result()
    assert not await job.cancel()
    assert (await job.status()).state is JobState.CANCELLED


@in_memory
async def test_a_schedule_that_its_dispatcher_gave_to_the_server_meanwhile_is_cancelled_there(
    rig: JobsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, schedules, subject = await rig.tasks(), await rig.streams.schedules(), rig.names.task("images", "echo")
    await tasks.publish(subject, b"", headers={"Gangline-Cron": "@every 1h", "Gangline-Job": "hourly"})
    await rig.take_queue()
    cancel_stored = JobQueries._cancel_stored

    async def slowly(self: JobQueries, ref: JobRef, found: StreamMessage, *, held: bool) -> bool:
        fields = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": rig.names.due_of(subject)}
        await schedules.publish(rig.names.schedule("hourly"), b"", headers=fields)
        return await cancel_stored(self, ref, found, held=held)

    monkeypatch.setattr(JobQueries, "_cancel_stored", slowly)
    assert await rig.client.job("hourly", "images").cancel()
    assert (await schedules.state()).messages == 0


@in_memory
async def test_a_task_without_a_dispatcher_may_run_and_is_left_for_the_next_one_with_a_record(rig: JobsRig) -> None:
    job = await rig.client.submit("images.echo")
    assert await job.cancel()
    assert len(await rig.stored()) == 1
    with pytest.raises(JobCancelled):
        await job.result()
    assert not await job.cancel()
    assert (await job.status()).state is JobState.CANCELLED


async def test_a_delayed_task_on_its_way_to_its_queue_is_cancelled_for_the_dispatcher_that_it_reaches() -> None:
    loop = asyncio.get_running_loop()
    ambient = Environment(wall=lambda: 1_700_000_000 + loop.time())
    hub = MemoryServer(ambient=ambient)
    names, bus = Names("t"), hub.connect("client")
    async with Client(bus, names=names, tasks=STORAGE, ambient=ambient, owns_bus=True) as client:
        rig = JobsRig(names, client, bus, hub, ambient)
        await rig.tasks()
        schedules, job = await rig.streams.schedules(), client.job("later", "images")
        given = {"Nats-Schedule": "@every 5s", "Nats-Schedule-Target": names.due_of(names.task("images", "echo"))}
        await schedules.publish(names.schedule("later"), b"", headers={**given, "Gangline-Job": "later"})
        hub.streams.hold_sources()
        await asyncio.sleep(6)
        await schedules.purge(names.schedule("later"))
        with pytest.raises(UnknownJob, match="moving it to its queue"):
            await job.status()
        assert await job.cancel()
        assert (await job.status()).state is JobState.CANCELLED
        assert not await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result()


# -- queues -------------------------------------------------------------------------------------------------------


@in_memory
async def test_queues_are_shown_with_and_without_a_dispatcher(rig: JobsRig) -> None:
    await rig.take_queue("images")
    await rig.client.submit("images.echo")
    await rig.client.submit("sounds.echo")
    await rig.client.submit("sounds.mix")
    images, sounds = await rig.client.queues()
    assert (images.endpoint, images.dispatcher, images.depth, images.running) == ("images", "d1", 7, 2)
    assert (sounds.endpoint, sounds.dispatcher, sounds.depth) == ("sounds", "", 2)
    assert sounds.oldest_s is not None and sounds.oldest_s < 60
    assert (images.unanswered, sounds.unanswered) == ("", "")


@in_memory
async def test_a_queue_whose_dispatcher_does_not_answer_is_not_called_nobodys(rig: JobsRig) -> None:
    (await rig.take_queue("images")).deaf = 100
    await rig.client.submit("images.echo")
    [queue] = await rig.client.options(timeout_s=0.3).queues()
    assert (queue.dispatcher, queue.depth) == ("", 1) and "did not answer" in queue.unanswered
    assert not [line for line in queue_lines(queue) if "nobody" in line]
    waits = queue_wait(queue, None, (1, 1))
    assert waits is not None and waits["reasons"] == [f"its dispatcher does not say: {queue.unanswered}"]
