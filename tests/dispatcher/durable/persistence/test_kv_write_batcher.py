"""Writes to a bucket: many at once, in order for each key, until storage has taken them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, KeyValue
from gangline.dispatcher.durable.persistence.kv_write_batcher import KvWriteBatcher
from gangline.telemetry.logs import logger_for


class Desk:
    def __init__(self) -> None:
        self.hub = MemoryServer()
        self.bus = self.hub.connect("scribe")
        self.sure = asyncio.Event()
        self.sure.set()
        self.scribe = KvWriteBatcher(self.bucket, sure=self._sure, log=logger_for("test"))

    async def _sure(self) -> None:
        await self.sure.wait()

    async def bucket(self) -> KeyValue:
        return await self.bus.bucket("RESULTS", BucketSettings())

    async def value(self, key: str) -> bytes | None:
        entry = await (await self.bucket()).get(key)
        return None if entry is None else entry.value


@pytest.fixture
async def desk() -> AsyncGenerator[Desk, None]:
    made = Desk()
    made.scribe.start()
    yield made
    await made.scribe.stop()
    await made.bus.close()


async def test_the_first_writer_of_a_key_wins_and_both_are_told(desk: Desk) -> None:
    told: list[tuple[str, bool]] = []
    desk.scribe.create("result.1", b"first", ttl_s=60, done=lambda new: told.append(("first", new)))
    desk.scribe.create("result.1", b"second", ttl_s=60, done=lambda new: told.append(("second", new)))
    await desk.scribe.settled()
    assert told == [("first", True), ("second", False)]
    assert await desk.value("result.1") == b"first"


async def test_writes_of_one_key_stay_in_order(desk: Desk) -> None:
    for number in range(20):
        desk.scribe.put("try.a.1", str(number).encode())
    await desk.scribe.settled()
    assert await desk.value("try.a.1") == b"19"
    desk.scribe.put("try.a.1", b"again")
    desk.scribe.delete("try.a.1")
    await desk.scribe.settled()
    assert await desk.value("try.a.1") is None


async def test_nothing_is_lost_while_storage_is_away_and_each_is_answered_once(desk: Desk) -> None:
    told: list[int] = []
    desk.hub.storage_down()
    for number in range(1000):
        desk.scribe.create(f"result.{number}", b"x", ttl_s=60, done=lambda _, number=number: told.append(number))
    await asyncio.sleep(30)
    assert told == [] and desk.scribe.pending == 1000 and desk.scribe.retried > 3
    desk.hub.storage_back()
    await desk.scribe.settled()
    assert sorted(told) == list(range(1000))


async def test_nothing_is_written_while_it_is_in_doubt_whether_it_is_ours_to_write(desk: Desk) -> None:
    desk.sure.clear()
    desk.scribe.put("a", b"1")
    await asyncio.sleep(10)
    assert await desk.value("a") is None
    desk.sure.set()
    await desk.scribe.settled()
    assert await desk.value("a") == b"1"


async def test_after_a_stop_nothing_is_written_and_nobody_waits(desk: Desk) -> None:
    desk.sure.clear()
    desk.scribe.put("a", b"1")
    await asyncio.sleep(1)
    await desk.scribe.stop()
    await desk.scribe.stop()
    await desk.scribe.settled()
    desk.sure.set()
    await asyncio.sleep(1)
    assert await desk.value("a") is None
