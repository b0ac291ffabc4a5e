"""Leases, and earlier requests of each sender.

A lease is the right to use n slots of this worker for a bounded time, identified by its token. Requests are remembered,
so that nothing is granted twice, started twice or started after it was withdrawn.

Pure: no clock, no randomness; part of worker.slots.admission_core, whose laws it keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from ...runtime.timers import NEVER, DeadlineHeap
from ...schemas.names import public_id
from .limiter import SlotLimiter
from .method_limits import MethodLimit


class Refusal(StrEnum):
    """Why a request was refused. The first five are the wire's `Reason`; the others are sent as errors."""

    FULL = "full"
    DRAINING = "draining"
    STALE = "stale"
    EXPIRED = "expired"
    """The deadline had passed, or the request was cancelled or released before it arrived."""
    LIMITED = "limited"
    """The limits that the task declares allow no more executions here now."""
    TOO_LARGE = "too_large"
    """More slots than this worker can ever grant: waiting cannot help."""
    UNKNOWN_TOKEN = "unknown_token"
    LEASE_EXPIRED = "lease_expired"
    LEASE_STALE = "lease_stale"
    """The token is of an older epoch."""
    LEASE_USED = "lease_used"
    """Single-use and used, or released."""
    LEASE_BUSY = "lease_busy"
    LEASE_TOO_SMALL = "lease_too_small"
    """The task costs more slots than the whole lease has."""
    GANG_OVER = "gang_over"
    """The seat's gang was torn down."""


class LeaseTransition(StrEnum):
    """A change of a lease."""

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

    # No __slots__: attributes that most instances never set are on the class, which makes instances cheaper to create.

    busy = 0
    """How many of its slots tasks or subleases use; busy <= slots (L3)."""
    queued_at = NEVER
    claimed = False
    asked: tuple[RouterHistory, RequestId] | None = None
    """The request that it was granted for; None for seats, and once it has ended."""
    ended: Refusal | None = None
    """None while it is active; then the answer to any use of its token."""
    gang: str | None = None
    """The gang that it is a seat of. A seat lasts as long as its gang does here, whether it is used or not: its
    `due_at` is NEVER except during a drain, and nobody can renew or release it by its token."""
    seat: GrantedLease | None = None
    """Of a sublease: the gang's seat that its slots come from and go back to. It ends with the seat at the latest."""
    subleases: tuple[GrantedLease, ...] = ()
    """Of a seat: the active leases that use its slots."""

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
        """Number of slots granted."""
        self.ttl_s = ttl_s
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
    def id(self) -> str:
        """Its public id, for everything that others can read. Computes a hash: avoid it on the path of a task."""
        return public_id(self.token)

    @property
    def in_gang(self) -> GrantedLease | None:
        """The seat that its tasks run on: itself, or the seat that its slots come from. None: it is not part of a
        gang."""
        return self if self.gang is not None else self.seat

    def __repr__(self) -> str:
        state = self.ended or ("claimed" if self.claimed else "unclaimed")
        kind = "single use" if self.single_use else f"{self.busy}/{self.slots} slots busy"
        return f"<GrantedLease {self.id} {kind}, {state}, due_at={self.due_at:.3f}>"


LeaseChange = tuple[LeaseTransition, GrantedLease]
"""One change, for the ledger, the journal and the metrics."""

