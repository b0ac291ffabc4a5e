"""The in-memory hub's accidents. What it shares with the real server is in test_conformance."""

from __future__ import annotations

import asyncio
import random

import pytest

from gangline.bus.memory.faults import FaultRates, RandomFaults, WriteOutcome
from gangline.bus.port.bus import (
    BucketSettings,
    ConnectionEvent,
    KvOperation,
    NoResponders,
    RequestTimeout,
    Storage,
    StorageUnavailable,
)
from gangline.schemas.errors.base import Disconnected, ServerUnreachable


async def echo(bus, subject="echo"):
    return await bus.subscribe(subject, lambda message: bus.publish(message.reply, message.data))


async def test_a_stopped_server_takes_no_connection_and_loses_those_it_has(hub):
    bus = hub.connect("a")
    seen = []
    bus.on_connection(seen.append)
    hub.stop()
    with pytest.raises(ServerUnreachable):
        hub.connect("b")
    with pytest.raises(Disconnected):
        bus.publish("x")
    hub.start()
    await asyncio.sleep(0)
    assert seen == [ConnectionEvent.DISCONNECTED, ConnectionEvent.RECONNECTED]
    assert bus.connected


async def test_memory_streams_vanish_in_a_restart_and_file_streams_stay(hub, bus):
    memory = await bus.bucket("M", BucketSettings())
    file = await bus.bucket("F", BucketSettings(storage=Storage.FILE))
    before = await memory.put("k", b"1")
    await file.put("k", b"1")
    hub.stop()
    hub.start()
    assert await memory.get("k") is None
    assert (await file.get("k")).value == b"1"
    assert await memory.put("k", b"2", revision=0) > before


async def test_a_watch_hears_after_a_restart_what_is_gone(hub, bus):
    bucket = await bus.bucket("M", BucketSettings())
    await bucket.put("k", b"1")
    seen = []
    await bucket.watch(">", lambda entry: seen.append((entry.key, entry.operation)))
    hub.stop()
    hub.start()
    await asyncio.sleep(1)
    assert seen == [("k", KvOperation.PUT), ("k", KvOperation.DELETE)]


async def test_a_request_that_waits_when_the_connection_goes_ends_at_once(hub, server, client):
    await server.subscribe("silent", lambda message: None)
    waiting = asyncio.create_task(client.request("silent", timeout_s=60))
    await asyncio.sleep(1)
    hub.disconnect(client)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Disconnected):
        await waiting
    assert asyncio.get_running_loop().time() == began


async def test_the_server_knows_at_once_that_a_killed_client_listens_no_more(hub, server, client):
    await echo(server)
    hub.kill(server)
    seen = []
    await client.subscribe("answers", seen.append)
    client.publish("echo", reply="answers")
    await asyncio.sleep(0.1)
    assert [message.headers for message in seen] == [{"Status": "503"}]


async def test_a_server_that_stands_still_keeps_its_connections_and_lets_all_through_late(hub):
    told, heard = [], []
    one, other = hub.connect("one"), hub.connect("other")
    one.on_connection(told.append)
    await one.subscribe("news", lambda message: heard.append(message.data))
    kv = await other.bucket("b", BucketSettings())
    await kv.put("key", b"1", ttl_s=3)
    hub.freeze()
    other.publish("news", b"late")
    late = hub.connect("late")
    writing = asyncio.ensure_future(kv.put("key", b"2", ttl_s=3))
    await asyncio.sleep(4)
    late.publish("news", b"later")
    assert one.connected and not heard and not writing.done()
    assert hub.peek("b")[0].value == b"1"  # nothing expires meanwhile
    hub.thaw()
    assert await writing
    assert heard == [b"late", b"later"] and not told


async def test_servers_that_do_not_hear_each_other_keep_what_is_meant_for_the_other_side(hub):
    near, away, far = hub.connect("near"), hub.connect("away"), hub.connect("far away")
    heard = []
    await near.subscribe("news", lambda message: heard.append(("near", message.data)))
    await far.subscribe("news", lambda message: heard.append(("far", message.data)))
    seen = []
    kv = await near.bucket("b", BucketSettings())
    await far.subscribe("$KV.b.>", lambda message: seen.append(message.data))
    theirs = await away.bucket("b", BucketSettings())
    hub.split(lambda name: "away" in name)
    away.publish("news", b"1")
    writing = asyncio.ensure_future(theirs.put("key", b"2"))
    await kv.put("other", b"3")
    await asyncio.sleep(0.5)
    assert heard == [("far", b"1")] and seen == [b"2"] and not writing.done()
    assert [entry.key for entry in await kv.entries(">")] == ["other"]
    hub.mend()
    await writing
    await asyncio.sleep(0)
    assert heard == [("far", b"1"), ("near", b"1")] and seen == [b"2", b"3"]


async def test_servers_that_have_given_each_other_up_lose_what_is_meant_for_the_other_side(hub):
    near, away = hub.connect("near"), hub.connect("away")
    await echo(near)
    watched = []
    theirs = await away.bucket("b", BucketSettings())
    await theirs.watch(">", lambda entry: watched.append((entry.key, entry.operation)))
    kv = await near.bucket("b", BucketSettings())
    await kv.put("first", b"1")
    await asyncio.sleep(0)
    split = hub.split(lambda name: name == "away")
    kept = asyncio.ensure_future(away.request("echo", b"kept", timeout_s=3))
    await asyncio.sleep(1)
    split.notice()
    with pytest.raises(NoResponders):
        await away.request("echo", timeout_s=1)
    with pytest.raises(StorageUnavailable):
        await theirs.get("first")
    await kv.put("second", b"2")
    await kv.delete("first")
    with pytest.raises(RequestTimeout):
        await kept
    assert hub.is_split and watched == [("first", KvOperation.PUT)]
    hub.mend()
    await asyncio.sleep(5)
    assert set(watched[1:]) == {("first", KvOperation.DELETE), ("second", KvOperation.PUT)}
    assert (await away.request("echo", b"back", timeout_s=1)).data == b"back"


