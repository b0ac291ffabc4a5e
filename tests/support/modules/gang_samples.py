"""Tasks of gangs for the tests on a real server; tasks of child processes must be importable by name."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

pool = Pool("images", slots=4)


@pool.task
async def gather(value: int) -> list[int]:
    gang = current_task().gang
    await gang.barrier()
    return await gang.all_gather(value)


@pool.task(executor="thread")
def gather_in_thread(value: int) -> list[Any]:
    gang = current_task().gang
    gang.barrier_blocking()
    return [gang.broadcast_blocking(value), gang.all_gather_blocking(value)]


@pool.task(executor="thread")
async def gather_in_own_loop(value: int) -> list[Any]:
    gang = current_task().gang
    return [await gang.broadcast(value), await gang.all_gather(value)]


@pool.task(executor="process")
def gather_in_child(value: int) -> list[Any]:
    gang = current_task().gang
    gang.barrier_blocking()
    return [gang.rank, gang.rendezvous, gang.broadcast_blocking(value, 1), gang.all_gather_blocking(value)]


@pool.task(executor="process")
async def gather_in_child_async(value: int) -> list[Any]:
    gang = current_task().gang
    return [await gang.broadcast(value), await gang.all_gather(value)]


@pool.task(executor="process")
def fail_in_child() -> None:
    current_task().gang.fail("no memory in the child")
    time.sleep(60)


@pool.task(executor="process")
def meet_in_child() -> None:
    current_task().gang.barrier_blocking()


@pool.task(executor="process")
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pool.task(executor="process")
def hang() -> None:
    time.sleep(1000)


let_go = threading.Event()


@pool.task(executor="thread")
def dawdle() -> str:
    let_go.wait()
    return "done"


@pool.task
async def wait() -> None:
    await asyncio.sleep(1000)
