"""Tasks whose effects reach all that workers may do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

pool = Pool("images", slots=4)


@pool.task
async def double(n: int) -> int:
    return 2 * n


@pool.task
async def text(length: int) -> str:
    return "x" * length


@pool.task
async def fail() -> None:
    raise ValueError("not today")


@pool.task
async def count(n: int) -> AsyncIterator[int]:
    for number in range(n):
        yield number


@pool.task
async def pages(n: int, length: int) -> AsyncIterator[str]:
    for _ in range(n):
        yield "x" * length


@pool.task
async def report() -> str:
    await current_task().progress({"done": 0.5})
    return "done"


@pool.task
async def wait() -> None:
    await asyncio.sleep(3600)


@pool.task
async def together() -> int:
    gang = current_task().gang
    assert gang is not None
    await gang.barrier()
    return gang.rank
