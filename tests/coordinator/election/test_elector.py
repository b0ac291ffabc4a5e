"""When a coordinator takes part in the election."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.coordinator.ledger.worker_registry import WorkerRegistry
from gangline.coordinator.service import Coordinator, CoordinatorState
from gangline.schemas.names import Names


async def test_who_still_starts_is_not_elected_when_its_connection_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lead, and nobody would ever hear so: it says that it stands by when its start has ended."""
    hub = MemoryServer()
    bus = hub.connect("coordinator")
    goes_on, start = asyncio.Event(), WorkerRegistry.start

    async def slowly(self: WorkerRegistry) -> None:
        await goes_on.wait()
        await start(self)

    monkeypatch.setattr(WorkerRegistry, "start", slowly)
    coordinator = Coordinator(bus=bus)
    starting = asyncio.ensure_future(coordinator.start())
    await asyncio.sleep(1.0)
    hub.disconnect(bus)
    hub.reconnect(bus)
    await asyncio.sleep(1.0)
    assert Names.leader_key not in [entry.key for entry in hub.peek(Names().ledger_bucket)]
    goes_on.set()
    await starting
    async with asyncio.timeout(30.0):
        await coordinator.wait_leading()
    assert coordinator.state is CoordinatorState.LEADING
    await coordinator.stop()
