"""Events of the gang core. Time and random draws arrive in the event; the core has no clock or random generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...schemas.messages.gangs import AcquireRequest, EndRequest, MemberCause, OwnedRequest
from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangRecord, GangSetRecord, GangSetStatus, MemberRecord
from ...schemas.wire.frames import Load
from ..scheduling.inventory import WorkerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    now: float
    """Seconds of a monotonic clock; never less than in the previous event."""
    wall: float = 0.0
    """Unix time, for records and for people."""
    draw: float = 0.5
    """A fresh draw from [0, 1), for jitter."""


# -- leadership -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipGained(Event):
    """Elected; the ledger was read completely and without an error after the `leader` record was written."""

    term: int
    fence: int
    """Revision of the `leader` record."""
    gangs: tuple[tuple[GangRecord, int], ...] = ()
    """Gangs, each with its revision."""
    members: tuple[tuple[WorkerId, MemberRecord], ...] = ()
    sets: tuple[tuple[str, GangSetRecord], ...] = ()
    statuses: tuple[tuple[str, GangSetStatus], ...] = ()
    """Statuses of these sets and of sets no longer declared."""
    workers: tuple[WorkerFacts, ...] = ()
    """Only those that are alive (they have a heartbeat)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipLost(Event):
    reason: str


# -- workers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen(Event):
    """A registration was written, or read again."""

    worker: WorkerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen(Event):
    """A heartbeat."""

    worker: WorkerId
    epoch: int
    load: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone(Event):
    """Its heartbeat expired, it left, or the server reported that it disconnected."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PingAnswered(Event):
    worker: WorkerId
    missing: dict[str, int] = field(default_factory=dict[str, int])
    """By gang id: the generation that it was asked about and does not have."""
    started: dict[str, int] = field(default_factory=dict[str, int])
    """Likewise for gangs whose members on the worker have all started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingUnanswered(Event):
    """`no_responders`: the server knows that nothing is subscribed. A timeout alone proves nothing and is not
    reported."""

    worker: WorkerId


# -- answers of workers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAnswered(Event):
    worker: WorkerId
    gang: str
    generation: int
    attempt: int
    accepted: bool
    reason: str = ""
    epoch: int = 0
    reg_revision: int = 0
    tokens: tuple[str, ...] = ()
    """As in the ledger: public ids, or the tokens themselves if the worker is older."""
    secrets: tuple[str, ...] = ()
    """The tokens, if `tokens` are public ids."""
    port: int | None = None
    load: Load | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldUnanswered(Event):
    """No responders, a timeout, or no connection."""

    worker: WorkerId
    gang: str
    generation: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAnswered(Event):
    worker: WorkerId
    gang: str
    kept: int
    load: Load | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownConfirmed(Event):
    """All members of that generation on that worker have stopped, and their slots are free."""

    worker: WorkerId
    gang: str
    generation: int
    load: Load | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownUnanswered(Event):
    """`no_responders`: the worker is not there, so nothing needs to be stopped."""

    worker: WorkerId
    gang: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed(Event):
    """A worker was told to form a generation, and all of its members have started: none has `gang_start` functions, or
    they have succeeded. (Older workers do not report the latter: they were told to form.)"""

    worker: WorkerId
    gang: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatsShown(Event):
    """A worker's answer to `form` has the tokens of its seats, by public id. A new leader does not know them."""

    worker: WorkerId
    gang: str
    tokens: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStarted(Event):
    """A worker's own report: the `gang_start` functions of this member have succeeded."""

    gang: str
    generation: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFailed(Event):
    """A worker's own report, or its refusal to form."""

    gang: str
    generation: int
    rank: int
    cause: MemberCause
    detail: str = ""


# -- the ledger -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    number: int
    revision: int
    """Revision of the last write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused(Event):
    """Some condition was not met; nothing was written."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitUnknown(Event):
    """A timeout, or no storage: it may have been written, or may still be written."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refenced(Event):
    """The `leader` record was written again at its own revision, and after that the gang's record was read."""

    number: int
    fence: int
    record: GangRecord | None = None
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRead(Event):
    """A complete and successful read of all member records, for the search for leaked ones."""

    members: tuple[tuple[WorkerId, MemberRecord], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerVanished(Event):
    """The bucket was lost (memory storage, server restarted), and the `leader` record was created again at `fence`."""

    fence: int


# -- owners and operators -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireAsked(Event):
    request: AcquireRequest
    reply_to: int
    """Repeated in the answer."""
    new_id: str
    """Used if the request names none; unguessable."""
    new_token: str
    tenant: str = ""
    """The account that the server says it comes from; empty: our own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewAsked(Event):
    request: OwnedRequest
    reply_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAsked(Event):
    request: OwnedRequest
    reply_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAsked(Event):
    """By an operator."""

    request: EndRequest
    reply_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSeen(Event):
    """A `gangset.<name>` record was written, or (None) deleted."""

    name: str
    record: GangSetRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTick(Event):
    """The time of the last SetGangTimer has come. Extra ticks are harmless."""


class Cause(StrEnum):
    """Why a gang was torn down or a member lost. Those of MemberCause, and what the coordinator itself finds."""

    FAILED_AT_START = "failed_at_start"
    FAILED = "failed"
    CRASHED = "crashed"
    DRAINED = "drained"
    LEFT = "left"
    WORKER_LOST = "worker_lost"
    EPOCH_CHANGED = "epoch_changed"
    MISSING = "missing"
    """A new leader found the gang formed, and no record of this member."""
    NOT_REPAIRED = "not_repaired"
    PREEMPTED = "preempted"
    RELEASED = "released"
    BY_OPERATOR = "ended_by_operator"
    OWNER_LOST = "owner_lost"
    DEADLINE = "deadline"
    """Not formed in time."""
    REPLACED = "replaced"
    """A standing gang was replaced by a newer one, or its set shrank."""
    RESHARDED = "resharded"
    """Its pools now belong to two shards."""


Happening = (
    WorkerSeen
    | LoadSeen
    | WorkerGone
    | PingAnswered
    | PingUnanswered
    | HoldAnswered
    | HoldUnanswered
    | KeepAnswered
    | TeardownConfirmed
    | TeardownUnanswered
    | Formed
    | SeatsShown
    | MemberStarted
    | MemberFailed
    | Committed
    | CommitRefused
    | CommitUnknown
    | Refenced
    | MembersRead
    | LedgerVanished
    | AcquireAsked
    | RenewAsked
    | ReleaseAsked
    | EndAsked
    | SetSeen
    | SchedulerTick
)
"""What can happen to a leader."""

AnyEvent = Happening | LeadershipGained | LeadershipLost