async def test_a_partition_holds_back_both_ways_and_lets_all_through_in_order_when_it_heals(hub, server, client):
    got = []
    await server.subscribe("up", lambda message: got.append(message.data))
    await client.subscribe("down", lambda message: got.append(message.data))
    hub.partition(client)
    assert client.connected
    for number in (b"1", b"2"):
        client.publish("up", number)
    server.publish("down", b"3")
    await asyncio.sleep(5)
    assert got == []
    hub.heal(client)
    await asyncio.sleep(0)
    assert sorted(got) == [b"1", b"2", b"3"]
    assert got.index(b"1") < got.index(b"2")


async def test_without_a_leader_operations_fail_and_observers_still_see_the_writes(hub, bus):
    bucket = await bus.bucket("B", BucketSettings())
    seen = []
    await bucket.observe("*", lambda entry: seen.append((entry.key, entry.value, entry.revision)))
    hub.storage_down()
    for operation in (bucket.put("k", b"1"), bucket.get("k"), bucket.entries(">"), bucket.delete("k")):
        with pytest.raises(StorageUnavailable):
            await operation
    assert isinstance((await bucket.write([_write("k")]))[0], StorageUnavailable)
    hub.storage_back()
    await asyncio.sleep(0)
    assert ("k", b"1", 0) in seen
    assert await bucket.get("k") is None


class _Fates:
    """Storage fates in the order given."""

    def __init__(self, *fates):
        self.fates = list(fates)

    def message(self, sender, receiver, subject, now):
        return (0.0,)

    def storage(self, client, now):
        return self.fates.pop(0) if self.fates else WriteOutcome(0.0, 0.0)


async def test_a_conditional_write_whose_answer_was_lost_recognises_itself(hub, bus):
    bucket = await bus.bucket("B", BucketSettings())
    begin = await bucket.put("begin", b"")
    hub.faults = _Fates(WriteOutcome(0.0, None))
    began = asyncio.get_running_loop().time()
    assert await bucket.put("k", b"mine", revision=0) == begin + 1
    assert asyncio.get_running_loop().time() - began == 1


async def test_a_write_that_was_lost_on_the_way_is_unavailable_and_was_not_done(hub, bus):
    bucket = await bus.bucket("B", BucketSettings())
    hub.faults = _Fates(*(WriteOutcome(None, None) for _ in range(20)))
    with pytest.raises(StorageUnavailable) as caught:
        await bucket.put("k", b"1", revision=0)
    assert caught.value.may_have_started
    hub.faults = None
    assert await bucket.get("k") is None


def _write(key):
    from gangline.bus.port.bus import KvWrite

    return KvWrite(key=key, value=b"1")


def _faults(**rates):
    return RandomFaults(random.Random(7), FaultRates(**rates))


async def _hundred(hub):
    server, client = hub.connect("server"), hub.connect("client")
    got = []
    await server.subscribe("up", lambda message: got.append(int(message.data)))
    for number in range(100):
        client.publish("up", b"%d" % number)
    await asyncio.sleep(10)
    await server.close()
    await client.close()
    return got


async def test_without_rates_all_arrive_once_in_order_and_late(hub):
    hub.faults = _faults()
    assert await _hundred(hub) == list(range(100))


async def test_dropped_messages_are_missing_and_nothing_else(hub):
    hub.faults = _faults(drop=0.2)
    got = await _hundred(hub)
    assert 60 < len(got) < 95
    assert got == sorted(set(got))


async def test_duplicated_messages_come_twice(hub):
    hub.faults = _faults(duplicate=0.2)
    got = await _hundred(hub)
    assert set(got) == set(range(100))
    assert 105 < len(got) < 140


async def test_delays_keep_the_order_of_a_link_and_reordering_does_not(hub):
    hub.faults = _faults(delay=0.3)
    assert await _hundred(hub) == list(range(100))
    hub.faults = _faults(reorder=0.3)
    got = await _hundred(hub)
    assert sorted(got) == list(range(100))
    assert got != sorted(got)


async def test_what_the_server_says_itself_is_neither_doubled_nor_overtaken(hub, client):
    hub.faults = _faults(duplicate=0.3, reorder=0.3, delay=0.3)
    seen = []
    await client.subscribe("answers.*", lambda message: seen.append(int(message.subject.split(".")[1])))
    for number in range(100):
        client.publish("nobody", reply=f"answers.{number}")
    await asyncio.sleep(10)
    assert seen == list(range(100))


async def test_who_listens_to_everything_hears_what_goes_to_inboxes_too(hub):
    server, client, spy = hub.connect("server"), hub.connect("client"), hub.connect("spy")
    heard = []
    for pattern in (">", "_INBOX.>", "*.*.r.*", "other.>"):
        await spy.subscribe(pattern, lambda message, pattern=pattern: heard.append((pattern, message.data)))
    await echo(server)
    assert (await client.request("echo", b"1", timeout_s=1)).data == b"1"
    assert sorted(heard) == [("*.*.r.*", b"1"), (">", b"1"), (">", b"1"), ("_INBOX.>", b"1")]
    await client.close()
    assert hub.listeners(f"{client.inbox}.r.1") == ["spy"] * 3
