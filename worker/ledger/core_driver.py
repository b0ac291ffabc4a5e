"""The core's bookkeeper: after each decision it tells the ledger, the journal and the metrics, and keeps one timer.

The core decides and remembers; this is where its decisions reach the outside, in one place for every path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...runtime.clock import Environment
from ...schemas.names import WorkerId
from ...schemas.records.workers import LeaseRecord
from ...telemetry.metrics.router_and_worker import WorkerMetrics
from ..slots.admission_core import AdmissionCore
from ..slots.lease_table import LeaseChange, LeaseTransition, TaskRecord
from ..slots.limiter import CapacityWaiters
from .audit_journal import AuditJournal
from .ledger_writer import DesiredState, LedgerWriter

_GRANT, _RENEW, _EXPIRE = LeaseTransition.GRANT, LeaseTransition.RENEW, LeaseTransition.EXPIRE


class CoreDriver:
    """Binds one AdmissionCore to the event loop. `after` must be called after each decision, in the same turn."""

    __slots__ = (
        "_collecting",
        "_handle",
        "_timer_at",
        "ambient",
        "waiters",
        "core",
        "journal",
        "ledger",
        "loop",
        "metrics",
        "on_gangs",
        "on_overdue",
        "on_rest",
        "on_room",
        "worker",
    )

    def __init__(
        self,
        core: AdmissionCore,
        worker: WorkerId,
        *,
        journal: AuditJournal,
        metrics: WorkerMetrics,
        ambient: Environment,
        on_overdue: Callable[[TaskRecord], None],
    ) -> None:
        """`on_overdue` is told of each running task whose deadline passed, once."""
        self.core = core
        self.worker = worker
        self.journal = journal
        self.metrics = metrics
        self.ambient = ambient
        self.on_overdue = on_overdue
        self.loop = asyncio.get_running_loop()
        self.ledger: LedgerWriter | None = None
        """Set once the bucket is open; before that nothing can be granted."""
        self.on_rest: Callable[[], None] | None = None
        """Called when nothing is held any more while the core drains; and again when it may leave."""
        self.on_gangs: Callable[[], None] | None = None
        """Called after decisions while this worker has something of a gang."""
        self.waiters: CapacityWaiters | None = None
        """Who waits for room."""
        self.on_room: Callable[[], None] | None = None
        """Called after each decision that leaves slots free while somebody waits for them."""
        self._collecting = False
        self._handle: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def now(self) -> float:
        """Monotonic seconds."""
        return self.loop.time()

    def collect(self) -> None:
        """Many decisions follow in this call: `after` may wait for `collected`."""
        self._collecting = True

    def collected(self) -> None:
        """They were made: `after` for all of them."""
        self._collecting = False
        self.after()

    def after(self) -> None:
        """Pass on what the last decision changed, and set the timer for what is due next."""
        if self._collecting:
            return
        self.tell()
        if self.on_gangs is not None and self.core.gangs.busy:
            self.on_gangs()
        self._arm()
        if self.waiters:
            self._invite()
        if self.core.draining and self.on_rest is not None and self.core.at_rest:
            self.on_rest()

    def after_end(self) -> None:
        """`after`, for a task that left its slots: nothing falls due sooner by that."""
        core = self.core
        if self._collecting:
            return
        if core.changes or core.draining or core.gangs.busy:
            self.after()
        elif self.waiters:
            self._invite()

    def tell(self) -> None:
        """Pass on what became of leases; in the order of decisions, if called after each."""
        if self.core.changes:
            self._tell(self.core.take_changes())

    def record(self, event: str, **facts: object) -> None:
        """Write into the journal, after what was decided before."""
        if self.journal.enabled:
            self.tell()
            self.journal.write(event, **facts)

    def describe(self, token: str) -> DesiredState | None:
        """What the ledger shall say of a lease; None: no such lease."""
        lease = self.core.leases.get(token)
        if lease is None or lease.in_gang is not None:
            return None
        now = self.now()
        left_s = lease.due_at - now
        if left_s <= 0:
            return None
        wall = self.ambient.wall()
        record = LeaseRecord(
            pool=self.worker.pool,
            worker=self.worker.worker,
            epoch=self.core.epoch,
            token=token,
            slots=lease.slots,
            fence=lease.fence,
            single_use=lease.single_use,
            owner=lease.owner,
            granted_at=round(wall - (now - lease.granted_at), 3),
            expires_at=round(wall + left_s, 3),
        )
        return DesiredState(value=record.model_dump_json().encode(), expires_in_s=left_s)

    def close(self) -> None:
        """Stop the timer. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._timer_at = float("inf")

    def _tell(self, changes: list[LeaseChange]) -> None:
        ledger, journal = self.ledger, self.journal
        assert ledger is not None
        granted = expired = released = 0
        for change, lease in changes:
            # A gang's seats stand in its member record, which the coordinator writes, and subleases are slots of those.
            recorded = lease.gang is None and lease.seat is None
            if change is _RENEW:
                if recorded:
                    ledger.renewed(lease.token, lease.due_at)
                continue
            if change is _GRANT:
                granted += 1
                if recorded:
                    ledger.changed(lease.token)
            else:
                if change is _EXPIRE:
                    expired += 1
                else:
                    released += 1
                if recorded:
                    ledger.ended(lease.token)
            if journal.enabled:
                journal.lease(change, lease)
        self.metrics.leases(granted, expired, released)

    def _invite(self) -> None:
        if self.on_room is not None and self.core.has_room:
            self.on_room()

    def _arm(self) -> None:
        due_at = self.core.next_deadline()
        if due_at is None or due_at >= self._timer_at:
            return  # a timer that fires early finds nothing and is set anew
        if self._handle is not None:
            self._handle.cancel()
        self._timer_at = due_at
        self._handle = self.loop.call_at(due_at, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._timer_at = float("inf")
        overdue = self.core.expire(self.now())
        self.after()
        for record in overdue.tasks:
            self.on_overdue(record)
