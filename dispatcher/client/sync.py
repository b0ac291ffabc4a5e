"""The client for code without an event loop: the same names, plain functions.

A `SyncClient` runs an ordinary Client on a loop in a thread of its own. It may be used from many threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...bus.port.bus import BucketSettings
from ...runtime.loop_thread import LoopThread, SyncContext, iterate
from ...schemas.errors.base import ClosedError, GanglineError
from ...schemas.messages.operations import DrainReply, ResizeReply, StatsReply
from ...schemas.records.gangs import Bundle
from ...schemas.records.routes import RouteRecord
from ...schemas.records.workers import LeaseRecord
from ..jobs.storage import TaskStorage
from ..leases.lease import Lease, Leasing
from ..leases.selection import Choosing, Selection
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from .client import Client, connect
from .gang_sync import SyncGanging
from .hooks import Hook
from .jobs_sync import SyncDurableTasks
from .operations import WorkerInfo

if TYPE_CHECKING:
    from ...bus.settings.connection import ConnectionSettings


class SyncChoosing(SyncContext[Selection]):
    """See selection.Choosing."""

    def __init__(self, thread: LoopThread, choosing: Choosing) -> None:
        super().__init__(thread, choosing, lambda selection: selection)


class SyncLease:
    """See leases.Lease; the same attributes and methods."""

    def __init__(self, thread: LoopThread, lease: Lease) -> None:
        self._thread = thread
        self._lease = lease

    @property
    def pool(self) -> str:
        return self._lease.pool

    @property
    def endpoint(self) -> str:
        """What was asked for: the pool, or an endpoint whose route led there."""
        return self._lease.endpoint

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`, as operators name it; of a standing set, where rank 0 of the gang is."""
        return self._lease.worker

    @property
    def gang(self) -> str | None:
        """The gang of a standing set whose slots they are; None: of no gang."""
        return self._lease.gang

    @property
    def node(self) -> str:
        return self._lease.node

    @property
    def zone(self) -> str:
        return self._lease.zone

    @property
    def address(self) -> str:
        """Where others can reach the process, if it told."""
        return self._lease.address

    @property
    def labels(self) -> Mapping[str, str]:
        return self._lease.labels

    @property
    def token(self) -> str:
        return self._lease.token

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    @property
    def fence(self) -> int:
        return self._lease.fence

    @property
    def slots(self) -> int:
        return self._lease.slots

    @property
    def used(self) -> int:
        """Slots in use by this lease's tasks now."""
        return self._lease.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease cannot be used any more; None while it can."""

        async def ask() -> GanglineError | None:
            return self._lease.lost

        return self._thread.run(ask())

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Lease.call."""
        return self._thread.run(self._lease.call(method, *args, **kwargs))

    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """See Lease.stream."""
        return iterate(self._thread, self._lease.stream(method, *args, **kwargs))

    def renew(self) -> None:
        """See Lease.renew."""

        async def renew() -> None:
            self._lease.renew()

        self._thread.run(renew())

    def release(self) -> None:
        """See Lease.release."""

        async def release() -> None:
            self._lease.release()

        self._thread.run(release())

    def __repr__(self) -> str:
        return f"Sync{self._lease!r}"


class SyncLeasing(SyncContext[SyncLease]):
    """See leases.Leasing."""

    def __init__(self, thread: LoopThread, leasing: Leasing) -> None:
        super().__init__(thread, leasing, lambda lease: SyncLease(thread, lease))


