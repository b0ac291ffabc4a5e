"""Descriptions of a worker: registration, heartbeat, statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...bus.port.bus import Bus
from ...bus.port.key_value import KeyValue
from ...bus.rpc.micro_service import Endpoint, MicroService, ServiceDescription, package_version, statistics_of
from ...runtime.clock import Environment
from ...runtime.timers import NEVER
from ...schemas.messages.operations import GangShare, LeaseInfo, LimitShare, LoadReply, RankTimes, StatsReply
from ...schemas.names import Names, Operation, WorkerId
from ...schemas.records.workers import Heartbeat, Registration
from ...telemetry.logs import Log
from ..context.lifespans import HookLimits
from ..execution.executor_registry import ExecutorRegistry
from ..execution.executors.execution import MAX_COLLECTED_BYTES, ExecutorSettings
from ..ledger.ledger_writer import LedgerStatistics
from ..ledger.settings import WorkerSettings
from ..pool.pool import Pool
from ..slots.admission_core import AdmissionCore, CoreSettings, next_epoch
from ..slots.gang_core import LeavingMember, LocalMember, LocalSeat, TentativeHold, WorkerGangCore
from ..slots.lease_table import GrantedLease
from ..slots.method_limits import method_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """The identity of a worker: its name, pool, node and address."""

    worker: WorkerId
    instance: str
    """Unique for this object; tells two processes with one id apart."""
    channel: str
    """See Registration.channel."""
    pool: Pool
    settings: WorkerSettings
    names: Names
    bus: Bus
    ambient: Environment
    log: Log

    def new_core(self) -> AdmissionCore:
        """A new core, in a first epoch."""
        pool, settings = self.pool, self.settings
        return AdmissionCore(
            pool.slots if settings.slots is None else settings.slots,
            next_epoch(0, self.ambient.wall()),
            CoreSettings(
                keep_s=settings.answer_retention_s,
                keep=settings.answer_retention_count,
                keep_bytes=settings.answer_retention_bytes,
                item_bytes=settings.answer_retention_bytes,
            ),
            declared=pool.slots,
            limits=method_limits({name: task.policy for name, task in pool.tasks.items()}),
        )

    def new_executors(self, on_models: Callable[[tuple[str, ...]], None]) -> ExecutorRegistry:
        """Not started. `on_models` is called with the ids of all loaded models after each change."""
        return ExecutorRegistry(
            self.pool,
            settings=ExecutorSettings(
                send_tracebacks=self.settings.send_tracebacks,
                # More could not be sent, so collecting a stream fails early.
                max_collected_bytes=min(MAX_COLLECTED_BYTES, self.bus.max_payload),
                limits=HookLimits(
                    lifespan_start_s=self.settings.lifespan_start_s,
                    model_load_s=self.settings.model_load_s,
                    hook_stop_s=self.settings.hook_stop_s,
                ),
            ),
            on_models=on_models,
        )


SeatTimes = Callable[[Iterable[LocalSeat]], tuple[RankTimes, ...]]
"""What the tasks on these seats have spent their time on."""


def _no_times(_: Iterable[LocalSeat]) -> tuple[RankTimes, ...]:
    return ()


def shares(gangs: WorkerGangCore, times: SeatTimes = _no_times) -> tuple[GangShare, ...]:
    """The gangs' shares of a worker, for operators."""
    kept = [GangShare(gang=gang, state="kept", slots=keep.has) for gang, keep in gangs.keeps.by_gang.items()]
    held = [_share(hold, "held", hold.seats, 0, ()) for hold in gangs.holds.values()]
    formed = [
        _share(member, "over" if member.over else "formed", member.seats.values(), 0, times(member.seats.values()))
        for member in gangs.members.values()
    ]
    stopping = [
        _share(leaving, "stopping", leaving.seats, gangs.reserved_by(leaving), times(leaving.seats))
        for leaving in gangs.leaving
    ]
    return (*kept, *held, *formed, *stopping)


def _share(
    of: TentativeHold | LocalMember | LeavingMember,
    state: Literal["held", "formed", "over", "stopping"],
    seats: Iterable[LocalSeat],
    more: int,
    times: tuple[RankTimes, ...],
) -> GangShare:
    seats = list(seats)
    slots = sum(seat.lease.slots if seat.lease.ended is None else seat.lease.busy for seat in seats)
    ranks = tuple(sorted({seat.rank for seat in seats}))
    return GangShare(gang=of.gang, generation=of.generation, state=state, ranks=ranks, slots=slots + more, times=times)


