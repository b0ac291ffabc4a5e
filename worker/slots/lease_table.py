"""Leases: the right to use n slots of this worker for a bounded time, each known by its token.

Pure: no clock, no randomness; part of worker.slots.admission_core, whose laws it keeps.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

from .limiter import SlotLimiter
from .timers import NEVER, DeadlineHeap

if TYPE_CHECKING:
    from .request_dedup import RequestId, RouterHistory


class Refusal(StrEnum):
    """Why nothing was granted or started. The first four are the wire's `Reason`; the rest travel as errors."""

    FULL = "full"
    DRAINING = "draining"
    STALE = "stale"
    EXPIRED = "expired"
    """The deadline had passed, or the request was cancelled or released before it arrived."""
    TOO_LARGE = "too_large"
    """More slots than this worker has at its best: waiting cannot help."""
    UNKNOWN_TOKEN = "unknown_token"
    LEASE_EXPIRED = "lease_expired"
    LEASE_STALE = "lease_stale"
    """The token is of an older epoch."""
    LEASE_USED = "lease_used"
    """Single use, and used; or released."""
    LEASE_BUSY = "lease_busy"
    LEASE_TOO_SMALL = "lease_too_small"
    """The task costs more slots than the whole lease has."""
    GANG_OVER = "gang_over"
    """The seat's gang was torn down."""


class LeaseTransition(StrEnum):
    """What became of a lease."""

    GRANT = "grant"
    RENEW = "renew"
    USE = "use"
    """A single-use token was consumed by its task."""
    RELEASE = "release"
    EXPIRE = "expire"
    DROP = "drop"
    """The epoch ended."""
    TEARDOWN = "teardown"
    """A seat's gang was torn down."""


class GrantedLease:
    """One granted lease. Only the table changes it."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    busy = 0
    """How many of its slots tasks are on, or subleases have; busy <= slots (L3)."""
    queued_at = NEVER
    claimed = False
    asked: tuple[RouterHistory, RequestId] | None = None
    """The request that it was granted for; None for seats, and once it has ended."""
    ended: Refusal | None = None
    """None while it lives; then what a use of its token is told."""
    gang: str | None = None
    """The gang that it is a seat of. A seat lives as long as its gang does here, whether it is used or not: its
    `due_at` is NEVER, but for the end of a drain, and nobody can renew or release it by its token."""
    seat: GrantedLease | None = None
    """Of a sublease: the gang's seat that its slots were taken from and go back to. It ends with that at the latest."""
    subleases: tuple[GrantedLease, ...] = ()
    """Of a seat: the living leases that have slots of it."""

    def __init__(
        self,
        token: str,
        slots: int,
        ttl_s: float,
        claim_s: float,
        single_use: bool,
        owner: str,
        fence: int,
        now: float,
        gang: str | None = None,
    ) -> None:
        self.token = token
        self.slots = slots
        """How many it was granted."""
        self.ttl_s = ttl_s
        self.claim_s = claim_s
        self.due_at = now + claim_s
        """When it expires: `now + claim` until it is used or renewed for the first time, then `now + ttl_s` at each
        use. NEVER once it has ended."""
        if gang is not None:
            self.gang = gang
            self.due_at = NEVER
        self.single_use = single_use
        self.owner = owner
        self.fence = fence
        self.granted_at = now

    @property
    def in_gang(self) -> GrantedLease | None:
        """The seat that a task on it runs on: itself, or the one that its slots are of. None: it is of no gang."""
        return self if self.gang is not None else self.seat

    def __repr__(self) -> str:
        state = self.ended or ("claimed" if self.claimed else "unclaimed")
        kind = "single use" if self.single_use else f"{self.busy}/{self.slots} slots busy"
        return f"<GrantedLease {self.token} {kind}, {state}, due_at={self.due_at:.3f}>"


LeaseChange = tuple[LeaseTransition, GrantedLease]
"""One change, for the ledger, the journal and the metrics, in the order in which they happened."""

# An enum's members take longer to look up than what is done with them here.
_GRANT, _RENEW, _USE, _EXPIRE = (
    LeaseTransition.GRANT,
    LeaseTransition.RENEW,
    LeaseTransition.USE,
    LeaseTransition.EXPIRE,
)
_EXPIRED, _UNKNOWN_TOKEN, _LEASE_EXPIRED = Refusal.EXPIRED, Refusal.UNKNOWN_TOKEN, Refusal.LEASE_EXPIRED

