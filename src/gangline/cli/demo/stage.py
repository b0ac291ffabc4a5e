"""What both parts of the demo play on: a server, a connection to it, a client, the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...bus.embedded.server import EmbeddedServer
from ...bus.embedded.temporary_folder import TemporaryFolder
from ...bus.nats_bus import connect
from ...bus.port.bus import BucketSettings, Bus, KeyValue
from ...bus.settings.connection import ConnectionSettings
from ...dispatcher.client.client import Client
from ...schemas.names import Names
from ..stores.registry import WorkerRow, read_workers
from .fixtures.crew import Crew, ProcessFailed
from .report.screen import Screen

READY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Open until its block ends."""

    screen: Screen
    url: str
    folder: Path
    """For logs and journals; removed in the end."""
    bus: Bus
    ledger: KeyValue
    client: Client
    names: Names

    async def ready(self, crew: Crew, pool: str, *workers: str) -> list[WorkerRow]:
        """Wait until these workers serve.

        Raises:
            ProcessFailed: one of them ended, or does not come up.
        """
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            crew.check_alive(*workers)
            rows = await read_workers(self.ledger, self.names, pool)
            if {row.id.worker for row in rows if row.heartbeat is not None} >= set(workers):
                return rows
            if asyncio.get_running_loop().time() > deadline:
                raise ProcessFailed(f"{', '.join(workers)} did not all come up within {READY_S:.0f} s")
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def crew(self) -> AsyncIterator[Crew]:
        """An empty one; whoever it starts is ended in the end."""
        crew = Crew(self.url, self.names.namespace, self.folder)
        try:
            yield crew
        finally:
            await crew.stop()


@asynccontextmanager
async def open_stage(screen: Screen, namespace: str) -> AsyncIterator[Stage]:
    """Start the server and connect."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        screen.title(f"Gangline demo: nats-server {server.version} at {server.url}")
        folder = stack.enter_context(TemporaryFolder("gangline-demo-")).path
        names = Names(namespace)
        bus = await connect(ConnectionSettings(urls=(server.url,)), name="gangline demo")
        stack.push_async_callback(bus.close)
        client = await stack.enter_async_context(Client(bus, names=names, name="demo"))
        ledger = await bus.bucket(names.ledger_bucket, BucketSettings())
        yield Stage(screen=screen, url=server.url, folder=folder, bus=bus, ledger=ledger, client=client, names=names)
