"""What every execution has in common, wherever it runs: one outcome, one reason to stop, a deadline, room for items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ....schemas.errors.base import DeadlineExceeded, GanglineError, InvalidSettings
from ....schemas.text import plain
from ....telemetry.logs import logger_for
from ...context.lifespans import Lifespans
from ...context.task_context import TaskContext, end, stop
from ...pool.declared_task import BoundCall, CancelReason, Outcome
from .failures import failure_of
from .stepper import Stepper

OnDone = Callable[[Outcome], None]
OnItem = Callable[[int, Any], None]

MAX_COLLECTED_BYTES: Final = 8 << 20
"""Of a stream that is collected into a list."""
DEFAULT_WINDOW = 64
"""Items of a stream sent ahead of what its reader has taken."""

_log = logger_for(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """How tasks run. Frozen; validated at construction."""

    send_tracebacks: bool = True
    """Whether callers get the traceback of what a task raised. False keeps paths and code lines to the worker."""
    max_collected_bytes: int = MAX_COLLECTED_BYTES
    """A stream whose caller did not ask for a stream is collected into a list of at most so many bytes."""
    warm_processes: int = 1
    """Child processes started with the worker, if a task needs them. The rest start when they are first needed."""
    idle_processes: int | None = None
    """Most children kept idle. None: as many as the pool has slots. Fewer save memory and cost start-ups."""
    process_start_s: float = 60.0
    """How long a child may take to import the tasks and open its lifespans. Raise it for slow imports."""

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
    stepper: Stepper


class TaskExecution:
    """One execution. All methods run on the event loop, unless they say otherwise.

    Invariant: `_on_done` is called exactly once, never from inside `launch`, and nothing of the task runs after it.
    """

    # No slots: what most executions never set stands in the class, which makes one of them cheaper to make.

    reason: GanglineError | None = None
    """Why it was told to stop."""
    done = False
    inner = False
    """It is part of another execution, which goes on after it in the same context."""
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
        """See Executors.launch."""
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
        """Stop it after the task's own `timeout_s`, unless the caller's deadline comes first."""
        context, timeout_s = self.context, self.call.task.timeout_s
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
        """Make the code stop, by whatever means this executor has."""
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
            self._site.scope.models.done_with(self.context)
        try:
            self._on_done(outcome)
        except Exception:
            _log.exception(
                "a finished task could not be reported", extra={"action": "report_failed", "id": self.context.id}
            )

    def failed(self, error: BaseException) -> Outcome:
        """May be called from any thread."""
        return Outcome(error=failure_of(error, self.reason, self.where, with_traceback=self.settings.send_tracebacks))

    def _overdue(self) -> None:
        task = self.call.task
        self.cancel(
            DeadlineExceeded(
                f"{self.where} was stopped after its timeout_s of {plain(task.timeout_s or 0)} s",
                may_have_started=True,
                details={"timeout_s": task.timeout_s},
            )
        )

    def __repr__(self) -> str:
        state = "done" if self.done else f"stopping: {self.reason}" if self.reason else "running"
        return f"{type(self).__name__}({self.where}, id={self.context.id!r}, {state})"
