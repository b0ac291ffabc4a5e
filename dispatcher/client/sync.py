"""The client for code without an event loop: the same names, plain functions.

A `SyncClient` runs an ordinary Client on a loop in a thread of its own. It may be used from many threads at once.

Written by docs/generate_sync.py from the async classes: change those, and run `make docs`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...bus.port.bus import BucketSettings
from ...runtime.loop_thread import OwningProxy, SyncContext, SyncProxy, iterate
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangEvent
from ...schemas.messages.jobs import JobInfo, JobWhyReply, QueueStats
from ...schemas.messages.operations import DrainReply, ResizeReply, StatsReply
from ...schemas.records.gangs import HostPort
from ...schemas.records.jobs import JobEvent, JobProgress
from ...schemas.records.routes import RouteRecord
from ...schemas.records.workers import LeaseRecord
from ..calls.call import ClientOptions
from ..gangs.gang import Gang, GangOptions
from ..gangs.members import GangMember
from ..gangs.owner import OwnedState
from ..jobs.dead_letters import DeadLetter
from ..jobs.job import Job
from ..jobs.storage import TaskStorage
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
    """Lease for plain code. Some slots of one worker, or of one gang of a standing set, renewed by itself
    while held. Not for use after its `with` block."""

    @property
    def used(self) -> int:
        """Slots in use by this lease's tasks now, those included that were cancelled and have not stopped yet."""
        return self._target.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease cannot be used any more; None while it can."""
        return self._thread.call(lambda: self._target.lost)

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the lease and return its result. Waits while all slots of the lease are in use. See
        Lease.call."""
        return self._thread.run(self._target.call(method, *args, **kwargs))

    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task on the lease and yield its items. Leaving the loop early cancels the task. See Lease.stream."""
        return iterate(self._thread, self._target.stream(method, *args, **kwargs))

    def renew(self) -> None:
        """Ask for the full time to live now, rather than when it is due by itself."""
        self._thread.call(self._target.renew)

    def release(self) -> None:
        """Give the slots back now; those in use come back as their tasks end. Idempotent, never waits."""
        self._thread.call(self._target.release)

    @property
    def pool(self) -> str:
        return self._target.pool

    @property
    def endpoint(self) -> str:
        """What was asked for: the pool, or an endpoint whose route led there."""
        return self._target.endpoint

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it; of a standing set, where rank 0 of the gang is. The same goes
        for what else is told of the worker."""
        return self._target.worker

    @property
    def gang(self) -> str | None:
        """The gang of a standing set whose slots they are: of rank 0, or of every rank. None: of no gang."""
        return self._target.gang

    @property
    def node(self) -> str:
        return self._target.node

    @property
    def zone(self) -> str:
        return self._target.zone

    @property
    def address(self) -> str:
        """Where others can reach the process, if it told; host or host:port."""
        return self._target.address

    @property
    def labels(self) -> Mapping[str, str]:
        return self._target.labels

    @property
    def token(self) -> str:
        """As it stands in the ledger."""
        return self._target.token

    @property
    def epoch(self) -> int:
        """The worker's epoch; the token dies with it."""
        return self._target.epoch

    @property
    def fence(self) -> int:
        """A number that grows with each lease of the worker, for resources that refuse zombies; of a lease with
        `ledger="sync"` it grows over the whole system."""
        return self._target.fence

    @property
    def slots(self) -> int:
        """How many; of a gang whose calls run on all ranks, so many of each."""
        return self._target.slots


