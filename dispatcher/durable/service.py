"""`Dispatcher`: runs durable tasks. Any number of dispatchers may run; they share the queues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from ...bus.lifecycle import StartPatience, run_until_left
from ...bus.port.bus import BucketSettings, Bus
from ...bus.rpc.responder import CountingResponder
from ...bus.streams.history_recorder import HistoryRecorder
from ...runtime.clock import Environment
from ...runtime.lifecycle import Service
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.messages.jobs import DispatcherStats, QueueStats
from ...schemas.names import Names
from ...schemas.records.history import HistoryKind
from ...schemas.records.routes import RouteRecord
from ...schemas.text import count_of
from ...telemetry.logs import logger_for
from ...telemetry.metrics.durable import DurableMetrics, QueueLevels
from ..jobs.storage import TaskStorage, TaskStreams
from ..router.router import Router
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from .operations import DispatcherNatsService, QueueOperations
from .ownership.declared_schedules import DeclaredSchedules
from .ownership.endpoint_discovery import EndpointDiscovery
from .ownership.manager import OwnershipManager
from .ownership.ownership_core import Take
from .policies.settings import DispatcherSettings
from .queue.queue_runner import QueueRunner
from .queue.recovery import jobs_on
from .queue.stray_sweeper import StraySweeper
from .workers.context import DispatcherContext
from .workers.failure_detector import DoubtMonitor, WorkerFailureDetector
from .workers.pool_observer import KnownPools

_GIVEN_UP_AT_ONCE: Final = 64
"""Queues of vanished endpoints given up per search, so that storage has time for others."""
_ANY_NUMBER: Final = 10_000_000
_LITTLE: Final = 64
"""Only queues with at most this many fetched tasks are handed over for balance."""


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
    """Counts since the start: taken, lost, handed_over, started, freezes, workers_lost, strays."""


class Dispatcher(Service[DispatcherState]):
    """Runs durable tasks: takes queues without an owner, and hands them over when it stops.

    ```python
    async with Dispatcher(bus) as dispatcher:
        await dispatcher.wait_closed()
    ```

    The caller opens the bus before `start` and closes it; the dispatcher does not.

    Raises:
        Unavailable: from `start`: no connection, or storage did not answer within `start_timeout_s`.
        ServerUnsupported: from `start`: a nats-server without JetStream, or older than 2.12.
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
        ambient: Environment | None = None,
        name: str = "",
    ) -> None:
        """
        Args:
            bus: an open connection.
            names: the namespace; `gangline` if not given.
            settings: see DispatcherSettings.
            tasks: how to create streams and buckets if they do not exist; by default from the environment.
            bucket: how to create the ledger if it does not exist.
            router_settings: settings of the router with which it leases slots.
            ambient: wall clock, randomness and tokens; the system's if not given.
            name: shown in the ledger as the owner of leases, and in logs.
        """
        super().__init__("this dispatcher", DispatcherState)
        self.bus = bus
        self.names = names = names or Names()
        self.settings = settings = settings or DispatcherSettings()
        self.ambient = ambient = ambient or Environment()
        self.id = ambient.token()
        """A unique id."""
        self.name = name = name or bus.name
        self.metrics = DurableMetrics(names.namespace)
        self._log = log = logger_for("durable", dispatcher=self.id)
        tasks = tasks or TaskStorage.from_environment()
        self.router = router = Router(
            bus,
            names,
            # Tasks may wait for pools that have no workers yet, however many these are.
            settings=replace(router_settings or RouterSettings(), max_empty_pools=_ANY_NUMBER),
            ambient=ambient,
            bucket=bucket,
            routes_bucket=tasks.routes,
            makes_routes=True,
            name=name or "gangline-dispatcher",
        )
        self._history = HistoryRecorder.of_service(
            bus,
            names,
            f"dispatcher.{self.id}",
            settings.history,
            makes_stream=True,
            ambient=ambient,
            log=log,
        )
        self._route_revisions: dict[str, int] = {}
        """The last known ones, for the history."""
        guard = DoubtMonitor(bus, settings.freeze_after_s)
        router.exchange.on_gap = guard.cut_off
        gone_after_s = settings.worker_gone_after_s
        self._context = DispatcherContext(
            dispatcher=self.id,
            name=name,
            bus=bus,
            names=names,
            settings=settings,
            ambient=ambient,
            streams=TaskStreams(bus, names, tasks),
            router=router,
            guard=guard,
            failure_detector=WorkerFailureDetector(
                bus, names, router=router, guard=guard, ping_s=settings.ping_s, gone_after_s=gone_after_s
            ),
            known=KnownPools(),
            metrics=self.metrics,
            history=self._history,
            chance=random.Random(ambient.random.getrandbits(64)),
            log=log,
        )
        self._responder = CountingResponder(bus, log)
        self._ownership = OwnershipManager(self._context, take=self._take, give_up=self._give_up)
        self._sweeper = StraySweeper(self._context)
        self._endpoints = EndpointDiscovery(
            self._context,
            found=self._found,
            strays=self._sweeper.found,
            held=lambda: self._ownership.held,
            counted=self._counted,
            registered=lambda entries: self._schedules.seen(entries, self._queues),
        )
        self._schedules = DeclaredSchedules(self._context)
        self._nats_service: DispatcherNatsService | None = None
        self._queues: dict[str, QueueRunner] = {}
        self._all_operations: dict[str, QueueOperations] = {}
        self._leaving: list[QueueRunner] = []
        """Queues that `stop` hands over."""
        self._counts = {"taken": 0, "lost": 0, "handed_over": 0}
        self._started_before = 0
        self._background = TaskSet("dispatcher", self._log)
        self._grace_s = settings.grace_s

    # -- life -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        patiently, streams = StartPatience(self.settings.start_timeout_s, self._log), self._context.streams
        for open_it in (streams.tasks, streams.dead, streams.jobs, streams.results):
            await patiently(open_it)
        await self.router.start()
        if self._history is not None:
            self.router.routes.listen(self._on_route)
        self.router.routes.start()
        self._context.guard.start()
        self._nats_service = DispatcherNatsService(self._context, responder=self._responder, statistics=self._told)
        await self._nats_service.start()
        self._context.failure_detector.on_returned = self._on_returned
        self._context.failure_detector.start()
        self._sweeper.start()
        await self._ownership.start()
        self._endpoints.start()
        await self.bus.flush()
        self.state = DispatcherState.RUNNING
        self._ownership.say("joined")
        self._log.info("running durable tasks", extra={"action": "dispatcher.started"})

    async def stop(self, grace_s: float | None = None) -> None:
        """Hand over all queues and leave; other dispatchers take them at once. Running tasks continue. Idempotent.

        Args:
            grace_s: how long to wait first for running tasks to finish here; None: the setting.
        """
        if self.state is not DispatcherState.CLOSED and grace_s is not None:
            self._grace_s = grace_s
        await super().stop()

    async def _stop(self) -> None:
        await self._endpoints.stop()
        await self._schedules.stop()
        await self._ownership.stop()
        await self._sweeper.stop()
        all_operations, self._all_operations = self._all_operations, {}
        queues, self._queues = self._queues, {}
        self._leaving = list(queues.values())
        await asyncio.gather(*(queue.close(grace_s=self._grace_s) for queue in self._leaving))
        await asyncio.gather(*(operations.stop() for operations in all_operations.values()))
        await self._background.rest()
        if self._nats_service is not None:
            await self._nats_service.stop()
            if queues:
                self._ownership.say("handed_over", sorted(queues))
                for name in sorted(queues):
                    self._recorded(HistoryKind.QUEUE_LEFT, name, "left")
            self._ownership.say("left")
        await self._context.failure_detector.stop()
        self.metrics.levels = ()
        self._context.guard.stop()
        await self.router.stop()
        if self._history is not None:
            await self._history.close()
        self._log.info("left", extra={"action": "dispatcher.left"})

    def hurry(self) -> None:
        """End the grace time of a `stop` in progress."""
        for queue in self._leaving:
            queue.hurry()

    # -- queues ---------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> dict[str, QueueRunner]:
        """The queues by endpoint; read-only."""
        return self._queues

    async def _take(self, take: Take) -> str | None:
        endpoint = take.endpoint
        # A stop may cancel this at any moment; releasing the queue continues, and `_stop` waits for it.
        queue = QueueRunner(self._context, endpoint, on_lost=self._on_lost)
        try:
            consumer = await queue.take(take)
        except BaseException:
            await asyncio.shield(self._background.start(queue.drop()))
            raise
        if consumer is None or queue.over or self.state is not DispatcherState.RUNNING:
            await asyncio.shield(self._background.start(queue.close()))
            return None
        self._queues[endpoint] = queue
        self._counts["taken"] += 1
        self._recorded(HistoryKind.QUEUE_TAKEN, endpoint)
        operations = self._all_operations[endpoint] = QueueOperations(
            self.bus,
            self.names,
            queue,
            responder=self._responder,
            delayed=lambda: self._endpoints.delayed.get(endpoint, 0),
            quotas=self._context.settings.quotas,
        )
        try:
            await operations.start()
        except BaseException:
            self._queues.pop(endpoint, None)
            self._all_operations.pop(endpoint, None)
            await asyncio.shield(self._background.start(queue.close()))
            raise
        return consumer if self._queues.get(endpoint) is queue else None  # it may have been lost

    def _counted(self, depths: Mapping[str, int], last_sequence: int) -> None:
        for name, queue in self._queues.items():
            queue.counted(depths.get(name, 0), last_sequence)

    def _found(self, endpoints: frozenset[str]) -> None:
        self._ownership.found(endpoints)
        # For example a mistyped endpoint whose tasks are dead: its consumer can be deleted.
        idle = [name for name, queue in self._queues.items() if name not in endpoints and queue.idle]
        if idle:
            self._hand_over(idle[:_GIVEN_UP_AT_ONCE])
        self.metrics.levels = tuple(
            QueueLevels(stats.endpoint, stats.depth, stats.running, stats.waiting, stats.oldest_s, stats.pending)
            for stats in self.statistics().queues
        )

    def _give_up(self, count: int) -> None:
        """Hand over queues with few tasks, which can be taken quickly; first those that have started nothing. A queue
        that is being taken over is kept until that is done."""
        idle = [
            name for name, queue in sorted(self._queues.items()) if queue.core.open and len(queue.entries) <= _LITTLE
        ]
        order = {name: (self._queues[name].started > 0, len(self._queues[name].entries)) for name in idle}
        chosen = sorted(idle, key=order.__getitem__)[:count]
        if chosen:
            self._hand_over(chosen)

    def _hand_over(self, names: list[str]) -> None:
        queues = [self._queues.pop(name) for name in names]
        for name in names:
            self.metrics.left(name)
        all_operations = [
            operations for name in names if (operations := self._all_operations.pop(name, None)) is not None
        ]
        self._background.start(self._close(names, queues, all_operations))

    async def _close(self, names: list[str], queues: list[QueueRunner], all_operations: list[QueueOperations]) -> None:
        await asyncio.gather(*(operations.stop() for operations in all_operations))
        await asyncio.gather(*(queue.close() for queue in queues))
        self._started_before += sum(queue.started for queue in queues)
        self._counts["handed_over"] += len(names)
        for name in names:
            self._ownership.gone(name)
            self._recorded(HistoryKind.QUEUE_LEFT, name, "handed over")
        self._ownership.say("handed_over", names)

    def _on_lost(self, queue: QueueRunner) -> None:
        self._counts["lost"] += 1
        self._recorded(HistoryKind.QUEUE_LEFT, queue.endpoint, "lost")
        self._started_before += queue.started
        stats = queue.statistics()
        self._log.warning(
            "lost the queue %s with %s, %d of them running",
            queue.endpoint,
            count_of(stats.depth, "task"),
            stats.running,
            extra={
                "action": "queue.lost",
                "endpoint": queue.endpoint,
                "tasks": stats.depth,
                "running": stats.running,
            },
        )
        operations = None
        if self._queues.get(queue.endpoint) is queue:
            del self._queues[queue.endpoint]
            self.metrics.left(queue.endpoint)
            operations = self._all_operations.pop(queue.endpoint, None)
        self._background.start(_end(queue, operations))
        self._sweeper.lost(queue, unread=stats.depth - stats.seen)
        self._ownership.gone(queue.endpoint)

    async def _on_returned(self, worker: WorkerEntry) -> bool:
        """Tell the queues what a worker runs and keeps that has appeared or come back."""
        done = True
        try:
            async for job in jobs_on(self.bus, self.names, worker.id, worker.channel, None, self._log):
                queue = self._queues.get(job.endpoint)
                done = (queue is None or queue.returned(str(worker.id), job)) and done
        except (GanglineError, ValidationError) as error:
            extra = {"action": "returned.ask", "worker": str(worker.id)}
            self._log.debug("worker %s does not report its jobs: %s", worker.id, error, extra=extra)
            return False
        return done

    # -- history --------------------------------------------------------------------------------------------------

    def _recorded(self, kind: HistoryKind, endpoint: str, reason: str = "") -> None:
        if self._history is not None:
            details = {"node": self.settings.node, "name": self.name}
            self._history.record(kind, endpoint=endpoint, reason=reason, details=details)

    def _on_route(self, endpoint: str, route: RouteRecord | None) -> None:
        """All dispatchers see a change; the revision makes it one record."""
        routes = self.router.routes
        known = self._route_revisions.get(endpoint, 0)
        revision = self._route_revisions[endpoint] = routes.revision(endpoint)
        if self._history is None or not routes.pulled:
            return
        kind, once = HistoryKind.ROUTE_SET, f"route.{endpoint}.{revision}"
        if route is None:
            kind, once = HistoryKind.ROUTE_DELETED, f"route.{endpoint}.{known}.deleted"
        details = {} if route is None else route.model_dump(mode="json", exclude_defaults=True)
        self._history.record(kind, once=once, endpoint=endpoint, details=details)

    # -- what can be seen -----------------------------------------------------------------------------------------

    def _told(self) -> DispatcherStats:
        statistics = self.statistics()
        return DispatcherStats(
            dispatcher=self.id,
            name=self.name,
            node=self.settings.node,
            queues=statistics.queues,
            counts=statistics.counts,
        )

    def statistics(self) -> DispatcherStatistics:
        return DispatcherStatistics(
            id=self.id,
            state=self.state,
            queues=tuple(
                queue.statistics(self._endpoints.delayed.get(name, 0)) for name, queue in sorted(self._queues.items())
            ),
            peers=self._ownership.peers,
            counts={
                **self._counts,
                "started": self._started_before + sum(queue.started for queue in self._queues.values()),
                "freezes": self._context.guard.freezes,
                "workers_lost": self._context.failure_detector.lost,
                "strays": self._sweeper.buried,
            },
        )

    def __repr__(self) -> str:
        return f"<Dispatcher {self.id} {self.state.value}, queues={sorted(self._queues)}>"


async def _end(queue: QueueRunner, operations: QueueOperations | None) -> None:
    if operations is not None:
        await operations.abandon()
    await queue.drop()


async def run_dispatcher(dispatcher: Dispatcher) -> None:
    """Start `dispatcher` and return when it has left, because of a signal or the program itself.

    The first SIGTERM or SIGINT hands over its queues (with the grace time of its settings), the second does so at once.
    A signal during the start ends the start. Cancelling hands over, too. Needs the main thread.

    Args:
        dispatcher: not yet started; its bus is open, and stays open.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable, ServerUnsupported: as `Dispatcher.start`.
    """
    leaving = TaskSet("stop of a dispatcher")

    async def life() -> None:
        try:
            await dispatcher.start()
            await dispatcher.wait_closed()
        finally:
            await dispatcher.stop(grace_s=0.0)

    def finish() -> bool:
        if dispatcher.state is not DispatcherState.RUNNING:
            return False
        leaving.start(dispatcher.stop())
        return True

    await run_until_left(dispatcher.bus, life(), finish=finish, stop=dispatcher.hurry)
    await leaving.rest()
