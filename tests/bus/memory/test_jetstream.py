"""JetStream in memory through its accidents.

What they share with JetStream is in test_port_streams and test_port_consumers.
"""

from __future__ import annotations

import asyncio
import json
import random

import pytest
import uvloop

from gangline.bus.memory import stream_store
from gangline.bus.memory.faults import FaultRates, RandomFaults, WriteOutcome
from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, ConsumerSettings, Retention, Storage, StreamSettings, StreamSource
from gangline.schemas.errors.base import Disconnected, InvalidSettings, Unavailable

from ...scale import repetitions
from ...support.rows import in_rows
from ..conftest import collect

LONG = 300.0


def settings_of(storage=Storage.FILE, retention=Retention.WORK_QUEUE):
    return StreamSettings(subjects=("task.>",), storage=storage, retention=retention, schedules=True)


async def open_consumer(bus, handler, **others):
    stream = await bus.stream("S", settings_of())
    return stream, await stream.consume("c", ConsumerSettings(filter="task.>", ack_wait_s=LONG), handler, **others)


async def test_a_file_stream_survives_a_restart_with_its_consumer_and_goes_on(hub, bus, got):
    stream, consumer = await open_consumer(bus, got)
    consumer.pull(3)
    await stream.publish("task.a", b"1")
    await got.count(1)
    hub.stop()
    with pytest.raises(Disconnected):
        await stream.publish("task.a", b"no")
    consumer.ack(got.items[0])
    hub.start()
    await consumer.settled()
    await stream.publish("task.a", b"2")
    await got.count(2)
    assert (await stream.state()).messages == 1
    assert consumer.wanted == 1


async def test_a_stream_in_memory_is_lost_with_the_server_and_its_consumer_hears_of_it(hub, bus, got, lost):
    stream = await bus.stream("S", settings_of(Storage.MEMORY))
    settings = ConsumerSettings(filter="task.>")
    consumer = await stream.consume("c", settings, got, on_lost=lambda: lost(1))
    consumer.pull(1)
    await stream.publish("task.a", b"old")
    await got.count(1)
    hub.stop()
    hub.start()
    await lost.count(1)
    assert (await stream.publish("task.b", b"new")).sequence == 1


async def test_what_was_under_way_when_a_connection_broke_comes_again_soon(hub):
    bus, writer, got = hub.connect("ours"), hub.connect("writer"), collect()
    _, consumer = await open_consumer(bus, got)
    source = await writer.stream("S", settings_of())
    consumer.pull(10)
    await consumer.state()
    hub.partition(bus)
    for number in range(3):
        await source.publish("task.a", b"%d" % number)
    assert (await source.consumers())[0].unacknowledged == 3
    hub.disconnect(bus)
    hub.reconnect(bus)
    await got.count(3)
    assert [message.data for message in got.items] == [b"0", b"1", b"2"]
    assert [message.delivered for message in got.items] == [2, 2, 2]
    assert consumer.wanted == 7


async def test_a_schedule_that_falls_due_while_the_server_is_down_fires_when_it_is_back(hub, bus, got):
    stream, consumer = await open_consumer(bus, got)
    consumer.pull(1)
    headers = {"Nats-Schedule": "@every 10s", "Nats-Schedule-Target": "task.due"}
    await stream.publish("task.schedule", b"", headers=headers)
    await got.count(1)
    got.take()
    await stream.purge("task.due")
    hub.stop()
    await asyncio.sleep(15)
    hub.start()
    consumer.pull(1)
    await got.count(1)
    assert got.items[0].subject in ("task.due", "task.schedule")


@pytest.mark.parametrize(("start", "comes"), [(0, []), (1, [b"missed"])])
async def test_a_new_leader_that_took_nothing_that_is_still_here_begins_at_the_start_it_was_given(hub, start, comes):
    bus, got = hub.connect(), collect()
    settings = StreamSettings(subjects=("due.>",))
    schedules = await bus.stream("SCHED", settings)
    source = StreamSource(name="SCHED", settings=settings, subjects="due.>", to="task.>", start=start)
    stream = await bus.stream(
        "S", StreamSettings(subjects=("task.>",), retention=Retention.WORK_QUEUE, sources=(source,))
    )
    consumer = await stream.consume("c", ConsumerSettings(filter="task.>", ack_wait_s=LONG), got)
    consumer.pull(4)
    await schedules.publish("due.a", b"taken")
    await got.count(1)
    assert got.items[0].headers["Nats-Stream-Source"].startswith("SCHED 1")
    await schedules.purge("due.>", before=2)
    consumer.ack(got.items[0])
    await consumer.settled()
    hub.streams.hold_sources()
    await schedules.publish("due.a", b"missed")
    await asyncio.sleep(1)
    await stream.publish("task.a", b"plain")
    hub.streams.release_sources()
    await schedules.publish("due.a", b"later")
    await got.count(2 + len(comes) + 1)
    assert [message.data for message in got.items[1:]] == [b"plain", *comes, b"later"]


async def test_a_reader_of_a_lost_stream_begins_with_the_new_one(hub, bus, seen):
    stream = await bus.stream("S", settings_of(Storage.MEMORY, Retention.LIMITS))
    await stream.read("task.>", seen)
    await stream.publish("task.a", b"old")
    hub.stop()
    hub.start()
    await stream.publish("task.a", b"new")
    await seen.count(2)
    assert [message.data for message in seen.items] == [b"old", b"new"]


async def test_the_handlers_of_a_killed_client_are_not_called(hub):
    bus, writer, got = hub.connect("ours"), hub.connect("writer"), collect()
    _, consumer = await open_consumer(bus, got)
    source = await writer.stream("S", settings_of())
    consumer.pull(5)
    await consumer.state()
    hub.kill(bus)
    await source.publish("task.a", b"1")
    await source.delete_consumer("c")
    after = collect()
    successor = await source.consume("d", ConsumerSettings(filter="task.>"), after)
    successor.pull(1)
    await after.count(1)
    assert got.items == []


