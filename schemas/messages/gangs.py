"""Requests, answers and events of gangs: owners and operators to the leader, the leader to workers and back."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from pydantic import Field

from ..errors.base import InvalidRequest
from ..limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TOKEN_CHARS
from ..public_id import public_id
from ..records.gangs import GangState, Rendezvous, Seat, StrictGangSpec
from ..records.workers import Record
from .operations import LoadReply, Reply, Request, parse_request

_Id = Field(min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")
_OptionalId = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")


# -- owners and operators -> the leader: <ns>.gang.<operation> -------------------------------------------------------


class AcquireRequest(StrictGangSpec):
    """`acquire`. With the same `id` and `owner_token` it may be sent again and finds the same gang."""

    id: str | None = _OptionalId
    owner_token: str | None = _OptionalId
    deadline_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Give up when not formed for the first time after so long. None: never."""
    wait: bool = True
    """False: answer at once, even if the gang is only queued."""
    wait_for_workers: bool = False
    """Queue it even if the workers that are registered now could never hold it: more will come."""

    @classmethod
    def parse(cls, body: Any) -> Self:
        """From a decoded body.

        Raises:
            InvalidRequest: names each field that is wrong and why, as the caller named it.
        """
        try:
            return parse_request(cls, body)
        except InvalidRequest as error:
            if not isinstance(body, dict) or "bundles" in body:
                raise
            # The short form was used: name its fields, not those of the bundle that it stands for.
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
    """If given, must be the living one."""


class EndRequest(Request):
    """`end`"""

    id: str = _Id
    reason: str = Field(default="", max_length=256)
    """Who ends it and why, for people."""


class GangQuery(Request):
    """`why`"""

    id: str = _Id


class GetRequest(GangQuery):
    """`get`"""

    owner_token: str | None = _OptionalId
    """Who shows it is answered with the tokens of the seats; all others with their public ids."""


class GangListRequest(Request):
    """`list`. An empty body lists all."""

    gangset: str | None = None
    """Only the gangs of this standing set."""


class GangReply(Reply):
    """Answer to `acquire`, `renew`, `release`, `get`; `list` answers `{"gangs": [...]}` of these."""

    id: str
    state: GangState
    step: str
    """The coordinator's own word for where it is: queued, holding, committing, formed, ..."""
    generation: int
    size: int
    """Its world size. With a range: of the living generation, or of the last; the smallest before the first."""
    sizes: tuple[int, int] | None = None
    """The range that was asked for. None: it has one size."""
    seats: tuple[Seat, ...] = ()
    fence: int = 0
    rendezvous: Rendezvous | None = None
    owner_token: str | None = None
    """Only in answers to its owner."""
    ttl_s: float
    restarts: int = 0
    """How often it was formed again or repaired, for whatever reason: the generations before this one."""
    failures: int = 0
    """How many failures count against `max_restarts`; drains and preemptions do not."""
    lost: tuple[int, ...] = ()
    """Ranks of this generation that are lost and being replaced, while the others go on (`restart_member`)."""
    priority: int = 0
    owner: str = ""
    gangset: str | None = None
    reason: str = ""
    rank: int | None = None
    created_at: float = 0.0
    formed_at: float = 0.0
    ready: bool | None = None
    """Formed, and all its members have started: their `gang_start` functions have ended well. None: an older
    coordinator, which does not know."""

    def public(self) -> Self:
        """As it may be shown to anybody: seats have public ids in place of their tokens."""
        seats = tuple(seat.model_copy(update={"token": public_id(seat.token)}) for seat in self.seats)
        return self.model_copy(update={"seats": seats, "owner_token": None})


class GangListReply(Reply):
    gangs: tuple[GangReply, ...]
    missing: tuple[str, ...] = ()
    """Shards of the coordinators that nobody leads right now: their gangs are not in the list."""


class ShardReply(Reply):
    """Answer of the leader of a shard to that of another, which asked whether it knows a gang."""

    known: bool


class GangObstacle(Reply):
    """One holder of slots that a gang waits for."""

    pool: str
    worker: str
    holder: str
    """`gang <id>`, `lease <public id>` or `tasks`."""
    slots: int
    owner: str = ""
    """Of a lease: who asked for it."""
    ends_in_s: float | None = None
    """When it ends if it is not renewed. None: not known."""


class GangWhyReply(Reply):
    """`why`: what a gang waits for."""

    id: str
    step: str
    place: int | None = None
    """Place in the queue, from 0."""
    lacks: tuple[str, ...] = ()
    """What is missing, each a sentence."""
    target: dict[str, int] = Field(default_factory=dict)
    """Slots by `pool.worker` that it waits for."""
    kept: dict[str, int] = Field(default_factory=dict)
    """... of which so many are already kept free for it."""
    obstacles: tuple[GangObstacle, ...] = ()


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
    """Grows with every try of every leader."""
    seats: tuple[SeatRequest, ...]
    hold_s: float = Field(gt=0, le=60.0)
    """When not formed by then: rewrite `reg`, read the member record from the stream's leader; there, form; absent,
    free."""


