"""Carries out the core's decisions: after each one it updates the ledger, the journal and the metrics, and sets one
timer. All paths come through here. Leases are granted, recorded and renewed here, for routers and for requesters in
other languages alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ...runtime.clock import Environment
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import (
    Draining,
    GangEnded,
    GanglineError,
    InvalidRequest,
    LeaseBusy,
    LeaseExpired,
    Saturated,
    StaleEpoch,
    Unavailable,
    UnknownToken,
)
from ...schemas.names import WorkerId, public_id
from ...schemas.records.workers import LeaseRecord
from ...schemas.text import count_of
from ...schemas.wire.frames import Reason
from ...telemetry.metrics.router_and_worker import WorkerMetrics
from ..slots.admission_core import AdmissionCore
from ..slots.lease_table import (
    GrantedLease,
    LeaseChange,
    LeaseTransition,
    Refusal,
    RequestId,
    RouterHistory,
    TaskRecord,
)
from ..slots.limiter import CapacityWaiters
from .lease_history import LeaseHistory
from .ledger_writer import DesiredState, LedgerWriter
from .settings import WorkerSettings

JournalSink = Callable[[dict[str, Any]], None]
"""Takes one record; must not block and must not raise."""

_EVENTS = {
    LeaseTransition.GRANT: "grant",
    LeaseTransition.USE: "use",
    LeaseTransition.RELEASE: "release",
    LeaseTransition.EXPIRE: "expire",
    LeaseTransition.DROP: "drop",
    LeaseTransition.TEARDOWN: "release",
}
"""Renewals are omitted: they move no slot."""


class AuditJournal:
    """Records everything that happens to a worker's slots, for checkers and humans. Law L1 is checked from it
    afterwards: each record has the slots as they were at that moment.

    Writes records `{"t", "event", "worker", "epoch", "running", "reserved", "total", ...}` into a sink.

    Events: start, end (a task; for a durable one with job, endpoint and attempt); attach (another request gets the end
    of a job); grant, use, release, expire, drop (a lease; `use`: a single-use token was consumed); reject; epoch,
    resize, drain, leave (the worker); hold, unhold, keep, form, teardown, stopped (a gang; its seats are leases that
    name it, granted when it forms; subleases name it and their `seat`, whose slots they have; `unhold` with `left`: so
    many slots are still held). `token` and `seat` are public ids of leases. `t` is Unix time in seconds.
    """

    __slots__ = ("_ambient", "_core", "_sink", "_worker", "enabled")

    def __init__(self, sink: JournalSink | None, worker: WorkerId, core: AdmissionCore, ambient: Environment) -> None:
        self._sink = sink
        self._worker = str(worker)
        self._core = core
        self._ambient = ambient
        self.enabled = sink is not None

    def write(self, event: str, **facts: object) -> None:
        """Record one event with the slots as they are now. Does nothing without a sink."""
        if self._sink is None:
            return
        load = self._core.load
        self._sink(
            {
                "t": self._ambient.wall(),
                "event": event,
                "worker": self._worker,
                "epoch": self._core.epoch,
                "running": load.running,
                "reserved": load.reserved,
                "total": load.total,
                **facts,
            }
        )

    def lease(self, change: LeaseTransition, lease: GrantedLease) -> None:
        """Record a transition of a lease; a grant with its terms, so that a reader can do its own accounting."""
        event = _EVENTS.get(change)
        if change is LeaseTransition.GRANT:
            seat: dict[str, object] = {} if lease.gang is None else {"gang": lease.gang}
            if lease.seat is not None:
                seat = {"gang": lease.seat.gang, "seat": lease.seat.id}
            self.write(
                "grant", token=lease.id, slots=lease.slots, single_use=lease.single_use, ttl_s=lease.ttl_s, **seat
            )
        elif event is not None:
            self.write(event, token=lease.id)


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
        "history",
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
        """`on_overdue` is called once for each running task whose deadline has passed."""
        self.core = core
        self.worker = worker
        self.journal = journal
        self.metrics = metrics
        self.ambient = ambient
        self.on_overdue = on_overdue
        self.loop = asyncio.get_running_loop()
        self.ledger: LedgerWriter | None = None
        """Set when the bucket is open; nothing can be granted before."""
        self.history: LeaseHistory | None = None
        """None: no history is written."""
        self.on_rest: Callable[[], None] | None = None
        """Called when a draining core no longer holds anything, and again when it may leave."""
        self.on_gangs: Callable[[], None] | None = None
        """Called after decisions while this worker has anything of a gang."""
        self.waiters: CapacityWaiters | None = None
        """The requests that wait for free slots."""
        self.on_room: Callable[[], None] | None = None
        """Called after each decision that leaves slots free while requests wait for them."""
        self._collecting = False
        self._handle: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def now(self) -> float:
        """Monotonic seconds."""
        return self.loop.time()

    def collect(self) -> None:
        """Many decisions follow: `after` does nothing until `collected`."""
        self._collecting = True

    def collected(self) -> None:
        """All decisions are made: `after` for all of them."""
        self._collecting = False
        self.after()

    def after(self) -> None:
        """Pass on what the last decision changed, and set the timer for the next deadline."""
        if self._collecting:
            return
        self.tell()
        if self.core.freed:
            self._free()
        if self.on_gangs is not None and any(self.core.gangs.present):
            self.on_gangs()
        self._arm()
        if self.waiters:
            self._invite()
        if self.core.draining and self.on_rest is not None and self.core.at_rest:
            self.on_rest()

    def after_end(self) -> None:
        """`after`, for a task that freed its slots: that moves no deadline forward."""
        core = self.core
        if self._collecting:
            return
        if core.freed:
            self._free()
        if core.changes or core.draining or any(core.gangs.present):
            self.after()
        elif self.waiters:
            self._invite()

    def tell(self) -> None:
        """Pass on the changes of leases; in the order of the decisions, if called after each."""
        if self.core.changes:
            self._tell(self.core.take_changes())

    def record(self, event: str, **facts: object) -> None:
        """Write into the journal, after the changes decided before."""
        if self.journal.enabled:
            self.tell()
            self.journal.write(event, **facts)

    def describe(self, token: str) -> DesiredState | None:
        """The record of a lease that the ledger must have; None: no such lease."""
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
            token=lease.id,
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
        ledger, journal, history = self.ledger, self.journal, self.history
        assert ledger is not None
        granted = expired = released = 0
        for change, lease in changes:
            # A gang's seats are in its member record, which the coordinator writes; subleases use their slots.
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
                if history is not None:
                    history.ended(change, lease)
            if journal.enabled:
                journal.lease(change, lease)
        if granted and history is not None:
            history.granted()
        self.metrics.leases(granted, expired, released)

    def _free(self) -> None:
        """Invite routers that a declared limit kept out, like those for which there was no slot."""
        freed, self.core.freed = self.core.freed, []
        if self.waiters is not None:
            now = self.now()
            for reply in freed:
                self.waiters.refused(reply, 1, now)

    def _invite(self) -> None:
        if self.on_room is not None and self.core.has_room:
            self.on_room()

    def _arm(self) -> None:
        due_at = self.core.next_deadline()
        if due_at is None or due_at >= self._timer_at:
            return  # a timer that fires early finds nothing and is set again
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


REASONS = {
    Refusal.FULL: Reason.FULL,
    Refusal.DRAINING: Reason.DRAINING,
    Refusal.STALE: Reason.STALE,
    Refusal.EXPIRED: Reason.EXPIRED,
    Refusal.LIMITED: Reason.LIMITED,
}
"""Refusals after which a router goes elsewhere: answered as REJECTED. The others are errors."""


def error_of(
    refusal: Refusal, *, worker: str, slots: int = 0, total: int = 0, token: str | None = None
) -> GanglineError:
    """The error to send for a refusal of the core.

    Args:
        refusal: of the core.
        worker: its name, for the text.
        slots: the number requested.
        total: the worker's number of slots.
        token: the lease's, if one was named; the text shows its public id.
    """
    shown = public_id(token or "")
    match refusal:
        case Refusal.TOO_LARGE:
            return InvalidRequest(f"{slots} slots were asked for and worker {worker} has {total}: ask for fewer")
        case Refusal.LEASE_TOO_SMALL:
            return InvalidRequest(
                f"the task costs {count_of(slots, 'slot')}, more than lease {shown} has: reserve that many"
            )
        case Refusal.LEASE_EXPIRED:
            return LeaseExpired(f"lease {shown} of worker {worker} expired: reserve again, and renew in time")
        case Refusal.LEASE_STALE:
            return StaleEpoch(f"lease {shown} is void: it is of an earlier epoch of worker {worker}; reserve again")
        case Refusal.LEASE_USED:
            return UnknownToken(f"lease {shown} of worker {worker} was used up or released: reserve again")
        case Refusal.UNKNOWN_TOKEN:
            return UnknownToken(f"worker {worker} knows no lease {shown}: reserve one first")
        case Refusal.LEASE_BUSY:
            return LeaseBusy(f"all slots of lease {shown} are in use: wait for a task to end, or lease more slots")
        case Refusal.GANG_OVER:
            return GangEnded(f"the gang of seat {shown} of worker {worker} was torn down: ask for its next generation")
        case Refusal.FULL:
            return Saturated(f"worker {worker} does not have {count_of(slots, 'free slot')} now: try another, or later")
        case Refusal.LIMITED:
            return LeaseBusy(f"worker {worker} runs as many of this task as its declared limits allow: try again later")
        case Refusal.DRAINING:
            return Draining(f"worker {worker} is leaving: try another")
        case Refusal.STALE:
            return StaleEpoch(f"worker {worker} has a newer epoch: read its registration again")
        case Refusal.EXPIRED:
            return LeaseExpired("the request expired or was withdrawn before it arrived: nothing started")


class LeaseService:
    """The core's lease decisions with the worker's limits and tokens, and with the ledger for `sync`."""

    def __init__(self, driver: CoreDriver, settings: WorkerSettings) -> None:
        self._driver = driver
        self._settings = settings
        self._recording: dict[str, asyncio.Task[int]] = {}
        """Writes of `sync` leases in progress, by token: a repeated request waits for the same one."""
        self._recorded: set[str] = set()
        """Active `sync` leases whose fence is their revision."""
        self._background = TaskSet("sync grant")
        """Answers that wait for the ledger, oldest first."""

    def reserve(
        self,
        sender: RouterHistory,
        rid: RequestId | None,
        *,
        slots: int,
        ttl_s: float,
        claim_s: float,
        single_use: bool,
        owner: str,
        seat: str | None = None,
        now: float,
    ) -> GrantedLease | Refusal:
        """See AdmissionCore.reserve.

        Raises:
            InvalidRequest: a time is longer than this worker allows.
        """
        settings = self._settings
        if ttl_s > settings.max_lease_ttl_s:
            raise InvalidRequest(f"ttl of {ttl_s:g} s: this worker leases for {settings.max_lease_ttl_s:g} s at most")
        if claim_s > settings.max_claim_s and claim_s > ttl_s:
            raise InvalidRequest(
                f"claim timeout of {claim_s:g} s: this worker waits {settings.max_claim_s:g} s at most"
            )
        return self._driver.core.reserve(
            sender,
            rid,
            slots=slots,
            ttl_s=ttl_s,
            claim_s=claim_s,
            single_use=single_use,
            owner=owner,
            token=self._driver.ambient.token(),
            seat=seat,
            now=now,
        )

    def recorded(self, lease: GrantedLease) -> bool:
        """Whether a `sync` lease already has its revision as its fence."""
        return lease.token in self._recorded

    def in_background(self, answering: Coroutine[None, None, None]) -> None:
        """Run a coroutine that answers a request once its lease is recorded."""
        self._background.start(answering)

    async def record(self, token: str) -> GrantedLease | None:
        """Write a lease to the ledger and make the revision its fence. None: it ended meanwhile.

        Raises:
            GanglineError: the write failed; the lease is released.
        """
        driver = self._driver
        ledger = driver.ledger
        assert ledger is not None
        writing = self._recording.get(token)
        if writing is None:
            if token in driver.core.leases:
                # 0 in the record means the revision of the entry itself, which is unknown before it is written.
                driver.core.set_fence(driver.core.leases[token], 0)
            writing = self._recording[token] = asyncio.get_running_loop().create_task(ledger.write_now(token))
            writing.add_done_callback(lambda _: self._recording.pop(token, None))
        try:
            revision = await asyncio.shield(writing)
        except LookupError:
            return None
        except Exception as error:
            # Whatever the error, the caller gets an answer and no slot.
            driver.core.release(driver.core.sender(OPERATIONS, driver.now()), None, token, driver.now())
            driver.after()
            if isinstance(error, GanglineError):
                raise
            raise Unavailable(f"the lease could not be written to the ledger ({type(error).__name__})") from error
        lease = driver.core.leases.get(token)
        if lease is None or lease.due_at <= driver.now():
            return None
        if token not in self._recorded:
            self._recorded = {known for known in self._recorded if known in driver.core.leases}
            self._recorded.add(token)
            driver.core.set_fence(lease, revision)
        return lease

    def renew(self, token: str, ttl_s: float | None, now: float) -> float:
        """Renew; returns the lease's remaining time in seconds.

        Raises:
            InvalidRequest: a time is longer than this worker allows.
            LeaseError: the lease does not or no longer exist.
        """
        if ttl_s is not None and ttl_s > self._settings.max_lease_ttl_s:
            raise InvalidRequest(
                f"ttl of {ttl_s:g} s: this worker leases for {self._settings.max_lease_ttl_s:g} s at most"
            )
        left_s = self._driver.core.renew(token, ttl_s, now)
        if isinstance(left_s, Refusal):
            raise error_of(left_s, worker=str(self._driver.worker), token=token)
        return left_s

    async def stop(self) -> None:
        """Cancel whatever waits for the ledger. Idempotent."""
        tasks = [*self._background, *self._recording.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPERATIONS = ""
"""The sender name for requests from other languages; no router can have it."""
