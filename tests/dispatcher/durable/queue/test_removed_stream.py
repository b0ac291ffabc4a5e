"""Somebody removes or purges the stream of tasks under a dispatcher that has read them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gangline.bus.jetstream.stream import NatsStream
from gangline.bus.port.bus import NotPermitted, StreamState
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.job import Job
from gangline.schemas.errors.base import JobDead, OutcomeUnknown, Unavailable, UnknownJob
from gangline.schemas.names import Names
from gangline.schemas.records.jobs import JobState

from ....support.dispatcher.jobs_rig import ImagesSystem, on_images
from ....waiting import loop_time

TASKS = Names().tasks_stream


async def _naps(client: Client, count: int = 4) -> list[Job[Any]]:
    jobs = [await client.submit("images.nap", 20.0, number) for number in range(count)]
    await asyncio.sleep(3.0)
    return jobs


async def _operator(client: Client, operation: str) -> None:
    await client._bus.request(f"$JS.API.STREAM.{operation}.{TASKS}", b"", timeout_s=5.0)


@on_images(slots=2)
async def test_tasks_of_a_removed_stream_end_as_dead_letters_and_the_log_counts_them(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await _naps(client)
    await _operator(client, "DELETE")
    ends = await asyncio.gather(*(job.result(15.0) for job in jobs), return_exceptions=True)
    for number, (job, end) in enumerate(zip(jobs, ends, strict=True)):
        running = number < 2
        assert isinstance(end, JobDead) and f"the stream {TASKS}" in end.message, end
        assert isinstance(end.__cause__, OutcomeUnknown if running else Unavailable)
        assert (end.details["reason"], end.may_have_started) == ("removed", running)
        status = await job.status()
        assert (status.state, status.reason, status.attempts) == (JobState.DEAD, "removed", int(running))
    said = {record.action: record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING}
    assert "4 tasks, 2 of them running" in said["queue.lost"]
    assert "4 tasks that this dispatcher had read become dead letters" in said["queue.removed"]
    assert "0 others are lost" in said["queue.removed"]
    letters = await client.dead_letters()
    assert {letter.job for letter in letters} == {job.id for job in jobs}
    again = await client.submit("images.echo", 5)
    assert await again.result(30.0) == 5


@on_images(slots=2)
async def test_they_become_dead_letters_when_the_dispatcher_may_look_at_the_stream_again(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await _naps(client, 2)
    state, back_at = NatsStream.state, loop_time() + 10.0

    async def refused(stream: NatsStream, pattern: str | None = None) -> StreamState:
        if loop_time() < back_at:
            raise NotPermitted("the server forbids it")
        return await state(stream, pattern)

    monkeypatch.setattr(NatsStream, "state", refused)
    await _operator(client, "DELETE")
    ends = await asyncio.gather(*(job.result(60.0) for job in jobs), return_exceptions=True)
    assert [type(end) for end in ends] == [JobDead, JobDead] and loop_time() >= back_at
    actions = {record.action for record in caplog.records if record.levelno >= logging.ERROR}
    assert actions == {"storage.refused", "queue.removed"}
    # It does not try to take the queue over without a pause.
    assert sum(record.action == "queue.not_permitted" for record in caplog.records) < 10


@on_images(slots=2, dispatcher=False)
async def test_a_waiter_of_a_task_that_nobody_had_read_is_told_of_the_removed_stream(client: Client) -> None:
    jobs = await _naps(client, 1)
    await _operator(client, "DELETE")
    with pytest.raises(UnknownJob, match=f"removed the stream {TASKS}"):
        await jobs[0].result(60.0)


@on_images(slots=2)
async def test_a_purge_is_named_by_the_status_of_the_tasks_and_of_their_queue(
    client: Client, system: ImagesSystem, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = await _naps(client)
    await _operator(client, "PURGE")
    await asyncio.sleep(3.0)
    (queue,) = await client.queues()
    assert queue.purged == 4
    for job in jobs:
        assert "removed from the stream" in ((await job.status()).reason or "")
    assert [record.action for record in caplog.records if "somebody has removed" in record.message] == ["queue.purged"]
    await jobs[3].cancel()
    assert [await job.result(100.0) for job in jobs[:3]] == [0, 1, 2]
    await asyncio.sleep(2.0)
    assert system.ran == [0, 1, 2]
    assert [queue.purged for queue in await client.queues()] == [0]