class HoldReply(Reply):
    accepted: bool
    reason: str | None = None
    epoch: int
    reg_revision: int
    """The commit is conditioned on it."""
    tokens: tuple[str, ...] = ()
    """One for each seat, in order."""
    port: int | None = None
    """A free port, when rank 0 part 0 is among the seats."""
    load: LoadReply


class UnholdRequest(Request):
    """`unhold`: give up a hold; before its `hold` arrives, it leaves a tombstone. A formed gang is not touched."""

    gang: str = _Id
    generation: int = Field(ge=1)
    attempt: int = Field(ge=0)


class KeepRequest(Request):
    """`keep`: set slots aside for this gang as they become free, up to `slots`, until `keep_s` from now. Each request
    replaces the one before; 0 gives all back. A `hold` of the gang takes from them first and gives back the rest."""

    gang: str = _Id
    slots: int = Field(ge=0, le=MAX_SLOTS)
    keep_s: float = Field(gt=0, le=60.0)


class KeepReply(Reply):
    kept: int
    load: LoadReply


class FormRequest(Request):
    """`form`: the commit is in the ledger, start. Idempotent for one generation. Of a higher generation than the
    worker has formed: seats with a known token go on, others start (`restart_member`)."""

    gang: str = _Id
    generation: int = Field(ge=1)
    fence: int = Field(ge=0)
    size: int = Field(ge=1)
    seats: tuple[Seat, ...]
    """Of all members."""
    rendezvous: Rendezvous | None = None
    ttl_s: float
    """Without a ping that names the gang for so long: look into the ledger, and stop if the record is gone."""
    grace_s: float
    start_timeout_s: float | None = None
    """How long the `gang_start` functions of a member may take. None: an older coordinator, which sets no bound."""
    owner: str = ""
    traceparent: str | None = None


class FormReply(Reply):
    formed: bool
    reason: str | None = None
    starting: bool = False
    """Members here have not started yet: `gang_start` functions run, and each member will be reported as `started`
    when its own have ended well. False also from older workers, which do not tell."""


class TeardownRequest(Request):
    """`teardown`: cancel, wait `grace_s`, kill, free, then answer. Idempotent; of an older generation than the one
    that runs it does nothing, of an unknown one it leaves a tombstone."""

    gang: str = _Id
    generation: int = Field(ge=1)
    reason: str
    rank: int | None = None
    grace_s: float = Field(ge=0)
    only: tuple[str, ...] | None = None
    """Stop only the seats with these tokens (`restart_member`)."""


class TeardownReply(Reply):
    stopped: bool
    load: LoadReply


class PingRequest(Request):
    """`ping`: also renews the gangs that it names."""

    gangs: dict[str, int]
    """Generation by gang id: what the leader believes this worker has."""


class PingReply(Reply):
    missing: dict[str, int] = Field(default_factory=dict)
    """Of those, what the worker does not have formed (nor held)."""
    starting: dict[str, int] = Field(default_factory=dict)
    """Of those, where some member here has not started (its `gang_start` functions run, or failed). Older workers name
    none: their members count as started once they are formed."""


# -- a worker -> the leader: <ns>.gang.report ------------------------------------------------------------------------


class MemberCause(StrEnum):
    """What a worker may report of a member."""

    STARTED = "started"
    """No failure: its `gang_start` functions have ended well. (A coordinator that does not know the word refuses it,
    and nothing follows.)"""
    FAILED_AT_START = "failed_at_start"
    FAILED = "failed"
    CRASHED = "crashed"
    DRAINED = "drained"
    """The worker's grace ran out; the member was stopped."""
    LEFT = "left"
    """The worker is leaving at once."""


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
    """All members have started: their `gang_start` functions have ended well."""
    TORN_DOWN = "torn_down"
    """The members were ended in the ledger; stop them. Carries generation, rank and reason."""
    RESTARTING = "restarting"
    MEMBER_LOST = "member_lost"
    """The others go on (`restart_member`)."""
    RETIRING = "retiring"
    RECOVERED = "recovered"
    """A new leader found it formed and whole."""
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
    """With `member_lost`: all ranks of the generation that are lost and being replaced."""
    ends: bool = False
    """With `torn_down`: no further generation follows."""
    gangset: str | None = None
    unconfirmed: tuple[str, ...] = ()
    """With `restarting` and `ended`: workers that did not confirm in time that their members stopped."""
    at: float = 0.0
    """Unix time of the coordinator."""
    details: dict[str, Any] = Field(default_factory=dict)
