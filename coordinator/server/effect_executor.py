"""Carries out the effects of one leadership. Requests to workers are sent in the turn of the event loop that decided
them, and each answer is processed when it arrives, so a slow worker delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from ...bus.port.bus import Bus, KeyValue, Message, NoResponders
from ...bus.rpc.requester import error_in, parse_answer
from ...bus.streams.history_recorder import HistoryRecorder
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError, MalformedMessage, ShardConflict
from ...schemas.messages.gangs import (
    FormReply,
    GangEvent,
    GangEventKind,
    HoldReply,
    KeepReply,
    MemberCause,
    PingReply,
    TeardownReply,
)
from ...schemas.messages.operations import LoadReply
from ...schemas.names import Names, Operation, WorkerId, public_id
from ...schemas.wire.frames import Load, LoadFlag
from ...telemetry.logs import LineLimit, Log
from ...telemetry.metrics.coordinator import CoordinatorMetrics
from ..core.gang_core import SchedulerCore
from ..election.elector import Elector
from ..election.leader_record import LeaderKey
from ..ledger.storage import GangLedgerWriter, LedgerMirror
from ..ledger.worker_registry import WorkerRegistry
from ..model import effects as do
from ..model import events as on
from ..settings.settings import CoordinatorSettings, ServiceSettings
from ..sharding.registry import ShardRegistry
from ..sharding.shards import Shard
from .observation import CoordinatorGauges, GangTracer, GenerationTimes, record_gang
from .request_server import LateRequests, RequestServer

M = TypeVar("M", bound=BaseModel)
TEARDOWN_MARGIN_S = 2.0
"""How much longer than the grace time to wait for a teardown's answer."""


