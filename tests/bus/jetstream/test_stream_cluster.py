"""Three servers, streams with three copies, and the loss of whoever leads."""

from __future__ import annotations

import pytest

from gangline.bus.port.bus import ConsumerSettings, Retention, StreamSettings

from ...scale import repetitions
from ...support.bus.stream_load import LONG_S, Load
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
    number = repetitions(200, whole=600)
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
