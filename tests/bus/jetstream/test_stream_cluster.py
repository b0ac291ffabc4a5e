"""Three servers, streams with three copies, and the loss of whoever leads."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import ConsumerSettings, ConsumerTaken, Retention, StreamSettings

from ...scale import repetitions
from ...support.bus.stream_load import LONG_S, Load, publish_until_stored
from ..conftest import collect

pytestmark = pytest.mark.server


def settings_of(namespace, retention=Retention.WORK_QUEUE):
    return StreamSettings(subjects=(f"{namespace}.task.>",), replicas=3, retention=retention)


def consumer_of(namespace):
    return ConsumerSettings(filter=f"{namespace}.task.>", ack_wait_s=LONG_S)


async def leaders(bus, name, consumer):
    """Of the stream, and of the consumer; and the server that leads neither, or follows at least."""
    stream = (await bus.api.call(f"STREAM.INFO.{name}", what="look"))["cluster"]
    of_consumer = (await bus.api.call(f"CONSUMER.INFO.{name}.{consumer}", what="look"))["cluster"]["leader"]
    others = [peer["name"] for peer in stream["replicas"] if peer["name"] != of_consumer]
    return stream["leader"], of_consumer, others[0]


@pytest.mark.parametrize("victim", ["stream leader", pytest.param("consumer leader", marks=pytest.mark.long)])
async def test_a_leader_is_killed_under_load_and_every_message_is_done_once(connect_to, cluster, namespace, victim):
    number = repetitions(200, whole=1200)
    first = await connect_to(",".join(cluster.urls))
    await (
        await (await first.stream(namespace, settings_of(namespace))).consume("c", consumer_of(namespace), collect())
    ).close()
    of_stream, of_consumer, safe = await leaders(first, namespace, "c")
    # Work on a server that will live.
    bus, writer = await connect_to(cluster.server(safe).url), await connect_to(cluster.server(safe).url)
    stream = await bus.stream(namespace, settings_of(namespace))
    load = Load(stream, await writer.stream(namespace, settings_of(namespace)), f"{namespace}.task.>", number)
    await load.start()
    await load.done.count(number // 3)
    cluster.server(of_stream if victim == "stream leader" else of_consumer).kill()
    await load.finish()


@pytest.mark.long
async def test_stepping_down_is_hardly_noticed(connect_to, quiet_cluster, namespace, got):
    bus = await connect_to(",".join(quiet_cluster.urls))
    stream = await bus.stream(namespace, settings_of(namespace))

    def work(message):
        consumer.ack(message)
        got(message)
        consumer.pull(1)

    consumer = await stream.consume("c", consumer_of(namespace), work)
    consumer.pull(8)
    number = repetitions(30, whole=90)
    for index in range(number):
        if index % 30 == 10:
            await bus.api.call(f"STREAM.LEADER.STEPDOWN.{namespace}", what="step down")
        if index % 30 == 20:
            await bus.api.call(f"CONSUMER.LEADER.STEPDOWN.{namespace}.c", what="step down")
        await publish_until_stored(stream, f"{namespace}.task.x", index)
    await got.count(number)
    assert sorted(int(message.data) for message in got.items) == list(range(number))
    await consumer.settled()


@pytest.mark.long
async def test_of_rivals_on_different_servers_one_gets_the_consumer(connect_to, quiet_cluster, namespace):
    buses = [await connect_to(url) for url in quiet_cluster.urls]
    streams = await asyncio.gather(*(bus.stream(namespace, settings_of(namespace)) for bus in buses))
    for turn in range(repetitions(3, whole=10)):
        results = await asyncio.gather(
            *(
                stream.consume(f"c{turn}-{number}", consumer_of(namespace), collect())
                for number, stream in enumerate(streams)
            ),
            return_exceptions=True,
        )
        won = [result for result in results if not isinstance(result, BaseException)]
        assert len(won) == 1
        assert all(isinstance(result, ConsumerTaken) for result in results if isinstance(result, BaseException))
        await won[0].close(delete=True)
    assert await streams[0].consumers() == []


@pytest.mark.long
async def test_a_reader_misses_nothing_when_the_leader_is_killed(connect_to, cluster, namespace, seen):
    number = repetitions(100, whole=400)
    first = await connect_to(",".join(cluster.urls))
    await first.stream(namespace, settings_of(namespace, Retention.LIMITS))
    found = (await first.api.call(f"STREAM.INFO.{namespace}", what="look"))["cluster"]
    bus = await connect_to(cluster.server(found["replicas"][0]["name"]).url)
    stream = await bus.stream(namespace, settings_of(namespace, Retention.LIMITS))
    await stream.read(f"{namespace}.task.>", seen)
    for index in range(number):
        if index == number // 2:
            cluster.server(found["leader"]).kill()
        await publish_until_stored(stream, f"{namespace}.task.x", index)
    await seen.count(number)
    assert [message.data for message in seen.items] == [b"%d" % index for index in range(number)]
