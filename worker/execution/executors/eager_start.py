"""Eager start: an execution makes its first step in the turn in which it is launched, and needs no turn of the loop if
it never waits.

From its first step to its last, an execution sees one current task, which goes by the execution's name, and its own
context variables. An execution that waits is an asyncio task like any other.

`EagerTasks` does this with asyncio's eager tasks. Python 3.11 has none: see eager_backport. `ExecutorRegistry` chooses.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ....schemas.deadline import UNDER
from ...context.task_context import TaskContext

Function = Callable[..., Coroutine[Any, Any, Any]]


class WaitingExecution(Protocol):
    """An execution whose coroutine had to wait."""

    def ended(self, result: Any, error: BaseException | None) -> None:
        """The coroutine has ended, with a result or with the error that it raised."""


class QueuedExecution(Protocol):
    """An execution that was launched, and makes its first step later in the same turn."""

    def begin(self, starter: EagerStarter) -> None:
        """Make the first step. Never raises."""


class EagerStarter:
    """Starts the executions of one worker. Used only on the event loop."""

    __slots__ = ("_loop", "_ready", "_scheduled", "error", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[QueuedExecution] = deque()
        self._scheduled = False
        self.value: Any = None
        """The result of a coroutine that ended in its first step."""
        self.error: BaseException | None = None
        """The error that it raised."""

    def start(
        self,
        variables: contextvars.Context,
        name: str,
        function: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        context: TaskContext,
    ) -> asyncio.Task[None] | None:
        """Call a coroutine function, and run it up to its first wait or to its end. Never raises.

        Whoever starts several in a row calls `leave` after the last.

        Args:
            variables: context variables of the execution alone.
            name: of its task.
            context: what the clients that it uses take their deadlines from.

        Returns:
            The task, if it waits: call `tell` next. None: it has ended, and `take` says how.
        """
        raise NotImplementedError

    def tell(self, task: asyncio.Task[None], execution: WaitingExecution) -> None:
        """Who hears of the end of the coroutine that was started last, and waits."""
        raise NotImplementedError

    def take(self) -> tuple[Any, BaseException | None]:
        """The result or the error of the coroutine that was started last, and has ended."""
        value, error = self.value, self.error
        self.value = self.error = None
        return value, error

    def leave(self) -> None:
        """End of some starts: the current task is again the one of before. Idempotent."""

    def close(self) -> None:
        """Nothing more will be launched."""

    def add(self, execution: QueuedExecution) -> None:
        """Begin it when the launcher calls `step`, in this turn; soon, if nobody does."""
        self._ready.append(execution)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._soon)

    def step(self) -> None:
        """Begin all that were added."""
        ready = self._ready
        if ready:
            try:
                while ready:
                    ready.popleft().begin(self)
            finally:
                self.leave()

    def _soon(self) -> None:
        self._scheduled = False
        self.step()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._ready)} to begin>"


class EagerTasks(EagerStarter):
    """Each execution has an asyncio task of its own. Needs Python 3.12."""

    __slots__ = ("_first", "_task", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        # Below Python 3.14, no loop's `create_task` has `eager_start`, except on virtual time, which has its own tasks.
        self._task: Any = loop.create_task if getattr(loop, "is_virtual", False) else asyncio.Task
        self._first = False
        """A coroutine makes its first step."""
        self._waiting: dict[asyncio.Task[Any] | None, WaitingExecution] = {}

    def start(
        self,
        variables: contextvars.Context,
        name: str,
        function: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        context: TaskContext,
    ) -> asyncio.Task[None] | None:
        outer, self._first = self._first, True
        task: asyncio.Task[None] = self._task(
            self._run(function, args, kwargs, context), loop=self._loop, name=name, context=variables, eager_start=True
        )
        self._first = outer
        return None if task.done() else task

    def tell(self, task: asyncio.Task[None], execution: WaitingExecution) -> None:
        self._waiting[task] = execution

    async def _run(self, function: Function, args: list[Any], kwargs: dict[str, Any], context: TaskContext) -> None:
        value = error = None
        try:
            UNDER.set(context)
            value = await function(*args, **kwargs)
        except BaseException as raised:
            # SystemExit and the like, too: a task ends itself, never its worker.
            if type(raised) is GeneratorExit and self._loop.is_closed():
                raise  # the loop was closed under us: there is nobody to report to
            error = raised
        if self._first:
            self.value, self.error = value, error
        else:
            self._waiting.pop(asyncio.current_task(self._loop)).ended(value, error)
        # An error's traceback refers to this frame.
        del self, function, args, kwargs, context, value, error
