"""The proxy between the parties of a chaos run: what each state of a link does to what is sent over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from bench.chaos.proxy import Link, Proxy

from ..waiting import until

pytestmark = pytest.mark.realtime


@dataclass
class Wired:
    proxy: Proxy
    link: Link
    port: int
    """Of the proxy."""
    heard: asyncio.Queue[bytes]
    """By the listener, which answers each with itself in capitals."""


@asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            heard.put_nowait(data)
            writer.write(data.upper())
        heard.put_nowait(b"")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    real = int(server.sockets[0].getsockname()[1])
    proxy = Proxy()
    port = await proxy.listen("w1", "n1", lambda: real)
    try:
        yield Wired(proxy, proxy.between("n1", "w1"), port, heard)
    finally:
        await proxy.close()
        server.close()
        await server.wait_closed()


async def dial(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def talking(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection over which a question has been answered."""
    reader, writer = await dial(port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"A"
    return reader, writer


async def refused(reader: asyncio.StreamReader) -> None:
    """The connection has been ended, one way or the other."""
    with pytest.raises(ConnectionError):
        assert not await reader.read(1)
        raise ConnectionResetError


async def turns() -> None:
    """As long as what could have arrived needs to arrive."""
    await asyncio.sleep(0.1)


async def test_what_is_sent_arrives_both_ways_and_so_does_the_end() -> None:
    async with wired() as it:
        reader, writer = await dial(it.port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        writer.close()
        assert [await it.heard.get(), await it.heard.get()] == [b"hello", b""]


async def test_over_a_silent_link_all_arrives_when_it_is_healed() -> None:
    async with wired() as it:
        reader, writer = await talking(it.port)
        it.link.silence()
        writer.write(b"b")
        await turns()
        assert it.heard.qsize() == 1
        it.link.heal()
        assert await reader.readexactly(1) == b"B"
        writer.close()


async def test_a_link_can_be_silent_one_way() -> None:
    async with wired() as it:
        reader, writer = await talking(it.port)
        it.link.silence("n1")
        writer.write(b"b")
        assert [await it.heard.get(), await it.heard.get()] == [b"a", b"b"]
        await turns()
        answer = asyncio.ensure_future(reader.readexactly(1))
        await turns()
        assert not answer.done()
        it.link.heal()
        assert await answer == b"B"
        writer.close()


async def test_who_dials_over_a_silent_link_gets_through_when_it_is_healed() -> None:
    async with wired() as it:
        it.link.silence("w1")
        reader, writer = await dial(it.port)
        writer.write(b"a")
        await turns()
        assert it.heard.empty()
        it.link.heal()
        assert await reader.readexactly(1) == b"A"
        writer.close()


async def test_a_cut_link_ends_its_connections_and_refuses_new_ones_until_it_is_healed() -> None:
    async with wired() as it:
        reader, _ = await dial(it.port)
        it.link.sever()
        await refused(reader)
        reader, _ = await dial(it.port)
        await refused(reader)
        it.link.heal()
        reader, writer = await talking(it.port)
        writer.close()


async def test_what_was_kept_for_somebody_who_has_gone_is_dropped() -> None:
    async with wired() as it:
        reader, writer = await talking(it.port)
        it.link.silence()
        writer.write(b"b")
        writer.close()
        await turns()
        it.link.heal()
        assert [await it.heard.get() for _ in range(3)] == [b"a", b"b", b""]
        await until(lambda: not it.link.connections)


async def test_a_slow_link_keeps_the_order() -> None:
    async with wired() as it:
        reader, writer = await talking(it.port)
        it.link.slow(0.05)
        before = asyncio.get_running_loop().time()
        for letter in (b"b", b"c", b"d"):
            writer.write(letter)
            await asyncio.sleep(0.01)
        assert await reader.readexactly(3) == b"BCD"
        assert asyncio.get_running_loop().time() - before >= 0.1  # never early: once each way
        writer.close()


async def test_a_link_stands_for_both_ways_of_dialling() -> None:
    async with wired() as it:
        await it.proxy.listen("n1", "w1", lambda: it.port)
        assert it.proxy.of("n1") == it.proxy.of("w1") == [it.link]


async def test_data_stays_in_order_while_the_delay_changes() -> None:
    async with wired() as it:
        reader, writer = await talking(it.port)
        for number in range(20):
            it.link.slow((0.03, 0.0, 0.001)[number % 3])
            writer.write(b"%02d" % number)
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(40) == b"".join(b"%02d" % number for number in range(20))
