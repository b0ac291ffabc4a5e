"""The short way of plain tasks: from an admitted frame to its answer in one call.

Most tasks are coroutines of a call, a lease or a durable job, without a time limit of their own, a stream, middleware
or a gang, and many of them never have to wait. Those are run here where their frame is looked at: no run, no execution
and no asyncio task is made for them. One that waits gets all of these at its first wait, and one that fails for its
end; from there on it is like any other.

Used in one turn at a time, between `enter` and `leave`, around the frames of one message.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any, Final

from ...schemas.wire.codec import pack
from ...schemas.wire.frames import AnswerOp, Frame, TaskFlag
from ...telemetry.metrics.instruments import metrics_enabled
from ...telemetry.tracing import tracer
from ..context.task_context import report_to, stop
from ..execution.executor_registry import ExecutorRegistry
from ..execution.executors.stepper import Stepper
from ..execution.run_context import RunContext
from ..execution.runner import TaskRun, TaskRunner
from ..ledger.core_driver import CoreDriver
from ..pool.declared_task import CancelReason, DeclaredTask, Outcome
from ..slots.request_dedup import TaskRecord
from .answer_batcher import AnswerBatcher
from .durable_jobs import ID_BYTES, JobRun
from .frame_responder import FrameResponder

_OK: Final = int(AnswerOp.OK)
_JSON: Final = int(TaskFlag.JSON)
_NONE: Final[frozenset[DeclaredTask]] = frozenset()


class InlineRun(TaskRun):
    """A plain task that had to wait, or did not simply end: a run and its execution in one."""

    carrier: asyncio.Task[None] | None = None
    """What it runs as."""
    reason: CancelReason | None = None
    """Why it was told to stop."""
    caller: FrameResponder | JobRun
    context: RunContext

    def __init__(
        self,
        inline: InlineRunner,
        runs: TaskRunner,
        record: TaskRecord,
        task: DeclaredTask,
        caller: FrameResponder | JobRun,
        context: RunContext,
        now: float,
    ) -> None:
        super().__init__(runs, record, task, caller, now)
        self._inline = inline
        self.context = context
        record.handle = self

    def let_go(self) -> None:
        self.record.handle = None

    def cancel(self, reason: CancelReason) -> None:
        if self.reason is None and self.carrier is not None:
            self.reason = reason
            stop(self.context, reason)
            self.carrier.cancel()

    def insist(self) -> None:
        if self.reason is not None and self.carrier is not None:
            self.carrier.cancel()

    def ended(self, result: Any, error: BaseException | None) -> None:
        self.carrier = None
        self._inline.end(self, result, error)

    def over(self, value: Any, error: BaseException | None) -> None:
        """It has stopped, and there is something to be said about it."""
        self.done(self._inline.outcome(self, value, error))


class InlineRunner:
    """Runs the plain tasks of one worker."""

    def __init__(
        self, driver: CoreDriver, runs: TaskRunner, executors: ExecutorRegistry, answer_batcher: AnswerBatcher
    ) -> None:
        self._driver = driver
        self._core = driver.core
        self._journal = driver.journal
        self._runs = runs
        self._executors = executors
        self._answers = answer_batcher
        self._scope = executors.scope
        self._stepper: Stepper
        self._room = 0
        self._launched = 0
        self._adopted: dict[str, int] = {}
        """What did not simply end, by method, since `enter`."""
        self._succeeded: dict[str, int] = {}
        """What did."""
        self.plain: frozenset[DeclaredTask] = _NONE
        """Tasks that may go this way now, if they are without a stream and a gang."""

    def enter(self) -> None:
        """A message begins."""
        # Spans and times of execution are taken by the general way only.
        if self._executors.running and not tracer.enabled and not metrics_enabled():
            self.plain = self._executors.plain
            self._stepper = self._executors.stepper
        # What is a little larger is for the general way to judge: it knows who may get it again, under a longer id.
        self._room = self._answers.largest_frame - ID_BYTES

    def leave(self) -> None:
        """The message is worked off, and this turn's answers are on their way."""
        self.plain = _NONE
        if self._launched:
            self._stepper.leave()
            self._executors.count(self._launched)
            self._launched = 0
            self._runs.count(self._adopted, self._succeeded)
            self._adopted.clear()
            self._succeeded.clear()

    def run(
        self,
        record: TaskRecord,
        task: DeclaredTask,
        frame: Frame,
        caller: FrameResponder | JobRun,
        deadline_at: float | None,
        now: float,
    ) -> None:
        """Run an admitted task up to its end, or its first wait.

        Raises:
            InvalidArguments: they do not fit; nothing has started.
        """
        _, task_id, _, args, kwargs, _, token, trace, flags, meta = frame
        given, named = task.signature.bind(args, kwargs, flags & _JSON != 0)
        context = RunContext(record, task.name, self._driver, token, trace, meta, deadline_at, self._scope)
        self._launched += 1
        if not isinstance(caller, FrameResponder):
            report_to(context, caller.progress)
        if self._journal.enabled:
            self._runs.began(record, task.name, token, caller)
        carrier = self._stepper.inside
        if carrier is None or carrier.spoiled:
            carrier = self._stepper.enter()
        if not carrier.start(copy_context(), task.function, given, named, context):
            run = self._adopt(record, task, caller, context, now)
            run.carrier = carrier.task
            self._stepper.keep(run, task.full_name)
            return
        value, error = carrier.value, carrier.error
        carrier.value = carrier.error = None
        answer = self._written(task_id, task, value) if error is None else None
        if answer is None:
            self._adopt(record, task, caller, context, now).over(value, error)
            return
        self._executors.let_go(context)
        self._core.complete(record, answer, now)
        if isinstance(caller, FrameResponder):
            caller.send(answer)
        else:
            caller.completed(answer, now)
        if self._journal.enabled:
            self._runs.ended(record, task.name, caller)
        self._succeeded[task.name] = self._succeeded.get(task.name, 0) + 1

    def _adopt(
        self, record: TaskRecord, task: DeclaredTask, caller: FrameResponder | JobRun, context: RunContext, now: float
    ) -> InlineRun:
        self._adopted[task.name] = self._adopted.get(task.name, 0) + 1
        return InlineRun(self, self._runs, record, task, caller, context, now)

    def end(self, run: InlineRun, value: Any, error: BaseException | None) -> None:
        """A run that had to wait has come to its end."""
        self._executors.let_go(run.context)
        if error is None and not run.record.answered and isinstance(run.caller, FrameResponder):
            answer = self._written(run.record.id, run.task, value)
            if answer is not None:
                run.caller.send(answer)
                self._runs.completed(run, answer, self._driver.now())
                return
        run.over(value, error)

    def outcome(self, run: InlineRun, value: Any, error: BaseException | None) -> Outcome:
        """What it came to, in words."""
        task = run.task
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
