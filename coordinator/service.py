"""`Coordinator`: grants gangs. Any number may run; one leads, the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..bus.lifecycle import StartPatience
from ..bus.port.bus import Bus, ConnectionEvent, KeyValue, Message
from ..bus.port.subjects import Subscription
from ..bus.rpc.micro_service import Endpoint, MicroService, ServiceDescription, statistics_of, with_other_ledger
from ..bus.streams.history_recorder import HistoryRecorder
from ..runtime.clock import Environment, EventClock
from ..runtime.lifecycle import Service
from ..runtime.tasks import TaskSet
from ..schemas.errors.base import ShardConflict, Unavailable
from ..schemas.names import GangOperation, Names
from ..schemas.records.history import HistoryKind
from ..telemetry.logs import LineLimit, Log, logger_for
from .election.election_core import ElectionCore, ElectionSettings
from .election.elector import Elector
from .election.leader_record import LeaderKey
from .leadership import Leadership
from .ledger.storage import LedgerMirror
from .ledger.worker_registry import WorkerRegistry
from .server.effect_executor import CoordinatorContext
from .server.request_server import LateRequests
from .settings.settings import CoordinatorSettings, ServiceSettings
from .sharding.registry import ShardRegistry
from .sharding.shards import Shard


class CoordinatorState(StrEnum):
    NEW = "new"
    STARTING = "starting"
    STANDBY = "standby"
    LEADING = "leading"
    """Elected, the ledger has been read, requests are served."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    """A snapshot of one coordinator."""

    instance: str
    state: CoordinatorState
    term: int
    """Term of the last known leader; its own while it leads."""
    workers: int
    """Number of workers known to be alive."""
    gangs: dict[str, float] = field(default_factory=dict[str, float])
    """While it leads: gangs, formed, queued, oldest_s, commits_waiting."""
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """Counts of this leadership: commits, commits_refused, restarts, ended."""
    requests: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Requests and errors by operation."""
    waiting: int = 0
    """Requests not yet answered."""