@in_rows("seed", range(repetitions(2, whole=6)))
async def test_under_lost_late_and_cut_everything_each_message_is_done_and_only_those_that_meet_a_restart_twice(seed):
    source = random.Random(seed)
    rates = FaultRates(latency_s=0.002, drop=0.05, delay=0.1, delay_s=0.3, storage_drop=0.05)
    hub = MemoryServer(faults=RandomFaults(source, rates), storage_timeout_s=1.0)
    bus, writer = hub.connect("ours"), hub.connect("writer")
    done, again = set(), []
    number, publishing = 150, b""
    met_restart = set()
    """Sent while the server restarted: it forgets the ids of removed messages, so it may store these twice."""

    async def careful(make):
        while True:
            try:
                return await make()
            except Unavailable:
                await asyncio.sleep(0.1)

    stream = await careful(lambda: bus.stream("S", settings_of()))
    target = await careful(lambda: writer.stream("S", settings_of()))
    finished = asyncio.Event()

    def work(message):
        if message.data in done:
            again.append(message.data)
        done.add(message.data)
        consumer.ack(message)
        consumer.pull(1)
        if len(done) == number:
            finished.set()

    settings = ConsumerSettings(filter="task.>", ack_wait_s=20.0, max_pending=64)
    consumer = await careful(lambda: stream.consume("c", settings, work))
    consumer.pull(16)

    async def accidents():
        for _ in range(6):
            await asyncio.sleep(source.random() * 3)
            if source.random() < 0.5:
                hub.disconnect(bus)
                await asyncio.sleep(source.random())
                hub.reconnect(bus)
            else:
                met_restart.add(publishing)
                hub.stop()
                await asyncio.sleep(source.random())
                hub.start()

    happening = asyncio.ensure_future(accidents())
    for index in range(number):
        headers = {"Nats-Msg-Id": f"m{index}"}
        publishing = b"%d" % index
        await careful(lambda: target.publish("task.a", publishing, headers=headers))  # noqa: B023
        await asyncio.sleep(0.05)
    await happening
    async with asyncio.timeout(120):
        await finished.wait()
        await consumer.settled()
    assert done == {b"%d" % index for index in range(number)}
    assert set(again) <= met_restart
    hub.faults = None
    assert (await stream.state()).messages == 0
    assert consumer.wanted == 16
    await bus.close()
    await writer.close()


# -- the API ------------------------------------------------------------------------------------------------------


async def test_the_push_consumer_of_a_client_that_is_gone_is_removed_after_a_while(hub, bus, seen):
    stream = await bus.stream("S", settings_of(retention=Retention.LIMITS))
    await stream.read("task.>", seen)
    store = hub.streams.find("S")
    assert len(store.consumers) == 1
    await asyncio.sleep(60)
    assert len(store.consumers) == 1
    hub.disconnect(bus)
    await asyncio.sleep(25)
    assert len(store.consumers) == 1
    await asyncio.sleep(10)
    assert not store.consumers


async def test_a_reader_that_missed_a_message_notices_by_the_heartbeat_and_gets_it(hub):
    class LosesOne:
        lose = False

        def message(self, sender, receiver, subject, now):
            lost, self.lose = self.lose, False
            return () if lost else (0.001,)

        def storage(self, client, now):
            return WriteOutcome(0.001, 0.001)

    bus, seen, faults = hub.connect(), collect(), LosesOne()
    stream = await bus.stream("S", settings_of(retention=Retention.LIMITS))
    await stream.read("task.>", seen)
    hub.faults, faults.lose = faults, True
    await stream.publish("task.a", b"1")
    await asyncio.sleep(0.1)
    assert not seen.items and not faults.lose
    await asyncio.sleep(2)
    assert [message.data for message in seen.items] == [b"1"]


async def test_a_batch_that_lacks_a_message_is_refused_and_nothing_of_it_is_stored(bus):
    kv = await bus.bucket("b_LEDGER", BucketSettings())
    begin = await kv.put("a", b"0")
    batch = {"Nats-Batch-Id": "x"}
    bus.publish("$KV.b_LEDGER.a", b"1", headers={**batch, "Nats-Batch-Sequence": "1"})
    last = {**batch, "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"}
    answer = await bus.request("$KV.b_LEDGER.c", b"3", headers=last, timeout_s=1)
    assert json.loads(answer.data)["error"]["err_code"] == 10176
    last["Nats-Batch-Sequence"] = "2"
    answer = await bus.request("$KV.b_LEDGER.c", b"2", headers=last, timeout_s=1)
    assert json.loads(answer.data)["error"]["err_code"] == 10176, "it is void"
    assert [(entry.key, entry.revision) for entry in await kv.entries(">")] == [("a", begin)]


async def test_streams_whose_subjects_overlap_are_refused(bus):
    await bus.stream("S", settings_of())
    with pytest.raises(InvalidSettings):
        await bus.stream("T", StreamSettings(subjects=("task.a",)))


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_what_has_expired_before_its_timer_is_set_goes_on_each_loop(run_loop, monkeypatch):
    async def life():
        loop = asyncio.get_running_loop()
        bus = MemoryServer().connect("client")
        kv = await bus.bucket("b_LEDGER", BucketSettings())
        with monkeypatch.context() as patch:
            patch.setattr(stream_store, "server_time", lambda: loop.time() - 10.0)
            for key in ("one", "two"):
                await kv.put(key, b"1", ttl_s=1.0)
        await asyncio.sleep(0)
        assert await kv.entries(">") == []
        await bus.close()

    run_loop(life())
