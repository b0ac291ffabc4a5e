"""Runs tasks: from an admitted record to its answer, and until its slots are free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

from ...schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidResult,
    TaskCancelled,
    TaskCrashed,
    TaskFailed,
)
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.names import WorkerId, public_id
from ...telemetry.logs import LineLimit, logger_for
from ...telemetry.tracing import NO_SPAN, Parent, Span, tracer
from ..context.progress import Progress
from ..context.task_context import TaskContext, report_to
from ..ledger.core_driver import CoreDriver
from ..pool.pool import BoundCall, CancelReason, DeclaredTask, Execution, Outcome
from ..slots.job_table import RunningJob
from ..slots.lease_table import GrantedLease, RouterHistory, TaskRecord
from .executor_registry import ExecutorRegistry

if TYPE_CHECKING:
    from ..context.lifespans import Lifespans


HOLD_S: Final = 2.0
"""How long a held task waits to be started. Its caller may be gone, and others want the slots."""


class StartGate:
    """Delays the start of one admitted task on a seat of a gang.

    The tasks of a call on all ranks first take their slots; none starts before all have theirs. Other tasks wait until
    their member has started, or until the worker knows their generation.
    """

    __slots__ = ("_member", "_timer", "ready")

    def __init__(
        self,
        task: str,
        cancel: Callable[[TaskCancelled], None],
        member: asyncio.Future[None] | None,
        loop: asyncio.AbstractEventLoop,
        *,
        hold: bool,
    ) -> None:
        """
        Args:
            task: its name, for messages.
            cancel: ends it.
            member: done when the gang's member has started; None if it has. Many tasks may share it.
            hold: also wait for `open`.
        """
        self._member = member
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the task may start; for this task alone."""
        self._timer: asyncio.TimerHandle | None = None
        if hold:
            nobody = TaskCancelled(
                f"{task} was held and nobody started it within {HOLD_S:g} s: it did not run",
                may_have_started=False,
            )
            self._timer = loop.call_later(HOLD_S, cancel, nobody)
        else:
            self.open()

    def open(self) -> None:
        """The task need no longer be held. Idempotent."""
        self._silence()
        if self._member is None or self._member.done():
            self._pass(self._member)
        else:
            self._member.add_done_callback(self._pass)

    def drop(self) -> None:
        """The task was cancelled: end its wait. Idempotent."""
        self._silence()
        self._pass(None)

    def _silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, member: asyncio.Future[None] | None) -> None:
        if self.ready.done():
            return
        if member is not None and member.cancelled():
            self.ready.cancel()
        elif member is not None and (failure := member.exception()) is not None:
            self.ready.set_exception(failure)
        else:
            self.ready.set_result(None)


class RunContext(TaskContext):
    """The context of a run. Its values are computed on first use: every task gets a context, and few tasks read it."""

    __slots__ = ("_driver", "_epoch", "_meta", "_method", "_record", "_token", "_trace")

    def __init__(
        self,
        record: TaskRecord,
        method: str,
        driver: CoreDriver,
        token: str | None,
        trace: str | None,
        meta: dict[str, Any] | None,
        deadline_at: float | None,
        scope: Lifespans | None = None,
    ) -> None:
        self.deadline = deadline_at
        self._scope = scope
        self._record = record
        self._method = method
        self._driver = driver
        self._epoch = driver.core.epoch
        self._token = token
        self._trace = trace
        self._meta = meta

    def __getattr__(self, name: str) -> Any:
        """Computes an attribute that is not set yet."""
        if name in _UNSAID:
            return _UNSAID[name]
        if name not in _FACTS:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        record, worker, meta = self._record, self._driver.worker, self._meta or {}
        attempt, labels, job = meta.get("attempt"), meta.get("labels"), _text(meta.get("job"))
        self.id = unique(record)
        self.pool, self.worker, self.method = worker.pool, str(worker), self._method
        self.epoch, self.fence, self.trace = self._epoch, record.fence, self._trace
        self.token = None if self._token is None else public_id(self._token)
        self.attempt = attempt if type(attempt) is int and attempt > 0 else 1
        self.job = job
        self.endpoint = None if job is None else _text(meta.get("endpoint")) or worker.pool
        if job is not None:
            given = meta.get("fence")
            self.fence = given if type(given) is int and given > 0 else self.attempt
        self.key, self.model_id = _text(meta.get("key")), _text(meta.get("model"))
        self.labels = {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}
        self.shadow = meta.get("shadow") is True
        self.clock = self._driver.loop.time
        return object.__getattribute__(self, name)


