"""What a task can find out about its own execution, `gangline.current_task()`, and its gang, `current_task().gang`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ...schemas.deadline import UNDER
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import FormRequest
from ...schemas.records.gangs import HostPort
from .progress import Progress, written

R = TypeVar("R")


class TaskScope(Protocol):
    """What all tasks of one process share."""

    def resource(self, kind: type[R]) -> R: ...

    async def model(self, context: TaskContext) -> Any: ...

    def model_blocking(self, context: TaskContext) -> Any: ...


class TaskContext:
    """One execution, as seen by its own code. Created by the worker; read-only for tasks.

    Attributes:
        id: the request's id, for logs; unique together with its sender.
        pool, worker, method: what runs, and where; the worker as operators name it, `<pool>.<worker>`.
        token: the public id of the lease that it runs on; None for a call without one.
        epoch: the worker's epoch when this started.
        fence: a fencing token: a number that only grows, so that resources can refuse outdated processes. 0 without a
            lease. For a durable task it grows with each attempt, also across dispatchers; compare it within one job.
        attempt: 1 for the first attempt of this call or job, 2 for its first retry, and so on.
        job: id of the durable task (see `client.submit`) that this is an attempt of; None for a call.
        endpoint: the endpoint it was submitted to; None for a call.
        deadline: when the execution is stopped, on `clock`; None: never.
        key: session or shard key given by the caller.
        model_id: multiplexed model given by the caller.
        trace: W3C `traceparent` of the worker's span, for systems called from here; None without tracing.
        shadow: whether this is a copy of a request for a shadow pool, whose result is discarded: avoid side effects.
        labels: further data sent by the caller.
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
        """The clock of `deadline`: the event loop's, which in a thread may lag while the loop sleeps."""
        self._gang = gang
        self._progress: Progress | None = None
        self._reason: GanglineError | None = None
        self._scope: TaskScope | None = None
        self._ended = False
        self._waiting: Future[Any] | None = None
        """What a thread of this execution blocks on; cancelled with it."""

    @property
    def gang(self) -> GangContext:
        """The gang in which this task runs, as seen by its member.

        Raises:
            LookupError: it does not run on a gang's seat; see `in_gang`.
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
        """Whether this execution should stop. A thread cannot be stopped from outside: check this regularly."""
        return self._reason is not None

    def check_cancelled(self) -> None:
        """Raise the reason if this execution should stop. Call it often in long-running code in threads.

        Raises:
            TaskCancelled: the caller, an operator or a drain cancelled it.
            DeadlineExceeded: its deadline has passed.
        """
        if self._reason is not None:
            raise self._reason

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, never below zero; None without a deadline."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self.clock())

    async def progress(self, value: Any) -> None:
        """Report progress to those who follow the job: `client.job(...).events()`, or `<ns>.job.<job>.progress`.

        Cheap, and returns at once: reports are throttled to one per 50 ms (latest wins). The last one is sent before
        the job's answer. Reports may be lost. Does nothing in a call, which nobody follows, or after the task has
        ended.

        Args:
            value: anything that a task may return, up to 64 KiB.

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
        """The value of this type that one of the pool's `@pool.lifespan` functions yielded.

        Raises:
            LookupError: none of them yielded one.
        """
        return self._owner().resource(kind)

    async def model(self) -> Any:
        """The caller's model, loaded by the pool's `@pool.model_loader` if necessary, and kept until this task ends.

        Waits while the pool's maximum number of models is loaded and in use. Cancelling ends the wait; a load that has
        begun continues, since other tasks may wait for it.

        Raises:
            LookupError: the pool has no loader, or the caller named no model.
        """
        return await self._owner().model(self)

    def model_blocking(self) -> Any:
        """`model()` for code that runs in a thread or a child process, as plain `def` tasks do."""
        return self._owner().model_blocking(self)

    def _owner(self) -> TaskScope:
        if self._ended:
            raise LookupError("this task has ended: code that outlives it has no resources and no models")
        if self._scope is None:
            raise LookupError("this context was not made by a running worker, so it has no resources and no models")
        return self._scope

    def __repr__(self) -> str:
        state = ", cancelled" if self.cancelled else ""
        return f"TaskContext({self.pool}.{self.method}, id={self.id!r}, attempt={self.attempt}{state})"


