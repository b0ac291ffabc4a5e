"""The client for code without an event loop: the same names, plain functions.

A `SyncClient` runs an ordinary Client on a loop in a thread of its own. It may be used from many threads at once.

Written by docs/generate_sync.py from the async classes: change those, and run `make docs`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from ...bus.port.bus import BucketSettings
from ...runtime.loop_thread import OwningProxy, SyncContext, SyncProxy, iterate
from ...runtime.tracebacks import FRAMES_HIDDEN
from ...schemas.catalogue.task_schemas import TaskSchema
from ...schemas.errors.base import GanglineError
from ...schemas.handles import P, R, Result
from ...schemas.messages.gangs import GangEvent, GangReply
from ...schemas.messages.jobs import JobInfo, JobWhyReply, QueueStats
from ...schemas.messages.operations import DrainReply, ResizeReply, StatsReply
from ...schemas.records.gangs import GangSetRecord, GangSetStatus, HostPort
from ...schemas.records.jobs import JobEvent, JobProgress, JobState
from ...schemas.records.routes import RouteRecord
from ...schemas.records.workers import LeaseRecord
from ..calls.call import ClientOptions
from ..gangs.gang import Gang, GangOptions
from ..gangs.members import GangMember
from ..gangs.owner import OwnedState
from ..jobs.dead_letters import DeadLetter
from ..jobs.job import Job
from ..jobs.listing import JobPage
from ..jobs.storage import TaskStorage
from ..jobs.stored import Schedule
from ..leases.lease import Lease
from ..leases.selection import Selection
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from .client import Client, connect
from .hooks import Hook
from .operations import WorkerInfo

if TYPE_CHECKING:
    from ...bus.settings.connection import ConnectionSettings


class SyncLease(SyncProxy[Lease]):
    """Lease for plain code. Reserved slots of one worker, or of one gang of a standing set, renewed
    automatically. Not for use after its `with` block."""

    @property
    def used(self) -> int:
        """Slots in use by tasks of this lease, including cancelled tasks that have not stopped yet."""
        return self._target.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease can no longer be used; None while it can."""
        return self._thread.call(lambda: self._target.lost)

    @overload
    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    def call(
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    def call(self, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def call(self, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the lease and return its result. Waits while all slots of the lease are in use, and while
        the task is at a limit that it declares. Cancelling cancels the task; its slot is free again when it has
        stopped. See Lease.call."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.call(method, *args, **kwargs))

    @overload
    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]: ...

    @overload
    def stream(
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[R, None, None]: ...

    def stream(self, method: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task on the lease and yield its items. Leaving the loop early cancels the task. `method` is as for
        `call`. See Lease.stream."""
        return iterate(self._thread, self._target.stream(method, *args, **kwargs))

    def renew(self) -> None:
        """Renew the lease now instead of waiting for the next automatic renewal."""
        self._thread.call(self._target.renew)

    def release(self) -> None:
        """Release the slots now; those in use are released as their tasks end. Idempotent, never waits."""
        self._thread.call(self._target.release)

    @property
    def pool(self) -> str:
        return self._target.pool

    @property
    def endpoint(self) -> str:
        """The name in the request: the pool, or an endpoint routed to it."""
        return self._target.endpoint

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`; in a standing set, the worker of rank 0, which the other properties of the worker
        also describe."""
        return self._target.worker

    @property
    def gang(self) -> str | None:
        """The gang of a standing set that the slots belong to (rank 0's, or every rank's); None for a plain pool."""
        return self._target.gang

    @property
    def node(self) -> str:
        return self._target.node

    @property
    def zone(self) -> str:
        return self._target.zone

    @property
    def address(self) -> str:
        """Address at which other processes can reach the worker, if it published one; host or host:port."""
        return self._target.address

    @property
    def labels(self) -> Mapping[str, str]:
        return self._target.labels

    @property
    def token(self) -> str:
        """The token: a secret. The ledger has its public id."""
        return self._target.token

    @property
    def epoch(self) -> int:
        """The worker's epoch; the token is invalid in any other."""
        return self._target.epoch

    @property
    def fence(self) -> int:
        """Fencing token: grows with each lease of the worker, so that resources can reject stale holders. With
        `ledger="sync"` it grows across the whole system."""
        return self._target.fence

    @property
    def slots(self) -> int:
        """Number of slots; for a gang whose calls run on all ranks, per rank."""
        return self._target.slots


class SyncGang(SyncProxy[Gang]):
    """Gang for plain code. A gang that this process owns; renewed automatically while held. Not for use after
    its `with` block."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def generation(self) -> int:
        """Generation of the current members; grows with each restart."""
        return self._target.generation

    @property
    def size(self) -> int:
        """Number of ranks (the world size). With a range of sizes, that of the current members."""
        return self._target.size

    @property
    def members(self) -> tuple[GangMember, ...]:
        """By rank."""
        return self._target.members

    @property
    def rendezvous(self) -> HostPort | None:
        """Host and port at rank 0's worker where the tasks can meet; the port was free when the gang was formed."""
        return self._target.rendezvous

    @property
    def fence(self) -> int:
        """Fencing token: grows across the whole system with each generation, so that resources can reject stale
        holders."""
        return self._target.fence

    @property
    def restarts(self) -> int:
        """How often the gang was formed again or repaired, for any reason: the number of generations before this
        one. The ledger, answers and events have the same number."""
        return self._target.restarts

    @property
    def failures(self) -> int:
        """Failures counted against `max_restarts` so far; drains and preemptions are not counted."""
        return self._target.failures

    @property
    def state(self) -> OwnedState:
        """Formed, repairing, restarting, unconfirmed or ended."""
        return self._thread.call(lambda: self._target.state)

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks that are lost and being replaced while the others continue (`restart="restart_member"`),
        ascending. Tasks in progress there have ended with GangRestarted; new ones wait for the replacement."""
        return self._target.lost_ranks

    @property
    def lost(self) -> GanglineError | None:
        """Why nothing can be sent now: ended, between two generations, or not renewed in time. None while tasks
        can be sent to at least the ranks that are not in `lost_ranks`."""
        return self._thread.call(lambda: self._target.lost)

    def options(
        self,
        *,
        timeout_s: float | None = None,
        deadline_s: float | None = None,
        idempotent: bool | None = None,
        retries: int | None = None,
        partial: bool | None = None,
    ) -> SyncGang:
        """A cheap copy of this gang with these options; those not given are inherited. See Gang.options."""
        return SyncGang(
            self._thread,
            self._target.options(
                timeout_s=timeout_s, deadline_s=deadline_s, idempotent=idempotent, retries=retries, partial=partial
            ),
        )

    @overload
    def run(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]: ...

    @overload
    def run(
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[list[R]]: ...

    @overload
    def run(self, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> list[R]: ...

    @overload
    def run(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[R]: ...

    def run(self, method: Any, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a task on all ranks with the same arguments, and return the results by rank. See Gang.run."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.run(method, *args, **kwargs))

    @overload
    def run_each(self, method: str, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /) -> list[Any]: ...

    @overload
    def run_each(
        self,
        method: Callable[..., AsyncIterator[R] | Iterator[R]],
        arguments: Sequence[Any] | Callable[[int], Sequence[Any]],
        /,
    ) -> list[list[R]]: ...

    @overload
    def run_each(
        self,
        method: Callable[..., Coroutine[Any, Any, R]],
        arguments: Sequence[Any] | Callable[[int], Sequence[Any]],
        /,
    ) -> list[R]: ...

    @overload
    def run_each(
        self, method: Callable[..., R], arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /
    ) -> list[R]: ...

    def run_each(self, method: Any, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /) -> list[Any]:
        """Run a task on all ranks, each with its own arguments; otherwise like `run`. See Gang.run_each."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.run_each(method, arguments))

    @overload
    def call(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    def call(
        self, rank: int, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    def call(
        self, rank: int, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def call(self, rank: int, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def call(self, rank: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on one rank and return its result. Waits while all slots of the member are in use. `method`
        is as for `run`. See Gang.call."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.call(rank, method, *args, **kwargs))

    @overload
    def stream(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]: ...

    @overload
    def stream(
        self, rank: int, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[R, None, None]: ...

    def stream(self, rank: int, method: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task on one rank and yield its items. Leaving the loop early cancels the task. Never retried.
        `method` is as for `run`. See Gang.stream."""
        return iterate(self._thread, self._target.stream(rank, method, *args, **kwargs))

    def wait_formed(self) -> int:
        """The current generation; waits for the next one between two generations and while ranks are lost. See
        Gang.wait_formed."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.wait_formed())

    def ready(self) -> int:
        """The current generation, once the `gang_start` functions of all its members have succeeded. Waits for
        that, across restarts, until the deadline of `options(timeout_s=...)`, if there is one. See Gang.ready."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.ready())

    def events(self) -> Generator[GangEvent, None, None]:
        """Events of this gang, from now until it has ended. Events may be lost."""
        return iterate(self._thread, self._thread.call(self._target.events))

    def release(self) -> None:
        """Release the gang; returns when its members have stopped. Idempotent. Calls in progress end with
        ClosedError."""
        with FRAMES_HIDDEN:
            self._thread.run(self._target.release())


class SyncJob(SyncProxy[Job[Result]], Generic[Result]):
    """Job for plain code. A handle to a job, from `Client.submit`, or from `Client.job` with its id. It needs
    no close: you can drop it at any time, and look the job up again by its id from anywhere."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def endpoint(self) -> str | None:
        """None: it was looked up without one."""
        return self._target.endpoint

    @property
    def method(self) -> str | None:
        """None: it was looked up by its id."""
        return self._target.method

    @property
    def repeats(self) -> bool:
        """Whether it is a recurring schedule (`cron`); each run is a job of its own."""
        return self._target.repeats

    @property
    def created(self) -> bool | None:
        """Whether its submission made it. False: its `idempotency_key` stands for a job that was submitted before,
        with whatever arguments; `status` tells whether that has ended or was cancelled. True also if that
        cannot be told, since an earlier attempt of this submission was not answered. None: it was looked up."""
        return self._target.created

    @overload
    def of(self, task: Callable[..., AsyncIterator[Any] | Iterator[Any]], /) -> SyncJob[None]: ...

    @overload
    def of(self, task: Callable[..., Coroutine[Any, Any, R]], /) -> SyncJob[R]: ...

    @overload
    def of(self, task: Callable[..., R], /) -> SyncJob[R]: ...

    def of(self, task: Any, /) -> SyncJob[Any]:
        """The same job, as one of this task: `client.job(id).of(count)` is a `Job[int]`, and its result is what
        the function's annotation says. Sends nothing. See Job.of."""
        return SyncJob(self._thread, self._target.of(task))

    def result(self, timeout_s: float | None = None) -> Result:
        """The task's result; None if it yields: `items()` has what it yielded. Waits for its end, also across lost
        connections. See Job.result."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.result(timeout_s))

    def status(self) -> JobInfo:
        """The current state of the job: from its result, its dispatcher, or the stream. For JSON, take its
        `model_dump(mode="json")`. See Job.status."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.status())

    def cancel(self, *, reason: str = "") -> bool:
        """Cancel the job (or schedule). Returns False if it had already ended. With a `reason`, this is recorded
        in the audit trail: only operators can do that. See Job.cancel."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.cancel(reason=reason))

    def why(self) -> JobWhyReply:
        """Explain what the job is waiting for. See Job.why."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.why())

    def events(self) -> Generator[JobEvent | JobProgress, None, None]:
        """Events of the job from the beginning until its end: `for event in job.events()`. See Job.events."""
        return iterate(self._thread, self._target.events())

    def items(self, *, skip: bool = False) -> Generator[Any, None, None]:
        """The items of a task that yields, from the first, as they arrive: `for item in job.items()`. See
        Job.items."""
        return iterate(self._thread, self._target.items(skip=skip))


class SyncWorkerChoice(SyncContext[Selection]):
    """`with router.choose_worker(...) as selection`: reserves on entry, releases on exit if it was not used."""


class SyncLeaseAcquisition(SyncContext[SyncLease]):
    """`with router.lease(...) as lease`: reserves on entry, releases on exit."""

    def _entered(self, entered: Lease) -> SyncLease:
        return SyncLease(self._thread, entered)


class SyncGangAcquisition(SyncContext[SyncGang]):
    """`with client.gang(...) as gang`: waits until it is formed, releases it on exit."""

    def _entered(self, entered: Gang) -> SyncGang:
        return SyncGang(self._thread, entered)


class SyncClient(OwningProxy[Client]):
    """Client for plain code; see Client for what each method means and raises.

    ```python
    with gangline.connect_sync("nats://127.0.0.1:4222") as client:
        client.call("images.thumbnail", path="a.png")
    ```

    Ctrl-C during a call cancels the call. A forked child process must connect itself.
    """

    def options(self, **given: Unpack[ClientOptions]) -> SyncClient:
        """A cheap copy of this client with these options; those not given are inherited. See Client.options."""
        return self._with(self._target.options(**given))

    @overload
    def call(self, target: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    def call(
        self, target: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    def call(self, target: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    def call(self, target: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def call(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on some worker and return its result, in one round trip. See Client.call."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.call(target, *args, **kwargs))

    @overload
    def stream(self, target: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]: ...

    @overload
    def stream(self, target: Selection, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]: ...

    @overload
    def stream(
        self,
        target: Selection,
        method: Callable[P, AsyncIterator[R] | Iterator[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Generator[R, None, None]: ...

    @overload
    def stream(
        self, target: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[R, None, None]: ...

    def stream(self, target: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task that yields, and yield its items as they arrive: `for item in client.stream(...)`. See
        Client.stream."""
        return iterate(self._thread, self._target.stream(target, *args, **kwargs))

    def choose_worker(
        self, target: str | Callable[..., Any], /, *, slots: int | None = None, move: bool = True
    ) -> SyncWorkerChoice:
        """`with client.choose_worker("images") as selection:` — reserve a slot, and see on which worker, before
        sending. See Client.choose_worker."""
        return SyncWorkerChoice(self._thread, self._target.choose_worker(target, slots=slots, move=move))

    @overload
    def dispatch(self, selection: Selection, method: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    def dispatch(
        self,
        selection: Selection,
        method: Callable[P, AsyncIterator[R] | Iterator[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]: ...

    @overload
    def dispatch(
        self, selection: Selection, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def dispatch(self, selection: Selection, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def dispatch(self, selection: Selection, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the selected slot; it cannot be rejected for lack of capacity. `method` is its name or its
        function, as for `call`. See Client.dispatch."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.dispatch(selection, method, *args, **kwargs))

    def lease(
        self,
        target: str | Callable[..., Any],
        /,
        *,
        slots: int = 1,
        ttl_s: float = 15.0,
        ledger: str = "behind",
        wait: bool = True,
    ) -> SyncLeaseAcquisition:
        """`with client.lease("images", slots=4) as lease:` — reserve slots of one worker for many tasks. See
        Client.lease."""
        return SyncLeaseAcquisition(
            self._thread, self._target.lease(target, slots=slots, ttl_s=ttl_s, ledger=ledger, wait=wait)
        )

    def gang(self, **wanted: Unpack[GangOptions]) -> SyncGangAcquisition:
        """`with client.gang(pool="train", size=8) as gang:` — slots on many workers, all or nothing. See
        Client.gang."""
        return SyncGangAcquisition(self._thread, self._target.gang(**wanted))

    @overload
    def submit(self, target: str, /, *args: Any, **kwargs: Any) -> SyncJob[Any]: ...

    @overload
    def submit(
        self, target: Callable[P, AsyncIterator[Any] | Iterator[Any]], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJob[None]: ...

    @overload
    def submit(
        self, target: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncJob[R]: ...

    @overload
    def submit(self, target: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]: ...

    def submit(self, target: Any, /, *args: Any, **kwargs: Any) -> SyncJob[Any]:
        """Submit a durable task: it runs now or later, even if this process exits. Returns when it is stored. See
        Client.submit."""
        with FRAMES_HIDDEN:
            return SyncJob(self._thread, self._thread.run(self._target.submit(target, *args, **kwargs)))

    @overload
    def submit_many(self, target: str, arguments: Sequence[Mapping[str, Any]], /) -> list[SyncJob[Any]]: ...

    @overload
    def submit_many(
        self, target: Callable[..., AsyncIterator[Any] | Iterator[Any]], arguments: Sequence[Mapping[str, Any]], /
    ) -> list[SyncJob[None]]: ...

    @overload
    def submit_many(
        self, target: Callable[..., Coroutine[Any, Any, R]], arguments: Sequence[Mapping[str, Any]], /
    ) -> list[SyncJob[R]]: ...

    @overload
    def submit_many(self, target: Callable[..., R], arguments: Sequence[Mapping[str, Any]], /) -> list[SyncJob[R]]: ...

    def submit_many(self, target: Any, arguments: Sequence[Mapping[str, Any]], /) -> list[SyncJob[Any]]:
        """Submit a task for each of these sets of named arguments; returns the jobs in order, when all are stored.
        `target` is as for `submit`; the arguments are checked by the worker only. See Client.submit_many."""
        with FRAMES_HIDDEN:
            return [
                SyncJob(self._thread, each) for each in self._thread.run(self._target.submit_many(target, arguments))
            ]

    def job(self, id: str, /, endpoint: str | None = None) -> SyncJob:
        """A handle to the job with this id. Sends nothing. See Client.job."""
        return SyncJob(self._thread, self._target.job(id, endpoint))

    def jobs(
        self,
        *,
        states: Collection[JobState | str] = (),
        endpoint: str | None = None,
        key: str | None = None,
        schedule: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> JobPage:
        """Jobs that match all conditions, page by page: first unfinished ones in the order of submission, endpoint
        by endpoint, then delayed ones, then ended ones, the last first. See Client.jobs."""
        with FRAMES_HIDDEN:
            return self._thread.run(
                self._target.jobs(
                    states=states,
                    endpoint=endpoint,
                    key=key,
                    schedule=schedule,
                    since=since,
                    limit=limit,
                    cursor=cursor,
                )
            )

    def find_job(self, id: str, /, endpoint: str | None = None) -> SyncJob:
        """A handle to the job whose id this is, or begins with; `job` sends nothing and takes complete ids only.
        See Client.find_job."""
        with FRAMES_HIDDEN:
            return SyncJob(self._thread, self._thread.run(self._target.find_job(id, endpoint)))

    def queues(self) -> list[QueueStats]:
        """Queues of all endpoints that have waiting or running tasks, or a dispatcher: depth, oldest task, running
        tasks, idle slots. See Client.queues."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.queues())

    def dead_letters(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """Tasks that will not be retried, of all endpoints or one: the newest `limit`, oldest first. See
        Client.dead_letters."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.dead_letters(endpoint, limit=limit, bodies=bodies))

    def dead_letter(self, job: str) -> DeadLetter:
        """The dead letter of one job. See Client.dead_letter."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.dead_letter(job))

    def replay(self, job: str | DeadLetter, *, reason: str = "") -> SyncJob:
        """Requeue a dead letter under its job id with a fresh set of attempts. See Client.replay."""
        with FRAMES_HIDDEN:
            return SyncJob(self._thread, self._thread.run(self._target.replay(job, reason=reason)))

    def drop(self, job: str | DeadLetter, *, reason: str = "") -> None:
        """Delete a dead letter. See Client.drop."""
        with FRAMES_HIDDEN:
            self._thread.run(self._target.drop(job, reason=reason))

    def schedules(self, endpoint: str | None = None) -> list[Schedule]:
        """Recurring tasks (`options(cron=...)`) of one endpoint, or of all, sorted by endpoint and name; paused
        ones included. A schedule appears when a dispatcher has taken its task. See Client.schedules."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.schedules(endpoint))

    def schedule(self, which: str) -> Schedule:
        """One schedule. See Client.schedule."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.schedule(which))

    def pause_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Pause a schedule: it has no further runs until it is resumed, also if a program declares it again. Runs
        that have begun continue. Needs the permissions of an operator, as do the two below. See
        Client.pause_schedule."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.pause_schedule(which, reason=reason))

    def resume_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Resume a paused schedule: its next run is at its next time; those it missed are not made up for. No
        error if it is not paused. See Client.resume_schedule."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.resume_schedule(which, reason=reason))

    def delete_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Delete a schedule; returns what it was. Runs that have begun continue. See Client.delete_schedule."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.delete_schedule(which, reason=reason))

    def statistics(self) -> dict[str, Any]:
        """A snapshot of this client: pools with workers and queues, requests in flight, slots held."""
        return self._thread.call(self._target.statistics)

    def workers(self, pool: str | None = None) -> list[WorkerInfo]:
        """Active workers of one pool, or of all pools, sorted by name. See Client.workers."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.workers(pool))

    def leases(self, pool: str | None = None, worker: str | None = None) -> list[LeaseRecord]:
        """Current leases, oldest first; `worker` is the name within its pool. See Client.leases."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.leases(pool, worker))

    def drain(self, worker: str, *, grace_s: float | None = None, reason: str = "") -> DrainReply:
        """Drain a worker (`POOL.WORKER`): it accepts nothing new, finishes its tasks and leaves; tasks still
        running after `grace_s` are cancelled. Returns as soon as draining has begun. `reason` says why, here
        and below: it goes into the audit trail. See Client.drain."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.drain(worker, grace_s=grace_s, reason=reason))

    def resize(self, worker: str, slots: int, *, reason: str = "") -> ResizeReply:
        """Change the number of slots of a running worker (`POOL.WORKER`); 0 pauses it. See Client.resize."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.resize(worker, slots, reason=reason))

    def end_gang(self, id: str, /, *, reason: str = "") -> GangReply:
        """End a gang, whoever owns it: its owner gets the reason. Returns when its members have stopped. See
        Client.end_gang."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.end_gang(id, reason=reason))

    def stats(self, worker: str) -> StatsReply:
        """Statistics of a worker (`POOL.WORKER`): load, leases, counts. See Client.stats."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.stats(worker))

    def schemas(self, pool: str) -> dict[str, TaskSchema]:
        """The tasks of a pool by method, with the JSON Schema of their parameters and results. If its workers have
        different versions of a task, that of the worker that started last. See Client.schemas."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.schemas(pool))

    def set_route(self, endpoint: str, route: RouteRecord | Mapping[str, Any], /, *, reason: str = "") -> RouteRecord:
        """Set or replace the route of an endpoint, for the traffic of all clients. See Client.set_route."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.set_route(endpoint, route, reason=reason))

    def delete_route(self, endpoint: str, /, *, reason: str = "") -> None:
        """Delete a route: the endpoint is the pool of its name again. No error if there is none. See
        Client.delete_route."""
        with FRAMES_HIDDEN:
            self._thread.run(self._target.delete_route(endpoint, reason=reason))

    def routes(self) -> dict[str, RouteRecord]:
        """Routes in effect, by endpoint. Invalid routes are in `statistics()["routes"]["refused"]`. See
        Client.routes."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.routes())

    def set_gangset(
        self, name: str, declaration: GangSetRecord | Mapping[str, Any], /, *, reason: str = ""
    ) -> GangSetRecord:
        """Declare a standing set of gangs, or replace its declaration. A coordinator forms the gangs. If the
        `gang` has changed, it rolls the set, gang by gang. See Client.set_gangset."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.set_gangset(name, declaration, reason=reason))

    def scale_gangset(self, name: str, gangs: int, /, *, reason: str = "") -> int:
        """Change the number of gangs of a standing set; returns the previous number. Whole gangs are added or
        retired. See Client.scale_gangset."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.scale_gangset(name, gangs, reason=reason))

    def delete_gangset(self, name: str, /, *, reason: str = "") -> None:
        """Delete a standing set: its gangs retire and end. No error if there is none. See Client.delete_gangset."""
        with FRAMES_HIDDEN:
            self._thread.run(self._target.delete_gangset(name, reason=reason))

    def gangsets(self) -> dict[str, GangSetRecord]:
        """Declared standing sets, by name. See Client.gangsets."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.gangsets())

    def gangset_status(self, name: str, /) -> GangSetStatus | None:
        """Whether a standing set is steady, rolling or failing, why, and how many of its gangs are formed and
        ready. None: no coordinator has reported it yet. See Client.gangset_status."""
        with FRAMES_HIDDEN:
            return self._thread.run(self._target.gangset_status(name))


def connect_sync(
    server: str | ConnectionSettings | None = None,
    *,
    namespace: str = "gangline",
    name: str = "",
    settings: RouterSettings | None = None,
    policy: Callable[[str], Policy] | None = None,
    bucket: BucketSettings | None = None,
    tasks: TaskStorage | None = None,
    middleware: Sequence[Hook] = (),
    gateway: bool = False,
) -> SyncClient:
    """Connect to NATS from plain code; see `connect` for the arguments.

    Raises:
        ServerUnreachable: no server answered, or it refused us.
        InvalidSettings, InvalidName: what was given cannot be used.
    """

    async def open_client() -> Client:
        return await connect(
            server,
            namespace=namespace,
            name=name,
            settings=settings,
            policy=policy,
            bucket=bucket,
            tasks=tasks,
            middleware=middleware,
            gateway=gateway,
        )

    with FRAMES_HIDDEN:
        return SyncClient(open_client)
