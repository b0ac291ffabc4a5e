"""The private parts of nats-py that we stand on are still there, and a version that was not tested is refused."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.nats_client.client import NATS_PY_VERSION, check_client_version
from gangline.bus.nats_client.protocol import ProtocolParser
from gangline.bus.port.bus import ConnectionEvent

from ...support.rows import in_rows
from ...waiting import PATIENCE_S
from ..conftest import happens


@in_rows("version", ["2.15.0", "2.17.0", "3.0.0", "0.0.0"])
def test_an_untested_version_is_refused_with_the_command_that_helps(version):
    with pytest.raises(ImportError, match=r"pip install 'nats-py>=2\.16,<2\.17'"):
        check_client_version(version)


def test_the_installed_version_is_a_tested_one():
    check_client_version(NATS_PY_VERSION)


@pytest.fixture
def writes(bus, monkeypatch):
    """What is written to the socket."""
    written = []
    write = bus._client._transport.write
    monkeypatch.setattr(bus._client._transport, "write", lambda data: (written.append(data), write(data)))
    return written


@pytest.mark.server
async def test_all_publications_of_one_turn_leave_in_one_write(bus, writes):
    for number in range(10):
        bus.publish("direct.x", str(number).encode())
    assert writes == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(writes) == 1
    assert writes[0].count(b"PUB direct.x") == 10


@pytest.mark.server
async def test_those_who_wait_for_the_end_of_the_turn_share_its_write(bus, writes):

    def publish_more() -> None:
        bus.publish("direct.y", b"2")
        bus.at_turn_end(lambda: bus.publish("direct.y", b"3"))

    def fail() -> None:
        raise RuntimeError("a collector with a bug")

    bus.at_turn_end(fail)
    bus.at_turn_end(publish_more)
    bus.publish("direct.y", b"1")
    assert writes == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (written,) = writes
    assert [written.index(f"\r\n{number}\r\n".encode()) for number in (1, 2, 3)] == sorted(
        written.index(f"\r\n{number}\r\n".encode()) for number in (1, 2, 3)
    )


@pytest.mark.server
async def test_what_came_with_the_end_of_the_handshake_is_not_lost(bus):
    client, got = bus._client, []
    await bus.subscribe("direct.early", lambda message: got.append(message.data))
    reader, transport = asyncio.StreamReader(), client._transport
    reader.feed_data(b"MSG direct.early %b 2\r\nh" % list(client._deliveries)[-1])
    client._bypass(reader, transport, ProtocolParser(client._deliver, client._control))
    reader.feed_data(b"i\r\n")
    assert got == [b"hi"]


@pytest.mark.server
async def test_a_prompt_publication_does_not_wait_for_the_end_of_the_turn(bus, writes):
    bus.prompt(lambda: bus.publish("direct.z", b"1"))
    assert len(writes) == 1
    bus.publish("direct.z", b"2")
    bus.prompt(lambda: bus.publish("direct.z", b"3"))
    assert len(writes) == 1  # a write is due anyhow, and keeps the order
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(writes) == 2
    assert writes[1].index(b"\r\n2\r\n") < writes[1].index(b"\r\n3\r\n")


@pytest.mark.server
async def test_a_prompt_publication_that_fails_leaves_nothing_stuck(bus):

    def fail() -> None:
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError):
        bus.prompt(fail)
    got = asyncio.get_running_loop().create_future()
    await bus.subscribe("direct.after", lambda message: got.set_result(message.data))
    bus.publish("direct.after", b"x")
    async with asyncio.timeout(PATIENCE_S):
        assert await got == b"x"


@pytest.mark.server
async def test_a_push_hands_over_what_there_is_in_the_middle_of_a_turn(connect_to, nats_url, got):
    bus = await connect_to(nats_url)
    other = await connect_to(nats_url)
    await other.subscribe("direct.part", lambda message: got(message.data))
    await other.flush()  # the server knows of it
    bus.push()  # nothing there: nothing happens
    sent = asyncio.Event()

    def turn() -> None:
        bus.publish("direct.part", b"0")
        bus.push()
        assert bus.statistics()["buffered_bytes"] == 0, "it is in the kernel already"
        bus.publish("direct.part", b"1")
        assert bus.statistics()["buffered_bytes"] > 0, "the rest leaves at the end of the turn"
        sent.set()

    asyncio.get_running_loop().call_soon(turn)
    await sent.wait()
    assert await got.count(2) == [b"0", b"1"]


@pytest.mark.server
async def test_a_push_while_disconnected_does_nothing(bus, nats_server):
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    bus.push()
