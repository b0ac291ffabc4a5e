"""The short way of plain tasks: from an admitted frame to its answer in one call.

Most tasks are coroutines of a call or a lease, without a time limit of their own, a stream, middleware or a gang, and
many of them never have to wait. Those are run here where their frame is looked at: no run, no execution and no asyncio
task is made for them. One that waits gets all of these at its first wait, and one that fails for its end; from there on
it is like any other.

Used in one turn at a time, between `enter` and `leave`, around the frames of one message.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ..schemas.codec import pack
from ..schemas.deadline import begin_under
from ..schemas.frames import Answer
from ..telemetry.instruments import metrics_enabled
from ..telemetry.tracing import NO_SPAN, tracer
from .books import Books
from .context import CURRENT, TaskContext, stop
from .executors import Executors
from .executors.stepper import Blocked
from .frame_caller import FrameCaller
from .memory import TaskRecord
from .outbox import Outbox
from .run_context import RunContext
from .runs import Run, Runs
from .tasks import BoundCall, CancelReason, DeclaredTask, Outcome

_OK: Final = int(Answer.OK)
_NONE: Final[frozenset[DeclaredTask]] = frozenset()


class PlainRun(Run):
    """A plain task that had to wait, or did not simply end: a run and its execution in one."""

    carrier: asyncio.Task[None] | None = None
    """What it runs as."""
    reason: CancelReason | None = None
    """Why it was told to stop."""
    caller: FrameCaller

    def __init__(
        self,
        express: Express,
        runs: Runs,
        record: TaskRecord,
        call: BoundCall,
        caller: FrameCaller,
        context: TaskContext,
        now: float,
    ) -> None:
        super().__init__(runs, record, call, caller, NO_SPAN, now)
        self._express = express
        self.context = context

    def cancel(self, reason: CancelReason) -> None:
        if self.reason is None and self.carrier is not None and self.context is not None:
            self.reason = reason
            stop(self.context, reason)
            self.carrier.cancel()

    def insist(self) -> None:
        if self.reason is not None and self.carrier is not None:
            self.carrier.cancel()

    def ended(self, result: Any, error: BaseException | None) -> None:
        self.carrier = None
        self._express.end(self, result, error)

    def over(self, value: Any, error: BaseException | None) -> None:
        """It has stopped, and there is something to be said about it."""
        self.done(self._express.outcome(self, value, error))


class Express:
    """Runs the plain tasks of one worker."""

    def __init__(self, books: Books, runs: Runs, executors: Executors, outbox: Outbox) -> None:
        self._books = books
        self._core = books.core
        self._journal = books.journal
        self._runs = runs
        self._executors = executors
        self._outbox = outbox
        self._room = 0
        self._launched = 0
        self._succeeded: dict[str, int] = {}
        """By method, since `enter`."""
        self.plain: frozenset[DeclaredTask] = _NONE
        """Tasks that may go this way now, if they are without a job, a stream and a gang."""

    def enter(self) -> None:
        """A message begins."""
        # Spans and times of execution are taken by the general way only.
        if self._executors.running and not tracer.enabled and not metrics_enabled():
            self.plain = self._executors.plain
        self._room = self._outbox.largest_frame

    def leave(self) -> None:
        """The message is worked off, and this turn's answers are on their way."""
        self.plain = _NONE
        if self._launched:
            self._executors.stepper.leave()
            self._executors.count(self._launched)
            self._launched = 0
        if self._succeeded:
            counted, self._succeeded = self._succeeded, {}
            self._runs.count(counted)

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
        context = RunContext(
            record, task.name, books.worker, books, fence, token, deadline_at, trace, meta, executors.scope
        )
        self._launched += 1
        if self._journal.enabled:
            self._runs.began(record, task.name, token)
        stepper = executors.stepper
        if stepper.inside is None or stepper.inside.cancelling():
            stepper.enter()
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
        run = PlainRun(self, self._runs, record, call, caller, context, now)
        self._runs.adopt(run)
        if waits is None:
            run.over(value, error)
        else:
            run.carrier = stepper.enter()
            stepper.keep(Blocked(run, task.full_name, waits[0], variables, waits[1]))

    def end(self, run: PlainRun, value: Any, error: BaseException | None) -> None:
        """A run that had to wait has come to its end."""
        task, context = run.call.task, run.context
        assert context is not None
        self._executors.let_go(context)
        if error is None and not run.record.answered:
            frame = self._written(run.record.id, task, value)
            if frame is not None:
                run.caller.send(frame)
                self._runs.completed(run, frame, self._books.now())
                return
        run.over(value, error)

    def outcome(self, run: PlainRun, value: Any, error: BaseException | None) -> Outcome:
        """What it came to, in words."""
        task = run.call.task
        if error is None:
            try:
                return Outcome(task.result.write(value))
            except BaseException as unwritable:
                error = unwritable
        return self._executors.failed(error, run.reason, task.full_name)

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
