"""Streams and buckets have a bound in bytes."""

from __future__ import annotations

import logging

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, Retention, Storage, StorageUnavailable, StreamSettings
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.names import Names

from ...waiting import until
from ..conftest import impatient

pytestmark = pytest.mark.server

STREAMS = {
    "tasks": "GANGLINE_TASKS",
    "schedules": "GANGLINE_SCHED",
    "results": "KV_GANGLINE_RESULTS",
    "objects": "OBJ_GANGLINE_OBJECTS",
    "dead": "GANGLINE_DEAD",
    "jobs": "GANGLINE_JOBS",
    "routes": "KV_GANGLINE_ROUTES",
}
SMALL = """
accounts {
  APP { jetstream: { max_memory: 10MB, max_file: 10MB }, users: [ { user: app, password: app } ] }
}
"""


async def bound(bus: NatsBus, stream: str) -> int:
    found = await bus.api.call(f"STREAM.INFO.{stream}", what="look")
    return int(found["config"]["max_bytes"])


async def test_all_that_is_made_has_the_bound_of_its_settings(connect_to, secured):
    bus = await connect_to(secured("").url)
    bounds = {name: 100_000 + number for number, name in enumerate(STREAMS)}
    storage = TaskStorage(storage=Storage.MEMORY, **{f"{name}_max_bytes": most for name, most in bounds.items()})
    streams = TaskStreams(bus, Names(), storage)
    for made in (streams.tasks, streams.dead, streams.jobs, streams.results, streams.routes, streams.objects):
        await made()
    assert {name: await bound(bus, stream) for name, stream in STREAMS.items()} == bounds
    await bus.bucket("GANGLINE_LEDGER", BucketSettings(max_bytes=100_000))
    assert await bound(bus, "KV_GANGLINE_LEDGER") == 100_000


def test_all_but_schedules_have_a_bound_unless_told_otherwise():
    unbounded = {name for name in STREAMS if getattr(TaskStorage(), f"{name}_max_bytes") == -1}
    assert unbounded == {"schedules"} and BucketSettings().max_bytes > 0
    assert TaskStorage.from_environment({"GANGLINE_MAX_BYTES": "-1"}).tasks_max_bytes == -1
    bounded = TaskStorage.from_environment({"GANGLINE_MAX_BYTES": "16777216"})
    assert (bounded.tasks_max_bytes, bounded.schedules_max_bytes) == (16 << 20, -1)  # full, it would lose the oldest


async def test_a_full_queue_refuses_what_is_new_and_keeps_what_it_has(connect_to, secured):
    bus = await connect_to(secured("").url)
    settings = StreamSettings(
        subjects=("q.>",), retention=Retention.WORK_QUEUE, storage=Storage.MEMORY, max_bytes=3000, keeps_old=True
    )
    queue = await bus.stream("QUEUE", settings)
    first = await queue.publish("q.a", b"x" * 1000)
    await queue.publish("q.a", b"x" * 1000)
    with impatient(bus), pytest.raises(StorageUnavailable):
        await queue.publish("q.a", b"x" * 1000)
    assert (await queue.state()).first_sequence == first.sequence


async def test_what_becomes_due_while_the_queue_is_full_is_queued_when_there_is_room_unless_it_expired(
    connect_to, secured
):
    bus, names = await connect_to(secured("").url), Names()
    streams = TaskStreams(bus, names, TaskStorage(storage=Storage.MEMORY, tasks_max_bytes=3000))
    tasks, schedules = await streams.tasks(), await streams.schedules()
    task, small = names.task("words", "count"), names.task("words", "small")
    for _ in range(2):
        await tasks.publish(task, b"x" * 1000)
    due = names.due_of(task)
    expiring = await schedules.publish(due, b"a" * 1000, headers={"Nats-TTL": "1s"})
    waiting = [await schedules.publish(due, body * 1000) for body in (b"b", b"c")]

    async def expired() -> bool:
        return await schedules.get(expiring.sequence) is None

    await until(expired)
    assert (await tasks.state()).messages == 2, "the queue took more than it may"
    await tasks.purge(task)

    async def queued() -> bool:
        return (await tasks.state()).messages == len(waiting)

    await until(queued)
    first = await tasks.next(names.tasks)
    assert first is not None and first.data == b"b" * 1000
    await schedules.publish(names.due_of(small), b"d")

    async def next_is_queued() -> bool:
        return await tasks.last(small) is not None

    await until(next_is_queued)
    assert (await tasks.state()).messages == 3


async def test_where_the_server_cannot_reserve_so_much_there_is_no_bound_and_a_warning(connect_to, secured, caplog):
    bus = await connect_to(secured(SMALL).url, user="app", password="app")
    with caplog.at_level(logging.WARNING):
        await bus.bucket("ROOM", BucketSettings())
    assert await bound(bus, "KV_ROOM") == -1
    assert "bus.stream_unbounded" in {record.__dict__.get("action") for record in caplog.records}
