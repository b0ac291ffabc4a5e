"""The public client."""

from __future__ import annotations

import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack, overload

from ...bus.port.bus import BucketSettings, Bus
from ...runtime.clock import Environment
from ...runtime.tracebacks import FRAMES_HIDDEN, frames_hidden
from ...schemas.errors.base import ClosedError, GanglineError, InvalidArguments, InvalidRequest, UnknownJob
from ...schemas.handles import NamedTask, P, R, decoded, name_of, task_of
from ...schemas.messages.jobs import ListRequest, QueueStats, run_of
from ...schemas.messages.operations import parse_request
from ...schemas.names import Names, check_job, check_name, job_endpoint
from ...schemas.records.jobs import JobState
from ...schemas.text import brief, count_of
from ..calls.call import CallOptions, ClientOptions, check_names
from ..gangs.gang import GangAcquisition, GangOptions
from ..jobs.dead_letters import DeadLetter, DeadLetters, audited
from ..jobs.job import ASK_TIMEOUT_S, Job
from ..jobs.listing import JobList, JobPage
from ..jobs.queries import JobQueries
from ..jobs.schedules import Schedules
from ..jobs.storage import TaskStorage, TaskStreams
from ..jobs.stored import JobRef, Schedule
from ..jobs.submitter import Submitted, Submitter, at_once
from ..leases.lease import LeaseAcquisition
from ..leases.selection import Selection, WorkerChoice
from ..router.router import Router
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from .audit import AuditTrail
from .gateway_caller import GatewayCaller
from .hooks import ClientRequest, Hook, HookChain
from .operations import Operations

if TYPE_CHECKING:
    from ...bus.settings.connection import ConnectionSettings


