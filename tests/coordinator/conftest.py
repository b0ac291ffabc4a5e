"""Systems of coordinators and scripted workers, on an in-memory server and on a real one."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, KvEntry
from gangline.coordinator.election.election_core import ElectionSettings
from gangline.coordinator.service import Coordinator
from gangline.schemas.names import Names

from ..support.coordinator.real_workers import RealWorkersSystem
from ..support.coordinator.rig import CoordinatorSystem, check_atomic

_OPENED = pytest.StashKey[list[CoordinatorSystem]]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Close a test's systems inside the test: what they leave behind is then the test's fault."""
    test = pyfuncitem.obj
    if _OPENED not in pyfuncitem.stash or not inspect.iscoroutinefunction(test):
        return
    systems = pyfuncitem.stash[_OPENED]

    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> None:
        try:
            await test(*args, **kwargs)
        finally:
            for system in systems:
                await system.close()
        for system in systems:
            assert isinstance(system, RealWorkersSystem) or system.watcher.broken == []  # a real server may lose it

    pyfuncitem.obj = closing


@pytest.fixture
def hub() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def system(request: pytest.FixtureRequest, hub: MemoryServer) -> AsyncIterator[CoordinatorSystem]:
    """On the in-memory server. What the ledger shows is held to L7 after every change."""
    made = CoordinatorSystem(hub.connect, Names())
    request.node.stash[_OPENED] = [made]
    loop = asyncio.get_running_loop()

    def check() -> None:
        made.watcher.broken += check_atomic(hub.peek(made.names.ledger_bucket))

    def changed(_bucket: str, entry: KvEntry) -> None:
        if entry.key.startswith(("gang.", "member.")) and "ghost" not in entry.key:
            loop.call_soon(check)  # a batch is written in one turn

    hub.tap(on_change=changed)
    await made.open()
    yield made


@pytest.fixture
async def leader(system: CoordinatorSystem) -> Coordinator:
    """Leads the system, in which the worker w1 has four slots."""
    await system.worker()
    return await system.lead()


@pytest.fixture
def open_system(request: pytest.FixtureRequest, namespace: str) -> Callable[..., Awaitable[RealWorkersSystem]]:
    """Open systems on real servers. They are closed when the test's body ends."""
    systems = request.node.stash.setdefault(_OPENED, [])

    async def opened(
        url: str, bucket: BucketSettings | None = None, *, election: ElectionSettings | None = None
    ) -> RealWorkersSystem:
        system = RealWorkersSystem(url, namespace)
        systems.append(system)
        system.election, system.bucket = election, bucket or system.bucket
        await system.open()
        return system

    return opened