_UNSAID: Final = {"_ended": False, "_gang": None, "_progress": None, "_reason": None, "_waiting": None}
_FACTS: Final = frozenset(
    (
        "id",
        "pool",
        "worker",
        "method",
        "epoch",
        "fence",
        "token",
        "trace",
        "attempt",
        "job",
        "endpoint",
        "key",
        "model_id",
        "labels",
        "shadow",
        "clock",
    )
)


def unique(record: TaskRecord) -> str:
    """A task's id for logs: unique together with its sender."""
    return f"{record.sender.name}.{record.id}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


MAX_STREAM_WINDOW = 100_000
"""A larger window is ignored."""


class ResultSink(Protocol):
    """Receives the answer of one run: a router by frames, or a requester in another language."""

    @property
    def job(self) -> RunningJob | None:
        """The durable job that the run is an attempt of, if any. Such a run is answered when its code has stopped, not
        when it is told to stop: the next attempt must not overlap with this one."""
        ...

    @property
    def progress(self) -> Progress | None:
        """Where an attempt of a durable job reports its progress."""
        ...

    def answer(self, run: TaskRun, outcome: Outcome) -> GanglineError | None:
        """Called exactly once for each run; returns the error that was sent, if any: a result may not fit into a
        message."""
        ...

    def item(self, run: TaskRun, sequence: int, value: Any) -> None:
        """One item of a stream; never called when the caller did not ask for a stream."""
        ...


class MemberSeats(Protocol):
    """The worker's gangs, as runs on their seats use them."""

    def attach(
        self, lease: GrantedLease, context: TaskContext, run: int, generation: int
    ) -> asyncio.Future[None] | None:
        """Give the task its gang. Returns a future if the member has not started yet (or was not told of that
        generation): the task starts when it is done, or fails with its exception."""
        ...

    def ended(self, lease: GrantedLease, context: TaskContext, outcome: Outcome) -> None:
        """The task's code has stopped, and its slots are free."""
        ...