# Looking up an enum's members takes longer than what is done with them here.
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
    """All active leases of one worker and, for a while, the ended ones, so that a late use learns what happened.

    Invariants: an active lease has `reserved == slots - busy` in the limiter, an ended one has none reserved; slots in
    use belong to the tasks on them. A seat's `busy` counts all slots taken from it: by its own tasks, by its subleases
    as a whole, and by tasks of ended subleases.
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
        """At most `keep` ended tokens are kept, for `keep_s` seconds."""
        self._limiter = limiter
        self._keep = keep
        self._keep_s = keep_s
        self._heap: DeadlineHeap[GrantedLease] = DeadlineHeap()
        self._ended: dict[str, Refusal] = {}
        """The answer to a use of an ended token. Nothing else is kept of the lease: there may be many."""
        self._ended_order: deque[str] = deque()
        self._ended_at: deque[float] = deque()
        self.living: dict[str, GrantedLease] = {}
        self.changes: list[LeaseChange] = []
        """Taken and emptied by the driver of the core."""

    def find(self, token: str, now: float) -> GrantedLease | Refusal:
        """The active lease of this token. An overdue one is ended on the spot, whatever the timer does (L5)."""
        lease = self.living.get(token)
        if lease is None:
            return self._ended.get(token, _UNKNOWN_TOKEN)
        if lease.due_at <= now:
            self.end(lease, _EXPIRE, now)
            return _LEASE_EXPIRED
        return lease

    def grant(self, lease: GrantedLease) -> bool:
        """Take its slots and activate it. False if they are not free."""
        if lease.token in self.living or lease.token in self._ended:
            raise ValueError(f"the token of {lease!r} was granted before: tokens are never reused")
        if not self._limiter.reserve_nowait(lease, lease.slots):
            return False
        self.living[lease.token] = lease
        self._heap.push(lease)
        self.changes.append((_GRANT, lease))
        return True

    def seat(self, lease: GrantedLease, due_at: float) -> None:
        """Activate a gang's seat, whose slots the limiter has already reserved."""
        assert lease.gang is not None and lease.token not in self.living and lease.token not in self._ended
        lease.due_at = due_at
        self.living[lease.token] = lease
        self._heap.push(lease)
        self.changes.append((_GRANT, lease))

    def sublease(self, lease: GrantedLease, seat: GrantedLease) -> bool:
        """Take its slots from the idle ones of a seat, and activate it. False if the seat does not have that many."""
        if lease.token in self.living or lease.token in self._ended:
            raise ValueError(f"the token of {lease!r} was granted before: tokens are never reused")
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
        """Move the expiry: a first use (claim) or a renewal. No-op if the expiry stays the same: all uses in one
        message count as one."""
        if lease.due_at == due_at and lease.claimed:
            return
        lease.claimed = True
        lease.due_at = due_at
        self._heap.push(lease)
        self.changes.append((_RENEW, lease))

    def cut(self, lease: GrantedLease, due_at: float) -> None:
        """Bring the expiry forward; this is neither a use nor a renewal."""
        lease.due_at = due_at
        self._heap.push(lease)
        self.changes.append((_RENEW, lease))

    def end(self, lease: GrantedLease, change: LeaseTransition, now: float, *, heir: object = None) -> None:
        """End an active lease. Its idle slots are free at once (or go to the heir, or back to its seat), those with
        tasks when the tasks end. A seat's subleases end before it."""
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
            # Keep its request, but not the lease.
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
        """Put a task on an active lease. A single-use lease ends here, whether the task can start or not (L3)."""
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
        """The task has freed its slots: they go back to the lease or, if that has ended, to its seat, or become
        free."""
        seat = lease.seat if lease.ended is not None else None
        owner = lease if seat is None else seat
        slots = self._limiter.finish(task, owner if owner.ended is None else None)
        lease.busy -= slots
        if seat is not None:
            seat.busy -= slots

    def spend(self, token: str, now: float) -> None:
        """A task with this token cannot start: a single-use token is consumed all the same."""
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
        """When the next lease may be due; early rather than late."""
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


RequestId = int | str
"""Id of a reserve: a number in frames, text (`rid`) in requests from other languages."""

WITHDRAWN: Final = b""
"""In place of an answer: cancelled, released or checked for before it arrived, so it is never started."""

SENDER_LIVES: Final = 10
"""A silent sender is remembered this many times longer than an answer: it is small, and its floor is valuable. Unless
there are more senders than answers may be kept."""


class TaskRecord:
    """One admitted task that still uses its slots."""

    # No __slots__: attributes that most instances never set are on the class, which makes instances cheaper to create.

    queued_at = NEVER
    fence = 0
    """That of its lease; 0 without one."""
    answered = False
    """The caller has its answer. Code that cannot be stopped may still use the slots."""
    handle: object = None
    """For the core's driver; not used in here."""
    limit: MethodLimit | None = None
    """The limits for which it counts."""

    def __init__(
        self, sender: RouterHistory, task_id: int, cost: int, lease: GrantedLease | None, due_at: float
    ) -> None:
        self.sender = sender
        self.id = task_id
        self.cost = cost
        """Slots."""
        self.lease = lease
        """The multi-use lease that its slots go back to; None: they become free."""
        self.due_at = due_at
        """The caller's deadline; NEVER if there is none or it has been acted on."""

    def __repr__(self) -> str:
        return f"<TaskRecord {self.sender.name}:{self.id} cost={self.cost}{' answered' if self.answered else ''}>"


class RouterHistory:
    """The remembered requests of one router."""

    __slots__ = ("done", "doubtful", "floor", "name", "reserves", "running", "seen_at")

    def __init__(self, name: str, *, doubtful: bool) -> None:
        self.name = name
        self.doubtful = doubtful
        """It may be an earlier sender that was forgotten; until it sends a new id."""
        self.reserves: dict[RequestId, GrantedLease | Refusal] = {}
        """Answer to each reserve; EXPIRED also marks one that was released before it arrived."""
        self.running: dict[int, TaskRecord] = {}
        """By request id: admitted and not answered; also requests that only wait for the end of a durable job."""
        self.done: dict[int, bytes] = {}
        """Answered, or WITHDRAWN."""
        self.floor = -1
        """All ids up to this one were seen, even if nothing is known about them any longer."""
        self.seen_at = 0.0
        """When it last sent something."""

    def __repr__(self) -> str:
        return f"<RouterHistory {self.name}: {len(self.running)} running, {len(self.done)} done, floor {self.floor}>"

    def saw_new(self, request_id: int) -> None:
        """It sent a new id: from here on all of its ids are known."""
        if self.doubtful:
            self.doubtful = False
            self.floor = max(self.floor, request_id - 1)

    @property
    def idle(self) -> bool:
        """Whether nothing of it runs or is remembered."""
        return not (self.running or self.done or self.reserves)


