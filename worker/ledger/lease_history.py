"""A worker's part of the history: its leases and seats, and what became of the worker itself.

Most leases are for one short task. They cost a dictionary look-up each and are counted once a minute; a lease that
lasts longer than LONG_S is recorded by itself, when it is that old and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from ...bus.streams.history_recorder import HistoryRecorder, HistorySummary
from ...schemas.names import WorkerId, public_id
from ...schemas.records.history import HistoryKind
from ..slots.lease_table import GrantedLease, LeaseTransition

LONG_S: Final = 1.0
_ENDS: Final = {
    LeaseTransition.USE: "used",
    LeaseTransition.RELEASE: "released",
    LeaseTransition.EXPIRE: "expired",
    LeaseTransition.DROP: "dropped",
    LeaseTransition.TEARDOWN: "torn down",
}


class LeaseHistory:
    """Records into `recorder`. Called on the worker's event loop, for each change of a lease."""

    def __init__(
        self,
        recorder: HistoryRecorder,
        worker: WorkerId,
        *,
        epoch: Callable[[], int],
        living: Callable[[], Mapping[str, GrantedLease]],
        wall: Callable[[], float],
    ) -> None:
        """
        Args:
            epoch, living: the core's epoch and active leases.
        """
        self.recorder = recorder
        self._worker = worker
        self._epoch = epoch
        self._living = living
        self._wall = wall
        self._told: set[str] = set()
        """Tokens of recorded leases that are active."""
        self._short = HistorySummary(recorder, HistoryKind.LEASES)
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def granted(self) -> None:
        """A lease was granted: look whether it lasts."""
        if self._timer is None:
            self._timer = self._loop.call_later(LONG_S, self._look)

    def ended(self, change: LeaseTransition, lease: GrantedLease) -> None:
        """A lease has ended."""
        if lease.token in self._told:
            self._told.discard(lease.token)
            self._record(HistoryKind.LEASE_ENDED, lease, reason=_ENDS.get(change, change.value))
        elif (seconds := self._loop.time() - lease.granted_at) < LONG_S:
            self._short.add(lease.slots * seconds, pool=self._worker.pool, worker=self._worker.worker)
        else:  # between two looks
            self._record(HistoryKind.LEASE_ENDED, lease, reason=_ENDS.get(change, change.value))

    def worker(self, kind: HistoryKind, *, reason: str = "", slots: int = 0) -> None:
        """Something happened to the worker itself."""
        worker = self._worker
        self.recorder.record(
            kind, pool=worker.pool, worker=worker.worker, epoch=self._epoch(), slots=slots, reason=reason
        )

    def gang_lost(self, gang: str, generation: int, reason: str) -> None:
        """A gang ended here because the ledger lacks it. Otherwise, its coordinator records its end."""
        worker = self._worker
        self.recorder.record(
            HistoryKind.GANG_TORN_DOWN, pool=worker.pool, worker=worker.worker, epoch=self._epoch(),
            gang=gang, generation=generation, reason=reason,
        )  # fmt: skip

    async def close(self) -> None:
        """Write what is left. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._short.flush()
        await self.recorder.close()

    def __repr__(self) -> str:
        return f"LeaseHistory({self._worker}, {len(self._told)} long leases, {self.recorder!r})"

    def _look(self) -> None:
        self._timer = None
        old, young = self._loop.time() - LONG_S, False
        for token, lease in self._living().items():
            if token in self._told:
                continue
            if lease.granted_at > old:
                young = True
                continue
            self._told.add(token)
            self._record(HistoryKind.LEASE_GRANTED, lease)
        if young:
            self._timer = self._loop.call_later(LONG_S, self._look)

    def _record(self, kind: HistoryKind, lease: GrantedLease, *, reason: str = "") -> None:
        gang = lease.in_gang
        self.recorder.record(
            kind,
            since=round(self._wall() - (self._loop.time() - lease.granted_at), 3),
            pool=self._worker.pool,
            worker=self._worker.worker,
            epoch=self._epoch(),
            slots=lease.slots,
            lease=public_id(lease.token),
            owner=lease.owner,
            gang=gang.gang if gang is not None else "",
            reason=reason,
        )
