"""Collective calls near their limits, on a server that cuts off who does not keep up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import Bus, ConnectionEvent
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.gangs.collectives import CollectiveSession, CollectiveSessions
from gangline.worker.gangs.collectives_core import MAX_TOTAL_BYTES, MAX_VALUE_BYTES
from gangline.worker.gangs.shared_run import SharedRuns

pytestmark = pytest.mark.server

NAMES = Names("test")
PATIENCE_S = 120.0
MSGPACK_BYTES = 16
"""More than what msgpack adds to a value."""


class Fleet:
    """Workers on a server of their own, and members on them."""

    def __init__(self, stack: contextlib.AsyncExitStack, buses: list[Bus]) -> None:
        self.stack = stack
        self.buses = buses
        self.shared = [SharedRuns(bus, NAMES) for bus in buses]
        self.lost: list[str] = []
        """Connections that the server has ended."""
        for bus in buses:
            bus.on_connection(lambda event, name=bus.name: self._note(name, event))  # type: ignore[misc]

    def _note(self, name: str, event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.CLOSED:
            self.lost.append(name)

    def gang(self, gang: str, size: int) -> list[CollectiveSession]:
        """A session of each member, by rank; the ranks go round the workers."""
        talks: list[CollectiveSession] = []
        for rank in range(size):
            worker = rank % len(self.buses)
            sessions = CollectiveSessions(
                self.buses[worker], NAMES, self.shared[worker], gang=gang, generation=1, rank=rank, size=size
            )
            self.stack.push_async_callback(sessions.close)
            talks.append(sessions.session(1))
        return talks


@contextlib.asynccontextmanager
async def fleet(workers: int, *, max_pending: str) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        config = f"max_pending: {max_pending}"
        server = await stack.enter_async_context(EmbeddedServer(jetstream=False, config=config))
        buses: list[Bus] = []
        for number in range(workers):
            bus = await connect(ConnectionSettings(urls=(server.url,)), name=f"w{number}")
            stack.push_async_callback(bus.close)
            buses.append(bus)
        made = Fleet(stack, buses)
        async with asyncio.timeout(PATIENCE_S):
            yield made
        assert made.lost == []


async def gather(talks: list[CollectiveSession], value_bytes: int) -> None:
    values = [bytes([rank % 251]) * value_bytes for rank in range(len(talks))]
    for gathered in await asyncio.gather(*(talk.all_gather(values[talk.rank]) for talk in talks)):
        assert gathered == values


async def broadcast(talks: list[CollectiveSession], value_bytes: int, root: int) -> None:
    value = bytes(value_bytes)
    told = await asyncio.gather(*(talk.broadcast(value if talk.rank == root else None, root) for talk in talks))
    assert told == [value] * len(talks)


async def test_a_server_that_keeps_little_for_a_client_cuts_nobody_off():
    async with fleet(4, max_pending="2MB") as made:
        await gather(made.gang("g", 16), 700_000)


@pytest.mark.long
async def test_gangs_with_the_same_workers_share_what_the_server_keeps_for_them():
    async with fleet(4, max_pending="16MB") as made:
        gangs = [made.gang(f"g{number}", 16) for number in range(4)]
        async with asyncio.TaskGroup() as group:
            for talks in gangs[:2]:
                group.create_task(gather(talks, MAX_VALUE_BYTES - MSGPACK_BYTES))
            for talks in gangs[2:]:
                group.create_task(broadcast(talks, MAX_VALUE_BYTES - MSGPACK_BYTES, 3))


@pytest.mark.long
async def test_a_gang_of_256_on_8_workers_uses_the_limits():
    async with fleet(8, max_pending="8MB") as made:
        talks = made.gang("g", 256)
        await gather(talks, MAX_TOTAL_BYTES // 256 - MSGPACK_BYTES)
        for root in (0, 5):
            await broadcast(talks, MAX_VALUE_BYTES - MSGPACK_BYTES, root)