class TaskRun:
    """One execution. Its record holds the slots until the code has really stopped; the caller may be answered
    earlier."""

    # No __slots__: attributes that most instances never set are on the class, which makes instances cheaper to create.

    _execution: Execution | None = None
    _stop: CancelReason | None = None
    _error: GanglineError | None = None
    """What the caller was told."""
    _uncredited = 0
    """Items that were sent and for which the reader has not granted credit."""
    context: TaskContext | None = None
    gate: StartGate | None = None
    """Delays its start, if it has to wait."""
    span: Span = NO_SPAN

    def __init__(
        self, runs: TaskRunner, record: TaskRecord, task: DeclaredTask, caller: ResultSink, now: float
    ) -> None:
        self._runs = runs
        self.record = record
        self.task = task
        self.caller = caller
        self.started_at = now

    def launched(self, execution: Execution) -> None:
        """The code runs (or has run already)."""
        self._execution = execution
        if self._stop is not None:
            execution.cancel(self._stop)

    def cancel(self, reason: CancelReason) -> None:
        """Stop the code. The caller is answered with its outcome, or as soon as the code is abandoned."""
        if self._execution is not None:
            self._execution.cancel(reason)
        elif self._stop is None:
            self._stop = reason
            if self.gate is not None:
                reason.may_have_started = False
                self.gate.drop()

    def begin(self) -> None:
        """Start it, if it was held. Others start by themselves."""
        if self.gate is not None:
            self.gate.open()

    def insist(self) -> None:
        """It was cancelled a while ago and still runs: cancel the code again."""
        if self._execution is not None:
            self._execution.insist()

    @property
    def stopped(self) -> CancelReason | None:
        """Why it must not start, if it was cancelled before that."""
        return self._stop

    def credit(self, items: int) -> None:
        """The reader of the stream has taken this many items. Capped at those sent, so that no reader can enlarge the
        window."""
        items = min(items, self._uncredited)
        if self._execution is not None and items > 0:
            self._uncredited -= items
            self._execution.credit(items)

    @property
    def unread(self) -> bool:
        """Whether items were sent for which the reader has not granted credit."""
        return self._uncredited > 0

    def item(self, sequence: int, value: Any) -> None:
        if not self.record.answered:
            self._uncredited += 1
            self.caller.item(self, sequence, value)

    def answer(self, outcome: Outcome) -> None:
        """Tell the caller, once. The code may still run."""
        if not self.record.answered:
            self._error = self.caller.answer(self, outcome)

    def done(self, outcome: Outcome) -> None:
        """The code has stopped: the slots are free (or the lease's) again."""
        self.answer(outcome)
        # Count what the caller was told: code that ignores its cancellation has not succeeded.
        self._runs.finished(self, outcome, self._error or outcome.error)

    def let_go(self) -> None:
        """Break reference cycles: with thousands of tasks a second, they are much work for the garbage collector."""
        self._execution = None
        self.record.handle = None

    def __repr__(self) -> str:
        return f"<TaskRun {self.task.full_name} {self.record!r}>"


