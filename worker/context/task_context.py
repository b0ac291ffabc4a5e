"""What a task may ask about its own execution: `gangline.current_task()`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from ...schemas.deadline import UNDER
from ...schemas.errors.base import GanglineError
from .progress import Progress, written

if TYPE_CHECKING:
    from .gang_context import GangContext
    from .lifespans import Lifespans

R = TypeVar("R")


class TaskContext:
    """One execution, as its own code sees it. Made by the worker; read-only for tasks.

    Attributes:
        id: the request's id, for logs; unique with the sender that asked.
        pool, worker, method: who runs what.
        token: the lease's token; None for a call without one.
        epoch: the worker's epoch when this started.
        fence: a number that only grows, for resources that refuse zombies. 0 when there is no lease. Of a durable task
            greater with each attempt, also over dispatchers: to be compared within one job.
        attempt: 1 for the first try of this call or job, 2 for its first retry, and so on.
        job: id of the durable task (see `client.submit`) that this is an attempt of; None for a call.
        endpoint: where it was submitted to; None for a call.
        deadline: when the execution is stopped, on `clock`; None: never.
        key: session or shard key that the caller named.
        model_id: multiplexed model that the caller named.
        trace: W3C `traceparent` of the worker's span, for systems called from here; None without tracing.
        shadow: whether this is a copy of a request for a shadow pool, whose result nobody gets: leave side effects out.
        labels: further facts that the caller sent.
    """

    __slots__ = (
        "_ended",
        "_gang",
        "_progress",
        "_reason",
        "_scope",
        "_waiting",
        "attempt",
        "clock",
        "deadline",
        "endpoint",
        "epoch",
        "fence",
        "id",
        "job",
        "key",
        "labels",
        "method",
        "model_id",
        "pool",
        "shadow",
        "token",
        "trace",
        "worker",
    )

    def __init__(
        self,
        *,
        id: str = "",
        pool: str = "",
        worker: str = "",
        method: str = "",
        token: str | None = None,
        epoch: int = 0,
        fence: int = 0,
        attempt: int = 1,
        deadline: float | None = None,
        key: str | None = None,
        model_id: str | None = None,
        trace: str | None = None,
        labels: dict[str, str] | None = None,
        clock: Callable[[], float] | None = None,
        gang: GangContext | None = None,
        job: str | None = None,
        endpoint: str | None = None,
        shadow: bool = False,
    ) -> None:
        self.id = id
        self.pool = pool
        self.worker = worker
        self.method = method
        self.token = token
        self.epoch = epoch
        self.fence = fence
        self.attempt = attempt
        self.job = job
        self.endpoint = endpoint
        self.shadow = shadow
        self.deadline = deadline
        self.key = key
        self.model_id = model_id
        self.trace = trace
        self.labels = labels or {}
        self.clock = clock or asyncio.get_running_loop().time
        """The clock of `deadline`: the event loop's, which in a thread may lag by as long as the loop sleeps."""
        self._gang = gang
        self._progress: Progress | None = None
        self._reason: GanglineError | None = None
        self._scope: Lifespans | None = None
        self._ended = False
        self._waiting: Future[Any] | None = None
        """What a thread of this execution blocks on; cancelled with it."""

    @property
    def gang(self) -> GangContext:
        """The gang that this task runs in, as its member sees it.

        Raises:
            LookupError: it runs on no gang's seat; see `in_gang`.
        """
        if self._gang is None:
            raise LookupError(
                "this task does not run in a gang: dispatch it with `gang.run(...)`, or on a member's token"
            )
        return self._gang

    @property
    def in_gang(self) -> bool:
        """Whether this task runs on a gang's seat."""
        return self._gang is not None

    @property
    def cancelled(self) -> bool:
        """Whether this execution shall stop. Threads cannot be stopped from outside: they must look, now and then."""
        return self._reason is not None

    def check_cancelled(self) -> None:
        """Raise the reason if this execution shall stop; to be called often by long code in threads.

        Raises:
            TaskCancelled: the caller, an operator or a drain cancelled it.
            DeadlineExceeded: its time is over.
        """
        if self._reason is not None:
            raise self._reason

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, never below zero; None without a deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self.clock())

    async def progress(self, value: Any) -> None:
        """Tell whoever follows the job how far it is: `client.job(...).events()`, or `<ns>.job.<job>.progress`.

        Returns at once, and costs little: of what is said faster than every 50 ms only the newest goes out. The last
        value is sent before the job's answer. A report may be lost, and with it no more than that. In a call, which
        nobody follows, it does nothing; so it does once the task has ended.

        Args:
            value: anything that has a form on the wire, as results have, of at most 64 KiB.

        Raises:
            InvalidResult: it cannot be serialized.
            PayloadTooLarge: it is larger.
        """
        self._report(value)

    def progress_blocking(self, value: Any) -> None:
        """`progress` for code that runs in a thread or a child process, as plain `def` tasks do."""
        self._report(value)

    def _report(self, value: Any) -> None:
        progress = self._progress
        if progress is not None and not self._ended:
            progress.report(written(value, f"{self.pool}.{self.method}"))

    def resource(self, kind: type[R]) -> R:
        """The value of that type that one of the pool's `@pool.lifespan` functions yielded.

        Raises:
            LookupError: none did.
        """
        return self._owner().resource(kind)

    async def model(self) -> Any:
        """The caller's model, loaded by the pool's `@pool.model_loader` if need be, and kept until this task ends.

        Waits while as many models as the pool allows are loaded and in use. Cancelling stops waiting; a load that has
        begun goes on, since others may wait for it.

        Raises:
            LookupError: the pool has no loader, or the caller named no model.
        """
        return await self._owner().models.use(self)

    def model_blocking(self) -> Any:
        """`model()` for code that runs in a thread or a child process, as plain `def` tasks do."""
        return self._owner().model_blocking(self)

    def _owner(self) -> Lifespans:
        if self._ended:
            raise LookupError("this task has ended: code that outlives it has no resources and no models")
        if self._scope is None:
            raise LookupError("this context was not made by a running worker, so it has no resources and no models")
        return self._scope

    def __repr__(self) -> str:
        state = ", cancelled" if self.cancelled else ""
        return f"TaskContext({self.pool}.{self.method}, id={self.id!r}, attempt={self.attempt}{state})"


