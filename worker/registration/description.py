"""What a worker says of itself: registration, heartbeat, statistics."""

from __future__ import annotations

import os

from ...bus.rpc.micro_service import package_version
from ...schemas.messages.operations import LeaseInfo, LoadReply, StatsReply
from ...schemas.public_id import public_id
from ...schemas.records.workers import Heartbeat, Registration
from ..identity import WorkerIdentity
from ..ledger.ledger_writer import LedgerStatistics
from ..slots.admission_core import AdmissionCore
from ..slots.lease_table import GrantedLease
from ..slots.timers import NEVER
from .gang_shares import shares


class WorkerDescription:
    """The constant facts of one worker, joined to its core's changing ones."""

    __slots__ = ("_core", "_place", "_started_at", "_version", "drain_grace_s", "models")

    def __init__(self, place: WorkerIdentity, core: AdmissionCore) -> None:
        self._place = place
        self._core = core
        self._started_at = place.ambient.wall()
        """Unix time."""
        self._version = package_version()
        self.models: tuple[str, ...] = ()
        """Loaded now."""
        self.drain_grace_s: float | None = None
        """Of the drain, as it was first asked for."""

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

    def statistics(self, tasks: dict[str, int], ledger: LedgerStatistics, now: float) -> StatsReply:
        """The answer to `stats`."""
        core = self._core
        return StatsReply(
            pool=self._place.worker.pool,
            worker=self._place.worker.worker,
            epoch=core.epoch,
            load=LoadReply.of(core.load),
            leases=[
                LeaseInfo(
                    token=public_id(lease.token),
                    slots=lease.slots,
                    running=lease.busy,
                    single_use=lease.single_use,
                    owner=lease.owner,
                    expires_in_s=round(max(0.0, min(lease.due_at - now, _patience_s(core, lease, now))), 3),
                    gang=lease.gang if lease.seat is None else lease.seat.gang,
                    seat=None if lease.seat is None else public_id(lease.seat.token),
                )
                for lease in core.leases.values()
            ],
            gangs=shares(core.gangs),
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
    """For how long a gang's seat goes on without a word of its coordinator; NEVER for other leases."""
    if lease.gang is None:
        return NEVER
    member = core.gangs.member_of(lease)
    return lease.ttl_s if member is None else member.proven_at + lease.ttl_s - now