class TaskRunner:
    """All runs of one worker: starts them, counts them, cancels them."""

    def __init__(self, driver: CoreDriver, executors: ExecutorRegistry, *, stream_window: int) -> None:
        self._driver = driver
        self._executors = executors
        self._stream_window = stream_window
        self._worker: WorkerId = driver.worker
        self.seats: MemberSeats | None = None
        """Looks after runs on seats of gangs."""
        self._log = logger_for("worker", pool=self._worker.pool, worker=self._worker.worker)
        self._log_limit = LineLimit(driver.now)
        self.counts = dict.fromkeys(("started", "succeeded", "failed", "cancelled", "crashed"), 0)

    def start(
        self,
        record: TaskRecord,
        call: BoundCall,
        caller: ResultSink,
        *,
        token: str | None,
        deadline_at: float | None,
        trace: Parent,
        meta: dict[str, Any] | None,
        stream: bool,
        held: Callable[[TaskRun], None] | None = None,
    ) -> TaskRun:
        """Launch an admitted task.

        Args:
            held: called if the task waits for `TaskRun.begin`: its caller asked for that and it runs on a gang's seat.
        """
        task, driver = call.task, self._driver
        if meta is not None and (timeout_s := _seconds(meta.get("timeout_s"))) is not None:
            call.timeout_s = timeout_s
        span = NO_SPAN
        carried = trace if isinstance(trace, str) else None
        if tracer.enabled:
            span = self.span(record, task, trace)
            carried = span.traceparent()
        run = TaskRun(self, record, task, caller, driver.now())
        run.span = span
        record.handle = run
        context = RunContext(record, task.name, driver, token, carried, meta, deadline_at)
        if caller.progress is not None:
            report_to(context, caller.progress)
        self.counts["started"] += 1
        driver.metrics.started(task.name)
        if driver.journal.enabled:
            shown = None if token is None else public_id(token)
            driver.record("start", id=unique(record), method=task.name, token=shown, cost=record.cost, **_facts(caller))
        run.context = context
        window = _window(meta, self._stream_window) if stream else None
        ready: asyncio.Future[None] | None = None
        seat = record.lease.in_gang if record.lease is not None else None
        if self.seats is not None and seat is not None:
            of = meta or {}
            ready = self.seats.attach(seat, context, _number(of.get("run")), _number(of.get("generation")))
            hold = held is not None and of.get("hold") is True
            if hold or ready is not None:
                run.gate = StartGate(run.task.full_name, run.cancel, ready, driver.loop, hold=hold)
                ready = run.gate.ready
            if hold and held is not None:
                held(run)
        if ready is None:
            self._begin(run, call, context, window)
        else:
            ready.add_done_callback(lambda done: self._ready(done, run, call, context, window))
        return run

    def _ready(
        self, ready: asyncio.Future[None], run: TaskRun, call: BoundCall, context: TaskContext, window: int | None
    ) -> None:
        """The wait for its member has ended: start it, unless the wait failed."""
        error: GanglineError | None = run.stopped
        if error is None and ready.cancelled():
            error = TaskCancelled("its gang was torn down before the member began", may_have_started=False)
        if error is None:
            failure = ready.exception()
            error = failure if isinstance(failure, GanglineError) else None
        if error is not None:
            run.done(Outcome(error=error))
            return
        try:
            self._begin(run, call, context, window)
        except GanglineError as refused:
            run.done(Outcome(error=refused))

    def _begin(self, run: TaskRun, call: BoundCall, context: TaskContext, window: int | None) -> None:
        # Clients that the task's code uses inherit the span, and from its context the deadline.
        with nullcontext() if run.span is NO_SPAN else run.span.current():
            execution = self._executors.launch(
                call,
                context,
                on_done=run.done,
                on_item=None if window is None else run.item,
                on_abandoned=run.answer if run.caller.job is None else None,
                window=window or self._stream_window,
            )
            run.launched(execution)

    def end_unread(self, senders: Iterable[RouterHistory], silent_since: float) -> None:
        """Stop streams whose reader is gone: they would wait for credit and keep their slots forever. A live reader
        grants credit, or asks about them, every few seconds. Durable jobs are left to their dispatchers."""
        for sender in senders:
            if sender.seen_at > silent_since:
                continue
            for record in list(sender.running.values()):
                run = record.handle
                if isinstance(run, TaskRun) and run.caller.job is None and run.unread:
                    run.cancel(TaskCancelled("the reader of its items has been silent for a minute"))

    # -- for InlineRunner, in worker.wire.frame_server --------------------------------------------------------------

    def span(self, record: TaskRecord, task: DeclaredTask, trace: Parent) -> Span:
        """The span of an execution."""
        return tracer.start(
            f"gangline.task {task.full_name}",
            kind="server",
            parent=trace,
            attributes={"gangline.worker": str(self._worker), "gangline.task_id": str(record.id)},
        )

    def completed(self, run: TaskRun, answer: bytes, now: float) -> None:
        """An adopted run has its result, already encoded: `answer` and `done` in one."""
        driver, method = self._driver, run.task.name
        driver.core.complete(run.record, answer, now)
        run.let_go()
        if driver.journal.enabled:
            self.ended(run.record, method, run.caller)
        self.counts["succeeded"] += 1
        driver.metrics.finished(method, now - run.started_at, "ok")
        if run.span is not NO_SPAN:
            run.span.end()
        driver.after_end()

    def began(self, record: TaskRecord, method: str, token: str | None, caller: ResultSink) -> None:
        """Write a start into the journal."""
        if self._driver.journal.enabled:
            facts = _facts(caller)
            shown = None if token is None else public_id(token)
            self._driver.record("start", id=unique(record), method=method, token=shown, cost=record.cost, **facts)

    def ended(self, record: TaskRecord, method: str, caller: ResultSink) -> None:
        """Write the end of a run that was not adopted."""
        if self._driver.journal.enabled:
            self._driver.record("end", id=unique(record), method=method, cost=record.cost, **_facts(caller))

    def count(self, adopted: dict[str, int], succeeded: dict[str, int]) -> None:
        """Count by method the runs that InlineRunner started: those adopted here, and those that also succeeded
        there."""
        for method, number in adopted.items():
            self.counts["started"] += number
            self._driver.metrics.started(method, number)
        for method, number in succeeded.items():
            self.counts["started"] += number
            self.counts["succeeded"] += number
            self._driver.metrics.succeeded(method, number)

    def overdue(self, record: TaskRecord) -> None:
        """The deadline has passed: stop the code and answer the caller at once. The caller of a durable job is answered
        when the code has stopped."""
        run = record.handle
        if isinstance(run, TaskRun):
            limit = "its deadline" if run.caller.job is None else "the time limit of its attempt"
            reason = DeadlineExceeded(run.task.overdue("at", limit), may_have_started=True)
            if run.caller.job is None:
                run.answer(Outcome(error=reason))
            run.cancel(reason)

    def cancel_all(self, reason: TaskCancelled) -> int:
        """Cancel all running tasks; returns how many."""
        records = list(self._driver.core.tasks)
        for record in records:
            if isinstance(record.handle, TaskRun):
                record.handle.cancel(reason)
        return len(records)

    def insist_all(self) -> None:
        """Cancel all running tasks again: the code of some may have caught the first time."""
        for record in list(self._driver.core.tasks):
            if isinstance(record.handle, TaskRun):
                record.handle.insist()

    def finished(self, run: TaskRun, outcome: Outcome, error: GanglineError | None) -> None:
        """Called by a run whose code has stopped; `error`: what its caller was told, None for a result."""
        driver, record, method = self._driver, run.record, run.task.name
        driver.core.finish(record)
        run.let_go()
        if driver.journal.enabled:
            driver.record("end", id=unique(record), method=method, cost=record.cost, **_facts(run.caller))
        self.counts[_count_of(error)] += 1
        code = "ok" if error is None else error.code
        driver.metrics.finished(method, driver.now() - run.started_at, code)
        if run.span is not NO_SPAN:
            run.span.end(error)
        seat = record.lease.in_gang if record.lease is not None else None
        if self.seats is not None and seat is not None and run.context is not None:
            self.seats.ended(seat, run.context, outcome)
        if isinstance(error, (TaskFailed, TaskCrashed, InvalidResult)):
            self._log_failure(run, error)
        driver.after_end()

    def _log_failure(self, run: TaskRun, error: GanglineError) -> None:
        """Log an error of the user's code with its traceback: the caller may be far away or gone."""
        left_out = self._log_limit.admit(f"{run.task.name} {error.code}")
        if left_out is None:
            return
        task_id, facts = unique(run.record), _facts(run.caller)
        crashed = isinstance(error, TaskCrashed)
        self._log.warning(
            "task %s%s %s: %s%s",
            task_id,
            f" (job {facts['job']}, attempt {facts['attempt']})" if facts else "",
            "crashed" if crashed else "failed",
            error.message,
            f" ({left_out} lines like it were left out)" if left_out else "",
            exc_info=error.__cause__,
            extra={
                "action": "worker.task_crashed" if crashed else "worker.task_failed",
                "method": run.task.name,
                "task_id": task_id,
                **facts,
                **(error.details if crashed else {}),
                **({"retryable": error.retryable} if isinstance(error, TaskFailed) else {}),
            },
        )


def _window(meta: dict[str, Any] | None, default: int) -> int:
    """How many items a stream may be ahead: as many as its reader says, which grants credit accordingly."""
    asked = (meta or {}).get("window")
    return asked if type(asked) is int and 1 <= asked <= MAX_STREAM_WINDOW else default


def _facts(caller: ResultSink) -> dict[str, Any]:
    """What journal and logs say of a durable job."""
    job = caller.job
    return {} if job is None else {"job": job.key.job, "endpoint": job.key.endpoint, "attempt": job.attempt}


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0


def _seconds(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and 0 < value <= MAX_DEADLINE_S else None  # type: ignore[operator, arg-type]


def _count_of(error: GanglineError | None) -> str:
    if error is None:
        return "succeeded"
    if isinstance(error, (TaskCancelled, DeadlineExceeded)):
        return "cancelled"
    return "crashed" if isinstance(error, TaskCrashed) else "failed"
