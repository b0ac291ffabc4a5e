"""The queue of all writes to the ledger: at most one atomic batch is in flight.

Laws:

1. Every batch is conditioned on the `leader` record at our fence: a deposed coordinator writes nothing (L9).
2. Members are granted by one batch, each conditioned on its worker's registration as of the hold; the gang's record
   comes last. They are ended by one batch, in which the gang's record comes first (L7).
3. A batch with an unknown outcome blocks the queue until it is void (Refence) and the record has been read: it cannot
   overtake a later batch.

In a replicated stream concurrent batches that share a condition conflict, so more than one at a time would only fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ...schemas.names import Names, WorkerId
from ...schemas.records.gangs import ENDED_TTL_S, GangRecord, GangSpec, GangState, HeldSeat, MemberRecord, Seat
from ...schemas.records.workers import Record
from .effects import LedgerWrite
from .gang import GRANTED, HoldAttempt, ManagedGang

_NAMES = Names()  # keys are the same in every namespace: each has its own bucket


class CommitKind(StrEnum):
    QUEUE = "queue"
    """Remember a gang that waits."""
    FORM = "form"
    REJOIN = "rejoin"
    READY = "ready"
    """Callers may be sent to this gang of a standing set."""
    RETIRE = "retire"
    CLOSE = "close"
    """End the members."""
    END = "end"
    """The gang is gone; its record stays for a minute."""
    REWRITE = "rewrite"
    """Restore the records of a vanished bucket."""
    STATUS = "status"
    """The status of a standing set."""
    SWEEP = "sweep"
    """Delete leaked member records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    kind: CommitKind
    gang: str
    """Empty for a sweep, and for a status."""
    gangset: str = ""
    """Of STATUS."""
    record: GangRecord | None = None
    """Of END: the gang is no longer known."""
    leaked: tuple[tuple[WorkerId, str], ...] = ()
    """Of SWEEP: workers and gangs."""


class CommitQueue:
    """The queue of pending commits."""

    __slots__ = ("fence", "in_flight", "leader_key", "line", "number", "refencing")

    def __init__(self, leader_key: str = Names.leader_key) -> None:
        self.leader_key = leader_key
        self.fence = 0
        """Revision of our `leader` record."""
        self.line: deque[PendingCommit] = deque()
        self.in_flight: PendingCommit | None = None
        self.refencing = False
        """The commit in flight failed, or its outcome is unknown, and a Refence is in progress."""
        self.number = 0
        """Number of the commit in flight, or of the last one."""

    @property
    def busy(self) -> bool:
        return self.in_flight is not None or self.refencing

    def push(
        self,
        kind: CommitKind,
        gang: str,
        *,
        gangset: str = "",
        record: GangRecord | None = None,
        leaked: tuple[tuple[WorkerId, str], ...] = (),
    ) -> None:
        self.line.append(PendingCommit(kind=kind, gang=gang, gangset=gangset, record=record, leaked=leaked))

    def waits(self, kind: CommitKind, gang: str) -> bool:
        """A batch of that kind is in the queue."""
        return any(pending.kind is kind and pending.gang == gang for pending in self.line)

    def pop(self) -> PendingCommit:
        """The next one to write. The status of a set is written when nothing else waits, since nobody waits for it."""
        if self.line[0].kind is CommitKind.STATUS:
            for index, pending in enumerate(self.line):
                if pending.kind is not CommitKind.STATUS:
                    del self.line[index]
                    return pending
        return self.line.popleft()

    def push_status(self, gangset: str) -> None:
        """Write the status of that set, once, however often it changes until then."""
        if not self.waits_status(gangset):
            self.push(CommitKind.STATUS, "", gangset=gangset)

    def waits_status(self, gangset: str) -> bool:
        """The status of that set is in the queue."""
        return any(pending.kind is CommitKind.STATUS and pending.gangset == gangset for pending in self.line)

    def fenced(self, key: str, record: Record | None, *, ttl_s: float | None = None) -> LedgerWrite:
        return LedgerWrite(key=key, record=record, ttl_s=ttl_s, condition_key=self.leader_key, revision=self.fence)


