"""The private parts of nats-py that we stand on are still there, and a version that was not tested is refused."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from nats.aio.client import Client, Srv
from nats.aio.transport import TcpTransport

from gangline.bus.nats_client.client import NATS_PY_VERSION, BufferedNatsClient, check_client_version
from gangline.bus.nats_client.protocol import ProtocolParser
from gangline.bus.port.bus import ConnectionEvent, Message

from ...support.rows import in_rows
from ...waiting import PATIENCE_S
from ..conftest import happens

USED = (
    *("_status", "_err", "_server_info", "_max_payload", "_current_server", "options", "stats"),
    *("_transport", "_pending", "_pending_data_size", "_pongs", "_pings_outstanding"),
    *("_reading_task", "_ping_interval_task", "_flusher_task", "_reconnection_task"),
)


@in_rows("version", ["2.15.0", "2.17.0", "3.0.0", "0.0.0"])
def test_an_untested_version_is_refused_with_the_command_that_helps(version):
    with pytest.raises(ImportError, match=r"pip install 'nats-py>=2\.16,<2\.17'"):
        check_client_version(version)


def test_the_installed_version_is_a_tested_one():
    check_client_version(NATS_PY_VERSION)


async def test_the_attributes_that_we_use_exist():
    client = Client()
    for name in USED:
        assert hasattr(client, name), name
    transport = TcpTransport()
    assert hasattr(transport, "_io_writer")
    assert hasattr(transport, "_bare_io_writer")
    assert hasattr(transport, "_io_reader")
    reader = asyncio.StreamReader()
    assert isinstance(reader._buffer, bytearray)
    protocol = asyncio.StreamReaderProtocol(reader)
    taken = []
    reader.feed_data = taken.append  # the protocol looks it up at every call
    protocol.data_received(b"x")
    assert taken == [b"x"]
    assert {"last_attempt", "reconnects"} <= set(Srv.__dataclass_fields__)


@in_rows(
    "name",
    [
        "_read_loop",
        "_flush_pending",
        "_send_ping",
        "_process_op_err",
        "_attempt_reconnect",
        "_connect_command",
        "flush",
    ],
)
def test_what_we_replace_is_what_nats_py_calls(name):
    ours, theirs = getattr(BufferedNatsClient, name), getattr(Client, name)
    assert ours is not theirs
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert list(inspect.signature(ours).parameters)[:1] == ["self"]
    needed = [
        parameter.name
        for parameter in list(inspect.signature(theirs).parameters.values())[1:]
        if parameter.default is inspect.Parameter.empty
    ]
    assert len(list(inspect.signature(ours).parameters)) - 1 >= len(needed)


@in_rows("name", ["_select_next_server", "_process_connect_init", "_process_info", "_ping_interval"])
def test_what_we_call_is_still_a_coroutine_of_the_client(name):
    assert inspect.iscoroutinefunction(getattr(Client, name))


def test_the_handshake_starts_our_read_loop_and_pings():
    source = inspect.getsource(Client._process_connect_init)
    for started in ("self._read_loop()", "self._ping_interval()", "self._connect_command()"):
        assert started in source


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
async def test_a_handler_runs_in_the_call_in_which_its_bytes_come(bus, monkeypatch):
    depth, got = 0, []
    reader = bus._client._transport._io_reader
    feed = reader.feed_data

    def fed(chunk: bytes) -> None:
        nonlocal depth
        depth += 1
        feed(chunk)
        depth -= 1

    monkeypatch.setattr(reader, "feed_data", fed)
    await bus.subscribe("direct.now", lambda message: got.append((message.data, depth, asyncio.current_task())))
    bus.publish("direct.now", b"x")
    await bus.flush()
    assert got == [(b"x", 1, None)]


@pytest.mark.server
async def test_what_handlers_publish_leaves_before_the_next_turn(bus, writes):
    answered = asyncio.Event()

    def answer(message: Message) -> None:
        bus.publish("direct.answer", message.data)
        asyncio.get_running_loop().call_soon(lambda: (writes.append(b"next turn"), answered.set()))

    await bus.subscribe("direct.question", answer)
    bus.publish("direct.question", b"?")
    async with asyncio.timeout(PATIENCE_S):
        await answered.wait()
    assert b"PUB direct.answer" in writes[-2]


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


@pytest.mark.server
async def test_a_responder_on_a_server_cannot_answer_what_others_were_asked(connect_to, nats_url):
    """As a review did it: it saw the reply subject of one request, and counted on."""
    asker, liar, honest = [await connect_to(nats_url) for _ in range(3)]
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def lies(message: Message) -> None:
        seen.set_result(message.reply)
        liar.publish(message.reply, b"")

    await liar.subscribe("liar", lies)
    await honest.subscribe("honest", lambda message: asked.set_result(message.reply))
    for bus in (liar, honest):
        await bus.flush()
    await asker.request("liar", timeout_s=PATIENCE_S)
    prefix, _, token = (await seen).rpartition(".")
    waiting = asyncio.ensure_future(asker.request("honest", timeout_s=PATIENCE_S))
    true = await asked
    assert true.startswith(f"{prefix}.")
    for number in range(1000):
        liar.publish(f"{prefix}.{number}", b"FORGED")
    for last in "0123456789":
        liar.publish(f"{prefix}.{token[:-1]}{last}", b"FORGED")
    await liar.flush()
    honest.publish(true, b"true")
    assert (await waiting).data == b"true"
