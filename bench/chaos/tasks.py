"""The tasks of a run, `gangline worker bench.chaos.tasks:pool`. Each records its own start and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gangline import GangContext, Pool, current_task
from gangline.testing.kit.records import notebook, recorded

pool = Pool("chaos", slots=4)


@pool.task
async def work(id: str, seconds: float) -> str:
    """One slot."""
    with recorded(id):
        await asyncio.sleep(seconds)
    return id


@pool.task(slots=2)
async def wide(id: str, seconds: float) -> str:
    """Two slots."""
    with recorded(id, slots=2):
        await asyncio.sleep(seconds)
    return id


@pool.task
async def items(id: str, count: int, seconds: float) -> AsyncIterator[str]:
    """Yields each item with its number."""
    with recorded(id):
        for number in range(count):
            await asyncio.sleep(seconds)
            yield f"{id}/{number}"


@pool.task(idempotent=True)
async def job(id: str, seconds: float, failures: int) -> str:
    """Raises in its first attempts."""
    with recorded(id):
        await asyncio.sleep(seconds)
        if current_task().attempt <= failures:
            raise RuntimeError("on purpose")
    return id


@pool.task
async def member(id: str, seconds: float) -> str:
    """Runs on all ranks of a gang, which meet at a barrier halfway."""
    gang = current_task().gang
    with recorded(id):
        await asyncio.sleep(seconds / 2)
        await gang.barrier()
        await asyncio.sleep(seconds / 2)
    return f"{id}/{gang.rank}/{gang.generation}"


@pool.task
async def serve(id: str, seconds: float) -> str:
    """Runs on rank 0 of a standing gang."""
    with recorded(id):
        await asyncio.sleep(seconds)
    return id


@pool.gang_start
async def begin(gang: GangContext) -> None:
    if book := notebook():
        book.note("member-start", gang=gang.id, generation=gang.generation, rank=gang.rank, fence=gang.fence)


@pool.gang_stop
async def end(gang: GangContext) -> None:
    if book := notebook():
        book.note("member-stop", gang=gang.id, generation=gang.generation, rank=gang.rank)
