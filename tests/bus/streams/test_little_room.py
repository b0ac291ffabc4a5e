"""A server with little room: what waits never takes the room that its own end needs."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

from gangline import Client, Pool
from gangline.bus.port.bus import Storage, StorageUnavailable, StreamSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.errors import JobCancelled
from gangline.schemas.names import Names
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S, until
from ..conftest import impatient

pytestmark = pytest.mark.server

words = Pool("words", slots=8)


@words.task
async def count(text: str) -> int:
    return len(text)


def little(folder: Path) -> str:
    return f'jetstream {{ store_dir: "{folder}", max_file_store: 3MB, max_memory_store: 3MB }}'


ACCOUNT = "accounts { APP { jetstream: { max_memory: 3MB, max_file: 3MB }, users: [{ user: app, password: app }] } }"


@pytest.mark.parametrize(
    ("limit", "storage", "size"), [("-1", "file", 300), ("", "file", 20_000), ("-1", "memory", 999)]
)
async def test_accepted_jobs_end_after_others_were_refused(
    connect_to, secured, tmp_path, monkeypatch, limit, storage, size
):
    monkeypatch.setenv("GANGLINE_MAX_BYTES", limit)
    monkeypatch.setenv("GANGLINE_STORAGE", storage)
    server, accepted = secured(little(tmp_path)), 0
    bus, names = await connect_to(server.url), Names()
    tasks = await TaskStreams(bus, names).tasks()
    with impatient(bus), pytest.raises(StorageUnavailable):
        while True:
            await tasks.publish(names.task("words", "count"), b'{"text": "%s"}' % (b"x" * size))
            accepted += 1
    assert accepted > 5
    assert not bus.impairments()  # a full queue is as it should be
    dispatcher, worker = Dispatcher(bus), Worker(words, bus=await connect_to(server.url))
    await dispatcher.start()
    await worker.start()

    async def ended() -> bool:
        return (await tasks.state()).messages == 0

    await until(ended)
    await worker.stop()
    await dispatcher.stop()


@pytest.mark.parametrize("config", [little, lambda _: ACCOUNT], ids=["server", "account"])
async def test_streams_without_a_limit_get_a_share_those_of_an_earlier_version_too(
    connect_to, secured, tmp_path, config
):
    user: dict[str, Any] = {} if config is little else {"user": "app", "password": "app"}
    bus = await connect_to(secured(config(tmp_path)).url, **user)
    storage = TaskStorage(storage=Storage.MEMORY, tasks_max_bytes=-1, results_max_bytes=-1)
    earlier = {"name": "KV_GANGLINE_RESULTS", "subjects": ["$KV.GANGLINE_RESULTS.>"], "max_bytes": -1}
    more = {"max_msgs_per_subject": 1, "discard": "new", "storage": "memory", "deny_delete": True}
    made = {**earlier, **more, "allow_msg_ttl": True, "num_replicas": 1, "max_consumers": 1_000_000}
    await bus.api.call("STREAM.CREATE.KV_GANGLINE_RESULTS", made, what="make the bucket of an earlier version")
    streams = TaskStreams(bus, Names(), storage)
    opened = (streams.tasks, streams.results, streams.dead, streams.objects, streams.routes)
    for each in opened:
        await each()
    shares = {"GANGLINE_TASKS": 16, "KV_GANGLINE_RESULTS": 2, "GANGLINE_DEAD": 16, "OBJ_GANGLINE_OBJECTS": 4}
    room = 3 << 20
    for name, part in shares.items():
        found = await bus.api.call(f"STREAM.INFO.{name}", what="look")
        assert 0.66 * room <= part * found["config"]["max_bytes"] <= room
        room -= found["config"]["max_bytes"]


async def test_where_nothing_can_be_reserved_the_log_says_what_that_means(connect_to, secured, tmp_path, caplog):
    bus = await connect_to(secured(little(tmp_path)).url)
    others = {"name": "OTHERS", "subjects": ["others"], "max_bytes": (3 << 20) - 100_000, "storage": "memory"}
    await bus.api.call("STREAM.CREATE.OTHERS", others, what="take nearly all room")
    with caplog.at_level(logging.WARNING, "gangline.bus"):
        await TaskStreams(bus, Names(), TaskStorage(storage=Storage.MEMORY)).dead()
    assert [record.__dict__["action"] for record in caplog.records] == [
        "bus.stream_unbounded",
        "bus.stream_unlimited",
    ]


async def test_while_others_have_filled_the_server_it_is_said_why_nothing_ends_and_then_all_ends(
    connect_to, secured, tmp_path, monkeypatch
):
    monkeypatch.setenv("GANGLINE_MAX_BYTES", "-1")
    server = secured(little(tmp_path))
    bus, owner, worker_bus = await connect_to(server.url), await connect_to(server.url), await connect_to(server.url)
    others = StreamSettings(subjects=("others",), keeps_old=True)
    dispatcher = Dispatcher(owner)
    await dispatcher.start()
    async with Client(bus) as client:
        jobs = [await client.submit("words.count", text="x") for _ in range(2)]

        async def taken() -> bool:
            return (await client.queues())[0].seen == 2

        await until(taken)
        theirs = await bus.stream("OTHERS", others)
        for size in (50_000, 100):  # to the last bytes
            with contextlib.suppress(StorageUnavailable):
                while True:
                    await theirs.publish("others", b"x" * size)
        with pytest.raises(StorageUnavailable, match="no room in the bucket"):
            await jobs[1].cancel()
        [queue] = await client.queues()
        assert "no room in the bucket GANGLINE_RESULTS" in queue.impaired
        assert (await jobs[0].why()).impaired == queue.impaired
        await theirs.purge("others")
        worker = Worker(words, bus=worker_bus)
        await worker.start()
        assert await jobs[0].result(timeout_s=PATIENCE_S) == 1
        with pytest.raises(JobCancelled):
            await jobs[1].result(timeout_s=PATIENCE_S)
        await worker.stop()
    await dispatcher.stop()
