"""Metrics, log lines and traces of one leadership. The trace of a gang shows how it waited, formed, ran and ended, and
which member was slow.

::

    (the owner's span)
    └── gangline.gang                    from the request to the end
        └── gangline.gang.generation     from the first hold to the last confirmed stop
            ├── gangline.gang.hold       each worker: asked to hold, until it answered
            └── gangline.gang.member     each rank: told to form, until its worker confirmed the stop;
                                         events `formed` and `torn_down` in between

A worker's own spans of a member are children of the generation. A new leader continues with its own spans in the same
trace, since the ledger has the context of the gang's first span.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...bus.streams.history_recorder import HistoryRecorder
from ...schemas.errors.base import GangFailed, GanglineError
from ...schemas.messages.gangs import FormRequest, GangEvent, GangEventKind, HoldRequest
from ...schemas.messages.operations import RankTimes
from ...schemas.names import WorkerId, public_id
from ...schemas.records.gangs import GangRecord, GangState, Seat
from ...schemas.records.history import FOUND, HistoryKind
from ...schemas.records.workers import LeaseRecord
from ...telemetry.logs import Log
from ...telemetry.metrics.coordinator import CoordinatorMetrics
from ...telemetry.tracing import Span, tracer
from ..model import effects as do
from ..model import events as on
from ..model.commits import CommitKind


@dataclass(slots=True, kw_only=True)
class _Generation:
    number: int
    span: Span
    holds: dict[WorkerId, Span] = field(default_factory=dict[WorkerId, Span])
    members: dict[WorkerId, list[Span]] = field(default_factory=dict[WorkerId, list[Span]])

    def end(self, error: GanglineError | None = None) -> None:
        for span in (*self.holds.values(), *(span for spans in self.members.values() for span in spans)):
            span.end()
        self.span.end(error)


@dataclass(slots=True, kw_only=True)
class _Gang:
    span: Span
    parent: str | None
    generation: _Generation | None = None


class GangTracer:
    """The spans of one leadership. Does nothing while tracing is off."""

    def __init__(self) -> None:
        self._gangs: dict[str, _Gang] = {}

    def __repr__(self) -> str:
        return f"<GangTracer of {len(self._gangs)} gangs>"

    def asked(self, gang: str, parent: str | None) -> str | None:
        """A new gang is requested; returns its trace context for the ledger."""
        if not tracer.enabled:
            return parent
        span = tracer.start("gangline.gang", kind="server", parent=parent or "", attributes={"gangline.gang": gang})
        self._gangs[gang] = _Gang(span=span, parent=span.traceparent())
        return span.traceparent()

    def refused(self, gang: str, error: GanglineError) -> None:
        """It was not even queued."""
        found = self._gangs.pop(gang, None)
        if found is not None:
            found.span.end(error)

    def hold(self, worker: WorkerId, request: HoldRequest, parent: str | None) -> None:
        """A worker is asked to hold."""
        if not tracer.enabled:
            return
        generation = self._generation(request.gang, request.generation, parent)
        old = generation.holds.pop(worker, None)
        if old is not None:
            old.end()
        generation.holds[worker] = tracer.start(
            "gangline.gang.hold",
            kind="client",
            parent=generation.span.traceparent(),
            attributes={"gangline.worker": str(worker), "gangline.attempt": request.attempt},
        )

    def form(self, worker: WorkerId, request: FormRequest) -> FormRequest:
        """A worker is told to form; returns the request with the trace context for the worker's own spans."""
        if not tracer.enabled:
            return request
        generation = self._generation(request.gang, request.generation, request.traceparent)
        if worker not in generation.members:
            generation.members[worker] = [
                tracer.start(
                    "gangline.gang.member",
                    parent=generation.span.traceparent(),
                    attributes={"gangline.worker": str(worker), "gangline.rank": seat.rank},
                )
                for seat in request.seats
                if (seat.pool, seat.worker, seat.part) == (worker.pool, worker.worker, 0)
            ]
        return request.model_copy(update={"traceparent": generation.span.traceparent()})

    # -- as Witness --------------------------------------------------------------------------------------------------

    def held(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None:
        found = self._find(gang, generation)
        span = found.holds.pop(worker, None) if found is not None else None
        if span is not None:
            span.set(gangline__outcome=outcome)
            span.end()

    def formed(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None:
        for span in self._members(worker, gang, generation):
            span.event(outcome if outcome == "formed" else "refused", {"gangline.outcome": outcome})

    def stopped(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None:
        for span in self._members(worker, gang, generation):
            span.set(gangline__outcome=outcome)
            span.end()

    # -- what becomes of gangs ---------------------------------------------------------------------------------------

    def happened(self, event: GangEvent) -> None:
        """A broadcast."""
        gang = self._gangs.get(event.gang)
        if gang is None:
            return
        gang.span.event(event.kind.value, {"gangline.generation": event.generation, "gangline.reason": event.reason})
        generation = gang.generation
        match event.kind:
            case GangEventKind.TORN_DOWN if generation is not None:
                for spans in generation.members.values():
                    for span in spans:
                        span.event("torn_down", {"gangline.reason": event.reason})
            case GangEventKind.RESTARTING if generation is not None:
                generation.end(_failure(event))
                gang.generation = None
            case GangEventKind.ENDED:
                if generation is not None:
                    generation.end(_failure(event))
                gang.span.end(_failure(event))
                del self._gangs[event.gang]
            case _:
                pass

    def close(self) -> None:
        """Leadership is over: the next leader continues with its own spans."""
        for gang in self._gangs.values():
            if gang.generation is not None:
                gang.generation.end()
            gang.span.event("leadership lost")
            gang.span.end()
        self._gangs.clear()

    def _generation(self, gang_id: str, number: int, parent: str | None) -> _Generation:
        gang = self._gangs.get(gang_id)
        if gang is None:
            # A standing gang, or one that was requested from an earlier leader.
            span = tracer.start("gangline.gang", parent=parent or "", attributes={"gangline.gang": gang_id})
            gang = self._gangs[gang_id] = _Gang(span=span, parent=span.traceparent())
        if gang.generation is None or gang.generation.number != number:
            if gang.generation is not None:
                gang.generation.end()
            span = tracer.start(
                "gangline.gang.generation", parent=gang.parent, attributes={"gangline.generation": number}
            )
            gang.generation = _Generation(number=number, span=span)
        return gang.generation

    def _find(self, gang_id: str, generation: int) -> _Generation | None:
        gang = self._gangs.get(gang_id)
        found = gang.generation if gang is not None else None
        return found if found is not None and found.number == generation else None

    def _members(self, worker: WorkerId, gang: str, generation: int) -> list[Span]:
        found = self._find(gang, generation)
        return found.members.get(worker, []) if found is not None else []


_BLAMELESS = ("released", "replaced", "drained", "preempted")


def _failure(event: GangEvent) -> GanglineError | None:
    word = event.reason.partition(":")[0]
    return None if not word or word in _BLAMELESS else GangFailed(event.reason)


_QUIET = frozenset({GangEventKind.QUEUED})
_TROUBLE = frozenset({GangEventKind.MEMBER_LOST, GangEventKind.RESTARTING})


class CoordinatorGauges:
    """Measures one leadership."""

    def __init__(self, metrics: CoordinatorMetrics, now: Callable[[], float], log: Log) -> None:
        self.metrics = metrics
        self._now = now
        self._log = log
        self._asked_at: dict[str, float] = {}
        """Gangs that have not formed yet."""
        self._closing_at: dict[str, float] = {}
        """Gangs being torn down."""
        self._commits: dict[int, str] = {}

    def committing(self, effect: do.Commit) -> None:
        """A batch is sent."""
        self._commits[effect.number] = effect.what
        if effect.what == CommitKind.CLOSE:
            self._closing_at.setdefault(effect.gang, self._now())

    def answered(self, event: on.Committed | on.CommitRefused | on.CommitUnknown) -> None:
        """The outcome of a batch."""
        what = self._commits.pop(event.number, "")
        match event:
            case on.Committed():
                self.metrics.committed(what)
            case on.CommitRefused():
                self.metrics.not_committed(what, "refused")
            case on.CommitUnknown():
                self.metrics.not_committed(what, "unknown")

    def happened(self, event: GangEvent) -> None:
        """A broadcast."""
        self._report(event)
        gang, now, cause = event.gang, self._now(), event.reason.partition(":")[0]
        match event.kind:
            case GangEventKind.QUEUED:
                self._asked_at[gang] = now
            case GangEventKind.FORMED:
                asked_at = self._asked_at.pop(gang, None)
                if asked_at is not None:
                    self.metrics.formed(now - asked_at)
            case GangEventKind.MEMBER_LOST:
                self.metrics.restarted(cause, "repair")
            case GangEventKind.RESTARTING:
                self.metrics.restarted(cause, "restart")
                self._torn_down(gang, now)
                self._asked_at[gang] = now
            case GangEventKind.ENDED:
                self.metrics.ended(cause)
                self._torn_down(gang, now)
                self._asked_at.pop(gang, None)
            case _:
                pass

    def _torn_down(self, gang: str, now: float) -> None:
        closing_at = self._closing_at.pop(gang, None)
        if closing_at is not None:
            self.metrics.torn_down(now - closing_at)

    def _report(self, event: GangEvent) -> None:
        level = logging.WARNING if event.kind in _TROUBLE or event.unconfirmed else logging.INFO
        if event.kind in _QUIET or not self._log.isEnabledFor(level):
            return
        extra: dict[str, object] = {
            "action": f"gang.{event.kind.value}",
            "gang": event.gang,
            "generation": event.generation,
        }
        if event.gangset is not None:
            extra["gangset"] = event.gangset
        if event.rank is not None:
            extra["rank"] = event.rank
        if event.unconfirmed:
            extra["unconfirmed"] = ", ".join(event.unconfirmed)
        self._log.log(level, "gang of %d%s", event.size, f": {event.reason}" if event.reason else "", extra=extra)

    def close(self) -> None:
        """The leadership is over."""
        self.metrics.close()


MOST_TIMES: Final = 64
"""Number of ranks whose times an event names."""
_MOST_ENDING: Final = 1000


class GenerationTimes:
    """What the ranks of ending generations have spent their time on, from their workers' answers, until an event tells
    it."""

    def __init__(self) -> None:
        self._ranks: OrderedDict[tuple[str, int], dict[int, tuple[RankTimes, WorkerId]]] = OrderedDict()
        """By gang and generation, and by rank. An answer may come too late to be told: the oldest are dropped."""

    def __repr__(self) -> str:
        return f"<GenerationTimes of {len(self._ranks)} generations>"

    def stopped(self, worker: WorkerId, gang: str, generation: int, times: Sequence[RankTimes]) -> None:
        """The worker has stopped these ranks."""
        ranks = self._ranks.setdefault((gang, generation), {})
        ranks.update({each.rank: (each, worker) for each in times})
        if len(self._ranks) > _MOST_ENDING:
            self._ranks.popitem(last=False)

    def told(self, event: GangEvent) -> GangEvent:
        """The event, with the times of the generation if that is over."""
        if event.kind not in (GangEventKind.RESTARTING, GangEventKind.ENDED):
            return event
        over = event.generation - (event.kind is GangEventKind.RESTARTING)  # that event has the next one
        ranks = self._ranks.pop((event.gang, over), None)
        if ranks is None:
            return event
        slowest = sorted(ranks.values(), key=lambda rank: rank[0].worked_s, reverse=True)[:MOST_TIMES]
        times = [{**each.model_dump(), "worker": str(worker)} for each, worker in slowest]
        return event.model_copy(update={"details": {**event.details, "times": times}})


_RECORDED: Final = {
    GangEventKind.QUEUED: HistoryKind.GANG_QUEUED,
    GangEventKind.FORMED: HistoryKind.GANG_FORMED,
    GangEventKind.READY: HistoryKind.GANG_READY,
    GangEventKind.TORN_DOWN: HistoryKind.GANG_TORN_DOWN,
    GangEventKind.RESTARTING: HistoryKind.GANG_RESTARTING,
    GangEventKind.MEMBER_LOST: HistoryKind.GANG_MEMBER_LOST,
    GangEventKind.RECOVERED: HistoryKind.GANG_RECOVERED,
    GangEventKind.ENDED: HistoryKind.GANG_ENDED,
}


MOST_NAMED: Final = 100
"""Number of leases of a lost worker that are recorded."""


def record_loss(
    history: HistoryRecorder, worker: WorkerId, reason: str, leases: Sequence[LeaseRecord], gangs: Sequence[str]
) -> None:
    """Record that a worker was lost, with what it held."""
    details: dict[str, object] = {
        "leases": [public_id(lease.token) for lease in leases[:MOST_NAMED]],
        "gangs": list(gangs),
    }
    history.record(
        HistoryKind.WORKER_LOST,
        pool=worker.pool,
        worker=worker.worker,
        epoch=max((lease.epoch for lease in leases), default=0),
        slots=sum(lease.slots for lease in leases),
        count=len(leases),
        reason=reason,
        details={name: fact for name, fact in details.items() if fact},
    )


def record_gang(history: HistoryRecorder, event: GangEvent, seats: Sequence[Seat]) -> None:
    """Record what happened to a gang, and who has its seats, if it got some."""
    kind = _RECORDED.get(event.kind)
    if kind is None:
        return
    details: dict[str, object] = {"rank": event.rank, "lost": list(event.lost), "unconfirmed": list(event.unconfirmed)}
    details |= event.details
    if event.gangset is not None:
        details["gangset"] = event.gangset
    history.record(
        kind,
        gang=event.gang,
        generation=event.generation,
        slots=sum(seat.slots for seat in seats),
        count=event.size,
        reason=event.reason,
        workers=[f"{seat.pool}.{seat.worker}" for seat in seats],
        details={name: fact for name, fact in details.items() if fact not in (None, [])},
    )


MOST_FOUND: Final = 1000
"""Number of gangs whose end is recorded again: an earlier leader has recorded all but those of its last second."""


def record_found(history: HistoryRecorder, gangs: Iterable[tuple[GangRecord, int]]) -> None:
    """Record, as a new leader, which gangs of the ledger hold no slots any more: their records may have been lost with
    the earlier leader. Readers leave out what it had recorded itself. Those that hold slots are told as recovered."""
    gone = [(revision, record) for record, revision in gangs if _ended_as(record) is not None]
    gone.sort(key=lambda found: found[0])
    for _, record in gone[-MOST_FOUND:]:
        kind = _ended_as(record)
        assert kind is not None
        history.record(
            kind,
            gang=record.id,
            generation=record.generation,
            count=record.spec.size,
            reason=record.reason,
            details={FOUND: True},
        )


def _ended_as(record: GangRecord) -> HistoryKind | None:
    match record.state:
        case GangState.ENDED:
            return HistoryKind.GANG_ENDED
        case GangState.TEARING_DOWN:
            return HistoryKind.GANG_TORN_DOWN
        case GangState.QUEUED if record.generation > 1:
            return HistoryKind.GANG_RESTARTING
    return None