class Coordinator(Service[CoordinatorState]):
    """Takes part in the election, and grants gangs while it leads.

    ```python
    async with Coordinator(bus=bus) as coordinator:
        await coordinator.wait_closed()
    ```

    The bus is the caller's: open before `start`, and not closed here. `start` returns when it takes part in the
    election; it leads as soon as nobody else does. `stop` resigns at once, so that a standby takes over without
    waiting; gangs continue. If `stop` is cancelled, the leadership expires.

    Raises:
        Unavailable: from `start`: no connection, or storage did not answer within `start_timeout_s`.
        ServerUnsupported: from `start`: a nats-server without JetStream, or older than 2.12.
        ShardConflict: from `start`: other running coordinators keep some of the pools. From `wait_closed`: others have
            taken them, so it has stopped.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        names: Names | None = None,
        settings: CoordinatorSettings | None = None,
        election: ElectionSettings | None = None,
        shell: ServiceSettings | None = None,
        shard: str | None = None,
        pools: Iterable[str] | None = None,
        ambient: Environment | None = None,
    ) -> None:
        """
        Args:
            bus: an open connection.
            names: the namespace; `gangline` if not given.
            settings: settings of the decisions about gangs.
            election: how leaders are elected. The same for all coordinators of a namespace.
            shell: settings of storage, feeds and timeouts for workers.
            shard: with `pools`: grant gangs of these pools only, under this name. All coordinators of one shard have
                the same pools, and no pool is in two shards; without shards, all coordinators keep all pools.
            pools: see `shard`.
            ambient: wall clock, randomness and tokens; the system's if not given.

        Raises:
            InvalidSettings: a shard without pools, or pools without a shard.
            InvalidName: of the shard or of a pool.
        """
        super().__init__("this coordinator", CoordinatorState)
        self.shard = Shard.of(shard, pools)
        self.names = names or Names()
        self.settings = settings or CoordinatorSettings()
        self.shell = shell or ServiceSettings()
        self.ambient = ambient or Environment()
        self.instance = self.ambient.token()
        """Unique for this object; the ledger's `leader` record names it."""
        self.term: Leadership | None = None
        """The current leadership; for tests."""
        self._bus = bus
        self._election = ElectionCore(self.instance, election)
        self._log = logger_for("coordinator", instance=self.instance)
        self._counts: dict[str, list[int]] = {}
        self._context: CoordinatorContext | None = None
        self._nats_service = coordinator_service(
            bus,
            self.names,
            ambient=self.ambient,
            instance=self.instance,
            node=self.shell.node,
            shard=self.shard,
            leads=lambda: self.state is CoordinatorState.LEADING,
            term=lambda: self._election.term,
            counts=self._counts,
            ledger=lambda: self._context.kv.created if self._context is not None else "",
        )
        self._comparison: LedgerComparison | None = None
        self._history: HistoryRecorder | None = None
        self._background = TaskSet("coordinator")
        """Cleans up after past terms."""
        self._leaving = TaskSet("unfit coordinator")
        self._forget_connection: Callable[[], None] = _nothing
        self._leads = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Coordinator {self.instance} {self.state.value} {self.term or ''}>"

    # -- life --------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        patiently = StartPatience(self.shell.start_timeout_s, self._log)
        kv = await patiently(lambda: self._bus.bucket(self.names.ledger_bucket, self.shell.bucket))
        clock = EventClock(self.ambient)
        registry = ShardRegistry(kv, self.shard, clock, self._log)
        leader = LeaderKey(kv, self.shard.leader_key)
        mirror = LedgerMirror(kv, self.names, self.shard, self._log)
        worker_registry = WorkerRegistry(kv, self.names, self.shell, self._log, shard=self.shard)
        elector = Elector(
            kv,
            self._election,
            leader,
            clock,
            alive_key=self.shard.leader_alive_key,
            on_lead=self._lead,
            on_yield=self._yield,
            on_outage=worker_registry.outage,
            log=self._log,
        )
        self._history = HistoryRecorder.of_service(
            self._bus,
            self.names,
            f"coordinator.{self.instance}",
            self.shell.history,
            makes_stream=True,
            ambient=self.ambient,
            log=self._log,
        )
        self._context = CoordinatorContext(
            bus=self._bus,
            kv=kv,
            names=self.names,
            clock=clock,
            leader=leader,
            mirror=mirror,
            worker_registry=worker_registry,
            elector=elector,
            settings=self.settings,
            shell=self.shell,
            shard=self.shard,
            registry=registry,
            history=self._history,
            unfit=self._unfit,
            counts=self._counts,
            late=LateRequests(self._bus, self._log),
            log=self._log,
            lines=LineLimit(lambda: clock.now, every_s=30.0),
        )
        self._forget_connection = self._bus.on_connection(self._on_connection)
        self._comparison = LedgerComparison(self._bus, self.names, kv, self._log)
        for step in (registry.start, worker_registry.start, mirror.start, self._nats_service.start):
            await patiently(step)
        await self._comparison.start()
        self.state = CoordinatorState.STANDBY
        self._log.info("joined the election", extra={"action": "coordinator.started"})
        await patiently(elector.start)
        await patiently(self._bus.flush)

    async def _stop(self) -> None:
        context = self._context
        try:
            if self._comparison is not None:
                await self._comparison.stop()
            if context is not None:
                if self.term is not None:
                    await self.term.prepare_to_leave()
                await context.elector.stop()
                await context.worker_registry.stop()
                await context.mirror.stop()
                await context.registry.stop()
            await self._nats_service.stop()
            await self._background.rest()
            if self._history is not None:
                await self._history.close()
        finally:
            self._forget_connection()
            self._leads.clear()
        self._log.info("left", extra={"action": "coordinator.left"})

    async def wait_leading(self) -> None:
        """Wait until it leads and serves requests."""
        await self._leads.wait()

    def statistics(self) -> CoordinatorStatistics:
        term, context = self.term, self._context
        return CoordinatorStatistics(
            instance=self.instance,
            state=self.state,
            term=self._election.term,
            workers=len(context.worker_registry) if context is not None else 0,
            gangs=term.core.statistics() if term is not None else {},
            counts=term.metrics.statistics() if term is not None else {},
            requests={name: (requests, errors) for name, (requests, errors) in self._counts.items()},
            waiting=term.waiting if term is not None else 0,
        )

    # -- leadership --------------------------------------------------------------------------------------------------

    def _lead(self, number: int) -> None:
        assert self._context is not None and self.term is None
        extra = {"action": "coordinator.elected", "term": number}
        self._context.lines.write(self._log.info, "was elected", extra=extra)
        self._recorded(HistoryKind.LEADER_ELECTED, number)
        self.term = Leadership(self._context, number=number, on_ready=self._ready)
        self.term.begin()

    def _ready(self) -> None:
        if self.term is not None and self.state is CoordinatorState.STANDBY:
            self.state = CoordinatorState.LEADING
            self._leads.set()

    def _yield(self, reason: str) -> None:
        term, self.term = self.term, None
        if term is None:
            return
        term.end(reason)
        self._recorded(HistoryKind.LEADER_YIELDED, term.number, reason)
        self._leads.clear()
        if self.state is CoordinatorState.LEADING:
            self.state = CoordinatorState.STANDBY
        self._background.start(term.rest())

    def _recorded(self, kind: HistoryKind, term: int, reason: str = "") -> None:
        if self._history is not None:
            shard = {"shard": self.shard.name} if self.shard.pools is not None else {}
            self._history.record(kind, generation=term, reason=reason, details={"node": self.shell.node, **shard})

    def _unfit(self, conflict: ShardConflict) -> None:
        self._log.error("%s", conflict, extra={"action": "coordinator.unfit"})
        self._failure = conflict
        self._leaving.start(self.stop())

    def _on_connection(self, event: ConnectionEvent) -> None:
        if self._context is not None:
            self._context.worker_registry.on_connection(event)
            self._context.elector.on_connection(event)


