"""Streams through what happens to servers: restarts, cut and held connections, forgotten memory."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import (
    ConnectionEvent,
    ConsumerLost,
    ConsumerSettings,
    Retention,
    Storage,
    StorageUnavailable,
    StreamSettings,
)
from gangline.schemas.errors.base import Disconnected

from ...scale import repetitions
from ...support.bus.proxy import Proxy
from ...support.bus.stream_load import LONG_S, Load, publish_until_stored
from ...waiting import until
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
    number = repetitions(200, whole=1500)
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


async def test_what_is_done_is_stored_again_if_its_publication_was_in_doubt_when_the_server_went(
    connect_to, nats_server, namespace
):
    """A server that restarts knows the ids of what is still stored. This is why `Load` is told of restarts."""
    async with Proxy(nats_server.url) as proxy:
        bus, writer = await connect_to(nats_server.url), await connect_to(proxy.url)
        stream = await bus.stream(namespace, settings_of(namespace))
        source = await writer.stream(namespace, settings_of(namespace))
        got = collect()
        consumer = await stream.consume("c", consumer_of(namespace), lambda each: (got(each), consumer.ack(each)))
        consumer.pull(10)
        proxy.hold_answers()
        publishing = asyncio.ensure_future(source.publish(f"{namespace}.task.x", b"1", headers={"Nats-Msg-Id": "m1"}))
        await got.count(1)
        await consumer.settled()
        proxy.cut()
        with pytest.raises(Disconnected) as caught:
            await publishing
        assert caught.value.may_have_started
        proxy.let_answers_pass()
        await asyncio.to_thread(nats_server.restart)
        again = await publish_until_stored(source, f"{namespace}.task.x", 1)
        assert (again.sequence, again.duplicate) == (2, False)
        await got.count(2)
        assert [message.sequence for message in got.items] == [1, 2]
        await consumer.settled()
        await bus.close()
        await writer.close()


async def test_an_acknowledgement_whose_confirmation_is_lost_is_sent_again_and_the_message_does_not_come_again(
    connect_to, nats_url, namespace
):
    async with Proxy(nats_url) as proxy:
        bus = await connect_to(proxy.url)
        stream = await bus.stream(namespace, settings_of(namespace))
        got = collect()
        await stream.publish(f"{namespace}.task.x", b"1")
        consumer = await stream.consume("c", consumer_of(namespace, ack_wait_s=1.0), got)
        consumer.pull(1)
        await got.count(1)
        proxy.hold_answers()
        consumer.ack(got.items[0])
        settling = asyncio.ensure_future(consumer.settled())
        await happens(bus, ConnectionEvent.RECONNECTED, lambda: (proxy.cut(), proxy.let_answers_pass()))
        await settling
        assert (await stream.state()).messages == 0
        await bus.close()


async def test_acknowledgements_made_without_a_connection_are_confirmed_after_it(connect_to, nats_server, namespace):
    bus = await connect_to(nats_server.url)
    stream = await bus.stream(namespace, settings_of(namespace))
    got = collect()
    for index in range(5):
        await stream.publish(f"{namespace}.task.x", b"%d" % index)
    consumer = await stream.consume("c", consumer_of(namespace, ack_wait_s=0.5), got)
    consumer.pull(4)
    await got.count(4)
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    for message in got.items:
        consumer.ack(message)
    consumer.pull(3)
    with pytest.raises(Disconnected):
        await stream.publish(f"{namespace}.task.x", b"")
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.start)
    await consumer.settled()
    await got.count(5)
    assert [message.data for message in got.items[:5]] == [b"0", b"1", b"2", b"3", b"4"]
    # There is room for two more: the last one, which is not acknowledged, may have come again.
    assert {message.data for message in got.items[5:]} <= {b"4"}
    assert (await stream.state()).messages == 1


async def test_a_consumer_outlives_a_server_that_was_frozen(connect_to, nats_server, namespace, got):
    bus = await connect_to(nats_server.url)
    stream = await bus.stream(namespace, settings_of(namespace))
    consumer = await stream.consume("c", consumer_of(namespace), got)
    consumer.pull(3)
    await consumer.state()
    before = consumer.generation
    nats_server.freeze()
    await until(lambda: consumer.generation > before, "silence makes it ask again")
    nats_server.thaw()
    for index in range(3):
        await publish_until_stored(stream, f"{namespace}.task.x", index)
    # What was only late is refused, and comes a second time: nobody has acknowledged it.
    await got.until(lambda items: len({message.data for message in items}) == 3)
    assert list(dict.fromkeys(message.data for message in got.items)) == [b"0", b"1", b"2"]
    assert consumer.wanted == 0


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


async def test_a_first_question_to_jetstream_that_nobody_hears_is_asked_again(
    connect_to, nats_url, namespace, monkeypatch
):
    """A cluster that has just started holds an election, and is silent meanwhile."""
    bus = await connect_to(nats_url)
    call, asked = bus.api.call, []

    async def unheard_once(operation, body=None, **options):
        asked.append(operation)
        if asked == ["INFO"]:
            raise StorageUnavailable("JetStream did not answer in time to describe the account: try again")
        return await call(operation, body, **options)

    monkeypatch.setattr(bus.api, "call", unheard_once)
    await bus.stream(namespace, settings_of(namespace))
    assert asked.count("INFO") == 2


async def test_a_reader_misses_nothing_and_repeats_nothing_through_restarts(connect_to, nats_server, namespace, seen):
    number = repetitions(100, whole=600)
    settings = settings_of(namespace, retention=Retention.LIMITS)
    bus, writer = await connect_to(nats_server.url), await connect_to(nats_server.url)
    stream, source = await bus.stream(namespace, settings), await writer.stream(namespace, settings)
    await stream.read(f"{namespace}.task.>", seen)

    async def publish():
        for index in range(number):
            await publish_until_stored(source, f"{namespace}.task.x", index)

    publishing = asyncio.ensure_future(publish())
    for enough in (number // 4, number // 2):
        await seen.count(enough)
        nats_server.kill()
        await asyncio.to_thread(nats_server.start)
    await publishing
    await seen.count(number)
    assert [message.data for message in seen.items] == [b"%d" % index for index in range(number)]
    sequences = [message.sequence for message in seen.items]
    assert sequences == sorted(set(sequences))


async def test_a_reader_keeps_up_with_far_more_than_a_buffer_holds(connect_to, nats_url, namespace, seen):
    settings = settings_of(namespace, retention=Retention.LIMITS, storage=Storage.MEMORY)
    bus = await connect_to(nats_url)
    stream = await bus.stream(namespace, settings)
    for _ in range(10):
        await asyncio.gather(*(stream.publish(f"{namespace}.task.x", bytes(50_000)) for _ in range(100)))
    await stream.read(f"{namespace}.task.>", seen)
    await seen.count(1000)
    assert [message.sequence for message in seen.items] == list(range(1, 1001))
