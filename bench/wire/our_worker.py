"""Gangline's worker side: workers of one pool, with defaults."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from pydantic import BaseModel

from ..bus.lifecycle import settled_memory
from ..bus.nats_bus import connect
from ..bus.settings.connection import ConnectionSettings
from ..worker.pool.pool import Pool
from ..worker.service import Worker
from .child import ITEMS, PAYLOAD, main, serve
from .tracing import set_up


class Order(BaseModel):
    """What a task may take and give."""

    customer: str
    quantities: list[int]
    express: bool


def declared(name: str, slots: int) -> Pool:
    """The measured pool: tasks that return their argument in all ways, and one that yields it."""
    pool = Pool(name, slots=slots)

    @pool.task
    async def echo(data: bytes) -> bytes:
        return data

    @pool.task
    async def nap(data: bytes) -> bytes:
        await asyncio.sleep(random.uniform(0, 0.002))
        return data

    @pool.task
    async def text(data: str) -> str:
        return data

    @pool.task
    async def model(order: Order) -> Order:
        return order

    @pool.task
    def function(data: bytes) -> bytes:
        return bytes(data)

    @pool.task
    async def stream() -> AsyncIterator[bytes]:
        for _ in range(ITEMS):
            yield PAYLOAD

    return pool


async def life(url: str, pool: str, slots: int, workers: int = 1, trace: str = "none") -> None:
    set_up(trace, "gangline-bench-worker")

    async def cpu() -> dict[str, Any]:
        return {"cpu_s": time.process_time()}

    async with AsyncExitStack() as stack:
        for number in range(workers):
            bus = await connect(ConnectionSettings.from_url(url), name=f"bench {pool} {number}")
            stack.push_async_callback(bus.close)
            await stack.enter_async_context(Worker(declared(pool, slots), bus=bus))
        with settled_memory():  # as `run_worker` and `gangline worker` do
            await serve({"cpu": cpu})


if __name__ == "__main__":
    main(life)