_ENDED_AS = {
    LeaseTransition.USE: Refusal.LEASE_USED,
    LeaseTransition.RELEASE: Refusal.LEASE_USED,
    LeaseTransition.EXPIRE: Refusal.LEASE_EXPIRED,
    LeaseTransition.DROP: Refusal.LEASE_STALE,
    LeaseTransition.TEARDOWN: Refusal.GANG_OVER,
}


class LeaseTable:
    """All living leases of one worker, and for a while the ended ones, so that a late use is told what happened.

    Invariants: a living lease has `reserved == slots - busy` in the limiter, an ended one has none reserved; the slots
    its tasks are on are the tasks' own. A seat's `busy` counts all that was taken from it: its own tasks, its subleases
    whole, and tasks of subleases that have ended.
    """

    __slots__ = (
        "_ended",
        "_ended_at",
        "_ended_order",
        "_heap",
        "_keep",
        "_keep_s",
        "_limiter",
        "changes",
        "living",
    )

    def __init__(self, limiter: SlotLimiter, *, keep: int, keep_s: float) -> None:
        """Ended tokens are kept for `keep_s` seconds, and at most `keep` of them."""
        self._limiter = limiter
        self._keep = keep
        self._keep_s = keep_s
        self._heap: DeadlineHeap[GrantedLease] = DeadlineHeap()
        self._ended: dict[str, Refusal] = {}
        """What a use of an ended token is told. No more of the lease is kept: there may be many."""
        self._ended_order: deque[str] = deque()
        self._ended_at: deque[float] = deque()
        self.living: dict[str, GrantedLease] = {}
        self.changes: list[LeaseChange] = []
        """Taken and emptied by whoever drives the core."""

    def find(self, token: str, now: float) -> GrantedLease | Refusal:
        """The living lease of that token; an overdue one is ended on the spot, whatever the timer does (L5)."""
        lease = self.living.get(token)
        if lease is None:
            return self._ended.get(token, _UNKNOWN_TOKEN)
        if lease.due_at <= now:
            self.end(lease, _EXPIRE, now)
            return _LEASE_EXPIRED
        return lease

    def grant(self, lease: GrantedLease) -> bool:
        """Take its slots and make it live. False when they are not free."""
        if lease.token in self.living or lease.token in self._ended:
            raise ValueError(f"token {lease.token!r} was granted before: tokens are never used again")
        if not self._limiter.reserve_nowait(lease, lease.slots):
            return False
        self.living[lease.token] = lease
        self._heap.push(lease)
        self.changes.append((_GRANT, lease))
        return True

    def seat(self, lease: GrantedLease, due_at: float) -> None:
        """Make a seat of a gang live, whose slots the limiter has reserved for it already."""
        assert lease.gang is not None and lease.token not in self.living and lease.token not in self._ended
        lease.due_at = due_at
        self.living[lease.token] = lease
        self._heap.push(lease)
        self.changes.append((_GRANT, lease))

    def sublease(self, lease: GrantedLease, seat: GrantedLease) -> bool:
        """Take its slots from the idle ones of a seat, and make it live. False when the seat has not so many."""
        if lease.token in self.living or lease.token in self._ended:
            raise ValueError(f"token {lease.token!r} was granted before: tokens are never used again")
        if lease.slots > seat.slots - seat.busy:
            return False
        self._limiter.move(seat, lease, lease.slots)
        seat.busy += lease.slots
        seat.subleases = (*seat.subleases, lease)
        lease.seat = seat
        self.living[lease.token] = lease
        self._heap.push(lease)
        self.changes.append((_GRANT, lease))
        return True

    def extend(self, lease: GrantedLease, due_at: float) -> None:
        """Move the expiry: a first use (claim) or a renewal. Nothing moves where it was used in this moment before:
        the uses of one message are one."""
        if lease.due_at == due_at and lease.claimed:
            return
        lease.claimed = True
        lease.due_at = due_at
        self._heap.push(lease)
        self.changes.append((_RENEW, lease))

    def cut(self, lease: GrantedLease, due_at: float) -> None:
        """Bring the expiry forward; neither a use nor a renewal."""
        lease.due_at = due_at
        self._heap.push(lease)
        self.changes.append((_RENEW, lease))

    def end(self, lease: GrantedLease, change: LeaseTransition, now: float, *, heir: object = None) -> None:
        """End a living lease: its idle slots are free at once (or the heir's, or its seat's again), those with tasks as
        the tasks end. With a seat its subleases end, first."""
        for sublease in lease.subleases:
            self.end(sublease, change, now)
        del self.living[lease.token]
        lease.ended = _ENDED_AS[change]
        lease.due_at = NEVER
        if lease.seat is not None:
            self._leave_seat(lease, lease.seat)
        elif heir is not None:
            self._limiter.move(lease, heir)
        elif lease.busy < lease.slots:
            self._limiter.release(lease)
        if lease.asked is not None:
            # Its request is remembered without it from now on.
            sender, rid = lease.asked
            sender.reserves[rid] = _EXPIRED
            lease.asked = None
        self._ended[lease.token] = lease.ended
        self._ended_order.append(lease.token)
        self._ended_at.append(now)
        if len(self._ended_order) > self._keep:
            self._forget()
        self.changes.append((change, lease))

    def _leave_seat(self, lease: GrantedLease, seat: GrantedLease) -> None:
        seat.subleases = tuple(other for other in seat.subleases if other is not lease)
        seat.busy -= self._limiter.move(lease, seat)

    def use(self, lease: GrantedLease, task: object, slots: int, due_at: float, now: float) -> Refusal | None:
        """Put a task on a living lease. A single-use one ends here, whether the task can start or not (L3)."""
        if slots > lease.slots:
            self._spend(lease, now)
            return Refusal.LEASE_TOO_SMALL
        if slots > lease.slots - lease.busy:
            return Refusal.LEASE_BUSY
        self._limiter.start(lease, task, slots)
        lease.busy += slots
        if lease.single_use:
            lease.claimed = True
            self.end(lease, _USE, now)
        else:
            self.extend(lease, due_at)
        return None

    def give_back(self, lease: GrantedLease, task: object) -> None:
        """The task is off its slots: they are the lease's again; if it has ended its seat's, or free."""
        seat = lease.seat if lease.ended is not None else None
        owner = lease if seat is None else seat
        slots = self._limiter.finish(task, owner if owner.ended is None else None)
        lease.busy -= slots
        if seat is not None:
            seat.busy -= slots

    def spend(self, token: str, now: float) -> None:
        """A task came with this token and cannot start: a single-use token is consumed all the same."""
        lease = self.find(token, now)
        if isinstance(lease, GrantedLease):
            self._spend(lease, now)

    def _spend(self, lease: GrantedLease, now: float) -> None:
        if lease.single_use:
            self.end(lease, _USE, now)

    def expire(self, now: float) -> int:
        """End every overdue lease, and forget old ended ones. Returns how many ended."""
        overdue = self._heap.pop_due(now)
        for lease in overdue:
            if lease.ended is None:  # a sublease may have ended with its seat
                self.end(lease, _EXPIRE, now)
        ended_since = now - self._keep_s
        while self._ended_at and self._ended_at[0] <= ended_since:
            self._forget()
        return len(overdue)

    def _forget(self) -> None:
        self._ended_at.popleft()
        del self._ended[self._ended_order.popleft()]

    def next_at(self) -> float | None:
        """When the next lease may fall due; early rather than late."""
        return self._heap.next_at(len(self.living))

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for token, lease in self.living.items():
            assert lease.token == token and lease.ended is None, lease
            assert 0 <= lease.busy <= lease.slots, lease
            assert self._limiter.held(lease)[0] == lease.slots - lease.busy, lease
            assert lease.due_at != NEVER or lease.gang is not None, lease
            assert lease.queued_at <= lease.due_at, lease
            assert not (lease.single_use and lease.busy), lease
            assert sum(sublease.slots for sublease in lease.subleases) <= lease.busy, lease
            assert all(living.seat is lease and living.ended is None for living in lease.subleases), lease
            assert lease.seat is None or (lease.seat.ended is None and lease in lease.seat.subleases), lease
        for borrower in self._limiter.holders():
            assert not isinstance(borrower, GrantedLease) or borrower.ended is None, borrower
        assert not self._ended.keys() & self.living.keys()
        assert len(self._ended) == len(self._ended_order) == len(self._ended_at)
