"""Workers and clients in this process, on a real nats-server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker


class ServerRig:
    """Made by `server_rig`, which ends all of it."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.stack = contextlib.AsyncExitStack()

    async def bus(self, name: str, **settings: Any) -> NatsBus:
        bus = await connect_bus(ConnectionSettings.from_url(self.url, **settings), name=name)
        self.stack.push_async_callback(bus.close)
        return bus

    async def worker(self, name: str, pool: Pool, **settings: Any) -> Worker:
        how = WorkerSettings(id=name, node=name, **settings)
        return await self.stack.enter_async_context(
            Worker(pool, bus=await self.bus(name), names=self.names, settings=how)
        )

    async def client(self, environment: Environment | None = None, **settings: Any) -> Client:
        how = RouterSettings(**{"node": "", "zone": "", **settings})
        bus = await self.bus("client", reconnect_wait_s=0.05)
        return await self.stack.enter_async_context(Client(bus, names=self.names, settings=how, ambient=environment))


@pytest.fixture
async def server(nats_url: str, namespace: str, opened: contextlib.AsyncExitStack) -> ServerRig:
    """On the server of the session."""
    return await opened.enter_async_context(server_rig(nats_url, namespace))


@contextlib.asynccontextmanager
async def server_rig(url: str, namespace: str) -> AsyncIterator[ServerRig]:
    rig = ServerRig(url, namespace)
    async with rig.stack:
        yield rig