class WorkerRpc:
    """Sends requests to workers, and passes the answers to the core."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        clock: EventClock,
        *,
        core: CoordinatorSettings,
        shell: ServiceSettings,
        feed: Callable[[on.Happening], None],
        channel: Callable[[WorkerId], str],
        heard: Callable[[WorkerId], None],
        doubt: Callable[[WorkerId], None],
        reconnecting: Callable[[], bool],
        observer: GangTracer,
        times: GenerationTimes,
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            channel: the channel in a worker's registration; empty if there is none.
            heard: called when a worker answers.
            doubt: called when nobody subscribes to a worker's subject.
            reconnecting: whether that may only mean that the worker has not reconnected yet, unlike us.
            observer: sees each answer; for traces.
            times: is told what the tasks of stopped ranks have spent their time on.
        """
        self._bus = bus
        self._names = names
        self._clock = clock
        self._core = core
        self._shell = shell
        self._feed = feed
        self._channel = channel
        self._heard = heard
        self._doubt = doubt
        self._reconnecting = reconnecting
        self._observer = observer
        self._times = times
        self._log = log
        self._over = False
        self._last: tuple[BaseModel, bytes] | None = None
        """The last request and its body: all workers of a large gang get the same `form` request."""

    def close(self) -> None:
        """The leadership is over: ignore later answers. Idempotent."""
        self._over = True

    # -- before the commit -------------------------------------------------------------------------------------------

    def hold(self, effect: do.SendHold) -> None:
        wait_s = self._core.hold_wait_s
        self._ask(effect.worker, Operation.HOLD, effect.request, HoldReply, wait_s, partial(self._held, effect))

    def _held(self, effect: do.SendHold, reply: HoldReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, GanglineError):
            cause = reply.cause if isinstance(reply, _NotReached) else reply
            self._missed(worker, Operation.HOLD, cause)
            self._observer.held(worker, request.gang, request.generation, cause.code)
            self._feed(
                on.HoldUnanswered(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    attempt=request.attempt,
                    reason=reply.message,
                )
            )
            return
        outcome = "held" if reply.accepted else reply.reason or "refused"
        self._observer.held(worker, request.gang, request.generation, outcome)
        self._feed(
            on.HoldAnswered(
                **self._clock.moment(),
                worker=worker,
                gang=request.gang,
                generation=request.generation,
                attempt=request.attempt,
                accepted=reply.accepted,
                reason=reply.reason or "",
                epoch=reply.epoch,
                reg_revision=reply.reg_revision,
                tokens=tuple(map(public_id, reply.tokens)) if reply.sealed else reply.tokens,
                secrets=reply.tokens if reply.sealed else (),
                port=reply.port,
                load=_load(reply.load),
            )
        )

    def unhold(self, effect: do.ReleaseHold) -> None:
        try:
            self._bus.publish(self._subject(effect.worker, Operation.UNHOLD), self._body(effect.request))
        except GanglineError as error:
            self._missed(effect.worker, Operation.UNHOLD, error)

    def keep(self, effect: do.SendReserve) -> None:
        wait_s = self._core.keep_renew_s
        self._ask(effect.worker, Operation.KEEP, effect.request, KeepReply, wait_s, partial(self._kept, effect))

    def _kept(self, effect: do.SendReserve, reply: KeepReply | GanglineError) -> None:
        if isinstance(reply, GanglineError):
            self._missed(effect.worker, Operation.KEEP, reply)
            return
        self._feed(
            on.KeepAnswered(
                **self._clock.moment(),
                worker=effect.worker,
                gang=effect.request.gang,
                kept=reply.kept,
                load=_load(reply.load),
            )
        )

    # -- members -----------------------------------------------------------------------------------------------------

    def form(self, effect: do.SendForm) -> None:
        self._tell(effect, self._shell.form_tries)

    def _tell(self, effect: do.SendForm, tries: int) -> None:
        wait_s = self._shell.form_wait_s
        then = partial(self._formed, effect, tries - 1)
        self._ask(effect.worker, Operation.FORM, effect.request, FormReply, wait_s, then)

    def _formed(self, effect: do.SendForm, tries: int, reply: FormReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, _NotReached):
            self._missed(worker, Operation.FORM, reply.cause)
            if tries > 0 and not isinstance(reply.cause, NoResponders):
                self._tell(effect, tries)
            return  # otherwise pings find out
        if isinstance(reply, GanglineError):
            reply = FormReply(formed=False, reason=reply.message)
        outcome = "formed" if reply.formed else reply.reason or "refused"
        self._observer.formed(worker, request.gang, request.generation, outcome)
        if reply.formed and effect.untold and reply.tokens:
            tokens = {public_id(token): token for token in reply.tokens}
            self._feed(on.SeatsShown(**self._clock.moment(), worker=worker, gang=request.gang, tokens=tokens))
        if reply.formed and not reply.starting:
            moment = self._clock.moment()
            self._feed(on.Formed(**moment, worker=worker, gang=request.gang, generation=request.generation))
        if not reply.formed:
            self._not_formed(effect, reply.reason or "refused to form")

    def _not_formed(self, effect: do.SendForm, reason: str) -> None:
        request = effect.request
        here = {
            seat.rank
            for seat in request.seats
            if (seat.pool, seat.worker) == (effect.worker.pool, effect.worker.worker)
        }
        for rank in sorted(here):
            self._feed(
                on.MemberFailed(
                    **self._clock.moment(),
                    gang=request.gang,
                    generation=request.generation,
                    rank=rank,
                    cause=MemberCause.FAILED_AT_START,
                    detail=f"{effect.worker}: {reason}",
                )
            )

    def teardown(self, effect: do.SendTeardown) -> None:
        wait_s = effect.request.grace_s + TEARDOWN_MARGIN_S
        then = partial(self._torn_down, effect)
        self._ask(effect.worker, Operation.TEARDOWN, effect.request, TeardownReply, wait_s, then)

    def _torn_down(self, effect: do.SendTeardown, reply: TeardownReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, _NotReached):
            self._missed(worker, Operation.TEARDOWN, reply.cause)
            if isinstance(reply.cause, NoResponders) and request.only is None:
                self._observer.stopped(worker, request.gang, request.generation, reply.cause.code)
                self._feed(
                    on.TeardownUnanswered(
                        **self._clock.moment(), worker=worker, gang=request.gang, generation=request.generation
                    )
                )
        elif isinstance(reply, GanglineError):
            self._log.warning(
                "%s did not tear down %s: %s",
                worker,
                request.gang,
                reply.message,
                extra={"action": "gang.teardown_refused", "gang": request.gang, "worker": str(worker)},
            )
        elif request.only is None and reply.stopped:
            self._observer.stopped(worker, request.gang, request.generation, "stopped")
            if reply.times:
                self._times.stopped(worker, request.gang, request.generation, reply.times)
            self._feed(
                on.TeardownConfirmed(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    load=_load(reply.load),
                )
            )

    def ping(self, effect: do.PingWorker) -> None:
        wait_s = self._shell.ping_wait_s
        self._ask(effect.worker, Operation.PING, effect.request, PingReply, wait_s, partial(self._pinged, effect))

    def _pinged(self, effect: do.PingWorker, reply: PingReply | GanglineError) -> None:
        if isinstance(reply, GanglineError):
            cause = reply.cause if isinstance(reply, _NotReached) else reply
            self._missed(effect.worker, Operation.PING, cause)
            if isinstance(cause, NoResponders) and not self._reconnecting():
                self._feed(on.PingUnanswered(**self._clock.moment(), worker=effect.worker))
            return
        behind = reply.missing.keys() | reply.starting.keys()
        started = {gang: number for gang, number in effect.request.gangs.items() if gang not in behind}
        self._feed(
            on.PingAnswered(**self._clock.moment(), worker=effect.worker, missing=reply.missing, started=started)
        )

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        worker: WorkerId,
        operation: Operation,
        request: BaseModel,
        model: type[M],
        timeout_s: float,
        then: Callable[[M | GanglineError], None],
    ) -> None:
        """`then` is called with the answer, the worker's own error, or _NotReached: no usable answer."""

        def answered(message: Message | GanglineError) -> None:
            if not self._over:
                then(self._read(worker, model, message))

        self._bus.ask(self._subject(worker, operation), self._body(request), timeout_s=timeout_s, then=answered)

    def _subject(self, worker: WorkerId, operation: Operation) -> str:
        return self._names.worker(worker, operation, self._channel(worker))

    def _read(self, worker: WorkerId, model: type[M], message: Message | GanglineError) -> M | GanglineError:
        if isinstance(message, GanglineError):
            return _NotReached(message)
        self._heard(worker)
        error = error_in(message)
        if error is not None:
            return error
        try:
            return parse_answer(message, model, worker)
        except MalformedMessage as problem:
            return _NotReached(problem)

    def _body(self, request: BaseModel) -> bytes:
        if self._last is None or self._last[0] is not request:
            self._last = (request, request.model_dump_json(exclude_defaults=True).encode())
        return self._last[1]

    def _missed(self, worker: WorkerId, operation: Operation, error: GanglineError) -> None:
        if isinstance(error, NoResponders):
            self._doubt(worker)
        self._log.debug(
            "%s to %s failed: %s",
            operation,
            worker,
            error,
            extra={"action": "request.missed", "worker": str(worker), "operation": str(operation)},
        )