# The worker's side of a context, kept off the class that tasks see (pyright has no module-level privacy).
# pyright: reportPrivateUsage=false


def attach(context: TaskContext, scope: TaskScope) -> None:
    """Attach the worker's resources and models."""
    context._scope = scope


def seat(context: TaskContext, gang: GangContext) -> None:
    """Attach the gang on whose seat the task runs."""
    context._gang = gang


def gang_of(context: TaskContext) -> GangContext | None:
    return context._gang


def report_to(context: TaskContext, progress: Progress) -> None:
    """Attach where an attempt of a durable job reports its progress."""
    context._progress = progress


def progress_of(context: TaskContext) -> Progress | None:
    return context._progress


def stop(context: TaskContext, reason: GanglineError) -> None:
    """Tell the execution to stop, and wake its thread if that waits. Only the first reason counts."""
    if context._reason is None:
        context._reason = reason
        if context._waiting is not None:
            context._waiting.cancel()


def end(context: TaskContext) -> None:
    """The task's code has stopped: whatever it left running gets no more resources or models."""
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
    """The context of the running task, in any executor.

    Raises:
        LookupError: this code does not run in a task.
    """
    under = UNDER.get()
    if not isinstance(under, TaskContext):
        raise LookupError("no task runs here: current_task() works inside functions declared with @pool.task")
    return under


def add_task_ids(record: logging.LogRecord) -> bool:
    """A logging filter that adds the task and its worker to each record that a task's code logs. Keeps all records."""
    under = UNDER.get()
    if isinstance(under, TaskContext):
        facts: dict[str, object] = {
            "pool": under.pool,
            "worker": under.worker.partition(".")[2],
            "method": under.method,
        }
        facts["task_id"] = under.id
        if under.job is not None:
            facts |= {"job": under.job, "attempt": under.attempt}
        for name, value in facts.items():
            record.__dict__.setdefault(name, value)
    return True


