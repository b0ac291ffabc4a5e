"""Streams through what happens to servers: restarts, cut and held connections, forgotten memory."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import ConnectionEvent, ConsumerLost, ConsumerSettings, Retention, Storage, StreamSettings

from ...scale import repetitions
from ...support.bus.stream_load import LONG_S, Load
from ..conftest import collect, happens

pytestmark = pytest.mark.server


def settings_of(namespace, **others):
    return StreamSettings(
        subjects=(f"{namespace}.task.>",), **{"storage": Storage.FILE, "retention": Retention.WORK_QUEUE, **others}
    )


def consumer_of(namespace, **others):
    return ConsumerSettings(filter=f"{namespace}.task.>", **{"ack_wait_s": LONG_S, **others})


@pytest.mark.parametrize("accident", ["restart", pytest.param("kill", marks=pytest.mark.long)])
async def test_a_server_goes_and_comes_back_under_load_and_every_message_is_done_once(
    connect_to, nats_server, namespace, accident
):
    number = repetitions(200, whole=700)
    bus, writer = await connect_to(nats_server.url), await connect_to(nats_server.url)
    stream = await bus.stream(namespace, settings_of(namespace))
    source = await writer.stream(namespace, settings_of(namespace))
    load = Load(stream, source, f"{namespace}.task.>", number, restarts=True)
    await load.start()
    for enough in (number // 4, number // 2):
        await load.done.count(enough)
        if accident == "restart":
            await asyncio.to_thread(nats_server.restart)
        else:
            nats_server.kill()
            await asyncio.to_thread(nats_server.start)
    await load.finish()


@pytest.mark.parametrize("observed", [False, True])
async def test_a_stream_in_memory_is_made_again_by_the_next_publication(connect_to, nats_server, namespace, observed):
    bus = await connect_to(nats_server.url)
    stream = await bus.stream(namespace, settings_of(namespace, storage=Storage.MEMORY))
    if observed:  # then the server does not say "no responders"
        await bus.subscribe(f"{namespace}.>", lambda message: None)
    got, lost = collect(), collect()
    consumer = await stream.consume("c", consumer_of(namespace), got, on_lost=lambda: lost(1))
    consumer.pull(5)
    await stream.publish(f"{namespace}.task.x", b"old")
    await got.count(1)
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.restart)
    assert (await stream.publish(f"{namespace}.task.x", b"new")).sequence == 1
    await lost.count(1)
    with pytest.raises(ConsumerLost):
        await consumer.state()
    await bus.api.call(f"STREAM.DELETE.{namespace}", what="delete")
    assert (await stream.publish(f"{namespace}.task.x", b"newer")).sequence == 1
    after = collect()
    (await stream.consume("c", consumer_of(namespace), after)).pull(1)
    await after.count(1)
    assert len(got.items) == 1
    assert (await stream.next(">")).data == b"newer"


async def test_looking_at_a_stream_that_vanished_makes_it_again(connect_to, nats_url, namespace):
    bus = await connect_to(nats_url)
    stream = await bus.stream(namespace, settings_of(namespace, storage=Storage.MEMORY))
    for look in (stream.state, stream.consumers, lambda: stream.get(1), lambda: stream.purge(">")):
        await bus.api.call(f"STREAM.DELETE.{namespace}", what="delete")
        await look()
    assert (await stream.state()).messages == 0


async def test_a_reader_keeps_up_with_far_more_than_a_buffer_holds(connect_to, nats_url, namespace, seen):
    settings = settings_of(namespace, retention=Retention.LIMITS, storage=Storage.MEMORY)
    bus = await connect_to(nats_url)
    stream = await bus.stream(namespace, settings)
    for _ in range(10):
        await asyncio.gather(*(stream.publish(f"{namespace}.task.x", bytes(50_000)) for _ in range(100)))
    await stream.read(f"{namespace}.task.>", seen)
    await seen.count(1000)
    assert [message.sequence for message in seen.items] == list(range(1, 1001))
