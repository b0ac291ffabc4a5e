"""What executions have in common in every executor: one outcome, one reason to stop, a deadline, a limit on items."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from ....schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidResult,
    InvalidSettings,
    TaskCancelled,
    TaskFailed,
)
from ....schemas.text import plain
from ....schemas.wire import codec
from ....telemetry.exceptions import CUT, error_text, traceback_text
from ....telemetry.logs import logger_for
from ...context.lifespans import HookLimits, Lifespans
from ...context.task_context import TaskContext, end, stop
from ...pool.policy import may_retry
from ...pool.pool import BoundCall, CancelReason, DeclaredTask, Outcome, Shape
from .eager_start import EagerStarter


class CollectedStream:
    """Gathers items."""

    __slots__ = ("_bytes", "_limit_bytes", "_where", "items")

    def __init__(self, where: str, limit_bytes: int) -> None:
        self.items: list[Any] = []
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self._where = where

    def add(self, value: Any) -> None:
        """Raises InvalidResult if the list would exceed its limit."""
        self._bytes += len(codec.pack(value))
        if self._bytes > self._limit_bytes:
            raise InvalidResult(
                f"{self._where}: the items exceed {self._limit_bytes} bytes in total: ask for a stream and read them "
                "one by one",
                details={"limit_bytes": self._limit_bytes, "items": len(self.items)},
            )
        self.items.append(value)


_EXECUTORS = str(__package__)


def failure_of(
    error: BaseException, reason: GanglineError | None, task: DeclaredTask, *, with_traceback: bool = True
) -> GanglineError:
    """The error that the caller gets.

    Args:
        error: what the task raised.
        reason: why the execution was told to stop, if it was; whatever it raised then is its way of stopping.
        task: which says after what it may be tried again.
        with_traceback: whether the caller may see the traceback.

    Returns:
        The error. If the task raised, the exception is its `__cause__`, for the log.
    """
    where = task.full_name
    if reason is not None:
        return reason
    if isinstance(error, InvalidResult):
        return error
    if isinstance(error, asyncio.CancelledError):
        return TaskCancelled(f"{where} cancelled itself")
    kind = type(error).__qualname__
    text = error_text(error)
    began = _users_part(error.__traceback__)
    trace = traceback_text(error, began)
    details: dict[str, object] = {"type": kind, "message": text}
    if not may_retry(error, task.policy):
        details["non_retryable"] = True
    if with_traceback:
        details["traceback"] = trace
    failed = TaskFailed(f"{where} raised {kind}: {text}" if text else f"{where} raised {kind}", details=details)
    # Whoever logs a cause formats all of it.
    whole = BaseException.with_traceback(error, began)
    failed.__cause__ = RaisedElsewhere(trace) if CUT in trace or CUT in text else whole
    return failed


class RaisedElsewhere(Exception):
    """The traceback, as text, of what a task raised in a child process, or of what is too large to be logged whole."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"


def failure_from_child(error: GanglineError, *, with_traceback: bool) -> GanglineError:
    """The error that the caller gets for a task in a child process, which sends its traceback along.

    Args:
        with_traceback: whether the caller may see it.

    Returns:
        The error, with the traceback as its `__cause__`, for the log.
    """
    if isinstance(error, TaskFailed) and error.remote_traceback:
        details = dict(error.details)
        cause = RaisedElsewhere(details.pop("traceback"))
        error = error if with_traceback else TaskFailed(error.message, details=details)
        error.__cause__ = cause
    return error


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the executor's own frames at the top."""
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__package__")).startswith(_EXECUTORS)


OnDone = Callable[[Outcome], None]
OnItem = Callable[[int, Any], None]

MAX_COLLECTED_BYTES: Final = 8 << 20
"""Maximum total size of a stream that is collected into a list."""
DEFAULT_WINDOW = 64
"""How many items a stream may be ahead of its reader."""

