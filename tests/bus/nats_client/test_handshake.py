"""Servers that die, or say something else, in the middle of the handshake."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gangline.bus.nats_bus import connect
from gangline.schemas.errors.base import Disconnected

from ...waiting import until

pytestmark = pytest.mark.server

INFO = b'INFO {"server_id": "fake", "version": "2.12.0", "proto": 1, "max_payload": 1048576, "headers": true}\r\n'


class Fake:
    """Speaks as much NATS as a connection needs. The connections with the given numbers do not come about."""

    def __init__(self, spoilt: set[int], instead_of_pong: bytes, answered: int = 0) -> None:
        """`answered`: so many PINGs of a spoilt connection are answered all the same."""
        self.connections = 0
        self.url = ""
        self._spoilt = spoilt
        self._instead = instead_of_pong
        self._answered = answered
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        spoilt = self.connections in self._spoilt
        self._writers.append(writer)
        writer.write(INFO)
        pings = 0
        with contextlib.suppress(ConnectionResetError):  # the client may be quicker to give the connection up
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    pings += 1
                    if spoilt and pings > self._answered:
                        writer.write(self._instead)
                        break
                    writer.write(b"PONG\r\n")
        writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def fake(spoilt: set[int], instead_of_pong: bytes, answered: int = 0) -> AsyncIterator[Fake]:
    made = Fake(spoilt, instead_of_pong, answered)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    made.hang_up()
    server.close()


@pytest.mark.parametrize("instead_of_pong", [b"", INFO], ids=["nothing", "info"])
async def test_a_server_that_dies_in_the_handshake_of_a_reconnect_is_tried_again(settings_of, instead_of_pong):
    async with fake({2, 3}, instead_of_pong) as server:
        bus = await connect(settings_of(server.url, reconnect_wait_s=0.01))
        server.hang_up()
        await until(lambda: server.connections >= 4 and bus.connected)
        await bus.flush()
        await bus.close()


@pytest.mark.parametrize(
    ("instead_of_pong", "answered"), [(b"", 0), (INFO, 0), (b"", 1)], ids=["nothing", "info", "just after it"]
)
async def test_a_server_that_dies_in_the_first_handshake_is_tried_again(settings_of, instead_of_pong, answered):
    async with fake({1, 2}, instead_of_pong, answered) as server:
        bus = await connect(settings_of(server.url, reconnect_wait_s=0.01))
        assert bus.connected and server.connections == 3
        await bus.close()


@pytest.mark.parametrize("late", ["_select_next_server", "_process_connect_init"])
async def test_a_client_stays_closed_though_it_connects_again_at_that_moment(settings_of, monkeypatch, late):
    """asyncio.wait_for swallows a cancellation that comes together with its result: the next step goes on."""
    async with fake(set(), b"") as server:
        bus = await connect(settings_of(server.url, reconnect_wait_s=0.01))
        step, reached = getattr(bus._client, late), asyncio.Event()

        async def swallow_a_cancellation():
            reached.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await step()

        monkeypatch.setattr(bus._client, late, swallow_a_cancellation)
        server.hang_up()
        await reached.wait()
        await bus.close()
        assert bus.closed and not bus.connected and bus._client.is_closed


async def test_a_server_that_dies_after_each_handshake_is_not_tried_for_ever(settings_of):
    async with fake(set(range(1, 1000)), b"", answered=1) as server:
        with pytest.raises(Disconnected):
            await connect(settings_of(server.url, reconnect_wait_s=0.01, connect_timeout_s=0.5))
