"""Three servers, buckets with three copies, and the loss of whoever leads."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.port.bus import BucketSettings, KvOperation, KvWrite, Storage, StorageUnavailable
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.errors.base import InvalidSettings, Unavailable

from ...scale import repetitions
from ...waiting import PATIENCE_S, until_somebody_responds
from ..conftest import collect

pytestmark = pytest.mark.server

COPIES = BucketSettings(storage=Storage.FILE, replicas=3)


@pytest.fixture
def namespace(namespace):
    """Also the name of a bucket that takes atomic batches, as the ledger does."""
    return f"{namespace}_LEDGER"


async def leader_of(bus, name):
    found = await bus.api.call(f"STREAM.INFO.KV_{name}", what="look")
    return found["cluster"]["leader"], [peer["name"] for peer in found["cluster"]["replicas"]]


async def write_when_possible(bucket, key, value):
    """How an owner of a key goes on through a leader's loss: each try fails soon, and it tries again."""
    failures = 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await bucket.put(key, value), failures
            except StorageUnavailable:
                failures += 1


async def test_the_leader_of_a_bucket_is_killed_and_nothing_acknowledged_is_lost(connect_to, cluster, namespace):
    bus = await connect_to(cluster.urls[0])
    bucket = await bus.bucket(namespace, COPIES)
    leader, followers = await leader_of(bus, namespace)
    assert len(followers) == 2
    # Follow the news from a server that will live.
    bus = await connect_to(cluster.server(followers[0]).url)
    other = await connect_to(cluster.server(followers[1]).url)
    bucket, elsewhere = await bus.bucket(namespace, COPIES), await other.bucket(namespace, COPIES)
    seen, passing, echoed = collect(), collect(), collect()
    await elsewhere.watch(">", seen)
    await elsewhere.observe("alive.*", passing)
    await other.subscribe(f"{namespace}.echo", lambda message: other.publish(message.reply, message.data))
    await other.subscribe(f"{namespace}.end", echoed)
    await until_somebody_responds(lambda: bus.request(f"{namespace}.echo", b"", timeout_s=PATIENCE_S))
    count = repetitions(100, whole=250)
    acknowledged = await bucket.write([KvWrite(key=f"k.{number}", value=b"%d" % number) for number in range(count)])
    assert all(isinstance(result, int) for result in acknowledged)

    cluster.server(leader).kill()
    # What needs no storage goes on at once: requests, and heartbeats to whoever observes.
    assert (await bus.request(f"{namespace}.echo", b"grant", timeout_s=PATIENCE_S)).data == b"grant"
    beat = asyncio.ensure_future(bucket.put("alive.w", b"1"))
    await passing.count(1)
    await asyncio.gather(beat, return_exceptions=True)

    revision, _ = await write_when_possible(bucket, "k.after", b"written")
    expected = {**{f"k.{number}": b"%d" % number for number in range(count)}, "k.after": b"written"}
    async with asyncio.timeout(PATIENCE_S):
        found: dict[str, bytes] = {}
        while found != expected:  # a snapshot is read from any copy, which may be a little behind the leader
            found = {entry.key: entry.value for entry in await bucket.entries("k.*")}
    assert (await bucket.get("k.after")).revision == revision
    await seen.until(lambda items: "k.after" in {item.key for item in items})
    assert not [entry for entry in seen.items if entry.operation is KvOperation.DELETE]

    cluster.server(leader).start()
    await bucket.put("k.after", b"again", revision=revision)


def test_a_cluster_of_one_is_refused():
    with pytest.raises(InvalidSettings, match="give 3 or 5"):
        EmbeddedCluster(1)


@pytest.mark.long
async def test_async_with_starts_and_stops_all(settings_of):
    async with EmbeddedCluster(3) as cluster:
        pids = [server.pid for server in cluster.servers]
        assert len(set(cluster.urls)) == 3
        assert isinstance(settings_of(",".join(cluster.urls)), ConnectionSettings)
    assert all(pids)
    assert not any(server.running for server in cluster.servers)


@pytest.mark.long
async def test_a_cluster_that_makes_a_lost_memory_bucket_again_by_itself_uses_no_revision_twice(
    connect_to, cluster, namespace
):
    bus = await connect_to(cluster.urls[0])
    bucket = await bus.bucket(namespace, BucketSettings(storage=Storage.MEMORY))
    before = max(revision for revision in [await bucket.put("k", b"%d" % number) for number in range(20)])
    found = await bus.api.call(f"STREAM.INFO.KV_{namespace}", what="look")
    server = cluster.server(found["cluster"]["leader"])
    near = await connect_to(server.url)
    bucket = await near.bucket(namespace, BucketSettings(storage=Storage.MEMORY))
    assert (await bucket.get("k")).revision == before
    server.kill()
    server.start()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                revision = await bucket.put("k", b"again")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
    assert revision > before + 1
