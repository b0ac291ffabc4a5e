"""The tasks of a run, `gangline worker bench.chaos.tasks:pool`. Each records its own start and end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from bench.chaos.records import FOLDER, Notebook
from gangline import GangContext, Pool, current_task

SLOTS = 4
pool = Pool("chaos", slots=SLOTS)
_numbers = itertools.count(1)


@cache
def _notebook() -> Notebook:
    return Notebook(Path(os.environ[FOLDER]), "task")


@contextmanager
def _noted(id: str, slots: int = 1, gang: GangContext | None = None) -> Iterator[None]:
    task, number = current_task(), next(_numbers)
    facts = {
        "worker": task.worker, "epoch": task.epoch, "slots": slots, "token": task.token, "job": task.job,
        "attempt": task.attempt, "fence": task.fence, "key": task.key,
    }  # fmt: skip
    if gang is not None:
        facts |= {"gang": gang.id, "generation": gang.generation, "rank": gang.rank}
    _notebook().note("start", n=number, id=id, **facts)
    done = cancelled = False
    try:
        yield
        done = True
    except (asyncio.CancelledError, GeneratorExit):
        cancelled = True
        raise
    finally:
        _notebook().note("end", n=number, done=done, **({"cancelled": True} if cancelled else {}))


class _Drains(logging.Handler):
    """Records when the process begins to drain, which only the process itself knows."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "worker.drain":
            _notebook().note("drain")


if FOLDER in os.environ:  # in a worker of a run
    logging.getLogger("gangline").addHandler(_Drains())


@pool.task
async def work(id: str, seconds: float) -> str:
    """One slot."""
    with _noted(id):
        await asyncio.sleep(seconds)
    return id


@pool.task(slots=2)
async def wide(id: str, seconds: float) -> str:
    """Two slots."""
    with _noted(id, 2):
        await asyncio.sleep(seconds)
    return id


@pool.task
async def items(id: str, count: int, seconds: float) -> AsyncIterator[str]:
    """Yields each item with its number."""
    with _noted(id):
        for number in range(count):
            await asyncio.sleep(seconds)
            yield f"{id}/{number}"


@pool.task(idempotent=True)
async def job(id: str, seconds: float, failures: int) -> str:
    """Raises in its first attempts."""
    with _noted(id):
        await asyncio.sleep(seconds)
        if current_task().attempt <= failures:
            raise RuntimeError("on purpose")
    return id


@pool.task
async def member(id: str, seconds: float) -> str:
    """Runs on all ranks of a gang, which meet at a barrier halfway."""
    gang = current_task().gang
    with _noted(id, gang=gang):
        await asyncio.sleep(seconds / 2)
        await gang.barrier()
        await asyncio.sleep(seconds / 2)
    return f"{id}/{gang.rank}/{gang.generation}"


@pool.task
async def serve(id: str, seconds: float) -> str:
    """Runs on rank 0 of a standing gang."""
    with _noted(id, gang=current_task().gang):
        await asyncio.sleep(seconds)
    return id


@pool.gang_start
async def begin(gang: GangContext) -> None:
    _notebook().note("member-start", gang=gang.id, generation=gang.generation, rank=gang.rank, fence=gang.fence)


@pool.gang_stop
async def end(gang: GangContext) -> None:
    _notebook().note("member-stop", gang=gang.id, generation=gang.generation, rank=gang.rank)
