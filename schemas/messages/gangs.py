"""Requests, answers and events of gangs: from owners and operators to the leader, and between the leader and
workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from ..errors.base import InvalidRequest
from ..limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TOKEN_CHARS
from ..names import public_id
from ..records.gangs import GangState, Rendezvous, Seat, StrictGangSpec
from ..records.workers import Record
from .operations import LoadReply, RankTimes, Reply, Request, parse_request

_Id = Field(min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")
_OptionalId = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")


# -- owners and operators -> the leader: <ns>.gang.<operation> -------------------------------------------------------


class AcquireRequest(StrictGangSpec):
    """`acquire`. It may be sent again with the same `id` and `owner_token`, and then finds the same gang."""

    id: str | None = _OptionalId
    owner_token: str | None = _OptionalId
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Give up if it has not formed for the first time within this time. None: never."""
    wait: bool = True
    """False: answer at once, even if the gang is only queued."""
    wait_for_workers: bool = False
    """Queue it even if the workers registered now could never hold it, because more will come."""

    @classmethod
    def parse(cls, body: Any) -> Self:
        """From a decoded body.

        Raises:
            InvalidRequest: names each invalid field, as the caller wrote it, and says why.
        """
        try:
            return parse_request(cls, body)
        except InvalidRequest as error:
            if not isinstance(body, dict) or "bundles" in body:
                raise
            # The short form was used: use its field names, not those of the bundle it stands for.
            text = error.message
            for name in ("count", "min_count", "max_count"):
                text = text.replace(f"bundles.0.{name}:", "size:")
            text = text.replace("bundles.0:", "size:").replace("bundles.0.", "")
            raise InvalidRequest(text) from error


class OwnedRequest(Request):
    """`renew`, `release`"""

    id: str = _Id
    owner_token: str = _Id
    generation: int | None = Field(default=None, ge=1)
    """If given, it must be the current one."""


class EndRequest(Request):
    """`end`"""

    id: str = _Id
    reason: str = Field(default="", max_length=256)
    """Who ends it and why; shown to people."""


class GangQuery(Request):
    """`why`"""

    id: str = _Id


class GetRequest(GangQuery):
    """`get`"""

    owner_token: str | None = _OptionalId
    """With it, the answer has the tokens of the seats; without it, their public ids. For a moment after a change of
    the leader it may have public ids all the same: ask again."""


class GangListRequest(Request):
    """`list`. An empty body lists all."""

    gangset: str | None = None
    """Only the gangs of this standing set."""


class GangReply(Reply):
    """Answer to `acquire`, `renew`, `release`, `get`; `list` answers `{"gangs": [...]}` of these."""

    id: str
    state: GangState
    step: str
    """The coordinator's internal step: queued, holding, committing, formed, ..."""
    generation: int
    size: int
    """World size. With a range: of the current generation, else of the last; the smallest before the first."""
    sizes: tuple[int, int] | None = None
    """The requested range. None: it has one size."""
    seats: tuple[Seat, ...] = ()
    fence: int = 0
    rendezvous: Rendezvous | None = None
    owner_token: str | None = None
    """Only in answers to the owner."""
    ttl_s: float
    restarts: int = 0
    """How often it was formed again or repaired, for whatever reason: the number of earlier generations."""
    failures: int = 0
    """Number of failures that count against `max_restarts`; drains and preemptions do not count."""
    lost: tuple[int, ...] = ()
    """Lost ranks of this generation that are being replaced while the others continue (`restart_member`)."""
    priority: int = 0
    owner: str = ""
    tenant: str = ""
    """The account of its owner; empty: Gangline's own."""
    gangset: str | None = None
    reason: str = ""
    rank: int | None = None
    created_at: float = 0.0
    """Unix time of the request."""
    queued_at: float = 0.0
    """Unix time at which it began to wait for slots, the last time. 0: the coordinator is older and does not say."""
    formed_at: float = 0.0
    ready: bool | None = None
    """It is formed and the `gang_start` functions of all its members have succeeded. None: the coordinator is older
    and does not know."""

    def public(self) -> Self:
        """A copy that may be shown to anybody: seats have public ids instead of tokens."""
        seats = tuple(seat.model_copy(update={"token": public_id(seat.token)}) for seat in self.seats)
        return self.model_copy(update={"seats": seats, "owner_token": None})


