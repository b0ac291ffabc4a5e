"""A service starts while storage is away for a moment, whichever step of its start that hits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import pytest

import gangline
from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.durable.service import Dispatcher
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from .scale import repetitions
from .stepped import NEVER, SteppedLoop

AWAY_S = 8.0
NAMES = Names("starts")


class Service(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def _worker(bus: MemoryBus) -> Service:
    pool = gangline.Pool("work", slots=1)

    @pool.task
    async def nothing() -> None:
        """For a pool has tasks."""

    return Worker(pool, bus=bus, names=NAMES, settings=WorkerSettings(id="w1"))


SERVICES: dict[str, Callable[[MemoryBus], Service]] = {
    "worker": _worker,
    "coordinator": lambda bus: Coordinator(bus=bus, names=NAMES),
    "shard": lambda bus: Coordinator(bus=bus, names=NAMES, shard="s", pools=("work",)),
    "dispatcher": lambda bus: Dispatcher(bus, names=NAMES),
}


def _start(make: Callable[[MemoryBus], Service], at: int) -> int:
    """Start one while storage goes away at that step; how many steps it took."""
    loop = SteppedLoop()

    async def story() -> int:
        hub = MemoryServer()
        bus = hub.connect("service")
        service = make(bus)

        def outage() -> None:
            hub.storage_down()
            loop.call_later(AWAY_S, hub.storage_back)

        began = loop.scheduled
        loop.arm(at, outage)
        await service.start()
        took = loop.scheduled - began
        await asyncio.sleep(2 * AWAY_S)
        await service.stop()
        await bus.close()
        return took

    try:
        return loop.run_until_complete(loop.create_task(story(), name="story"))
    finally:
        loop.close()


@pytest.mark.parametrize("kind", SERVICES)
def test_a_start_outlasts_an_outage_of_storage_at_any_of_its_steps(kind: str) -> None:
    make = SERVICES[kind]
    failed: dict[int, str] = {}
    for at in range(1, _start(make, NEVER), repetitions(24, whole=2)):
        try:
            _start(make, at)
        except gangline.GanglineError as error:
            failed[at] = f"{type(error).__name__}: {error}"
    assert failed == {}
