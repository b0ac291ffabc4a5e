"""Systems of coordinators and scripted workers, on an in-memory server and on a real one."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import KvEntry
from gangline.schemas.names import Names

from ..support.coordinator.rig import System, check_atomic

_OPENED = pytest.StashKey[System]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Close a test's system inside the test: what it leaves behind is then the test's fault."""
    test = pyfuncitem.obj
    if _OPENED not in pyfuncitem.stash or not inspect.iscoroutinefunction(test):
        return
    system = pyfuncitem.stash[_OPENED]

    @functools.wraps(test)
    async def closing(*args: Any, **kwargs: Any) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(system.close)
            await test(*args, **kwargs)
        assert system.watcher.broken == []

    pyfuncitem.obj = closing


@pytest.fixture
def hub() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def system(request: pytest.FixtureRequest, hub: MemoryServer) -> AsyncIterator[System]:
    """On the in-memory server. What the ledger shows is held to L7 after every change."""
    made = request.node.stash[_OPENED] = System(hub.connect, Names())
    loop = asyncio.get_running_loop()

    def check() -> None:
        made.watcher.broken += check_atomic(hub.peek(made.names.ledger_bucket))

    def changed(_bucket: str, entry: KvEntry) -> None:
        if entry.key.startswith(("gang.", "member.")) and "ghost" not in entry.key:
            loop.call_soon(check)  # a batch is written in one turn

    hub.tap(on_change=changed)
    await made.open()
    yield made