class Client(Operations):
    """Runs tasks on workers.

    ```python
    async with gangline.connect("nats://127.0.0.1:4222") as client:
        await client.call("images.thumbnail", path="a.png")
    ```

    Create one with `connect`, or from a bus of your own. Belongs to one event loop. `options(...)` returns copies that
    share its connection and state.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        names: Names | None = None,
        settings: RouterSettings | None = None,
        ambient: Environment | None = None,
        bucket: BucketSettings | None = None,
        tasks: TaskStorage | None = None,
        policy: Callable[[str], Policy] | None = None,
        name: str = "",
        owns_bus: bool = False,
        middleware: Sequence[Hook] = (),
        gateway: bool = False,
        audit: bool = True,
    ) -> None:
        """
        Args:
            bus: an open connection.
            names: the namespace; default `gangline`.
            settings: see RouterSettings.
            ambient: source of randomness and tokens; default: the system's.
            bucket: settings of the ledger if it has to be created.
            tasks: settings of the streams of durable tasks if they have to be created; default: from the environment
                (GANGLINE_STORAGE, GANGLINE_REPLICAS).
            policy: makes the routing policy of a pool from its name; default: Sticky.
            name: the owner of leases in the ledger; default: the bus's name.
            owns_bus: whether `close` closes the bus.
            middleware: hooks around calls, streams and submissions, outermost first. See dispatcher.client.hooks.
            gateway: see `connect`.
            audit: whether operator functions are recorded in the audit trail.

        Raises:
            InvalidSettings: an item of `middleware` is not a hook.
        """
        self._bus = bus
        self._owns_bus = owns_bus
        self._options = CallOptions()
        self._hooks = HookChain(middleware) if middleware else None
        self._router = Router(
            bus, names or Names(), settings=settings, ambient=ambient, bucket=bucket, policy=policy, name=name
        )
        self._gateway = GatewayCaller(self._router) if gateway else None
        self._calls: Router | GatewayCaller = self._gateway or self._router
        ambient = ambient or Environment()
        self._streams = streams = TaskStreams(bus, self._router.names, tasks)
        self._audit = AuditTrail(bus, self._router.names, streams, ambient) if audit else None
        self._queries = JobQueries(bus, streams, ambient, noted=self._noted)
        self._submitter = Submitter(streams, ambient)
        self._letters = DeadLetters(streams, ambient, self._queries)
        self._schedules = Schedules(streams, ambient)
        self._list = JobList(self._queries, streams, ambient)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> Client:
        """Start the client; `async with` and `connect` call this. Idempotent.

        Raises:
            ClosedError: it was closed.
        """
        await self._router.start()
        return self

    async def close(self) -> None:
        """Refuse new requests and end those in progress with ClosedError: queued requests are withdrawn, running tasks
        are cancelled, slots are released. Then close the connection if the client owns it. Idempotent.

        To get results, wait for your calls before closing.
        """
        if self._gateway is not None:
            self._gateway.close()
        await self._router.stop()
        if self._owns_bus:
            await self._bus.close()

    async def __aenter__(self) -> Client:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def options(self, **given: Unpack[ClientOptions]) -> Client:
        """A cheap copy of this client with these options; those not given are inherited.

        `timeout_s` limits one attempt, and `deadline_s` the whole, for calls, streams, leases, gangs and submitted
        tasks alike; a call without `deadline_s` may take as long as one attempt. See CallOptions for the first nine,
        and SubmitOptions for the others, which apply to `submit` only: a call with one of them raises InvalidRequest.
        For `submit`, `max_attempts` counts started attempts.

        Raises:
            InvalidSettings: a value is out of bounds.
        """
        bound = Client.__new__(Client)
        bound.__dict__ = self.__dict__.copy()
        bound._options = self._options.changed(given)
        return bound

    # -- tasks ----------------------------------------------------------------------------------------------------

    # `call` and `dispatch` are not `async def`: each request would only pay for awaiting one more coroutine.

    @overload
    def call(self, target: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...

    @overload
    def call(  # a task that yields: the list of its items
        self, target: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def call(
        self, target: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def call(self, target: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def call(self, target: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a task on some worker and return its result, in one round trip.

        Args:
            target: `ENDPOINT.METHOD`, for example `images.thumbnail`. Or the function that is declared with
                `@pool.task`: type checkers then check the arguments, and the result is what the function returns (a
                model where the name gives a dict). See gangline.handle for a function of several pools.
            *args: positional arguments of the task.
            **kwargs: named arguments of the task only; deadlines and other settings are set with `options`.

        Cancelling cancels the task, queued or running, without waiting for it to stop. Inside a worker's task, the call
        inherits that task's deadline and trace.

        Raises:
            InvalidName, InvalidRequest, PayloadTooLarge: nothing was sent.
            NoGateway: this client calls through gateways, and there is none.
            InvalidArguments, UnknownMethod: the task does not accept these arguments, or does not exist.
            QueueFull: too many requests are queued here; raised at once.
            NoWorkers, Saturated, Draining, Disconnected: no worker accepted it in time; nothing started.
            DeadlineExceeded: `may_have_started` says whether it may have started.
            TaskFailed, TaskCrashed, TaskCancelled, InvalidResult: it started and did not succeed.
            WorkerLost, ResultLost: it may have run; it is not idempotent, so it was not retried.
            ClosedError: this client was closed.
        """
        if not isinstance(target, str):
            return self._call_task(target, args, kwargs)
        if self._hooks is not None and self._hooks.calls:
            request = ClientRequest(kind="call", target=target, args=args, kwargs=kwargs, options=self._options)
            return self._hooks.call(request, self._call_now)
        return self._calls.call(target, args, kwargs, options=self._options)

    @overload
    def stream(self, target: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]: ...

    @overload
    def stream(self, target: Selection, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]: ...

    @overload
    def stream(
        self,
        target: Selection,
        method: Callable[P, AsyncIterator[R] | Iterator[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncGenerator[R, None]: ...

    @overload
    def stream(
        self, target: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]: ...

    def stream(self, target: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run a task that yields, and yield its items as they arrive: `async for item in client.stream(...)`.

        Args:
            target: `ENDPOINT.METHOD`, or the task's function. Or a selection, followed by the name of the method or its
                function: the task runs on the selected slot, as described for `dispatch`. (`dispatch` returns all items
                as a list.)
            *args: positional arguments of the task.
            **kwargs: named arguments of the task.

        The worker stays at most `RouterSettings.stream_window` items ahead. Leaving the loop early, closing or
        cancelling stops the task (with `contextlib.aclosing`, immediately).

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            StreamBroken: items were lost; those yielded before are correct.
            SelectionUsed, SelectionClosed, WrongPool, WrongClient: from a selection; nothing was sent.
            GanglineError: as `call`.
        """
        if isinstance(target, Selection):
            return self._stream_on(target, args, kwargs)
        if not isinstance(target, str):
            task = task_of(target)
            return _decoded(task, self.stream(task.full_name, *args, **kwargs))
        if self._hooks is not None and self._hooks.streams:
            request = ClientRequest(kind="stream", target=target, args=args, kwargs=kwargs, options=self._options)
            return self._hooks.stream(request, self._stream_now)
        return self._calls.stream(target, args, kwargs, options=self._options)

    def choose_worker(
        self, target: str | Callable[..., Any], /, *, slots: int | None = None, move: bool = True
    ) -> WorkerChoice:
        """`async with client.choose_worker("images") as selection:` — reserve a slot, and see on which worker, before
        sending.

        In a standing set, a gang is selected: the slot is reserved on rank 0, or one on every rank (all or nothing) if
        the set's calls run on all ranks. `selection.gang` is its id; the other properties describe rank 0's worker.

        Args:
            target: a pool, a standing set, or `ENDPOINT.METHOD` (or the task's function) to reserve the slots that task
                takes.
            slots: number of slots to reserve instead; per rank.
            move: whether `dispatch` may use another worker (or gang) if this one is lost before the task can have
                started. False: `dispatch` raises WorkerLost.

        The slot is renewed automatically, and released if the block ends without a dispatch.

        Raises:
            NoWorkers, Saturated, QueueFull, Draining, Disconnected: on entering; nothing is reserved.
        """
        return self._direct("choose_worker").choose_worker(
            name_of(target), slots=slots, move=move, options=self._options
        )

    @overload
    def dispatch(self, selection: Selection, method: str, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...

    @overload
    def dispatch(
        self,
        selection: Selection,
        method: Callable[P, AsyncIterator[R] | Iterator[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, list[R]]: ...

    @overload
    def dispatch(
        self,
        selection: Selection,
        method: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def dispatch(
        self, selection: Selection, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...

    def dispatch(self, selection: Selection, method: Any, /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a task on the selected slot; it cannot be rejected for lack of capacity. `method` is its name or its
        function, as for `call`.

        If the worker is lost before the task can have started, the task runs within its deadline on another worker that
        matches the labels and key of the choice; `selection.worker` then names that one. The same applies to another
        gang if the selected one was torn down. A task that may have started is retried only if it is idempotent. If the
        set's calls run on all ranks, the result is the list of their results.

        Raises:
            SelectionUsed, SelectionClosed, WrongPool, WrongClient, LeaseExpired: nothing was sent.
            GanglineError: as `call`.
        """
        if not isinstance(selection, Selection):
            raise InvalidRequest(f"{brief(selection)} is not a selection: see choose_worker")
        if not isinstance(method, str):
            return self._dispatch_task(selection, method, args, kwargs)
        if self._hooks is not None and self._hooks.calls:
            request = ClientRequest(
                kind="dispatch", target=_on(selection, method), args=args, kwargs=kwargs, options=self._options
            )
            return self._hooks.call(request, lambda changed: self._dispatch_now(selection, changed))
        return self._router.dispatch(selection, method, args, kwargs, options=self._options)

    def lease(
        self,
        target: str | Callable[..., Any],
        /,
        *,
        slots: int = 1,
        ttl_s: float = 15.0,
        ledger: str = "behind",
        wait: bool = True,
    ) -> LeaseAcquisition:
        """`async with client.lease("images", slots=4) as lease:` — reserve slots of one worker for many tasks.

        In a standing set, the slots belong to one gang: to rank 0, or the same number on every rank if the set's calls
        run on all ranks. The lease is lost when the gang is torn down or replaced; its calls then raise WorkerLost.

        Args:
            target: a pool, a standing set, or `ENDPOINT.METHOD` (or the task's function).
            slots: number of slots, all on one worker. More than any worker has is refused at once with Saturated.
            ttl_s: time to live without renewal, 1 to 86400 s. The lease renews itself, so this only limits how long the
                slots stay taken after this process disappears.
            ledger: `sync` writes the ledger before the grant; `lease.fence` then grows across the whole system. Not for
                a standing set: its slots are in the ledger with their gang, whose fence the lease has.
            wait: whether `lease.call` waits while all slots of the lease are in use, or its task is at a limit, or
                raises LeaseBusy. To get the lease at once or not at all: `client.options(queue=False).lease(...)`.

        Raises:
            NoWorkers, Saturated, QueueFull, Draining, Disconnected: on entering; nothing is reserved.
            InvalidRequest: on entering: ledger="sync" was given for a standing set.
        """
        return self._direct("lease").lease(
            name_of(target), slots=slots, ttl_s=ttl_s, ledger=ledger, wait=wait, options=self._options
        )

    def gang(self, **wanted: Unpack[GangOptions]) -> GangAcquisition:
        """`async with client.gang(pool="train", size=8) as gang:` — slots on many workers, all or nothing.

        Entering waits in the coordinator's queue until the gang is formed. Its members may not have started yet: a task
        waits for the `gang_start` functions of its own member, `await gang.ready()` for those of all members. Leaving
        releases the gang and returns when its members have stopped. It is renewed automatically. See GangOptions for
        the arguments.

        Raises:
            InvalidRequest: at once; names the invalid fields.
            GangImpossible, QueueFull: on entering; nothing is reserved.
            GangNotFormed: not formed by the deadline; says why.
            NoCoordinator: no coordinator leads, by the deadline; without a deadline, at once.
        """
        if not self._router.running:  # entering the block checks the event loop, which plain code is not on here
            raise _not_open()
        check_names("gang", wanted, GangOptions)
        return self._direct("gang").gangs.gang(wanted, self._options)

    # -- durable tasks --------------------------------------------------------------------------------------------

    @overload
    async def submit(self, target: str, /, *args: Any, **kwargs: Any) -> Job[Any]: ...

    @overload
    async def submit(  # a task that yields: it has no result, but `Job.items`
        self, target: Callable[P, AsyncIterator[Any] | Iterator[Any]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[None]: ...

    @overload
    async def submit(
        self, target: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...

    @overload
    async def submit(self, target: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...

    @frames_hidden
    async def submit(self, target: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Submit a durable task: it runs now or later, even if this process exits. Returns when it is stored.

        The task is not lost, is not started again while it runs, and is retried when it fails; it ends as done,
        dead-lettered or cancelled. Its result is kept for an hour. See `options` for all settings.

        A standing set runs it on rank 0 of one of its gangs, or on all ranks if its calls run on all ranks; the result
        is then the list of their results. An attempt whose gang is torn down counts like one whose worker died.

        Args:
            target: `ENDPOINT.METHOD`, for example `images.thumbnail`; the endpoint may be a standing set. Or the task's
                function, as for `call`; the job's result is then what the function returns.
            *args: positional arguments of the task; give these or named ones, not both.
            **kwargs: named arguments of the task.

        If it is not acknowledged, the message is sent again for up to 30 s, without creating a second task. If this is
        cancelled, the task may still be stored.

        Raises:
            InvalidName, InvalidRequest, InvalidArguments, InvalidSettings, PayloadTooLarge: nothing was sent.
            InvalidSchedule: the server does not understand `cron`; says why.
            StorageUnavailable: not acknowledged; `may_have_started` says whether it may still be stored.
            ClosedError: this client was closed.
        """
        self._check_open()
        if not isinstance(target, str):
            return (await self.submit(name_of(target), *args, **kwargs)).of(target)
        options = self._options
        if self._hooks is not None and self._hooks.submits:
            request = ClientRequest(kind="submit", target=target, args=args, kwargs=kwargs, options=options)
            return await self._hooks.submit(request, self._submit_now)
        return self._job_of(await self._submitter.one(target, args, kwargs, options), options)

    @overload
    async def submit_many(self, target: str, arguments: Sequence[Mapping[str, Any]], /) -> list[Job[Any]]: ...

    @overload
    async def submit_many(
        self, target: Callable[..., AsyncIterator[Any] | Iterator[Any]], arguments: Sequence[Mapping[str, Any]], /
    ) -> list[Job[None]]: ...

    @overload
    async def submit_many(
        self, target: Callable[..., Coroutine[Any, Any, R]], arguments: Sequence[Mapping[str, Any]], /
    ) -> list[Job[R]]: ...

    @overload
    async def submit_many(
        self, target: Callable[..., R], arguments: Sequence[Mapping[str, Any]], /
    ) -> list[Job[R]]: ...

    @frames_hidden
    async def submit_many(self, target: Any, arguments: Sequence[Mapping[str, Any]], /) -> list[Job[Any]]:
        """Submit a task for each of these sets of named arguments; returns the jobs in order, when all are stored.
        `target` is as for `submit`; the arguments are checked by the worker only.

        Costs half as much as single submissions: up to 512 messages are sent at once. Each is stored on its own, and is
        sent again if it is not acknowledged, as by `submit`. With an `idempotency_key`, each submission uses that key
        with its index in the list. If this is cancelled, any of the tasks may still be stored.

        Raises:
            GanglineError: the first failure, as `submit`; its text names the item, and `details["item"]` has its index.
                All others were attempted: `details["jobs"]` has their ids in order, None for those that failed.
        """
        self._check_open()
        wanted: object = arguments
        if isinstance(wanted, (str, bytes)) or not isinstance(wanted, Sequence):
            raise InvalidArguments(f"submit_many takes a list of dicts of named arguments, not {brief(wanted)}")
        if not isinstance(target, str):
            return [job.of(target) for job in await self.submit_many(name_of(target), arguments)]
        found: Sequence[Job | GanglineError]
        if self._hooks is not None and self._hooks.submits:
            found = await at_once(len(arguments), lambda part: self._submit_part(target, arguments[part], part))
        else:
            stored = await self._submitter.many(target, arguments, self._options)
            found = [item if isinstance(item, GanglineError) else self._job_of(item, self._options) for item in stored]
        for number, item in enumerate(found):
            if isinstance(item, GanglineError):
                ids = [None if isinstance(each, GanglineError) else each.id for each in found]
                item.details = {**item.details, "jobs": ids, "item": number}
                failed = sum(each is None for each in ids)
                others = f" ({count_of(failed - 1, 'more item')} failed)" if failed > 1 else ""
                item.message = f"arguments[{number}]: {item.message}{others}"
                item.args = (item.message,)
                raise item
        return [item for item in found if isinstance(item, Job)]

    def job(self, id: str, /, endpoint: str | None = None) -> Job:
        """A handle to the job with this id. Sends nothing.

        Args:
            id: `Job.id`; for a task published without the client, its `Gangline-Job`, else its sequence in the stream.
            endpoint: endpoint of its task, if the id does not begin with it: finds it faster.

        Raises:
            InvalidName: the id or the endpoint is invalid.
        """
        check_job(id)
        if endpoint is not None:
            check_name(endpoint, "endpoint")
        endpoint = job_endpoint(id) or endpoint
        return Job(self._queries, JobRef(id=id, endpoint=endpoint))

    async def jobs(
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
        """Jobs that match all conditions, page by page: first unfinished ones in the order of submission, endpoint by
        endpoint, then delayed ones, then ended ones, the last first.

        An ended job is listed as long as its result is kept (an hour by default), and not at all if it was submitted
        with `result_ttl_s=0`; dead letters are kept for thirty days, see `dead_letters`. For one page, at most 20 000
        waiting tasks of an endpoint are looked through; the rest of them follows the end of the list.

        Args:
            states: of these states; default: of all.
            endpoint: of this endpoint.
            key: submitted with this `key`.
            schedule: runs of this schedule: its id, its name, or the beginning of its id.
            since: submitted or ended then or later; with a time zone.
            limit: number of jobs in a page, 1 to 10 000.
            cursor: `next` of the previous page. Jobs that change meanwhile may be missed or listed twice.

        Raises:
            InvalidRequest: an argument is invalid.
            UnknownJob: there is no such schedule.
            Disconnected, StorageUnavailable: the streams could not be read.
        """
        self._check_open()
        if since is not None and since.tzinfo is None:
            raise InvalidRequest(f"since is {since!r}: give a datetime with a time zone, such as datetime.now(UTC)")
        fields = {
            "states": tuple(states),
            "key": key,
            "schedule": None if schedule is None else await self._schedule_id(schedule),
            "since": None if since is None else since.timestamp(),
        }
        wanted = parse_request(ListRequest, {name: value for name, value in fields.items() if value is not None})
        timeout_s = self._options.timeout_s or ASK_TIMEOUT_S
        return await self._list.page(wanted, endpoint, limit=limit, cursor=cursor, timeout_s=timeout_s)

    async def _schedule_id(self, which: str) -> str:
        """The id of a schedule, which may be deleted."""
        try:
            return (await self._schedules.find(which)).id
        except UnknownJob:
            if job_endpoint(which) is None:
                raise
            return check_job(which)

    @frames_hidden
    async def find_job(self, id: str, /, endpoint: str | None = None) -> Job:
        """A handle to the job whose id this is, or begins with; `job` sends nothing and takes complete ids only.

        Args:
            id: at least four characters of it, with or without the endpoint; or `JobInfo.title` of a schedule's run.

        Raises:
            UnknownJob: there is none among unfinished jobs and the last 2000 ended ones.
            InvalidRequest: there are several; the text names them.
        """
        self._check_open()
        job = self.job(id, endpoint)
        try:
            await job.status()
        except UnknownJob as unknown:
            if (run := await self._run(id, endpoint)) is not None:
                return run
            try:
                return self.job(await self._list.resolve(id, endpoint, ASK_TIMEOUT_S))
            except UnknownJob:
                raise unknown from None
        return job

    async def _run(self, title: str, endpoint: str | None) -> Job | None:
        """The run of a schedule that has this title, if there is one."""
        named = run_of(title)
        if named is None:
            return None
        schedule, id = named
        try:
            job = self.job(id, job_endpoint(schedule) or endpoint)
            return job if (await job.status()).schedule == schedule else None
        except UnknownJob:
            return None

    async def queues(self) -> list[QueueStats]:
        """Queues of all endpoints that have waiting or running tasks, or a dispatcher: depth, oldest task, running
        tasks, idle slots.

        Raises:
            Disconnected, StorageUnavailable: the stream could not be read.
        """
        self._check_open()
        return await self._queries.queues(self._options.timeout_s or ASK_TIMEOUT_S)

    async def dead_letters(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """Tasks that will not be retried, of all endpoints or one: the newest `limit`, oldest first.

        Args:
            limit: None: all.
            bodies: whether to return bodies; without them, thousands of large dead letters take little memory.

        Raises:
            Disconnected, StorageUnavailable: the stream could not be read.
        """
        self._check_open()
        return await self._letters.newest(endpoint, limit=limit, bodies=bodies)

    @frames_hidden
    async def dead_letter(self, job: str) -> DeadLetter:
        """The dead letter of one job.

        Args:
            job: its id, or at least four characters of its beginning, with or without the endpoint.

        Raises:
            UnknownJob: there is none.
            InvalidRequest: there are several; the text names them.
        """
        self._check_open()
        return await self._letters.find(job)

    @frames_hidden
    async def replay(self, job: str | DeadLetter, *, reason: str = "") -> Job:
        """Requeue a dead letter under its job id with a fresh set of attempts.

        `delay_s` does not apply again, and a deadline that has passed is dropped.

        Args:
            job: its id or its beginning, or one of its dead letters, which is faster.
            reason: why, for the audit trail, here and below.

        Raises:
            UnknownJob: there is no such letter.
            InvalidRequest: there are several, or the task was not published to a task subject.
            JobError: the job has ended otherwise since, or is being replayed by another client.
        """
        self._check_open()
        letter = await self._letter(job)
        async with self._noted("dead replay", audited([letter]), reason):
            return Job(self._queries, await self._letters.replay(letter))

    @frames_hidden
    async def drop(self, job: str | DeadLetter, *, reason: str = "") -> None:
        """Delete a dead letter.

        Args:
            job: its id or its beginning, or one of its dead letters.

        Raises:
            UnknownJob: there is no such letter.
            InvalidRequest: there are several; the text names them.
        """
        self._check_open()
        letter = await self._letter(job)
        async with self._noted("dead rm", audited([letter]), reason):
            await self._letters.drop(letter)

    async def _letter(self, job: str | DeadLetter) -> str | DeadLetter:
        """The letter of a job; if there is none, the text, so that the action fails and is recorded."""
        if not isinstance(job, (str, DeadLetter)):
            raise InvalidRequest(f"{brief(job)} is neither the id of a job nor a DeadLetter")
        try:
            return await self._letters.find(job) if isinstance(job, str) else job
        except (UnknownJob, InvalidRequest):
            return job

    # -- schedules ------------------------------------------------------------------------------------------------

    async def schedules(self, endpoint: str | None = None) -> list[Schedule]:
        """Recurring tasks (`options(cron=...)`) of one endpoint, or of all, sorted by endpoint and name; paused ones
        included. A schedule appears when a dispatcher has taken its task.

        Raises:
            Disconnected, StorageUnavailable: they could not be read.
        """
        self._check_open()
        return await self._schedules.all(endpoint)

    @frames_hidden
    async def schedule(self, which: str) -> Schedule:
        """One schedule.

        Args:
            which: its id, its name (the `idempotency_key` that it was submitted with), or the beginning of its id.
                Names are per endpoint: `ENDPOINT.NAME` tells two of the same name apart.

        Raises:
            UnknownJob: there is none.
            InvalidRequest: there are several.
        """
        self._check_open()
        return await self._schedules.find(which)

    @frames_hidden
    async def pause_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Pause a schedule: it has no further runs until it is resumed, also if a program declares it again. Runs that
        have begun continue. Needs the permissions of an operator, as do the two below.

        Args:
            which: as for `schedule`.

        Raises:
            UnknownJob, InvalidRequest: as `schedule`.
        """
        self._check_open()
        async with self._noted("schedules pause", which, reason):
            return await self._schedules.pause(which)

    @frames_hidden
    async def resume_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Resume a paused schedule: its next run is at its next time; those it missed are not made up for. No error if
        it is not paused.

        Raises:
            UnknownJob, InvalidRequest: as `schedule`.
        """
        self._check_open()
        async with self._noted("schedules resume", which, reason):
            return await self._schedules.resume(which)

    @frames_hidden
    async def delete_schedule(self, which: str, *, reason: str = "") -> Schedule:
        """Delete a schedule; returns what it was. Runs that have begun continue.

        One that a task declares with `cron=` (`Schedule.in_code`) comes back within seconds: a dispatcher stores it
        again. To stop it, pause it (`pause_schedule`), or remove `cron=`.

        Raises:
            UnknownJob, InvalidRequest: as `schedule`.
        """
        self._check_open()
        async with self._noted("schedules rm", which, reason):
            schedule = await self._schedules.find(which)
            await self._queries.unschedule(schedule, self._options.timeout_s or ASK_TIMEOUT_S)
            return schedule

    # -- introspection --------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, Any]:
        """A snapshot of this client: pools with workers and queues, requests in flight, slots held."""
        return self._router.statistics()

    @property
    def router(self) -> Router:
        """The router that this client uses."""
        return self._router

    def __repr__(self) -> str:
        return f"Client({self._router!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    @frames_hidden
    async def _call_task(self, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        task = task_of(target)
        return decoded(task, await self.call(task.full_name, *args, **kwargs))

    @frames_hidden
    async def _dispatch_task(
        self, selection: Selection, target: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        task = task_of(target, (selection.pool, selection.endpoint))
        return decoded(task, await self.dispatch(selection, _method_on(selection, task), *args, **kwargs))

    async def _call_now(self, request: ClientRequest) -> Any:
        return await self._calls.call(request.target, request.args, request.kwargs, options=request.options)

    async def _dispatch_now(self, selection: Selection, request: ClientRequest) -> Any:
        return await self._router.dispatch(
            selection, request.target, request.args, request.kwargs, options=request.options
        )

    def _stream_on(
        self, selection: Selection, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        if args and callable(args[0]):
            task = task_of(args[0], (selection.pool, selection.endpoint))
            return _decoded(task, self._stream_on(selection, (_method_on(selection, task), *args[1:]), kwargs))
        if not args or not isinstance(args[0], str):
            raise InvalidRequest("to stream from a selection, give the name of the method next: stream(selection, 'm')")
        method, *rest = args

        def now(request: ClientRequest) -> AsyncGenerator[Any, None]:
            return self._router.stream_on(
                selection, request.target, request.args, request.kwargs, options=request.options
            )

        target = _on(selection, method)
        request = ClientRequest(kind="stream", target=target, args=tuple(rest), kwargs=kwargs, options=self._options)
        if self._hooks is not None and self._hooks.streams:
            return self._hooks.stream(request, now)
        return now(request)

    def _stream_now(self, request: ClientRequest) -> AsyncGenerator[Any, None]:
        return self._calls.stream(request.target, request.args, request.kwargs, options=request.options)

    async def _submit_now(self, request: ClientRequest, part: int | None = None) -> Job:
        stored = await self._submitter.one(request.target, request.args, request.kwargs, request.options, part=part)
        return self._job_of(stored, request.options)

    async def _submit_part(self, target: str, kwargs: Mapping[str, Any], part: int) -> Job | GanglineError:
        assert self._hooks is not None
        request = ClientRequest(kind="submit", target=target, kwargs=kwargs, options=self._options)
        try:
            return await self._hooks.submit(request, lambda changed: self._submit_now(changed, part))
        except GanglineError as error:
            return error

    def _job_of(self, submitted: Submitted, options: CallOptions) -> Job:
        message = submitted.message
        submit = options.submit
        return Job(
            self._queries,
            JobRef(
                id=message.job,
                endpoint=message.endpoint,
                method=message.method,
                sequence=submitted.sequence,
                scheduled=message.scheduled,
                repeats=message.repeats,
                result_kept=message.result_kept,
                events=bool(submit is not None and submit.events),
                submitted=True,
                created=submitted.created,
            ),
        )

    def _direct(self, what: str) -> Router:
        """The router, for what gateways do not do."""
        if self._gateway is not None:
            raise InvalidRequest(
                f"{what}() needs a client that sends to workers itself: connect with a user that has the role router, "
                "without gateway=True. This one calls through gateways"
            )
        return self._router

    def _check_open(self) -> None:
        if not self._router.running:
            raise _not_open()
        self._router.check_open()


def _not_open() -> ClosedError:
    return ClosedError("this client is not open: use it inside `async with`")


def _on(selection: Selection, method: str) -> str:
    """The target of a task that runs on the selection."""
    return method if "." in method else f"{selection.endpoint}.{method}"


def _method_on(selection: Selection, task: NamedTask) -> str:
    """What `dispatch` calls the task: its full name only if it is of another pool, which is an error."""
    ours = task.full_name.partition(".")[0] in (selection.pool, selection.endpoint)
    return task.name if ours else task.full_name


async def _decoded(task: NamedTask, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    with FRAMES_HIDDEN:
        async with contextlib.aclosing(items):
            async for item in items:
                yield task.decode(item)


class Connecting:
    """What `connect` returns: `async with connect(...) as client`, or `client = await connect(...)`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        self._open = open_client
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._open().__await__()

    if not TYPE_CHECKING:  # type checkers see the real attributes; this explains the mistake of using it as a client

        def __getattr__(self, name):
            raise AttributeError(
                f"connect() has no {name!r} yet: it only connects in `async with gangline.connect(...) as client:` "
                "(or `client = await gangline.connect(...)`); code without async has gangline.connect_sync(...)"
            )

    @frames_hidden
    async def __aenter__(self) -> Client:
        self._client = await self._open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def connect(
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
    ambient: Environment | None = None,
) -> Connecting:
    """Connect to NATS: `async with connect(...) as client`, or `client = await connect(...)` and close it later.

    Args:
        server: `nats://host:port`, several separated by commas, or ConnectionSettings. None: as the `nats` CLI
            (NATS_URL, NATS_CONTEXT, the selected context), else `nats://127.0.0.1:4222`.
        namespace: prefix of all subjects; workers and clients of one namespace see each other.
        name: shown in the server's connection list, and in the ledger as the owner of leases.
        settings: see RouterSettings.
        policy: makes the routing policy of a pool from its name; default: Sticky.
        bucket: settings of the ledger if it has to be created.
        tasks: settings of the streams of durable tasks if they have to be created; default: from the environment
            (GANGLINE_STORAGE, GANGLINE_REPLICAS).
        middleware: hooks around calls, streams and submissions, outermost first: async functions of `(request,
            call_next)`, or objects as described in dispatcher.client.hooks.
        gateway: `call` and `stream` go through a gateway, as plain requests do: for users that have the role producer
            only, and for tenants. Calls without a deadline then have one of 30 s; cancelling a call stops waiting for
            it, and the task runs on until its deadline; the options `labels`, `pool`, `queue` and `max_attempts` are
            refused, and so are `choose_worker`, `lease` and `gang`. Everything else is the same.

    Raises:
        ServerUnreachable: no server answered, or it refused the connection; on entering or awaiting.
        InvalidSettings, InvalidName: likewise.
    """

    @frames_hidden
    async def open_client() -> Client:
        from ...bus.nats_bus import connect as connect_bus
        from ...bus.settings.connection import ConnectionSettings

        if server is None:
            how = ConnectionSettings.from_environment()
        else:
            how = ConnectionSettings.from_url(server) if isinstance(server, str) else server
        names = Names(namespace)
        bus = await connect_bus(how, name=name or "gangline-client", ambient=ambient)
        client = Client(
            bus,
            names=names,
            settings=settings,
            policy=policy,
            bucket=bucket,
            tasks=tasks,
            ambient=ambient,
            name=name,
            owns_bus=True,
            middleware=middleware,
            gateway=gateway,
        )
        try:
            return await client.start()
        except BaseException:
            await bus.close()
            raise

    return Connecting(open_client)
