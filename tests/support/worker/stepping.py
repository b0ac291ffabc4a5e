"""Shared by the tests of the stepper and its carriers: executions without a worker around them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from gangline.worker.context.task_context import TaskContext
from gangline.worker.execution.executors.stepper import Carrier, Stepper

Work = Callable[..., Coroutine[Any, Any, Any]]


class Piece:
    """An execution for the stepper, and its outcome."""

    def __init__(self, work: Work, *args: Any, name: str = "piece", keep: bool = False) -> None:
        """`keep`: keep a reference to the carrying task after its end."""
        self.work = work
        self.keep = keep
        self.args = list(args)
        self.name = name
        self.carrier: asyncio.Task[None] | None = None
        self.number = 0
        """Id of its task, unknown to everything else."""
        self.outcome: Any = None
        self.over = asyncio.Event()

    def begin(self, carrier: Carrier) -> bool:
        self.carrier, self.number = carrier.task, id(carrier.task)
        args, self.args = self.args, []
        if not carrier.start(contextvars.copy_context(), self.work, args, {}, TaskContext()):
            return False
        self.ended(carrier.value, carrier.error)
        return True

    def ended(self, result: Any, error: BaseException | None) -> None:
        assert not self.over.is_set(), "ended twice"
        self.outcome = result if error is None else error
        if not self.keep:
            self.carrier = None
        self.over.set()


def stepping(*works: Work) -> tuple[Stepper, list[Piece]]:
    """A stepper, and an execution of each."""
    stepper, pieces = Stepper(asyncio.get_running_loop()), [Piece(work, keep=True) for work in works]
    for piece in pieces:
        stepper.add(piece)
    return stepper, pieces