def _nothing() -> None:
    """There is nothing to forget yet."""


SERVICE: Final = "gangline-coordinator"
_COMPARE_S: Final = 10.0


class LedgerComparison:
    """Looks whether coordinators of our namespace have another ledger: those at servers of two JetStream domains, such
    as a hub and a leaf node, share subjects but not storage. Each other ledger is an error in the log, once."""

    def __init__(self, bus: Bus, names: Names, kv: KeyValue, log: Log) -> None:
        self._bus = bus
        self._names = names
        self._kv = kv
        self._log = log
        self._rounds = TaskSet("ledger comparison", log)
        self._subscription: Subscription | None = None
        self._others: dict[str, str] = {}
        """Other ledgers that were named in this round, and where they are."""
        self._suspected: set[str] = set()
        """Those of the round before: one that was just made again is not known to all yet."""
        self._reported: set[str] = set()

    async def start(self) -> None:
        """Compare now, and then every ten seconds."""
        reply = f"{self._bus.inbox}.ledgers"
        self._subscription = await self._bus.subscribe(reply, self._on_answer)
        self._rounds.start(self._go_on(reply))

    async def stop(self) -> None:
        """Idempotent."""
        await self._rounds.stop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def _go_on(self, reply: str) -> None:
        while True:
            self._others.clear()
            with contextlib.suppress(Unavailable):  # not connected, or the user may not ask
                self._bus.publish(f"$SRV.PING.{SERVICE}", reply=reply)
            await asyncio.sleep(_COMPARE_S)
            for ledger in (self._others.keys() & self._suspected) - self._reported - {self._kv.created}:
                self._reported.add(ledger)
                self._log.error(
                    "another coordinator of the namespace %r, at %s, has another ledger (created %s) than ours at %s "
                    "(created %s): these are two systems that share subjects, and either may grant gangs for both. "
                    "Connect all processes to servers of one JetStream domain, or use two namespaces",
                    self._names.namespace,
                    self._others[ledger],
                    ledger,
                    self._bus.server_place,
                    self._kv.created,
                    extra={"action": "coordinator.other_ledger", "ledger": ledger},
                )
            self._suspected = set(self._others)

    def _on_answer(self, message: Message) -> None:
        about = with_other_ledger(message, self._names.namespace, self._kv.created)
        if about is not None:
            self._others[about["ledger"]] = about["place"]


def coordinator_service(
    bus: Bus,
    names: Names,
    *,
    ambient: Environment,
    instance: str,
    node: str,
    shard: Shard,
    leads: Callable[[], bool],
    term: Callable[[], int],
    counts: Mapping[str, list[int]],
    ledger: Callable[[], str],
) -> MicroService:
    """A coordinator as a NATS service: what `nats service ls|info|stats` shows of it. Standbys are shown too.

    Args:
        leads: whether it leads now.
        term: the current term, or the last known one.
        counts: requests and errors by operation; updated by the caller.
        ledger: when our ledger was created; see LedgerComparison.
    """
    sharded = {"shard": shard.name, "pools": ",".join(sorted(shard.pools))} if shard.pools is not None else {}

    def describe() -> ServiceDescription:
        return ServiceDescription(
            name=SERVICE,
            description="Grants gangs of slots, all or nothing",
            metadata={
                "namespace": names.namespace,
                "node": node,
                "role": "leader" if leads() else "standby",
                "term": str(term()),
                "ledger": ledger(),
                "place": bus.server_place,
                **sharded,
            },
            endpoints=[
                Endpoint(name=str(operation), subject=names.gang(operation))
                for operation in (GangOperation if leads() else ())
            ],
        )

    return MicroService(bus, describe, statistics=lambda: statistics_of(counts), ambient=ambient, instance=instance)
