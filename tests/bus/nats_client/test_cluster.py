"""Three servers, buckets with three copies, and the loss of whoever leads."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.port.bus import BucketSettings, Conflict, KvOperation, KvWrite, Storage, StorageUnavailable
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


@pytest.mark.long
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
    count = repetitions(100, whole=500)
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


@pytest.mark.long
async def test_stepping_down_is_not_even_noticed_by_a_writer(connect_to, quiet_cluster, namespace):
    bus = await connect_to(",".join(quiet_cluster.urls))
    bucket = await bus.bucket(namespace, COPIES)
    revision = await bucket.put("counter", b"0")
    last = repetitions(40, whole=120)
    for number in range(1, last + 1):
        if number % (last // 3) == 0:
            await bus.api.call(f"STREAM.LEADER.STEPDOWN.KV_{namespace}", what="step down")
        revision = await bucket.put("counter", str(number).encode(), revision=revision)
    assert (await bucket.get("counter")).value == b"%d" % last


@pytest.mark.long
async def test_batches_that_share_a_condition_are_retried_until_all_are_in(connect_to, quiet_cluster, namespace):
    bus = await connect_to(",".join(quiet_cluster.urls))
    bucket = await bus.bucket(namespace, COPIES)
    leader = await bucket.put("leader", b"me")
    await asyncio.gather(
        *(
            bucket.commit(
                [
                    KvWrite(key=f"gang.{number}", value=b"1", revision=leader, condition_key="leader"),
                    KvWrite(key=f"member.{number}", value=b"1", revision=0),
                ]
            )
            for number in range(12)
        )
    )
    there = 0
    async with asyncio.timeout(PATIENCE_S):
        while there != 24:  # a snapshot may be a little behind
            there = len(await bucket.entries("gang.*")) + len(await bucket.entries("member.*"))
    await bucket.put("leader", b"another")
    with pytest.raises(Conflict):
        await bucket.commit([KvWrite(key="gang.late", value=b"1", revision=leader, condition_key="leader")])


@pytest.mark.long
async def test_an_atomic_batch_through_a_leaders_loss_is_all_or_nothing(connect_to, cluster, namespace):
    bus = await connect_to(cluster.urls[0])
    bucket = await bus.bucket(namespace, COPIES)
    leader, followers = await leader_of(bus, namespace)
    bus = await connect_to(cluster.server(followers[0]).url)
    bucket = await bus.bucket(namespace, COPIES)
    outcomes: dict[int, object] = {}

    async def commit(number):
        writes = [KvWrite(key=f"gang.{number}.{member}", value=b"1", revision=0) for member in range(5)]
        try:
            outcomes[number] = await bucket.commit(writes)
        except (StorageUnavailable, Conflict) as error:
            outcomes[number] = error

    for number in range(40):
        if number == 20:
            cluster.server(leader).kill()
        await commit(number)
        if number > 20 and isinstance(outcomes[number], int):
            break
    await write_when_possible(bucket, "end", b"1")
    entries = []
    async with asyncio.timeout(PATIENCE_S):
        while not any(entry.key == "end" for entry in entries):  # until the copy that answers has caught up
            entries = await bucket.entries(">")
    found: dict[int, int] = {}
    for entry in entries:
        if not entry.key.startswith("gang."):
            continue
        number = int(entry.key.split(".")[1])
        found[number] = found.get(number, 0) + 1
    assert set(found.values()) == {5}
    for number, outcome in outcomes.items():
        if isinstance(outcome, int):
            assert number in found, f"batch {number} was acknowledged and is not there"
        elif not outcome.may_have_started:
            assert number not in found, f"batch {number} was refused and is there"


@pytest.mark.long
async def test_the_client_moves_to_another_server_when_its_own_dies(connect_to, cluster, namespace, got):
    from gangline.bus.port.bus import ConnectionEvent

    from ..conftest import happens

    bus = await connect_to(cluster.urls[0])
    await bus.subscribe(f"{namespace}.a", got)
    other = await connect_to(cluster.urls[1])
    await happens(bus, ConnectionEvent.RECONNECTED, cluster.servers[0].kill)
    await bus.flush()
    async with asyncio.timeout(PATIENCE_S):
        while not got.items:  # interest spreads from server to server, and nothing tells when it has arrived
            other.publish(f"{namespace}.a", b"x")
            await asyncio.sleep(0.05)


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
