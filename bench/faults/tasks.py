"""Tasks for the worker processes of the scenarios: `gangline worker bench.faults.tasks:pool`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from gangline import Pool, current_task

pool = Pool("train", slots=2)


def note(folder: Path, gang: str, generation: int, rank: int, what: str) -> Path:
    """Where a member records when (CLOCK_MONOTONIC, shared by the machine) something happened to it."""
    return folder / f"{gang}.{generation}.{rank}.{what}"


def _write(path: Path) -> None:
    unfinished = path.with_suffix(f"{path.suffix}-{os.getpid()}")
    unfinished.write_text(repr(time.monotonic()))
    unfinished.rename(path)


@pool.task
async def where() -> list[int]:
    gang = current_task().gang
    return [gang.rank, gang.generation, os.getpid()]


@pool.task
async def stay(folder: str) -> None:
    """Runs until cancelled; records its start and the cancellation."""
    gang = current_task().gang
    seat = (Path(folder), gang.id, gang.generation, gang.rank)
    _write(note(*seat, "started"))
    try:
        await asyncio.sleep(3600)
    finally:
        _write(note(*seat, "stopped"))


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
async def once(path: str, seconds: float) -> int:
    """Adds a line to that file each time it runs."""
    with Path(path).open("a") as file:  # noqa: ASYNC230
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(seconds)
    return os.getpid()


@pool.task(idempotent=True)
async def nap(seconds: float) -> int:
    """A single slow call."""
    await asyncio.sleep(seconds)
    return os.getpid()