class WorkerDescription:
    """Describes one worker: its constant facts and the current state of its core."""

    __slots__ = ("_core", "_place", "_started_at", "_version", "drain_by", "drain_grace_s", "models")

    def __init__(self, place: WorkerIdentity, core: AdmissionCore) -> None:
        self._place = place
        self._core = core
        self._started_at = place.ambient.wall()
        """Unix time."""
        self._version = package_version()
        self.models: tuple[str, ...] = ()
        """Loaded now."""
        self.drain_grace_s: float | None = None
        """The grace time of the drain, as first requested."""
        self.drain_by: float | None = None
        """Unix time at which that ends."""

    def registration(self) -> Registration:
        core, pool, settings = self._core, self._place.pool, self._place.settings
        return Registration(
            pool=self._place.worker.pool,
            worker=self._place.worker.worker,
            epoch=core.epoch,
            instance=self._place.instance,
            channel=self._place.channel,
            state="draining" if core.draining else "serving",
            drain_grace_s=self.drain_grace_s if core.draining else None,
            drain_by=self.drain_by if core.draining else None,
            slots=core.load.total,
            methods={name: task.info() for name, task in pool.tasks.items()},
            models=self.models,
            max_models=pool.max_models,
            node=settings.node,
            zone=settings.zone,
            address=settings.address,
            labels={**pool.labels, **settings.labels},
            pid=os.getpid(),
            version=self._version,
            started_at=self._started_at,
            acks=True,
            stored=True,
        )

    def heartbeat(self) -> Heartbeat:
        core = self._core
        load = core.told_load
        return Heartbeat(
            epoch=core.epoch,
            instance=self._place.instance,
            running=load.running,
            reserved=load.reserved,
            total=load.total,
            draining=core.draining,
            models=self.models,
        )

    def statistics(
        self,
        tasks: dict[str, int],
        ledger: LedgerStatistics,
        now: float,
        times: SeatTimes = _no_times,
        limits: Sequence[LimitShare] = (),
    ) -> StatsReply:
        """The answer to `stats`."""
        core = self._core
        return StatsReply(
            pool=self._place.worker.pool,
            worker=self._place.worker.worker,
            epoch=core.epoch,
            load=LoadReply.of(core.load),
            leases=[
                LeaseInfo(
                    token=lease.id,
                    slots=lease.slots,
                    running=lease.busy,
                    single_use=lease.single_use,
                    owner=lease.owner,
                    expires_in_s=round(max(0.0, min(lease.due_at - now, _patience_s(core, lease, now))), 3),
                    gang=lease.gang if lease.seat is None else lease.seat.gang,
                    seat=None if lease.seat is None else lease.seat.id,
                )
                for lease in core.leases.values()
            ],
            gangs=shares(core.gangs, times),
            limits=tuple(limits),
            tasks=tasks,
            ledger={
                "pending": ledger.pending,
                "written": ledger.written,
                "deleted": ledger.deleted,
                "retried": ledger.retried,
                "cancelled_out": ledger.cancelled_out,
            },
        )


def _patience_s(core: AdmissionCore, lease: GrantedLease, now: float) -> float:
    """How long a gang's seat lasts without a ping from its coordinator; NEVER for other leases."""
    if lease.gang is None:
        return NEVER
    member = core.gangs.member_of(lease)
    return lease.ttl_s if member is None else member.proven_at + lease.ttl_s - now


SERVICE = "gangline-worker"


def worker_service(
    place: WorkerIdentity,
    registration: Callable[[], Registration],
    counts: Callable[[], Mapping[str, Sequence[int]]],
    kv: KeyValue,
) -> MicroService:
    """Shows one worker. Its endpoints are its operations; FRAMES counts messages, not tasks.

    Args:
        counts: returns requests and errors by operation.
        kv: the ledger: `gangline workers` compares when it was created, since a leaf node may have one of its own.
    """

    def describe() -> ServiceDescription:
        now = registration()
        return ServiceDescription(
            name=SERVICE,
            version=now.version or "0.0.0",
            description=f"tasks of pool {now.pool}: {', '.join(now.methods) or 'none'}",
            metadata={
                "namespace": place.names.namespace,
                "pool": now.pool,
                "worker": now.worker,
                "epoch": str(now.epoch),
                "state": now.state,
                "slots": str(now.slots),
                "node": now.node,
                "zone": now.zone,
                "ledger": kv.created,
                "place": place.bus.server_place,
            },
            endpoints=[
                Endpoint(name=str(operation), subject=place.names.worker(place.worker, operation))
                for operation in Operation
            ],
        )

    return MicroService(
        place.bus,
        describe,
        statistics=lambda: statistics_of(counts()),
        ambient=place.ambient,
        instance=place.instance,
    )