# What the worker does to a context, kept off the class that tasks see (pyright knows no privacy by module).
# pyright: reportPrivateUsage=false


def attach(context: TaskContext, scope: Lifespans) -> None:
    """Give it the worker's resources and models."""
    context._scope = scope


def seat(context: TaskContext, gang: GangContext) -> None:
    """It runs on a seat of that gang."""
    context._gang = gang


def gang_of(context: TaskContext) -> GangContext | None:
    return context._gang


def report_to(context: TaskContext, progress: Progress) -> None:
    """It is a durable job's: what it says of its progress goes there."""
    context._progress = progress


def progress_of(context: TaskContext) -> Progress | None:
    return context._progress


def stop(context: TaskContext, reason: GanglineError) -> None:
    """Tell it, and a thread of it that waits, to stop. Only the first reason counts."""
    if context._reason is None:
        context._reason = reason
        if context._waiting is not None:
            context._waiting.cancel()


def end(context: TaskContext) -> None:
    """Its code has stopped: what it left running gets nothing more."""
    context._ended = True


def has_ended(context: TaskContext) -> bool:
    return context._ended


def wait_in_thread(context: TaskContext, future: Future[R]) -> R:
    """Block this thread until the future is done, or until the execution is told to stop."""
    context._waiting = future
    if context._reason is not None:
        future.cancel()
    try:
        return future.result()
    finally:
        context._waiting = None


def current_task() -> TaskContext:
    """The context of the task that this code runs in, in whichever executor.

    Raises:
        LookupError: this code does not run in a task.
    """
    under = UNDER.get()
    if not isinstance(under, TaskContext):
        raise LookupError("no task runs here: current_task() works inside functions declared with @pool.task")
    return under


def add_task_ids(record: logging.LogRecord) -> bool:
    """A logging filter: adds to each line of a task's code which task, of which worker, wrote it. Keeps all lines."""
    under = UNDER.get()
    if isinstance(under, TaskContext):
        facts: dict[str, object] = {"pool": under.pool, "worker": under.worker, "method": under.method}
        facts["task_id"] = under.id
        if under.job is not None:
            facts |= {"job": under.job, "attempt": under.attempt}
        for name, value in facts.items():
            record.__dict__.setdefault(name, value)
    return True
