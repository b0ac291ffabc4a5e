"""Durable tasks for tests with child processes and on a real server; those of children must be importable by name."""

from __future__ import annotations

import time
from typing import Any

from gangline.worker.context import current_task
from gangline.worker.pool import Pool

pool = Pool("jobs", slots=4)


@pool.task(executor="process")
def in_child(steps: int) -> list[Any]:
    context = current_task()
    for step in range(steps):
        context.progress_blocking({"step": step})
        time.sleep(0.03)
    return [context.job, context.endpoint, context.attempt, context.fence]


@pool.task(executor="process")
async def in_childs_loop(text: str) -> None:
    await current_task().progress(text)


@pool.task(executor="process")
def unwritable() -> None:
    current_task().progress_blocking(object())
