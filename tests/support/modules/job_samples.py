"""Durable tasks for tests with child processes and a real server; tasks of child processes must be importable by
name."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from gangline.schemas.errors.base import GanglineError
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.pool.pool import CallNext, Pool
from gangline.worker.pool.signature import Resource

pool = Pool("jobs", slots=4)
around: list[str] = []
"""What the middleware saw, in its own process."""


class Home:
    def __init__(self) -> None:
        self.pid = os.getpid()


@pool.lifespan
async def home() -> AsyncIterator[Home]:
    yield Home()


@pool.middleware
async def look(context: TaskContext, call_next: CallNext) -> Any:
    around.append(context.method)
    try:
        return await call_next()
    except GanglineError as error:
        around.append(error.code)
        raise


@pool.task(executor="process")
def whose(text: str, home: Annotated[Home, Resource]) -> list[Any]:
    return [os.getpid(), home.pid, text]


@pool.task(executor="process")
def hang() -> None:
    time.sleep(60)


@pool.task(executor="process")
def in_child(steps: int, until: str = "") -> list[Any]:
    """`until`: it does not end before this file exists."""
    context = current_task()
    for step in range(steps):
        context.progress_blocking({"step": step})
        time.sleep(0.03)
    while until and not os.path.exists(until):
        time.sleep(0.01)
    return [context.job, context.endpoint, context.attempt, context.fence]


@pool.task(executor="process")
async def in_childs_loop(text: str) -> None:
    await current_task().progress(text)


@pool.task(executor="process")
def unwritable() -> None:
    current_task().progress_blocking(object())
