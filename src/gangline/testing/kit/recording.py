"""For tasks: each execution records its own start and end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from ...worker.context.task_context import current_task
from .records import Notebook

FOLDER: Final = "GANGLINE_RECORDS"
"""Environment variable with the folder of the files; without it, nothing is recorded."""
_numbers = itertools.count(1)


@cache
def notebook() -> Notebook | None:
    """That of this process."""
    return Notebook(Path(os.environ[FOLDER]), "task") if FOLDER in os.environ else None


@contextmanager
def recorded(id: str, *, slots: int = 1) -> Iterator[None]:
    """Record an execution of the task that runs now; `id` is that of its request."""
    book = notebook()
    if book is None:
        yield
        return
    task, number = current_task(), next(_numbers)
    facts = {
        "worker": task.worker, "epoch": task.epoch, "slots": slots, "token": task.token, "job": task.job,
        "attempt": task.attempt, "fence": task.fence, "key": task.key,
    }  # fmt: skip
    if task.in_gang:
        facts |= {"gang": task.gang.id, "generation": task.gang.generation, "rank": task.gang.rank}
    book.note("start", n=number, id=id, **facts)
    done = cancelled = False
    try:
        yield
        done = True
    except (asyncio.CancelledError, GeneratorExit):
        cancelled = True
        raise
    finally:
        book.note("end", n=number, done=done, **({"cancelled": True} if cancelled else {}))


class _Drains(logging.Handler):
    """Records when the process begins to drain, which only the process itself knows."""

    def emit(self, record: logging.LogRecord) -> None:
        book = notebook()
        if book is not None and getattr(record, "action", "") == "worker.drain":
            book.note("drain")


if FOLDER in os.environ:  # in a worker whose tasks are recorded
    logging.getLogger("gangline").addHandler(_Drains())