class RequestDedup:
    """All senders, with common limits: by age, by count, and for answers by bytes.

    Forgotten requests are never taken for new ones: ids of one sender grow, so all up to the newest forgotten one (the
    *floor*) count as seen. A sender that has long been silent is forgotten as a whole; from then on a sender that seems
    new is *doubtful*: what it did before its first new id is unknown, and is not reported as "never seen".
    """

    __slots__ = (
        "_bytes",
        "_done",
        "_done_at",
        "_done_by",
        "_forgot_senders",
        "_keep",
        "_keep_bytes",
        "_keep_s",
        "_reserves",
        "_reserves_at",
        "_reserves_by",
        "senders",
    )

    def __init__(self, *, keep: int, keep_bytes: int, keep_s: float) -> None:
        """Keep each answer for `keep_s` seconds, at most `keep` answers (and as many reserves), and at most
        `keep_bytes` of answers."""
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self.senders: dict[str, RouterHistory] = {}
        # Three deques rather than one of tuples, which the garbage collector would traverse repeatedly.
        self._done: deque[int] = deque()
        self._done_by: deque[RouterHistory] = deque()
        self._done_at: deque[float] = deque()
        self._reserves: deque[RequestId] = deque()
        self._reserves_by: deque[RouterHistory] = deque()
        self._reserves_at: deque[float] = deque()
        self._bytes = 0
        self._forgot_senders = False

    def sender(self, name: str, now: float) -> RouterHistory:
        """The sender of that name, known or new."""
        sender = self.senders.get(name)
        if sender is None:
            sender = self.senders[name] = RouterHistory(name, doubtful=self._forgot_senders)
        sender.seen_at = now
        return sender

    def note_reserve(self, sender: RouterHistory, rid: RequestId, answer: GrantedLease | Refusal, now: float) -> None:
        """Remember the answer to a reserve, or EXPIRED for one that was released before it arrived."""
        sender.reserves[rid] = answer
        if isinstance(answer, GrantedLease):
            answer.asked = (sender, rid)
        self._reserves.append(rid)
        self._reserves_by.append(sender)
        self._reserves_at.append(now)
        if len(self._reserves) > self._keep:
            self._forget_reserve(now)

    def note_done(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Remember the answer to a task (or WITHDRAWN). It must not be among the running ones."""
        assert task_id not in sender.done
        sender.done[task_id] = answer
        self._bytes += len(answer)
        self._done.append(task_id)
        self._done_by.append(sender)
        self._done_at.append(now)
        if len(self._done) > self._keep or self._bytes > self._keep_bytes:
            self._forget_done()
            while self._done and self._bytes > self._keep_bytes:
                self._forget_done()

    def sweep(self, now: float) -> None:
        """Forget what is too old."""
        noted_since = now - self._keep_s
        while self._done and self._done_at[0] <= noted_since:
            self._forget_done()
        while self._reserves and self._reserves_at[0] <= noted_since:
            self._forget_reserve(now)
        lives = SENDER_LIVES if len(self.senders) <= self._keep else 1
        silent_since = now - self._keep_s * lives
        for sender in [s for s in self.senders.values() if s.seen_at <= silent_since and s.idle]:
            del self.senders[sender.name]
            self._forgot_senders = True

    def statistics(self) -> dict[str, int]:
        """Sizes: senders, reserves, answers, answer_bytes."""
        return {
            "senders": len(self.senders),
            "reserves": len(self._reserves),
            "answers": len(self._done),
            "answer_bytes": self._bytes,
        }

    def waiting(self) -> Iterator[tuple[RouterHistory, int, TaskRecord]]:
        """Each unanswered request, with the task that it waits for. For checks."""
        for sender in self.senders.values():
            for task_id, record in sender.running.items():
                yield sender, task_id, record

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._bytes == sum(len(answer) for s in self.senders.values() for answer in s.done.values())
        assert len(self._done) == sum(len(s.done) for s in self.senders.values())
        assert len(self._reserves) == sum(len(s.reserves) for s in self.senders.values())
        for name, sender in self.senders.items():
            assert sender.name == name
            assert not sender.running.keys() & sender.done.keys(), sender
            assert not any(task.answered for task in sender.running.values()), sender

    def _forget_done(self) -> None:
        self._done_at.popleft()
        sender, task_id = self._done_by.popleft(), self._done.popleft()
        self._bytes -= len(sender.done.pop(task_id))
        if task_id > sender.floor:
            sender.floor = task_id

    def _forget_reserve(self, now: float) -> None:
        self._reserves_at.popleft()
        sender, rid = self._reserves_by.popleft(), self._reserves.popleft()
        answer = sender.reserves[rid]
        if isinstance(answer, GrantedLease) and answer.ended is None:
            # It can still be released by its request id. There are at most as many of these as slots.
            self._reserves.append(rid)
            self._reserves_by.append(sender)
            self._reserves_at.append(now)
            return
        del sender.reserves[rid]
