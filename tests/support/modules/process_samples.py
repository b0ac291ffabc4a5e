"""Tasks for the tests of the process executor, which must be importable by name."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

from pydantic import BaseModel

from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

pool = Pool("samples", slots=4, executor="process", max_models=2)


class Resource:
    def __init__(self) -> None:
        self.pid = os.getpid()


class Size(BaseModel):
    width: int
    height: int


@pool.lifespan
async def resource() -> AsyncIterator[Resource]:
    yield Resource()


@pool.model_loader
async def load(model_id: str) -> str:
    return f"{model_id} of {os.getpid()}"


@pool.task
def add(a: int, b: int = 1) -> int:
    return a + b


@pool.task
async def add_async(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@pool.task
def area(size: Size) -> Size:
    return Size(width=size.width * size.height, height=1)


@pool.task
def pid() -> int:
    return os.getpid()


@pool.task
def facts() -> dict:
    context = current_task()
    remaining_s = context.remaining_s()
    return {
        "id": context.id,
        "method": context.method,
        "fence": context.fence,
        "labels": context.labels,
        "in_time": remaining_s is not None and 0 < remaining_s <= 60,
        "resource": context.resource(Resource).pid == os.getpid(),
    }


@pool.task
def model() -> str:
    return current_task().model_blocking()


@pool.task
async def model_async() -> str:
    return await current_task().model()


@pool.task
def fail(text: str) -> None:
    raise ValueError(text)


@pool.task
def end(kind: str) -> None:
    match kind:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sys.exit":
            sys.exit(4)
        case "interrupt":
            raise KeyboardInterrupt
        case "generator":
            raise GeneratorExit


@pool.task
async def exit_async() -> None:
    sys.exit(5)


@pool.task
def hang(marker: str) -> None:
    """Writes its pid and that of a program it starts, then never ends."""
    started = subprocess.Popen(["sleep", "600"])
    with open(marker + ".part", "w") as file:
        file.write(f"{os.getpid()} {started.pid}")
    os.rename(marker + ".part", marker)
    while True:
        time.sleep(60)


@pool.task
def count(n: int, marker: str = "") -> Iterator[int]:
    for i in range(n):
        if marker:
            with open(marker, "w") as file:
                file.write(str(i))
        yield i


@pool.task
async def count_async(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(0)
        yield i


@pool.task
def count_then_die(n: int) -> Iterator[int]:
    yield from range(n)
    os._exit(7)


@pool.task
def log(text: str) -> None:
    logging.getLogger("samples").warning(text, extra={"action": "sampled"})


@pool.task
def unwritable() -> object:
    return {"a": [object()]}


@pool.task
def big(n: int) -> bytes:
    return b"x" * n
