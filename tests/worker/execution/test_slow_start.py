"""Workers whose start takes longer than a heartbeat lives: models are loaded, children import."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings
from gangline.schemas.errors.base import WorkerIdTaken
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

NAMES = Names("slow")


def make(hub: MemoryServer, start_s: float) -> Worker:
    pool = Pool("images", slots=1)

    @pool.lifespan
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await asyncio.sleep(start_s)
        yield

    @pool.task
    async def echo(value: int) -> int:
        return value

    return Worker(pool, bus=hub.connect("worker"), names=NAMES, settings=WorkerSettings(id="w1"))


async def keys(hub: MemoryServer) -> list[str]:
    kv = await hub.connect("operator").bucket(NAMES.ledger_bucket, BucketSettings())
    return sorted([entry.key for entry in await kv.entries(">")])


async def test_a_slow_start_holds_its_id_and_is_not_found_before_it_serves() -> None:
    hub = MemoryServer()
    first, second = make(hub, 40), make(hub, 0)
    starting = asyncio.ensure_future(first.start())
    await asyncio.sleep(25)
    assert await keys(hub) == ["alive.images.w1"], "no registration yet, also when it is time to write that again"
    with pytest.raises(WorkerIdTaken):
        await second.start()
    await starting
    await asyncio.sleep(60)
    assert first.state == "serving" and await keys(hub) == ["alive.images.w1", "reg.images.w1"]
    await first.stop()
    assert await keys(hub) == []


async def test_who_lost_its_id_while_it_started_leaves_the_other_in_peace() -> None:
    hub = MemoryServer()
    first, second = make(hub, 12), make(hub, 0)
    starting = asyncio.ensure_future(first.start())
    await asyncio.sleep(1)
    hub.disconnect(first.bus)  # its heartbeats do not come through, and the key expires
    await asyncio.sleep(6)
    await second.start()
    hub.reconnect(first.bus)
    with pytest.raises(WorkerIdTaken):
        await starting
    await asyncio.sleep(60)
    assert second.state == "serving" and await keys(hub) == ["alive.images.w1", "reg.images.w1"]
    await second.stop()