_log = logger_for(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """How tasks run. Frozen; validated at construction."""

    send_tracebacks: bool = True
    """Whether callers get the traceback of an exception that a task raised. False keeps paths and lines of code on the
    worker."""
    max_collected_bytes: int = MAX_COLLECTED_BYTES
    """Maximum size of the list into which a stream is collected if its caller did not ask for a stream."""
    warm_processes: int = 1
    """Child processes started with the worker, if a task needs them. More start on demand."""
    idle_processes: int | None = None
    """Maximum number of idle children. None: the pool's number of slots. Fewer save memory but cost startups."""
    process_start_s: float = 60.0
    """How long a child may take to import the tasks and enter its lifespans. Raise it for slow imports."""
    limits: HookLimits = field(default_factory=HookLimits)
    """How long lifespans, model loaders and unloaders may take."""

    def __post_init__(self) -> None:
        if self.max_collected_bytes < 1:
            raise InvalidSettings(f"max_collected_bytes must be at least 1, not {self.max_collected_bytes}")
        if self.warm_processes < 0:
            raise InvalidSettings(f"warm_processes must not be negative, not {self.warm_processes}")
        if self.idle_processes is not None and self.idle_processes < 0:
            raise InvalidSettings(f"idle_processes must not be negative, not {self.idle_processes}")
        if not self.process_start_s > 0:
            raise InvalidSettings(f"process_start_s must be above 0, not {self.process_start_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSite:
    """What all executions of one worker share."""

    loop: asyncio.AbstractEventLoop
    scope: Lifespans
    settings: ExecutorSettings
    starter: EagerStarter


class TaskExecution:
    """One execution. All methods run on the event loop, unless they say otherwise.

    Invariant: `_on_done` is called exactly once, never from inside `launch`, and nothing of the task runs after it.
    """

    # No __slots__: attributes that most instances never set are on the class, which makes instances cheaper to create.

    reason: GanglineError | None = None
    """Why it was told to stop."""
    done = False
    inner = False
    """It is part of another execution, which continues after it in the same context."""
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        call: BoundCall,
        context: TaskContext,
        site: ExecutionSite,
        on_done: OnDone,
        on_item: OnItem | None,
        on_abandoned: OnDone | None,
    ) -> None:
        """See ExecutorRegistry.launch."""
        self.call = call
        self.context = context
        self.loop = site.loop
        self._site = site
        self._on_done = on_done
        self._on_item = on_item
        self._on_abandoned = on_abandoned

    @property
    def where(self) -> str:
        """The task's full name."""
        return self.call.task.full_name

    @property
    def settings(self) -> ExecutorSettings:
        return self._site.settings

    def arm(self) -> None:
        """Stop it after its own `timeout_s`, unless the caller's deadline comes first."""
        context, timeout_s = self.context, self.call.timeout_s
        if timeout_s is not None:
            own = self.loop.time() + timeout_s
            if context.deadline is None or own < context.deadline:
                context.deadline = own
                self._timer = self.loop.call_at(own, self._overdue)

    def cancel(self, reason: CancelReason) -> None:
        """See Execution.cancel."""
        if self.done or self.reason is not None:
            return
        self.reason = reason
        stop(self.context, reason)
        self.stop(reason)

    def insist(self) -> None:
        """See Execution.insist."""
        if not self.done and self.reason is not None:
            self.stop(self.reason)

    def credit(self, items: int) -> None:
        """See Execution.credit."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self, reason: GanglineError) -> None:
        """Make the code stop, as far as this executor can."""
        raise NotImplementedError

    def finish(self, outcome: Outcome) -> None:
        """The code has stopped. Only the first call counts."""
        if self.done:
            return
        self.done = True
        if self._timer is not None:
            self._timer.cancel()
        if not self.inner:
            end(self.context)
            models = self._site.scope.models
            if models.pinned:
                models.done_with(self.context)
        try:
            self._on_done(outcome)
        except Exception:
            _log.exception("reporting a finished task failed", extra={"action": "report_failed", "id": self.context.id})

    def failed(self, error: BaseException) -> Outcome:
        """May be called from any thread."""
        return Outcome(
            error=failure_of(error, self.reason, self.call.task, with_traceback=self.settings.send_tracebacks)
        )

    def _overdue(self) -> None:
        timeout_s = self.call.timeout_s or 0.0
        self.cancel(
            DeadlineExceeded(
                self.call.task.overdue("after", f"its timeout_s of {plain(timeout_s)} s"),
                may_have_started=True,
                details={"timeout_s": timeout_s},
            )
        )

    def __repr__(self) -> str:
        state = "done" if self.done else f"stopping: {self.reason}" if self.reason else "running"
        return f"{type(self).__name__}({self.where}, id={self.context.id!r}, {state})"


_TURN_ITEMS = 16
"""A generator that never awaits lets others use the loop after this many items."""


class CoroutineExecution(TaskExecution):
    """One execution on the event loop; see eager_start for how it is started.

    Cancelling raises CancelledError at the task's current await. A task that swallows it runs on, and its slot stays in
    use until it ends; what it returns then is its result.
    """

    _task: asyncio.Task[None] | None = None
    """The asyncio task that it runs as, while it waits."""
    _room_freed: asyncio.Future[None] | None = None

    def start(self, window: int) -> None:  # type: ignore[override]
        self._room = window
        self._variables = contextvars.copy_context()
        self._site.starter.add(self)

    def stop(self, reason: GanglineError) -> None:
        if self._task is not None:  # otherwise `begin` finds the reason
            self._task.cancel()

    def credit(self, items: int) -> None:
        self._room += items
        if self._room > 0 and self._room_freed is not None and not self._room_freed.done():
            self._room_freed.set_result(None)

    # -- for the starter ------------------------------------------------------------------------------------------

    def begin(self, starter: EagerStarter) -> None:
        if self.reason is not None:
            self.finish(Outcome(error=self.reason))
            return
        call = self.call
        if call.task.shape is Shape.COROUTINE:
            function, args, kwargs = call.task.function, call.args, call.kwargs
        else:
            function, args, kwargs = self._collected, [], {}
        task = starter.start(self._variables, self.where, function, args, kwargs, self.context)
        if task is None:
            self.ended(*starter.take())
            return
        self._task = task
        starter.tell(task, self)
        if self.reason is not None:  # its first step has led to that
            task.cancel()

    def ended(self, result: Any, error: BaseException | None) -> None:
        self._task = None
        self.finish(self._outcome(result) if error is None else self.failed(error))

    def _outcome(self, result: Any) -> Outcome:
        if type(result) is Outcome:
            return result
        try:
            return Outcome(self.call.task.result.write(result))
        except BaseException as error:
            return self.failed(error)

    # -- what is no coroutine function ----------------------------------------------------------------------------

    async def _collected(self) -> Outcome:
        call = self.call
        task = call.task
        if task.shape is Shape.FUNCTION:
            return Outcome(value=task.result.write(task.function(*call.args, **call.kwargs)))
        return await self._stream(task.function(*call.args, **call.kwargs))

    async def _stream(self, generator: Any) -> Outcome:
        if self.call.task.shape is Shape.GENERATOR:
            generator = _as_async(generator)
        write = self.call.task.result.write
        collected = CollectedStream(self.where, self.settings.max_collected_bytes)
        sequence, closed = 0, False
        try:
            async for item in generator:
                value = write(item)
                if self._on_item is None:
                    collected.add(value)
                else:
                    if self._room <= 0:
                        await self._wait_for_room()
                    self._room -= 1
                    self._on_item(sequence, value)
                sequence += 1
                if sequence % _TURN_ITEMS == 0:
                    await asyncio.sleep(0)
        except GeneratorExit:
            closed = True  # the loop was closed: nothing can be awaited, and the generator has got GeneratorExit too
            raise
        finally:
            if not closed:
                await generator.aclose()
        return Outcome(value=collected.items) if self._on_item is None else Outcome(items=sequence)

    async def _wait_for_room(self) -> None:
        while self._room <= 0:
            self._room_freed = self.loop.create_future()
            await self._room_freed
        self._room_freed = None


async def _as_async(generator: Generator[Any, Any, Any]) -> AsyncIterator[Any]:
    try:
        for item in generator:
            yield item
    finally:
        generator.close()