class SyncGang(SyncProxy[Gang]):
    """Gang for plain code. A gang that this process owns: renewed by itself while held. Not for use after its
    `with` block."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def generation(self) -> int:
        """Of the newest members; grows with each restart."""
        return self._target.generation

    @property
    def size(self) -> int:
        """The number of ranks: the world size. With a range of sizes, that of the newest members."""
        return self._target.size

    @property
    def members(self) -> tuple[GangMember, ...]:
        """By rank."""
        return self._target.members

    @property
    def rendezvous(self) -> HostPort | None:
        """Host and port at rank 0's worker, for the tasks to meet at; free when the gang was formed."""
        return self._target.rendezvous

    @property
    def fence(self) -> int:
        """A number that grows over the whole system with each generation, for resources that refuse zombies."""
        return self._target.fence

    @property
    def restarts(self) -> int:
        """How often it was formed again or repaired so far, for whatever reason: the generations before this one.
        The same number stands in the ledger, in answers and in events."""
        return self._target.restarts

    @property
    def failures(self) -> int:
        """How many failures count against `max_restarts` so far; drains and preemptions do not."""
        return self._target.failures

    @property
    def state(self) -> OwnedState:
        """How it fares: formed, repairing, restarting, unconfirmed or ended."""
        return self._thread.call(lambda: self._target.state)

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks that are lost and being replaced while the others go on (`restart="restart_member"`), ascending.
        What was under way there has ended with GangRestarted; what is sent there waits for the replacement."""
        return self._target.lost_ranks

    @property
    def lost(self) -> GanglineError | None:
        """Why nothing can be sent now: over, between two generations, or not renewed in time. None while it can,
        if only to ranks that are not among `lost_ranks`."""
        return self._thread.call(lambda: self._target.lost)

    def options(
        self,
        *,
        timeout_s: float | None = None,
        idempotent: bool | None = None,
        retries: int | None = None,
        partial: bool | None = None,
    ) -> SyncGang:
        """The same gang, with calls that are made so; what is not given stays as it is. Cheap. See Gang.options."""
        return SyncGang(
            self._thread,
            self._target.options(timeout_s=timeout_s, idempotent=idempotent, retries=retries, partial=partial),
        )

    def run(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a task on all ranks, with the same arguments, and return the results by rank. See Gang.run."""
        return self._thread.run(self._target.run(method, *args, **kwargs))

    def run_each(self, method: str, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /) -> list[Any]:
        """Run a task on all ranks, each with its own arguments; else as `run`. See Gang.run_each."""
        return self._thread.run(self._target.run_each(method, arguments))

    def call(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on one rank and return its result. Waits while all slots of the member are in use. See
        Gang.call."""
        return self._thread.run(self._target.call(rank, method, *args, **kwargs))

    def stream(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task on one rank and yield its items. Leaving the loop early cancels the task. Never repeated. See
        Gang.stream."""
        return iterate(self._thread, self._target.stream(rank, method, *args, **kwargs))

    def wait_formed(self) -> int:
        """The living generation; between two, and while ranks of it are lost, wait for the next. See
        Gang.wait_formed."""
        return self._thread.run(self._target.wait_formed())

    def ready(self) -> int:
        """The living generation, once all its members have started: their `gang_start` functions have ended well.
        Waits for that, also over restarts, until the deadline of `options(timeout_s=...)`, if there is one. See
        Gang.ready."""
        return self._thread.run(self._target.ready())

    def events(self) -> Generator[GangEvent, None, None]:
        """What is broadcast of this gang, from now until it is over. Events may be lost."""
        return iterate(self._thread, self._thread.call(self._target.events))

    def release(self) -> None:
        """Give the gang back now; returns when its members have stopped. Idempotent. What is under way ends with
        ClosedError."""
        self._thread.run(self._target.release())


class SyncJob(SyncProxy[Job]):
    """Job for plain code. Made by `Client.submit`, or by `Client.job` from its id. Nothing of it needs to be
    closed; it may be dropped at any time, and looked up again by its id from anywhere."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def endpoint(self) -> str | None:
        """None: it was looked up without."""
        return self._target.endpoint

    @property
    def method(self) -> str | None:
        """None: it was looked up by its id."""
        return self._target.method

    @property
    def repeats(self) -> bool:
        """It is a schedule (`cron`): each of its runs is a job of its own."""
        return self._target.repeats

    def result(self, timeout_s: float | None = None) -> Any:
        """What the task returned; waits for its end, also over lost connections. See Job.result."""
        return self._thread.run(self._target.result(timeout_s))

    def status(self) -> JobInfo:
        """The current state of the job: from its result, its dispatcher, or the stream. See Job.status."""
        return self._thread.run(self._target.status())

    def cancel(self) -> bool:
        """Cancel the job (or schedule). Returns False if it had already ended. See Job.cancel."""
        return self._thread.run(self._target.cancel())

    def why(self) -> JobWhyReply:
        """Explain what the job is waiting for. See Job.why."""
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
    """`with client.gang(...) as gang`: waits until it is formed, releases on leaving."""

    def _entered(self, entered: Gang) -> SyncGang:
        return SyncGang(self._thread, entered)


class SyncClient(OwningProxy[Client]):
    """Client for plain code; see Client for what each method means and raises.

    ::

        with gangline.connect_sync("nats://127.0.0.1:4222") as client:
            client.call("images.thumbnail", path="a.png")

    Ctrl-C during a call cancels the call. Forked children must connect anew.
    """

    def options(self, **given: Unpack[ClientOptions]) -> SyncClient:
        """A cheap copy of this client with these options; those not given are inherited. See Client.options."""
        return self._with(self._target.options(**given))

    def call(self, target: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on some worker and return its result: one round trip. See Client.call."""
        return self._thread.run(self._target.call(target, *args, **kwargs))

    def stream(self, target: str | Selection, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """Run a task that yields, and yield its items as they come: `for item in client.stream(...)`. See
        Client.stream."""
        return iterate(self._thread, self._target.stream(target, *args, **kwargs))

    def choose_worker(self, target: str, /, *, slots: int | None = None, move: bool = True) -> SyncWorkerChoice:
        """`with client.choose_worker("images") as selection:` — hold a slot, and see whose, before sending. See
        Client.choose_worker."""
        return SyncWorkerChoice(self._thread, self._target.choose_worker(target, slots=slots, move=move))

    def dispatch(self, selection: Selection, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the slot that was chosen; it cannot be rejected for want of room. See Client.dispatch."""
        return self._thread.run(self._target.dispatch(selection, method, *args, **kwargs))

    def lease(
        self, target: str, /, *, slots: int = 1, ttl_s: float = 15.0, ledger: str = "behind", wait: bool = True
    ) -> SyncLeaseAcquisition:
        """`with client.lease("images", slots=4) as lease:` — hold slots of one worker for many tasks. See
        Client.lease."""
        return SyncLeaseAcquisition(
            self._thread, self._target.lease(target, slots=slots, ttl_s=ttl_s, ledger=ledger, wait=wait)
        )

    def gang(self, **wanted: Unpack[GangOptions]) -> SyncGangAcquisition:
        """`with client.gang(pool="train", size=8) as gang:` — slots on many workers, all or nothing. See
        Client.gang."""
        return SyncGangAcquisition(self._thread, self._target.gang(**wanted))

    def submit(self, target: str, /, *args: Any, **kwargs: Any) -> SyncJob:
        """Submit a durable task: it runs now or later, even if this process exits. Returns when it is stored. See
        Client.submit."""
        return SyncJob(self._thread, self._thread.run(self._target.submit(target, *args, **kwargs)))

    def submit_many(self, target: str, arguments: Sequence[Mapping[str, Any]], /) -> list[SyncJob]:
        """Submit a task for each of these named arguments concurrently; jobs are returned in order. With an
        `idempotency_key`, each uses that key with its index in the list. See Client.submit_many."""
        return [SyncJob(self._thread, each) for each in self._thread.run(self._target.submit_many(target, arguments))]

    def job(self, id: str, /, endpoint: str | None = None) -> SyncJob:
        """A handle to the job with this id. Sends nothing. See Client.job."""
        return SyncJob(self._thread, self._target.job(id, endpoint))

    def queues(self) -> list[QueueStats]:
        """Queues of all endpoints with waiting or running tasks, or a dispatcher: depth, oldest, running, idle
        slots. See Client.queues."""
        return self._thread.run(self._target.queues())

    def dead_letters(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """Tasks that will not be retried, of all endpoints or one: the newest `limit`, oldest first. See
        Client.dead_letters."""
        return self._thread.run(self._target.dead_letters(endpoint, limit=limit, bodies=bodies))

    def dead_letter(self, job: str) -> DeadLetter:
        """The dead letter of one job. See Client.dead_letter."""
        return self._thread.run(self._target.dead_letter(job))

    def replay(self, job: str | DeadLetter) -> SyncJob:
        """Requeue a dead letter under its job id with a fresh set of attempts. See Client.replay."""
        return SyncJob(self._thread, self._thread.run(self._target.replay(job)))

    def drop(self, job: str | DeadLetter) -> None:
        """Delete a dead letter. See Client.drop."""
        self._thread.run(self._target.drop(job))

    def statistics(self) -> dict[str, Any]:
        """What this client knows and does: pools with workers and queues, requests in flight, slots held."""
        return self._thread.call(self._target.statistics)

    def workers(self, pool: str | None = None) -> list[WorkerInfo]:
        """Living workers of one pool, or of all, by name. See Client.workers."""
        return self._thread.run(self._target.workers(pool))

    def leases(self, pool: str | None = None, worker: str | None = None) -> list[LeaseRecord]:
        """Living leases, oldest first; `worker` is the name within its pool. See Client.leases."""
        return self._thread.run(self._target.leases(pool, worker))

    def drain(self, worker: str, *, grace_s: float | None = None) -> DrainReply:
        """Have a worker (`POOL.WORKER`) take nothing new, finish and leave; what runs after `grace_s` is
        cancelled. See Client.drain."""
        return self._thread.run(self._target.drain(worker, grace_s=grace_s))

    def resize(self, worker: str, slots: int) -> ResizeReply:
        """Change the number of slots of a worker (`POOL.WORKER`), live; 0 pauses it. See Client.resize."""
        return self._thread.run(self._target.resize(worker, slots))

    def stats(self, worker: str) -> StatsReply:
        """What a worker (`POOL.WORKER`) says of itself: load, leases, counts. See Client.stats."""
        return self._thread.run(self._target.stats(worker))

    def set_route(self, endpoint: str, route: RouteRecord | Mapping[str, Any], /) -> RouteRecord:
        """Send an endpoint's traffic where `route` says, from now on and from everywhere; replaces the route it
        has. See Client.set_route."""
        return self._thread.run(self._target.set_route(endpoint, route))

    def delete_route(self, endpoint: str, /) -> None:
        """The endpoint is the pool of its name again. One that has no route is no error. See Client.delete_route."""
        self._thread.run(self._target.delete_route(endpoint))

    def routes(self) -> dict[str, RouteRecord]:
        """Routes by endpoint, as they are followed now. Values that cannot be followed are in
        `statistics()["routes"]["refused"]`. See Client.routes."""
        return self._thread.run(self._target.routes())


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
        )

    return SyncClient(open_client)