class Collectives(Protocol):
    """Collective calls of the members in one run; see worker.gangs.collectives. Only for the worker's event loop."""

    async def barrier(self) -> None: ...

    async def broadcast(self, value: Any = None, root: int = 0) -> Any: ...

    async def all_gather(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPeer:
    """One member of the gang."""

    rank: int
    pool: str
    worker: str
    """`<pool>.<worker>`, as operators name it."""
    slots: int = 1
    node: str = ""
    zone: str = ""
    address: str = ""
    """The address that its worker has announced: host, or host:port."""
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class GangInfo:
    """The plain data of a GangContext; passed to child processes."""

    id: str
    generation: int
    rank: int
    members: tuple[GangPeer, ...]
    rendezvous: HostPort | None
    fence: int
    owner: str = ""
    run: int = 0


@dataclass(slots=True, kw_only=True)
class GangBinding:
    """How a context reaches its gang. `talk` and `latest` are called on `loop`, `fail` in any thread."""

    loop: asyncio.AbstractEventLoop
    talk: Callable[[GangInfo], Collectives]
    fail: Callable[[str], None]
    latest: Callable[[], GangInfo | None]


class GangContext:
    """A gang as one of its members sees it, at the generation in which its task (or hook) began.

    Attributes:
        id: the gang.
        generation: grows with each restart, and with each replaced member.
        rank: of this member, from 0.
        members: all of them, by rank.
        rendezvous: `(host, port)` where rank 0 may listen and the others can find it. The port was free when the gang
            was made; None if rank 0's worker gave none.
        fence: grows over the whole system with each generation: hand it to resources that must refuse zombies.
        owner: the name of the gang's owner, for humans.
        run: the number of the owner's call, unlike that of its other calls; 0 in hooks and for tasks outside of calls.
    """

    __slots__ = (
        "_facts",
        "_link",
        "_task",
        "fence",
        "generation",
        "id",
        "members",
        "owner",
        "rank",
        "rendezvous",
        "run",
    )

    def __init__(self, facts: GangInfo) -> None:
        self._facts = facts
        self._link: GangBinding | None = None
        self._task: TaskContext | None = None
        self.id = facts.id
        self.generation = facts.generation
        self.rank = facts.rank
        self.members = facts.members
        self.rendezvous = facts.rendezvous
        self.fence = facts.fence
        self.owner = facts.owner
        self.run = facts.run

    @property
    def world_size(self) -> int:
        """How many members the gang has."""
        return len(self.members)

    @property
    def me(self) -> GangPeer:
        """This member."""
        return self.members[self.rank]

    # -- together with the others ---------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Wait until every member has called this. All members must make the same collective calls in the same order.

        Raises:
            GangEnded: the gang was torn down.
            StaleGeneration: members were replaced since this task began; see `latest`.
            InvalidRequest: the members made different calls.
            LookupError: this context does not belong to a running task.
        """
        await self._together(lambda talk: talk.barrier())

    async def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Give every member the value that rank `root` passed; for small values. Raises as `barrier`."""
        return await self._together(lambda talk: talk.broadcast(value, root))

    async def all_gather(self, value: Any) -> list[Any]:
        """Give every member the values of all, by rank; for small values. Raises as `barrier`."""
        return await self._together(lambda talk: talk.all_gather(value))

    def barrier_blocking(self) -> None:
        """`barrier` for code that runs in a thread or a child process, as plain `def` tasks do."""
        self._blocking(lambda talk: talk.barrier())

    def broadcast_blocking(self, value: Any = None, root: int = 0) -> Any:
        """`broadcast` for code that runs in a thread."""
        return self._blocking(lambda talk: talk.broadcast(value, root))

    def all_gather_blocking(self, value: Any) -> list[Any]:
        """`all_gather` for code that runs in a thread."""
        return self._blocking(lambda talk: talk.all_gather(value))

    # -- the gang itself ------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Declare this member failed: its gang restarts, or ends, according to its policy. From any thread; returns at
        once.

        A task that merely raises fails its own call, not the member; what follows is up to the gang's owner.
        """
        self._need().fail(reason)

    @property
    def latest(self) -> GangContext:
        """The gang as it is now: another object if members have been replaced (`restart_member`).

        Raises:
            LookupError: this member is no longer part of it.
        """
        facts = self._need().latest()
        if facts is None:
            raise LookupError(f"rank {self.rank} of gang {self.id} has ended")
        if facts.generation == self.generation:
            return self
        later = GangContext(facts)
        later._link, later._task = self._link, self._task
        return later

    def _need(self) -> GangBinding:
        if self._link is None:
            raise LookupError("this context was not made by a running worker, so it reaches no gang")
        return self._link

    async def _together(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        link = self._need()
        if asyncio.get_running_loop() is link.loop:
            return await call(link.talk(self._facts))
        # An `async def` task in a thread has a loop of its own.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._there(call), link.loop))

    def _blocking(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        link = self._need()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("this would block an event loop: use the call without _blocking, and await it")
        if self._task is None:
            raise LookupError("this context is not that of a running task")
        if not link.loop.is_running():  # a child process runs plain functions between turns of its loop
            return link.loop.run_until_complete(self._there(call))
        return wait_in_thread(self._task, asyncio.run_coroutine_threadsafe(self._there(call), link.loop))

    async def _there(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        return await call(self._need().talk(self._facts))

    def __reduce__(self) -> tuple[type[GangContext], tuple[GangInfo]]:
        return GangContext, (self._facts,)

    def __repr__(self) -> str:
        return f"GangContext({self.id!r}, generation={self.generation}, rank={self.rank} of {self.world_size})"


# The worker's side of a context, kept off the class that tasks see.
# pyright: reportPrivateUsage=false


def link(context: GangContext, to: GangBinding, task: TaskContext | None = None) -> None:
    """Connect it to the worker's side."""
    context._link = to
    context._task = task


def facts_of(form: FormRequest, rank: int, run: int = 0) -> GangInfo:
    """The facts of one rank of a formed gang."""
    first = {seat.rank: seat for seat in form.seats if seat.part == 0}
    return GangInfo(
        id=form.gang,
        generation=form.generation,
        rank=rank,
        members=tuple(
            GangPeer(
                rank=seat.rank,
                pool=seat.pool,
                worker=f"{seat.pool}.{seat.worker}",
                slots=seat.slots,
                node=seat.node,
                zone=seat.zone,
                address=seat.address,
                labels=dict(seat.labels),
            )
            for _, seat in sorted(first.items())
        ),
        rendezvous=form.rendezvous.plain if form.rendezvous is not None else None,
        fence=form.fence,
        owner=form.owner,
        run=run,
    )