class GangListReply(Reply):
    gangs: tuple[GangReply, ...]
    missing: tuple[str, ...] = ()
    """Shards without a leader: their gangs are not in the list."""


class ShardReply(Reply):
    """Answer of one shard's leader to another, which asked whether it knows a gang."""

    known: bool


class GangObstacle(Reply):
    """A holder of slots that a gang waits for."""

    pool: str
    worker: str
    holder: str
    """`gang <id>`, `lease <public id>` or `tasks`."""
    slots: int
    owner: str = ""
    """Of a lease: who requested it."""
    ends_in_s: float | None = None
    """When it ends unless it is renewed. None: unknown."""


class GangAhead(Reply):
    """A gang that is before another in the queue."""

    id: str
    priority: int = 0
    waiting_s: float = 0.0
    size: int = 1
    owner: str = ""


class GangWhyReply(Reply):
    """Answer to `why`: what a gang waits for."""

    id: str
    step: str
    place: int | None = None
    """Position in the queue, from 0."""
    lacks: tuple[str, ...] = ()
    """What is missing, each a sentence."""
    target: dict[str, int] = Field(default_factory=dict)
    """Slots that it waits for, by `pool.worker`."""
    kept: dict[str, int] = Field(default_factory=dict)
    """How many of these are already reserved for it."""
    obstacles: tuple[GangObstacle, ...] = ()
    ahead: tuple[GangAhead, ...] = ()
    """The first gangs of those before it in the queue, first the next one to start. Coordinators of earlier versions
    name none."""


# -- the leader -> a worker: <ns>.worker.<pool>.<worker>.<operation> ---------------------------------------------------


class SeatRequest(Request):
    rank: int = Field(ge=0)
    part: int = Field(default=0, ge=0)
    slots: int = Field(ge=1, le=MAX_SLOTS)


class HoldRequest(Request):
    """`hold`: take slots tentatively, all or none. The same (gang, generation, attempt) again gets the same answer."""

    gang: str = _Id
    generation: int = Field(ge=1)
    attempt: int = Field(ge=0)
    """Grows with every attempt of every leader."""
    seats: tuple[SeatRequest, ...]
    hold_s: float = Field(gt=0, le=60.0)
    """If it is not formed by then, the worker rewrites `reg` and reads the member record from the stream's leader:
    if the record is there it forms, else it frees the slots."""


class HoldReply(Reply):
    accepted: bool
    reason: str | None = None
    epoch: int
    reg_revision: int
    """The commit is conditioned on this revision."""
    tokens: tuple[str, ...] = ()
    """One token per seat, in order."""
    sealed: bool = False
    """The worker takes public ids for these tokens in records and requests. Workers of earlier versions need the
    tokens there."""
    port: int | None = None
    """A free port, if rank 0 part 0 is among the seats."""
    load: LoadReply


class UnholdRequest(Request):
    """`unhold`: cancel a hold. If it arrives before its `hold`, it leaves a tombstone. A formed gang is not
    affected."""

    gang: str = _Id
    generation: int = Field(ge=1)
    attempt: int = Field(ge=0)


class KeepRequest(Request):
    """`keep`: reserve slots for this gang as they become free, up to `slots`, until `keep_s` from now. Each request
    replaces the previous one; 0 releases all. A `hold` of the gang uses these slots first and releases the rest."""

    gang: str = _Id
    slots: int = Field(ge=0, le=MAX_SLOTS)
    keep_s: float = Field(gt=0, le=60.0)


class KeepReply(Reply):
    kept: int
    load: LoadReply


class FormRequest(Request):
    """`form`: the commit is in the ledger, start. Idempotent within a generation. For a later generation than the
    worker has formed, seats with a known token continue and others start (`restart_member`)."""

    gang: str = _Id
    generation: int = Field(ge=1)
    fence: int = Field(ge=0)
    size: int = Field(ge=1)
    seats: tuple[Seat, ...]
    """The seats of all members."""
    rendezvous: Rendezvous | None = None
    ttl_s: float
    """If no ping has named the gang for this time, the worker reads the ledger, and stops the member if the record
    is gone."""
    grace_s: float
    start_timeout_s: float | None = None
    """Time limit for the `gang_start` functions of a member. None: the coordinator is older and sets no limit."""
    owner: str = ""
    traceparent: str | None = None
    open: bool = False
    """Of a standing gang: its seats are used by their public ids. Only for workers that answered `sealed`."""


