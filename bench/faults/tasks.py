"""Tasks for the worker processes of the scenarios: `gangline worker bench.faults.tasks:pool`, or `:work`. Those of
which a scenario must know more than the result record their start and end."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from gangline import Pool, current_task
from gangline.testing.kit.records import recorded

pool = Pool("train", slots=2)
work = Pool("work", slots=4)
"""For durable tasks."""


@pool.task
async def where() -> list[int]:
    gang = current_task().gang
    return [gang.rank, gang.generation, os.getpid()]


@pool.task
async def stay() -> None:
    """Runs until cancelled."""
    with recorded("stay"):
        await asyncio.sleep(3600)


@pool.task
async def pulse(until: str) -> list[float]:
    """All ranks meet repeatedly until that file exists; returns how often, and the longest interval."""
    gang = current_task().gang
    rounds, worst = 0, 0.0
    before = time.monotonic()
    while not await gang.broadcast(Path(until).exists() if gang.rank == 0 else None):  # noqa: ASYNC240
        now = time.monotonic()
        rounds, worst, before = rounds + 1, max(worst, now - before), now
        await asyncio.sleep(0.02)
    return [rounds, worst]


@pool.task
async def once(id: str, seconds: float) -> int:
    """Not idempotent."""
    with recorded(id):
        await asyncio.sleep(seconds)
    return os.getpid()


@pool.task(idempotent=True)
async def nap(seconds: float) -> int:
    """A single slow call."""
    await asyncio.sleep(seconds)
    return os.getpid()


@work.task(idempotent=True)
async def square(number: int, seconds: float, gate: str = "") -> int:
    """Takes some time, and returns the square.

    Args:
        gate: it does not end before this file exists.
    """
    with recorded(str(number)):
        await asyncio.sleep(seconds)
        while gate and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
    return number * number


@work.task(idempotent=True)
async def who(seconds: float) -> int:
    """Takes some time, and returns the number of its attempt."""
    with recorded("who"):
        await asyncio.sleep(seconds)
    return current_task().attempt
