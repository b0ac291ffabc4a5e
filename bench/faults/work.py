"""Durable tasks for the scenarios: `gangline worker bench.faults.work:pool`. Each records its start and end."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from gangline import Pool, current_task

pool = Pool("work", slots=4)


def _note(folder: str, event: str) -> None:
    """One line per start and end, appended in one write; the time is CLOCK_MONOTONIC, shared by the machine."""
    task = current_task()
    line: dict[str, Any] = {
        "at": time.monotonic(),
        "event": event,
        "job": task.job,
        "attempt": task.attempt,
        "key": task.key,
        "pid": os.getpid(),
    }
    with Path(folder, f"notes-{os.getpid()}.jsonl").open("a", encoding="ascii") as notes:
        notes.write(json.dumps(line) + "\n")


@pool.task(idempotent=True)
async def square(folder: str, number: int, seconds: float, gate: str = "") -> int:
    """Takes some time, and returns the square.

    Args:
        gate: it does not end before this file exists.
    """
    _note(folder, "start")
    await asyncio.sleep(seconds)
    while gate and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)
    _note(folder, "end")
    return number * number


@pool.task(idempotent=True)
async def who(folder: str, seconds: float) -> int:
    """Takes some time, and returns the number of its attempt."""
    _note(folder, "start")
    await asyncio.sleep(seconds)
    _note(folder, "end")
    return current_task().attempt