class FormReply(Reply):
    formed: bool
    reason: str | None = None
    starting: bool = False
    """Some members here have not started yet: their `gang_start` functions are running, and each member is reported
    as `started` when its functions have succeeded. Older workers always answer False."""
    tokens: tuple[str, ...] = ()
    """Of the gang's seats here: a new leader knows their public ids from the ledger, and owners need the tokens. None
    of a standing gang, and from older workers."""


class TeardownRequest(Request):
    """`teardown`: cancel, wait `grace_s`, kill, free, then answer. Idempotent. For an older generation than the
    running one it does nothing; for an unknown one it leaves a tombstone."""

    gang: str = _Id
    generation: int = Field(ge=1)
    reason: str
    rank: int | None = None
    grace_s: float = Field(ge=0)
    only: tuple[str, ...] | None = None
    """Stop only these seats, by their tokens as in the ledger (`restart_member`)."""


class TeardownReply(Reply):
    stopped: bool
    load: LoadReply
    times: tuple[RankTimes, ...] = ()
    """Of the ranks that were stopped and had run tasks. Workers of earlier versions name none."""


class PingRequest(Request):
    """`ping`: also renews the gangs in it."""

    gangs: dict[str, int]
    """Generation by gang id: the gangs that the leader expects on this worker."""


class PingReply(Reply):
    missing: dict[str, int] = Field(default_factory=dict)
    """Those that the worker has neither formed nor held."""
    starting: dict[str, int] = Field(default_factory=dict)
    """Those with a member here that has not started (its `gang_start` functions are running, or have failed). Older
    workers list none: their members count as started once they are formed."""


# -- a worker -> the leader: <ns>.gang.report ------------------------------------------------------------------------


class MemberCause(StrEnum):
    """What a worker can report about a member."""

    STARTED = "started"
    """Not a failure: its `gang_start` functions have succeeded. (An older coordinator refuses this word; that has no
    effect.)"""
    FAILED_AT_START = "failed_at_start"
    FAILED = "failed"
    CRASHED = "crashed"
    DRAINED = "drained"
    """The worker's grace time ended; the member was stopped."""
    LEFT = "left"
    """The worker is shutting down at once."""


class MemberReport(Request):
    gang: str = _Id
    generation: int = Field(ge=1)
    rank: int = Field(ge=0)
    cause: MemberCause
    detail: str = ""


class ReportReply(Reply):
    """Answer to `report`."""

    known: bool
    """False: the leader has no such gang, or another generation of it."""


# -- broadcast: <ns>.event.gang.<id> ---------------------------------------------------------------------------------


class GangEventKind(StrEnum):
    QUEUED = "queued"
    FORMED = "formed"
    """The members are granted; they begin to start."""
    READY = "ready"
    """All members have started: their `gang_start` functions have succeeded."""
    TORN_DOWN = "torn_down"
    """The members were ended in the ledger and must be stopped. Has generation, rank and reason."""
    RESTARTING = "restarting"
    MEMBER_LOST = "member_lost"
    """The other members continue (`restart_member`)."""
    RETIRING = "retiring"
    RECOVERED = "recovered"
    """A new leader found it formed and complete."""
    ENDED = "ended"


class GangEvent(Record):
    kind: GangEventKind
    gang: str
    generation: int
    size: int
    rank: int | None = None
    reason: str = ""
    fence: int = 0
    restarts: int = 0
    failures: int = 0
    """Both as in GangReply."""
    lost: tuple[int, ...] = ()
    """With `member_lost`: all lost ranks of the generation that are being replaced."""
    ends: bool = False
    """With `torn_down`: no further generation follows."""
    gangset: str | None = None
    unconfirmed: tuple[str, ...] = ()
    """With `restarting` and `ended`: workers that did not confirm in time that their members have stopped."""
    at: float = 0.0
    """Unix time, by the coordinator's clock."""
    details: dict[str, Any] = Field(default_factory=dict)
    """With `restarting` and `ended`, if its tasks ran: `times`, the RankTimes of the ranks of the generation that has
    ended, each with its `worker`. Of more than 64, those that worked longest."""