def record_of(gang: ManagedGang, state: GangState) -> GangRecord:
    """The gang's record as of now."""
    closing = gang.closing
    return GangRecord(
        id=gang.id,
        state=state,
        spec=gang.spec,
        generation=gang.generation,
        seats=gang.seats,
        rendezvous=gang.rendezvous,
        fence=gang.fence,
        owner_token=gang.owner_id,
        tenant=gang.tenant,
        restarts=gang.restarts,
        failures=gang.recorded_failures,
        reason=closing.failure.text if closing is not None else gang.reason,
        rank=closing.failure.rank if closing is not None else gang.rank,
        ends=closing is not None and closing.ends,
        gangset=gang.gangset,
        created_at=gang.created_at,
        formed_at=gang.formed_wall,
        ready=None if gang.gangset is None else gang.closing is None and bool(gang.seats) and not gang.starting,
        deadline_at=gang.deadline_wall,
    )


def spec_of(gang: ManagedGang, seats: Iterable[Seat]) -> GangSpec:
    """The requested spec, with the size that these seats make up."""
    return gang.spec.sized(sum(seat.part == 0 for seat in seats)) if gang.spec.elastic else gang.spec


def record_to_be(gang: ManagedGang, attempt: HoldAttempt, wall: float) -> GangRecord:
    """The gang's record once its attempt is granted. Its fence is the revision of its own record."""
    return GangRecord(
        id=gang.id,
        state=GangState.FORMED,
        spec=spec_of(gang, attempt.seats),
        generation=gang.next_generation,
        seats=attempt.seats,
        rendezvous=attempt.rendezvous,
        owner_token=gang.owner_id,
        tenant=gang.tenant,
        restarts=gang.next_generation - 1,
        failures=gang.failures,
        gangset=gang.gangset,
        created_at=gang.created_at,
        formed_at=wall,
        ready=None if gang.gangset is None else False,
        deadline_at=gang.deadline_wall,
    )


def member_of(gang_id: str, generation: int, here: list[Seat]) -> MemberRecord:
    """The member record of one worker, which has these seats."""
    held = tuple(HeldSeat(rank=s.rank, part=s.part, slots=s.slots, token=s.token) for s in here)
    return MemberRecord(gang=gang_id, generation=generation, epoch=here[0].epoch, seats=held)


def grants(
    gang_id: str, generation: int, seats: Mapping[WorkerId, list[Seat]], revisions: dict[WorkerId, int]
) -> list[LedgerWrite]:
    """The member records of a generation, one for each worker, each conditioned on the worker's registration."""
    return [
        LedgerWrite(
            key=Names.member_key(worker, gang_id),
            record=member_of(gang_id, generation, here),
            condition_key=_NAMES.registration_key(worker),
            revision=revisions[worker],
        )
        for worker, here in seats.items()
    ]


def close_writes(ledger: CommitQueue, gang: ManagedGang) -> tuple[LedgerWrite, ...]:
    first = ledger.fenced(Names.gang_key(gang.id), record_of(gang, GangState.TEARING_DOWN))
    return (
        first,
        *(LedgerWrite(key=Names.member_key(worker, gang.id), record=None) for worker in gang.seats_by_worker),
    )


def rewrites(ledger: CommitQueue, gang: ManagedGang) -> tuple[LedgerWrite, ...]:
    """All records of a gang, for a bucket that lost them. The registrations may be lost as well, so the members are
    written without conditions; a worker in another epoch is detected when it registers again."""
    members: list[LedgerWrite] = []
    if gang.step in GRANTED:
        by_worker = gang.seats_by_worker.items()
        members = [
            LedgerWrite(key=Names.member_key(w, gang.id), record=member_of(gang.id, gang.generation, here))
            for w, here in by_worker
        ]
    return (*members, ledger.fenced(Names.gang_key(gang.id), record_of(gang, gang.state)))


def end_writes(ledger: CommitQueue, record: GangRecord) -> tuple[LedgerWrite, ...]:
    return (ledger.fenced(Names.gang_key(record.id), record, ttl_s=ENDED_TTL_S),)


def sweep_writes(ledger: CommitQueue, leaked: tuple[tuple[WorkerId, str], ...]) -> tuple[LedgerWrite, ...]:
    """The condition is on the first write alone: a batch is refused as a whole."""
    first, *rest = leaked
    return (
        ledger.fenced(Names.member_key(*first), None),
        *(LedgerWrite(key=Names.member_key(*item), record=None) for item in rest),
    )
