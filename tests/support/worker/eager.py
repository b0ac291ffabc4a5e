"""Shared by the tests of eager start: executions without a worker around them."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from gangline.worker.context.task_context import TaskContext
from gangline.worker.execution.executors.eager_backport import Carriers
from gangline.worker.execution.executors.eager_start import EagerStarter, EagerTasks

Work = Callable[..., Coroutine[Any, Any, Any]]

WAYS: tuple[type[EagerStarter], ...] = (EagerTasks,) if sys.version_info >= (3, 12) else (Carriers,)
"""What workers use on this Python."""


class Piece:
    """An execution, and its outcome."""

    def __init__(self, work: Work, *args: Any, name: str = "piece", keep: bool = False) -> None:
        """`keep`: keep a reference to its task after its end."""
        self.work = work
        self.keep = keep
        self.args = list(args)
        self.name = name
        self.task: asyncio.Task[None] | None = None
        self.number = 0
        """Id of its task, unknown to everything else."""
        self.outcome: Any = None
        self.waited = False
        self.over = asyncio.Event()

    def begin(self, starter: EagerStarter) -> None:
        args, self.args = self.args, []
        task = starter.start(contextvars.copy_context(), self.name, self.work, args, {}, TaskContext())
        if task is None:
            self.ended(*starter.take())
            return
        self.task, self.number, self.waited = task, id(task), True
        starter.tell(task, self)

    def ended(self, result: Any, error: BaseException | None) -> None:
        assert not self.over.is_set(), "ended twice"
        self.outcome = result if error is None else error
        if not self.keep:
            self.task = None
        self.over.set()
