"""What a queue has stored as it goes: many at once and in order, until storage has taken it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, KeyValue, Stream, StreamSettings
from gangline.dispatcher.durable.persistence.writers import DueCopyRemover, JobEventPublisher, KvWriteBatcher
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.schemas.names import JobFeed, Names
from gangline.schemas.records.jobs import JobEvent, JobState
from gangline.telemetry.logs import logger_for


class Desk:
    def __init__(self) -> None:
        self.hub = MemoryServer()
        self.bus = self.hub.connect("scribe")
        self.sure = asyncio.Event()
        self.sure.set()
        self.writer = KvWriteBatcher(self.bucket, sure=self._sure, log=logger_for("test"))

    async def _sure(self) -> None:
        await self.sure.wait()

    async def bucket(self) -> KeyValue:
        return await self.bus.bucket("RESULTS", BucketSettings())

    async def value(self, key: str) -> bytes | None:
        entry = await (await self.bucket()).get(key)
        return None if entry is None else entry.value


@pytest.fixture
async def operations() -> AsyncGenerator[Desk, None]:
    made = Desk()
    made.writer.start()
    yield made
    await made.writer.stop()
    await made.bus.close()


async def test_the_first_writer_of_a_key_wins_and_both_are_told(operations: Desk) -> None:
    told: list[tuple[str, bool]] = []
    operations.writer.create("result.1", b"first", ttl_s=60, done=lambda new: told.append(("first", new)))
    operations.writer.create("result.1", b"second", ttl_s=60, done=lambda new: told.append(("second", new)))
    await operations.writer.settled()
    assert told == [("first", True), ("second", False)]
    assert await operations.value("result.1") == b"first"


async def test_writes_of_one_key_stay_in_order(operations: Desk) -> None:
    for number in range(20):
        operations.writer.put("try.a.1", str(number).encode())
    await operations.writer.settled()
    assert await operations.value("try.a.1") == b"19"
    operations.writer.put("try.a.1", b"again")
    operations.writer.delete("try.a.1")
    await operations.writer.settled()
    assert await operations.value("try.a.1") is None


async def test_nothing_is_lost_while_storage_is_away_and_each_is_answered_once(operations: Desk) -> None:
    told: list[int] = []
    operations.hub.storage_down()
    for number in range(1000):
        operations.writer.create(f"result.{number}", b"x", ttl_s=60, done=lambda _, number=number: told.append(number))
    await asyncio.sleep(30)
    assert told == [] and operations.writer.pending == 1000 and operations.writer.retried > 3
    operations.hub.storage_back()
    await operations.writer.settled()
    assert sorted(told) == list(range(1000))


async def test_nothing_is_written_while_it_is_in_doubt_whether_it_is_ours_to_write(operations: Desk) -> None:
    operations.sure.clear()
    operations.writer.put("a", b"1")
    await asyncio.sleep(10)
    assert await operations.value("a") is None
    operations.sure.set()
    await operations.writer.settled()
    assert await operations.value("a") == b"1"


async def test_an_unexpected_error_does_not_end_what_stores_events(operations: Desk) -> None:
    names, opened = Names("ns"), 0
    streams = TaskStreams(operations.bus, names)

    async def jobs() -> Stream:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise ValueError("a bug")
        return await streams.jobs()

    feed = JobEventPublisher(jobs, names, limit_bytes=lambda: 1 << 20, sure=operations._sure, log=logger_for("test"))
    feed.start()
    feed.tell(JobEvent(job="j1", state=JobState.QUEUED, attempt=0, at=1.0))
    stored = asyncio.Event()
    feed.when_stored(stored.set)
    await stored.wait()
    await feed.stop()
    last = await (await streams.jobs()).last(names.job("j1", JobFeed.STATE))
    assert last is not None and opened == 2 and feed.retried == 1 and feed.pending == 0


async def test_who_fails_when_its_write_is_stored_does_not_end_the_writer(operations: Desk, caplog) -> None:
    """One whose waiter had been cancelled did, and nothing of the queue was stored any more."""
    gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    gone.cancel()
    operations.writer.create("result.1", b"x", ttl_s=60, done=gone.set_result)
    operations.writer.put("try.a.1", b"y")
    await operations.writer.settled()
    assert await operations.value("try.a.1") == b"y"
    operations.writer.put("try.a.2", b"z")
    await operations.writer.settled()
    assert await operations.value("try.a.2") == b"z"
    assert [line.action for line in caplog.records] == ["results.bug"]


async def test_due_tasks_are_acknowledged_only_when_they_have_left_the_schedules_and_others_stay(
    operations: Desk,
) -> None:
    settings = StreamSettings(subjects=("sched.>", "due.>"))
    schedules = await operations.bus.stream("SCHED", settings)
    for subject in ("sched.1", "due.a.x", "due.b.x", "due.a.y", "due.a.x"):
        await schedules.publish(subject, b"")
    remover = DueCopyRemover(
        lambda: operations.bus.stream("SCHED", settings), "due.a.*", sure=operations._sure, log=logger_for("test")
    )
    remover.start()
    operations.hub.storage_down()
    told: list[int] = []
    for sequence in (4, 2):
        remover.remove(sequence, lambda sequence=sequence: told.append(sequence))
    await asyncio.sleep(3)
    assert told == []
    operations.hub.storage_back()
    await remover.settled()
    assert told == [4, 2]
    assert (await schedules.state(">")).subjects == {"sched.1": 1, "due.b.x": 1, "due.a.x": 1}
    await remover.stop()
