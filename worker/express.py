"""The short way of plain tasks: from an admitted frame to its answer in one call.

Most tasks are coroutines of a call or a lease, without a time limit of their own, a stream, middleware or a gang, and
many of them never have to wait. Those are run here where their frame is looked at: no run, no execution and no asyncio
task is made for them. One that waits gets all of these at its first wait, and one that fails for its end; from there on
it is like any other.

Used in one turn at a time, between `enter` and `leave`, around the frames of one message.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..schemas.codec import pack
from ..schemas.deadline import begin_under
from ..schemas.frames import Answer
from ..telemetry.instruments import metrics_enabled
from ..telemetry.tracing import tracer
from .books import Books
from .context import CURRENT, TaskContext
from .executors import Executors
from .frame_caller import FrameCaller
from .memory import TaskRecord
from .outbox import Outbox
from .run_context import RunContext
from .runs import Runs
from .tasks import BoundCall, DeclaredTask

_OK: Final = int(Answer.OK)


class Express:
    """Runs the plain tasks of one worker."""

    def __init__(self, books: Books, runs: Runs, executors: Executors, outbox: Outbox) -> None:
        self._books = books
        self._core = books.core
        self._journal = books.journal
        self._runs = runs
        self._executors = executors
        self._outbox = outbox
        self._open = False
        self._room = 0
        self._succeeded: dict[str, int] = {}
        """By method, since `enter`."""

    def enter(self) -> None:
        """A message begins."""
        # Spans and times of execution are taken by the general way only.
        self._open = not tracer.enabled and not metrics_enabled() and self._executors.running
        self._room = self._outbox.largest_frame

    def leave(self) -> None:
        """The message is worked off, and this turn's answers are on their way."""
        self._open = False
        self._executors.stepper.leave()
        if self._succeeded:
            counted, self._succeeded = self._succeeded, {}
            self._runs.count(counted)

    def takes(self, task: DeclaredTask) -> bool:
        """Whether a task without a job, a stream and a gang is plain enough."""
        return self._open and self._executors.plain(task)

    def run(
        self,
        record: TaskRecord,
        task: DeclaredTask,
        args: list[Any] | None,
        kwargs: dict[str, Any] | None,
        caller: FrameCaller,
        *,
        fence: int,
        token: str | None,
        deadline_at: float | None,
        meta: dict[str, Any] | None,
        trace: str | None,
        json: bool,
        now: float,
    ) -> None:
        """Run an admitted task up to its end, or its first wait.

        Raises:
            InvalidArguments: they do not fit; nothing has started.
        """
        given, named = task.signature.bind(args, kwargs, json)
        books, executors = self._books, self._executors
        context = RunContext(record, task.name, books.worker, books, fence, token, deadline_at, trace, meta)
        executors.attach(context)
        if self._journal.enabled:
            self._runs.began(record, task.name, token)
        executors.stepper.enter()
        variables = contextvars.copy_context()
        waits: tuple[Coroutine[Any, Any, Any], Any] | None = None
        error: BaseException | None = None
        value: Any = None
        try:
            waits = variables.run(_first_step, task.function, given, named, context)
        except StopIteration as ended:
            value = ended.value
            frame = self._written(record.id, task, value)
            if frame is not None:
                self._answered(record, task.name, context, frame, caller, now)
                return
        except BaseException as raised:
            # SystemExit and its like too: a task ends itself, never its worker.
            error = raised
        call = BoundCall(task, given, named, args, kwargs, json)
        run = self._runs.adopt(record, call, caller, context, now)
        execution = executors.adopt(call, context, variables, on_done=run.done, on_abandoned=run.answer)
        if waits is None:
            execution.ended(value, error)
        else:
            run.launched(execution)
            execution.wait(*waits)

    def _written(self, task_id: int, task: DeclaredTask, value: Any) -> bytes | None:
        """The answer; None: there is something about the result that is for the general way to say."""
        try:
            frame = pack((_OK, task_id, task.result.write(value)))
        except Exception:
            return None
        return frame if len(frame) <= self._room else None

    def _answered(
        self, record: TaskRecord, method: str, context: TaskContext, frame: bytes, caller: FrameCaller, now: float
    ) -> None:
        self._executors.let_go(context)
        self._core.complete(record, frame, now)
        caller.send(frame)
        if self._journal.enabled:
            self._runs.ended(record, method)
        self._succeeded[method] = self._succeeded.get(method, 0) + 1


def _first_step(
    function: Callable[..., Coroutine[Any, Any, Any]], args: list[Any], kwargs: dict[str, Any], context: TaskContext
) -> tuple[Coroutine[Any, Any, Any], Any]:
    """In the execution's own context. Raises StopIteration with the result of one that does not wait."""
    CURRENT.set(context)
    if context.deadline is not None:
        begin_under(context.deadline)
    coroutine = function(*args, **kwargs)
    return coroutine, coroutine.send(None)