class _NotReached(GanglineError):
    """No usable answer came."""

    def __init__(self, cause: GanglineError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def _load(reply: LoadReply) -> Load:
    return Load(reply.running, reply.reserved, reply.total, int(LoadFlag.DRAINING) if reply.draining else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    """What a term uses. It outlives the term."""

    bus: Bus
    kv: KeyValue
    names: Names
    clock: EventClock
    leader: LeaderKey
    mirror: LedgerMirror
    worker_registry: WorkerRegistry
    elector: Elector
    settings: CoordinatorSettings
    shell: ServiceSettings
    shard: Shard
    registry: ShardRegistry
    history: HistoryRecorder | None
    unfit: Callable[[ShardConflict], None]
    """Called when others keep our pools: we must no longer lead."""
    counts: dict[str, list[int]]
    """Requests and errors by operation."""
    late: LateRequests
    log: Log
    lines: LineLimit
    """Of the lines that each change of the leadership writes: it may change several times a second."""


_GRAIN_S: Final = 0.001


class GangEffectExecutor:
    """The parts of one leadership that do IO. Nothing happens after `close`."""

    def __init__(
        self,
        context: CoordinatorContext,
        core: SchedulerCore,
        tasks: TaskSet,
        *,
        term: int,
        feed: Callable[[on.Happening], None],
        trusted: Callable[[], bool],
        late: Callable[[Message], None],
        log: Log,
    ) -> None:
        """
        Args:
            term: the number of the leadership.
            feed: gives an event to the core.
            trusted: whether we may act as the leader at this instant.
            late: called with requests that are read when we might no longer be the leader.
        """
        self._context = context
        self._core = core
        self._feed = feed
        self._log = log
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        clock, bus, names, worker_registry = context.clock, context.bus, context.names, context.worker_registry
        self._traces = traces = GangTracer()
        self._times = GenerationTimes()
        metrics = CoordinatorMetrics(names.namespace, core.statistics, term=term, shard=context.shard.name)
        self.gauges = CoordinatorGauges(metrics, lambda: clock.now, log)
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
            reconnecting=lambda: worker_registry.reconnecting,
            observer=traces,
            times=self._times,
            log=log,
        )
        deposed = context.elector.deposed
        self.writer = GangLedgerWriter(
            context.kv, context.leader, clock, tasks,
            committed=context.mirror.committed, feed=feed, deposed=deposed, log=log,
        )  # fmt: skip
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
            late=late,
            counts=context.counts,
            log=log,
        )

    def close(self, *, resigned: bool) -> None:
        """The leadership is over: waiting callers ask another leader."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self.worker_rpc.close()
        self.request_server.close(resigned=resigned)
        self._traces.close()
        self.gauges.close()

    def carry_out(self, effects: Iterable[do.Effect]) -> None:
        """All of them, in order, and in this turn: workers are notified before the owner."""
        for effect in effects:
            if not self._over:
                HANDLERS[type(effect)](self, effect)

    def _hold(self, effect: do.SendHold) -> None:
        self._traces.hold(effect.worker, effect.request, effect.traceparent)
        self.worker_rpc.hold(effect)

    def _form(self, effect: do.SendForm) -> None:
        request = self._traces.form(effect.worker, effect.request)
        self.worker_rpc.form(effect if request is effect.request else replace(effect, request=request))

    def _commit(self, effect: do.Commit) -> None:
        self.gauges.committing(effect)
        self.writer.commit(effect)

    def _stop(self, effect: do.StepDown) -> None:
        extra = {"action": "coordinator.yields"}
        self._context.lines.write(self._log.info, "no longer leads: %s", effect.reason, extra=extra)

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
            # Loops that count in milliseconds fire up to one too early; the core would find nothing due and set no new
            # timer.
            self._timer = asyncio.get_running_loop().call_later(max(early_s, _GRAIN_S), self._tick, at)
            return
        self._feed(on.SchedulerTick(**clock.moment()))

    def _broadcast(self, event: GangEvent) -> None:
        event = self._times.told(event)
        self.gauges.happened(event)
        self._traces.happened(event)
        if self._context.history is not None:
            seated = event.kind in (GangEventKind.FORMED, GangEventKind.RECOVERED)
            record_gang(self._context.history, event, self._core.seats_of(event.gang) if seated else ())
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
    do.WriteFence: lambda executor, effect: executor.writer.refence(effect),
    do.SendForm: GangEffectExecutor._form,
    do.SendTeardown: lambda executor, effect: executor.worker_rpc.teardown(effect),
    do.PingWorker: lambda executor, effect: executor.worker_rpc.ping(effect),
    do.Broadcast: lambda executor, effect: executor._broadcast(effect.event),
    do.AnswerRequest: lambda executor, effect: executor.request_server.answer(effect),
    do.SetGangTimer: lambda executor, effect: executor._wake_at(effect.at),
    do.StepDown: GangEffectExecutor._stop,
}
"""How each effect is carried out. A test checks that there is one for each Effect."""
