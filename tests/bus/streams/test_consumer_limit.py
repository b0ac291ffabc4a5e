"""Streams and buckets have room for more consumers than a server gives by itself."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, ConsumerSettings, Retention, Storage, StreamMessage, StreamSettings

pytestmark = pytest.mark.server

QUEUE = StreamSettings(subjects=("room.>",), retention=Retention.WORK_QUEUE, storage=Storage.MEMORY)
MORE = 1_005
LIMITED = """
accounts {
  APP { jetstream: { max_consumers: 50 }, users: [ { user: app, password: app } ] }
}
"""


async def allowed(bus: NatsBus, stream: str) -> int:
    found = await bus.api.call(f"STREAM.INFO.{stream}", what="look")
    return int(found["config"]["max_consumers"])


async def test_more_than_a_thousand_endpoints_have_their_queues(connect_to, secured):
    bus = await connect_to(secured("").url)
    stream = await bus.stream("ROOM", QUEUE)

    def ignore(_message: StreamMessage) -> None: ...

    async def consume(number: int) -> None:
        await stream.consume(f"c{number}", ConsumerSettings(filter=f"room.{number}.>"), ignore)

    for start in range(0, MORE, 100):
        await asyncio.gather(*(consume(number) for number in range(start, min(start + 100, MORE))))
    assert len(await stream.consumers()) == MORE


async def test_a_bucket_may_be_watched_by_more_than_a_thousand(connect_to, secured):
    bus = await connect_to(secured("").url)
    await bus.bucket("ROOM", BucketSettings())
    await bus.object_store("ROOM", BucketSettings())
    assert await allowed(bus, "KV_ROOM") > 10 * MORE and await allowed(bus, "OBJ_ROOM") > 10 * MORE


async def test_an_account_that_may_have_few_consumers_has_its_streams_all_the_same(connect_to, secured):
    bus = await connect_to(secured(LIMITED).url, user="app", password="app")
    await bus.bucket("ROOM", BucketSettings())
    await bus.stream("ROOM", QUEUE)
    assert await allowed(bus, "KV_ROOM") <= 50 and await allowed(bus, "ROOM") <= 50
