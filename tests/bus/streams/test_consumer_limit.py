"""Streams and buckets have room for more consumers than a server gives by itself."""

from __future__ import annotations

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, Retention, Storage, StreamSettings

pytestmark = pytest.mark.server

QUEUE = StreamSettings(subjects=("room.>",), retention=Retention.WORK_QUEUE, storage=Storage.MEMORY)
MORE = 10_000
LIMITED = """
accounts {
  APP { jetstream: { max_consumers: 50 }, users: [ { user: app, password: app } ] }
}
"""


async def allowed(bus: NatsBus, stream: str) -> int:
    found = await bus.api.call(f"STREAM.INFO.{stream}", what="look")
    return int(found["config"]["max_consumers"])


async def test_streams_and_buckets_may_have_far_more_than_a_thousand(connect_to, secured):
    bus = await connect_to(secured("").url)
    await bus.stream("QUEUE", QUEUE)
    await bus.bucket("ROOM", BucketSettings())
    await bus.object_store("ROOM", BucketSettings())
    assert [await allowed(bus, name) > MORE for name in ("QUEUE", "KV_ROOM", "OBJ_ROOM")] == [True] * 3


async def test_an_account_that_may_have_few_consumers_has_its_streams_all_the_same(connect_to, secured):
    bus = await connect_to(secured(LIMITED).url, user="app", password="app")
    await bus.bucket("ROOM", BucketSettings())
    await bus.stream("ROOM", QUEUE)
    assert await allowed(bus, "KV_ROOM") <= 50 and await allowed(bus, "ROOM") <= 50
