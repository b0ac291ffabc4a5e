"""`Dispatcher`: one process's part in running durable tasks. Any number may run; they share the queues."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from ...bus.ambient import Ambient
from ...bus.port import BucketSettings, Bus, Stream
from ...schemas.errors import ClosedError, ServerUnsupported, Unavailable
from ...schemas.jobs import QueueStats
from ...schemas.names import Names
from ...telemetry.logs import logger_for
from ..router import Router
from ..settings import RouterSettings
from .context import Context
from .endpoints import Endpoints
from .guard import Guard
from .ownership import Ownership
from .queue import Queue
from .rolls import KnownPools
from .settings import DispatcherSettings
from .task_streams import TaskStorage, TaskStreams
from .vigil import Vigil

_RETRY_S: Final = 0.25


class DispatcherState(StrEnum):
    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherStatistics:
    """A snapshot of one dispatcher."""

    id: str
    state: DispatcherState
    queues: tuple[QueueStats, ...] = ()
    peers: int = 0
    """Other dispatchers that have queues."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """Since the start: taken, lost, started, freezes, workers_lost."""


class Dispatcher:
    """Runs durable tasks: takes queues that nobody has, and hands them over when it stops.

    ::

        async with Dispatcher(bus) as dispatcher:
            await dispatcher.wait_closed()

    The bus is the caller's: open before `start`, and not closed here. A dispatcher is used once; `start` and `stop` are
    idempotent.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        names: Names | None = None,
        settings: DispatcherSettings | None = None,
        tasks: TaskStorage | None = None,
        bucket: BucketSettings | None = None,
        router_settings: RouterSettings | None = None,
        ambient: Ambient | None = None,
        name: str = "",
    ) -> None:
        """
        Args:
            bus: an open connection.
            names: the namespace; `gangline` if not given.
            settings: see there.
            tasks: how streams and buckets are made if they do not exist yet; as the environment says if not given.
            bucket: how the ledger is made if it does not exist yet.
            router_settings: of the router with which it leases slots.
            ambient: wall clock, randomness and tokens; the system's if not given.
            name: shown in the ledger as the owner of leases, and to people.
        """
        self.bus = bus
        self.names = names or Names()
        self.settings = settings or DispatcherSettings()
        self.ambient = ambient or Ambient()
        self.id = self.ambient.token()
        """Unique for this object."""
        self.name = name or bus.name
        self.state = DispatcherState.NEW
        tasks = tasks or TaskStorage.from_environment()
        self.router = Router(
            bus,
            self.names,
            settings=router_settings,
            ambient=self.ambient,
            bucket=bucket,
            routes_bucket=tasks.bucket,
            makes_routes=True,
            name=self.name or "gangline-dispatcher",
        )
        self._log = logger_for("durable", dispatcher=self.id)
        self._streams = TaskStreams(bus, self.names, tasks)
        self._guard = Guard(bus, self.settings.freeze_after_s)
        self._known = KnownPools()
        self._queues: dict[str, Queue] = {}
        self._counts = {"taken": 0, "lost": 0}
        self._started_before = 0
        self._ends: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._parts: tuple[Vigil, Ownership, Endpoints] | None = None
        self._context: Context | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to take queues. Idempotent; cancelling undoes what was begun.

        Raises:
            Unavailable: no connection, or storage did not answer within `start_timeout_s`.
            ServerUnsupported: a nats-server without JetStream, or older than 2.12.
            ClosedError: it was stopped before.
        """
        if self.state is DispatcherState.CLOSED:
            raise ClosedError("this dispatcher was stopped: make a new one")
        if self.state is not DispatcherState.NEW:
            return
        self.state = DispatcherState.STARTING
        try:
            await self._start()
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    async def _start(self) -> None:
        await self._open_streams()
        await self.router.start()
        self._guard.start()
        settings = self.settings
        vigil = Vigil(
            self.bus,
            self.names,
            router=self.router,
            guard=self._guard,
            ping_s=settings.ping_s,
            gone_after_s=settings.worker_gone_after_s,
            log=self._log,
        )
        self.router.routes.start()
        self._context = Context(
            dispatcher=self.id,
            name=self.name,
            bus=self.bus,
            names=self.names,
            settings=settings,
            ambient=self.ambient,
            streams=self._streams,
            router=self.router,
            routes=self.router.routes,
            guard=self._guard,
            vigil=vigil,
            known=self._known,
            chance=random.Random(self.ambient.random.getrandbits(64)),
            log=self._log,
        )
        ownership = Ownership(
            self.bus,
            self.names,
            dispatcher=self.id,
            tasks=self._streams.tasks,
            settings=settings,
            guard=self._guard,
            ambient=self.ambient,
            take=self._take,
            log=self._log,
        )
        endpoints = Endpoints(
            self.bus,
            self.names,
            self._streams,
            router=self.router,
            routes=self.router.routes,
            known=self._known,
            look_s=settings.look_s,
            found=ownership.found,
            strays=self._on_strays,
            log=self._log,
        )
        self._parts = (vigil, ownership, endpoints)
        vigil.start()
        await ownership.start()
        await endpoints.start()
        await self.bus.flush()
        self.state = DispatcherState.RUNNING
        ownership.say("joined")
        self._log.info("runs durable tasks", extra={"action": "dispatcher.started"})

    async def _open_streams(self) -> None:
        """A cluster that holds an election just now is waited for."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.settings.start_timeout_s
        while True:
            try:
                for open_it in (self._streams.tasks, self._streams.dead, self._streams.jobs, self._streams.results):
                    await open_it()
                return
            except ServerUnsupported:
                raise
            except Unavailable:
                if loop.time() > give_up_at:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def stop(self, grace_s: float | None = None) -> None:
        """Hand all queues over and leave; other dispatchers take them at once. What workers run goes on. Idempotent.

        Args:
            grace_s: how long running tasks may finish here first; None: the setting.
        """
        if self.state is DispatcherState.CLOSED:
            await self._closed.wait()
            return
        self.state = DispatcherState.CLOSED
        try:
            await self._stop(self.settings.grace_s if grace_s is None else grace_s)
        finally:
            self._closed.set()
        self._log.info("left", extra={"action": "dispatcher.left"})

    async def _stop(self, grace_s: float) -> None:
        vigil, ownership, endpoints = self._parts or (None, None, None)
        if endpoints is not None:
            await endpoints.stop()
        if ownership is not None:
            await ownership.stop()
        queues, self._queues = self._queues, {}
        await asyncio.gather(*(queue.close(grace_s=grace_s) for queue in queues.values()))
        if self._ends:
            await asyncio.wait(self._ends)
        if ownership is not None:
            if queues:
                ownership.handed_over(sorted(queues))
            ownership.say("left")
        if vigil is not None:
            await vigil.stop()
        self._guard.stop()
        await self.router.stop()

    async def wait_closed(self) -> None:
        """Wait until it was stopped."""
        await self._closed.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- queues ---------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> dict[str, Queue]:
        """Those that we have, by endpoint; not to be changed."""
        return self._queues

    async def _take(self, endpoint: str, over: tuple[str, ...]) -> str | None:
        assert self._context is not None
        queue = Queue(self._context, endpoint, on_lost=self._on_lost)
        try:
            consumer = await queue.take(over)
        except BaseException:
            await queue.drop()
            raise
        if consumer is None or self.state is not DispatcherState.RUNNING:
            await queue.close()
            return None
        self._queues[endpoint] = queue
        self._counts["taken"] += 1
        return consumer

    def _on_lost(self, queue: Queue) -> None:
        if self._queues.get(queue.endpoint) is queue:
            del self._queues[queue.endpoint]
        self._counts["lost"] += 1
        self._started_before += queue.started
        self._log.warning(
            "lost the queue %s", queue.endpoint, extra={"action": "queue.lost", "endpoint": queue.endpoint}
        )
        end = asyncio.get_running_loop().create_task(queue.drop(), name="gangline-lost-queue")
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        if self._parts is not None:
            self._parts[1].gone(queue.endpoint)

    def _on_strays(self, stream: Stream, subjects: list[str]) -> None:
        """Not yet."""

    def statistics(self) -> DispatcherStatistics:
        vigil, ownership, endpoints = self._parts or (None, None, None)
        depths = endpoints.depths if endpoints is not None else {}
        return DispatcherStatistics(
            id=self.id,
            state=self.state,
            queues=tuple(queue.statistics(depths.get(name)) for name, queue in sorted(self._queues.items())),
            peers=ownership.peers if ownership is not None else 0,
            counts={
                **self._counts,
                "started": self._started_before + sum(queue.started for queue in self._queues.values()),
                "freezes": self._guard.freezes,
                "workers_lost": vigil.lost if vigil is not None else 0,
            },
        )

    def __repr__(self) -> str:
        return f"<Dispatcher {self.id} {self.state.value}, queues={sorted(self._queues)}>"
