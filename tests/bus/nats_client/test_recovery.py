"""Buckets that vanish, acknowledgements that do not come, and watches that must find their way back."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import BucketSettings, ConnectionEvent, KvWrite, StorageUnavailable
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import Disconnected

from ...waiting import PATIENCE_S, until
from ..conftest import collect, happens, impatient

pytestmark = pytest.mark.server


@pytest.fixture
def namespace(namespace):
    """Also the name of a bucket that takes atomic batches, as the ledger does."""
    return f"{namespace}_LEDGER"


async def delete_bucket(bus, name):
    await bus.api.call(f"STREAM.DELETE.KV_{name}", what="delete the bucket")


@pytest.mark.parametrize("observed", [False, True])
async def test_a_vanished_bucket_is_made_again_by_the_next_write(bus, namespace, observed):
    bucket = await bus.bucket(namespace, BucketSettings())
    if observed:  # then the server does not say "no responders"
        await bucket.observe(">", lambda entry: None)
    before = await bucket.put("old", b"1")
    await delete_bucket(bus, namespace)
    assert await bucket.get("old") is None
    assert await bucket.entries(">") == []
    after = await bucket.put("new", b"1")
    assert after > before
    assert [entry.key for entry in await bucket.entries(">")] == ["new"]
    await delete_bucket(bus, namespace)  # and nobody reads before the next write
    assert await bucket.put("newer", b"1") > after
    await delete_bucket(bus, namespace)
    results = await bucket.write([KvWrite(key=f"k.{number}", value=b"1", revision=0) for number in range(50)])
    assert all(isinstance(result, int) for result in results)
    await delete_bucket(bus, namespace)
    await bucket.commit([KvWrite(key=f"k.{number}", value=b"1", revision=0) for number in range(5)])
    assert len(await bucket.entries("k.*")) == 5


async def test_revisions_go_on_above_those_remembered_though_the_clock_of_the_maker_is_behind(
    settings_of, nats_server, namespace
):
    bus = await connect_jetstream(settings_of(nats_server.url), ambient=Environment(wall=lambda: 1_600_000_000.0))
    try:
        ahead = await connect_jetstream(settings_of(nats_server.url), ambient=Environment(wall=lambda: 1_900_000_000.0))
        await (await ahead.bucket(namespace, BucketSettings())).put("a", b"1")
        await ahead.close()
        bucket = await bus.bucket(namespace, BucketSettings())
        seen = (await bucket.get("a")).revision
        await delete_bucket(bus, namespace)
        assert await bucket.put("a", b"2", revision=0) > seen + 1_000_000
    finally:
        await bus.close()


@pytest.mark.parametrize("revision", [None, 0])
async def test_a_write_whose_acknowledgement_is_late_is_sent_again_and_stored_once(
    proxy, bucket, other, seen, revision
):
    begin = await other.put("begin", b"")
    await other.observe("a", seen)
    proxy.hold_answers()
    writing = asyncio.ensure_future(bucket.put("a", b"1", revision=revision))
    await seen.count(2)  # sent again after a second of silence
    proxy.let_answers_pass()
    assert await writing == begin + 1
    assert (await other.get("a")).revision == begin + 1
    assert await other.put("b", b"1") == begin + 2  # nothing else was stored


async def test_a_batch_whose_acknowledgement_is_lost_is_known_again(proxy, bucket, other):
    writes = [KvWrite(key=f"k.{number}", value=b"1", revision=0) for number in range(3)]
    begin = await other.put("begin", b"")
    proxy.hold_answers()
    with impatient(bucket.bus), pytest.raises(StorageUnavailable) as caught:
        await bucket.commit(writes)
    assert caught.value.may_have_started
    proxy.let_answers_pass()
    assert await bucket.commit(writes) == begin + 3
    assert await other.put("after", b"1") == begin + 4


async def test_a_cancelled_conditional_write_is_known_again(proxy, bucket, other, seen):
    await other.watch("a", seen)
    proxy.hold_answers()
    writing = asyncio.ensure_future(bucket.put("a", b"1", revision=0))
    await seen.count(1)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    proxy.let_answers_pass()
    assert await bucket.put("a", b"1", revision=0) == seen.items[0].revision


async def test_without_a_connection_every_operation_says_so_at_once(connect_to, nats_server, namespace):
    bus = await connect_to(nats_server.url, storage_timeout_s=5 * PATIENCE_S)
    bucket = await bus.bucket(namespace, BucketSettings())
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    async with asyncio.timeout(PATIENCE_S):
        for operation in (
            bucket.get("a"),
            bucket.entries(">"),
            bucket.put("a", b""),
            bucket.put("a", b"", revision=0),
            bucket.delete("a"),
            bucket.commit([KvWrite(key="a", value=b"")]),
            bucket.watch(">", lambda entry: None),
            bus.bucket("OTHER", BucketSettings()),
            bus.flush(),
        ):
            with pytest.raises(Disconnected):
                await operation
        (result,) = await bucket.write([KvWrite(key="a", value=b"")])
        assert isinstance(result, Disconnected)


async def test_a_subscription_made_while_disconnected_is_live_after_the_reconnect(bus, nats_server, namespace):
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    got, dropped = collect(), collect()
    await bus.subscribe(namespace, got)
    await (await bus.subscribe(namespace, dropped)).unsubscribe()
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.start)
    bus.publish(namespace, b"x")
    await got.count(1)
    assert dropped.items == []


async def test_a_watch_leaves_no_consumer_behind(bus, namespace):
    bucket = await bus.bucket(namespace, BucketSettings())
    watch = await bucket.watch(">", lambda entry: None)
    await bucket.write([KvWrite(key=f"k.{number}", value=b"") for number in range(1100)])
    assert len(await bucket.entries("k.*")) == 1100  # too many for one direct get: by a consumer

    async def consumers():
        found = await bus.api.call(f"CONSUMER.NAMES.KV_{namespace}", what="list consumers")
        return found["total"]

    async def become(number):  # the server removes them in its own time, and tells nobody
        async def became():
            return await consumers() == number

        await until(became)

    await become(1)
    await watch.unsubscribe()
    await become(0)


async def test_deleted_keys_leave_a_trace_that_expires(bus, namespace):
    bucket = await bus.bucket(namespace, BucketSettings())
    await bucket.put("a", b"1")
    await bucket.delete("a")
    stored = await bucket.stored("a")
    assert stored.marker
    assert stored.headers["Nats-TTL"] == "10s"