class SyncClient(SyncDurableTasks):
    """Client for plain code; see Client for what each method means and raises.

    ::

        with gangline.connect_sync("nats://127.0.0.1:4222") as client:
            client.call("images.thumbnail", path="a.png")

    Ctrl-C during a call cancels the call. Forked children must connect anew.
    """

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """`open_client` runs on the client's own loop."""
        self._thread = LoopThread()
        try:
            self._client = self._thread.run(open_client())
        except BaseException:
            self._thread.stop()
            raise

    def start(self) -> SyncClient:
        """Does nothing: it began when it was made."""
        self._thread.run(self._client.start())
        return self

    def close(self) -> None:
        """See Client.close; also ends the thread. Idempotent."""
        try:
            self._thread.run(self._client.close())
        except ClosedError:
            return
        self._thread.stop()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def options(
        self,
        *,
        timeout_s: float | None = None,
        key: str | None = None,
        model: str | None = None,
        idempotent: bool | None = None,
        max_attempts: int | None = None,
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        queue: bool | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        delay_s: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        ordered: bool | None = None,
        backoff_s: float | None = None,
        result_ttl_s: float | None = None,
        events: bool | None = None,
    ) -> SyncClient:
        """See Client.options."""
        bound = SyncClient.__new__(SyncClient)
        bound._thread = self._thread
        bound._client = self._client.options(
            timeout_s=timeout_s,
            key=key,
            model=model,
            idempotent=idempotent,
            max_attempts=max_attempts,
            labels=labels,
            pool=pool,
            queue=queue,
            priority=priority,
            idempotency_key=idempotency_key,
            deadline_s=deadline_s,
            delay_s=delay_s,
            at=at,
            cron=cron,
            ordered=ordered,
            backoff_s=backoff_s,
            result_ttl_s=result_ttl_s,
            events=events,
        )
        return bound

    def call(self, target: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Client.call."""
        return self._thread.run(self._client.call(target, *args, **kwargs))

    def stream(self, target: str | Selection, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """See Client.stream. Closing the generator stops the task."""
        return iterate(self._thread, self._client.stream(target, *args, **kwargs))

    def choose_worker(self, target: str, /, *, slots: int | None = None, move: bool = True) -> SyncChoosing:
        """See Client.choose_worker."""
        return SyncChoosing(self._thread, self._client.choose_worker(target, slots=slots, move=move))

    def dispatch(self, selection: Selection, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Client.dispatch."""
        return self._thread.run(self._client.dispatch(selection, method, *args, **kwargs))

    def lease(
        self, target: str, /, *, slots: int = 1, ttl_s: float = 15.0, ledger: str = "behind", wait: bool = True
    ) -> SyncLeasing:
        """See Client.lease."""
        leasing = self._client.lease(target, slots=slots, ttl_s=ttl_s, ledger=ledger, wait=wait)
        return SyncLeasing(self._thread, leasing)

    def gang(
        self,
        *,
        pool: str | None = None,
        size: int | tuple[int, int] | None = None,
        slots: int | None = None,
        labels: Mapping[str, str] | None = None,
        bundles: Sequence[Bundle | Mapping[str, Any]] | None = None,
        strategy: str = "pack",
        deadline_s: float | None = None,
        wait_for_workers: bool = False,
        priority: int = 0,
        preempt: bool = False,
        restart: str = "restart_gang",
        max_restarts: int | None = 3,
        backoff_s: float = 0.5,
        grace_s: float = 5.0,
        start_timeout_s: float = 600.0,
        ttl_s: float = 15.0,
    ) -> SyncGanging:
        """See Client.gang."""
        ganging = self._client.gang(
            pool=pool,
            size=size,
            slots=slots,
            labels=labels,
            bundles=bundles,
            strategy=strategy,
            deadline_s=deadline_s,
            wait_for_workers=wait_for_workers,
            priority=priority,
            preempt=preempt,
            restart=restart,
            max_restarts=max_restarts,
            backoff_s=backoff_s,
            grace_s=grace_s,
            start_timeout_s=start_timeout_s,
            ttl_s=ttl_s,
        )
        return SyncGanging(self._thread, ganging)

    def workers(self, pool: str | None = None) -> list[WorkerInfo]:
        """See Client.workers."""
        return self._thread.run(self._client.workers(pool))

    def leases(self, pool: str | None = None, worker: str | None = None) -> list[LeaseRecord]:
        """See Client.leases."""
        return self._thread.run(self._client.leases(pool, worker))

    def drain(self, worker: str, *, grace_s: float | None = None) -> DrainReply:
        """See Client.drain."""
        return self._thread.run(self._client.drain(worker, grace_s=grace_s))

    def resize(self, worker: str, slots: int) -> ResizeReply:
        """See Client.resize."""
        return self._thread.run(self._client.resize(worker, slots))

    def stats(self, worker: str) -> StatsReply:
        """See Client.stats."""
        return self._thread.run(self._client.stats(worker))

    def set_route(self, endpoint: str, route: RouteRecord | Mapping[str, Any], /) -> RouteRecord:
        """See Client.set_route."""
        return self._thread.run(self._client.set_route(endpoint, route))

    def delete_route(self, endpoint: str, /) -> None:
        """See Client.delete_route."""
        self._thread.run(self._client.delete_route(endpoint))

    def routes(self) -> dict[str, RouteRecord]:
        """See Client.routes."""
        return self._thread.run(self._client.routes())

    def statistics(self) -> dict[str, Any]:
        """See Client.statistics."""

        async def ask() -> dict[str, Any]:
            return self._client.statistics()

        return self._thread.run(ask())

    def __repr__(self) -> str:
        return f"Sync{self._client!r}"


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
