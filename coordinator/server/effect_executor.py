"""Carries out the effects of one leadership: passes each to the part that handles it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ...bus.port.bus import Bus, KeyValue
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.errors.gangs import ShardConflict
from ...schemas.messages.gangs import GangEvent
from ...schemas.names import Names
from ...telemetry.logs import Log
from ...telemetry.metrics.coordinator import CoordinatorMetrics
from ..core.gang_core import SchedulerCore
from ..election.elector import Elector
from ..election.leader_record import LeaderKey
from ..ledger.storage import GangLedgerWriter
from ..ledger.worker_registry import WorkerRegistry
from ..model import effects as do
from ..model import events as on
from ..settings.scheduling import CoordinatorSettings
from ..settings.service import ServiceSettings
from ..sharding.registry import ShardRegistry
from ..sharding.shards import Shard
from .observation import CoordinatorGauges, GangTracer
from .request_server import RequestServer
from .worker_rpc import WorkerRpc


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    """What a term works with. It outlives the term."""

    bus: Bus
    kv: KeyValue
    names: Names
    clock: EventClock
    leader: LeaderKey
    worker_registry: WorkerRegistry
    elector: Elector
    settings: CoordinatorSettings
    shell: ServiceSettings
    shard: Shard
    registry: ShardRegistry
    unfit: Callable[[ShardConflict], None]
    """Told that others keep our pools: we must not lead any more."""
    counts: dict[str, list[int]]
    """Requests and errors by operation."""
    log: Log


_GRAIN_S: Final = 0.001


class GangEffectExecutor:
    """The parts of one leadership that do IO. Nothing happens after `close`."""

    def __init__(
        self,
        context: CoordinatorContext,
        core: SchedulerCore,
        tasks: TaskSet,
        *,
        feed: Callable[[on.Happening], None],
        trusted: Callable[[], bool],
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            trusted: whether we may act as the leader at this instant.
        """
        self._context = context
        self._feed = feed
        self._log = log
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        clock, bus, names, worker_registry = context.clock, context.bus, context.names, context.worker_registry
        self._traces = traces = GangTracer()
        self.gauges = CoordinatorGauges(CoordinatorMetrics(names.namespace, core.statistics), lambda: clock.now, log)
        self.worker_rpc = WorkerRpc(
            bus,
            names,
            clock,
            core=context.settings,
            shell=context.shell,
            feed=feed,
            channel=worker_registry.channel,
            heard=worker_registry.heard,
            doubt=worker_registry.doubt,
            observer=traces,
            log=log,
        )
        deposed = context.elector.deposed
        self._writer = GangLedgerWriter(context.kv, context.leader, clock, tasks, feed=feed, deposed=deposed, log=log)
        self.request_server = RequestServer(
            bus,
            context.kv,
            names,
            clock,
            tasks,
            core,
            worker_registry,
            traces,
            feed=feed,
            trusted=trusted,
            counts=context.counts,
            log=log,
        )

    def close(self, *, resigned: bool) -> None:
        """The leadership is over: whoever waits asks again, elsewhere."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self.worker_rpc.close()
        self.request_server.close(resigned=resigned)
        self._traces.close()
        self.gauges.close()

    def carry_out(self, effects: Iterable[do.Effect]) -> None:
        """All of them, in their order, and in this turn: on the wire, workers are told before the owner is."""
        for effect in effects:
            if not self._over:
                HANDLERS[type(effect)](self, effect)

    def _hold(self, effect: do.SendHold) -> None:
        self._traces.hold(effect.worker, effect.request, effect.traceparent)
        self.worker_rpc.hold(effect)

    def _form(self, effect: do.SendForm) -> None:
        request = self._traces.form(effect.worker, effect.request)
        self.worker_rpc.form(do.SendForm(worker=effect.worker, request=request))

    def _commit(self, effect: do.Commit) -> None:
        self.gauges.committing(effect)
        self._writer.commit(effect)

    def _stop(self, effect: do.StepDown) -> None:
        self._log.info("leads no more: %s", effect.reason, extra={"action": "coordinator.yields"})

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        self._timer = None
        clock = self._context.clock
        early_s = at - clock.now
        if early_s > 0:
            # Loops that count in milliseconds ring up to one too early; the core would find nothing due, and ask for
            # no other wake.
            self._timer = asyncio.get_running_loop().call_later(max(early_s, _GRAIN_S), self._tick, at)
            return
        self._feed(on.SchedulerTick(**clock.moment()))

    def _broadcast(self, event: GangEvent) -> None:
        self.gauges.happened(event)
        self._traces.happened(event)
        names, bus = self._context.names, self._context.bus
        try:
            bus.publish(names.gang_event(event.gang), event.model_dump_json(exclude_none=True).encode())
        except GanglineError as error:
            self._log.debug("an event was not sent: %s", error, extra={"action": "event.lost", "gang": event.gang})


HANDLERS: Final[dict[type[do.Effect], Callable[[GangEffectExecutor, Any], None]]] = {
    do.SendHold: GangEffectExecutor._hold,
    do.ReleaseHold: lambda executor, effect: executor.worker_rpc.unhold(effect),
    do.SendReserve: lambda executor, effect: executor.worker_rpc.keep(effect),
    do.Commit: GangEffectExecutor._commit,
    do.WriteFence: lambda executor, effect: executor._writer.refence(effect),
    do.SendForm: GangEffectExecutor._form,
    do.SendTeardown: lambda executor, effect: executor.worker_rpc.teardown(effect),
    do.PingWorker: lambda executor, effect: executor.worker_rpc.ping(effect),
    do.Broadcast: lambda executor, effect: executor._broadcast(effect.event),
    do.AnswerRequest: lambda executor, effect: executor.request_server.answer(effect),
    do.SetGangTimer: lambda executor, effect: executor._wake_at(effect.at),
    do.StepDown: GangEffectExecutor._stop,
}
"""How each effect is carried out. One for each of Effect: a test sees to it."""
