"""Requests and answers on a worker's own subjects, for operators and other languages (JSON or msgpack).

The SDK speaks frames instead (schemas.wire.frames); both end in the same lease table.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..errors.base import InvalidRequest
from ..limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TOKEN_CHARS, MAX_TTL_S, MIN_TTL_S, WIRE_VERSION
from ..wire.frames import Load

_GIVEN_CHARS = 60
"""A complaint quotes so much of what was given."""

_Token = Field(min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")


class Request(BaseModel):
    """Unknown fields are refused: a misspelt one must not be ignored in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReserveRequest(Request):
    """`<ns>.worker.<pool>.<worker>.reserve`. An empty body reserves one slot for 15 seconds."""

    rid: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")
    """Request id: the same again gets the same answer, and can be released before its answer is known."""
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    ttl_s: float = Field(default=15.0, ge=MIN_TTL_S, le=MAX_TTL_S)
    """The lease dies when not renewed (or used) for so long."""
    claim_s: float | None = Field(default=None, ge=0.05, le=MAX_TTL_S)
    """... and when not used or renewed a first time for so long. None: `ttl_s`, since people type slowly."""
    single_use: bool = False
    """True: the token admits one task and dies with it."""
    ledger: Literal["behind", "sync"] = "behind"
    """`sync` writes the ledger before answering."""
    owner: str = Field(default="", max_length=256)
    """For people who read the ledger: who holds this and why."""


class LoadReply(Reply):
    running: int
    reserved: int
    total: int
    ongoing: int
    free: int
    draining: bool

    @classmethod
    def of(cls, load: Load) -> LoadReply:
        return cls(
            running=load.running,
            reserved=load.reserved,
            total=load.total,
            ongoing=load.ongoing,
            free=load.free,
            draining=load.draining,
        )


class ReserveReply(Reply):
    accepted: bool
    reason: str | None = None
    """Why not: `full`, `draining`, `expired`."""
    token: str | None = None
    epoch: int
    fence: int | None = None
    ttl_s: float | None = None
    load: LoadReply


class DispatchRequest(Request):
    """`<ns>.worker.<pool>.<worker>.dispatch`: run one task on a lease. The answer's body is the bare result."""

    token: str = _Token
    epoch: int | None = Field(default=None, ge=0)
    """If given, must be the worker's; a token alone already dies with its epoch."""
    method: str
    arguments: dict[str, Any] | list[Any] | None = None
    """An object is keyword arguments, an array positional ones, nothing is none."""
    timeout_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)


class RenewRequest(Request):
    """`<ns>.worker.<pool>.<worker>.renew`"""

    token: str = _Token
    epoch: int | None = Field(default=None, ge=0)
    ttl_s: float | None = Field(default=None, ge=MIN_TTL_S, le=MAX_TTL_S)
    """None keeps the lease's own."""


class RenewReply(Reply):
    ttl_s: float
    load: LoadReply


class ReleaseRequest(Request):
    """`<ns>.worker.<pool>.<worker>.release`: by token, or by request id. Idempotent; unknown ones are a no-op."""

    token: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS)
    rid: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS)


class ReleaseReply(Reply):
    released: bool
    """False: there was nothing (left) to release."""
    load: LoadReply


class DrainRequest(Request):
    """`<ns>.worker.<pool>.<worker>.drain`: grant nothing new, finish, leave."""

    grace_s: float | None = Field(default=None, ge=0, le=MAX_DEADLINE_S)
    """What still runs after so long is cancelled. None: the worker's own setting."""


class DrainReply(Reply):
    draining: bool
    load: LoadReply


class ResizeRequest(Request):
    """`<ns>.worker.<pool>.<worker>.resize`: change the number of slots, live."""

    slots: int = Field(ge=0, le=MAX_SLOTS)
    """Fewer than are in use: nothing new is granted until they fit. 0 pauses the worker."""


class ResizeReply(Reply):
    slots: int
    load: LoadReply


class LeaseInfo(Reply):
    token: str
    """Its public id, which does not let anybody release it. Workers in other languages may tell the token itself."""
    slots: int
    running: int
    single_use: bool
    owner: str
    expires_in_s: float
    """Of a gang's seat: how long its gang is believed in without a word of the coordinator."""
    gang: str | None = None
    """The gang that it is a seat of, or whose seat's slots it holds."""
    seat: str | None = None
    """Of slots of a gang's seat that somebody holds (a choice or a lease): the seat's public id. They are among the
    seat's slots, and not in the ledger."""


class GangShare(Reply):
    """What a worker has of one gang."""

    gang: str
    generation: int = 0
    state: Literal["kept", "held", "formed", "over", "stopping"]
    """Slots set aside, or held for a commit; its members stand; their epoch ended; they were told to stop."""
    ranks: tuple[int, ...] = ()
    slots: int
    """Reserved or running on its behalf."""


class StatsRequest(Request):
    """`<ns>.worker.<pool>.<worker>.stats`: takes nothing."""


class StatsReply(Reply):
    """`<ns>.worker.<pool>.<worker>.stats`"""

    pool: str
    worker: str
    epoch: int
    load: LoadReply
    leases: list[LeaseInfo]
    tasks: dict[str, int]
    """Counts since start: started, succeeded, failed, cancelled, crashed, rejected."""
    gangs: tuple[GangShare, ...] = ()
    ledger: dict[str, int]
    """Ledger writer: pending (not yet written), written, deleted, retried."""


class RouterQueues(BaseModel):
    """On `<ns>.event.router.<router>`, once a second while requests wait in that router, and once when none does any
    more."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = WIRE_VERSION
    router: str
    """Lives as long as its client, gateway or dispatcher."""
    owner: str
    """The client's name, for people."""
    node: str
    waiting: dict[str, int]
    """Requests that wait for a worker with room, by pool or standing set; 0: none any more."""


R = TypeVar("R", bound=BaseModel)


def parse_request(model: type[R], value: Any) -> R:
    """Validate a decoded body; nothing counts as an empty object.

    Raises:
        InvalidRequest: names each field that is wrong and why.
    """
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body is of type {type(value).__name__}: send an object; {_fields(model)}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        items = error.errors(include_url=False)
        reason = _reason(items[0]).__cause__ if len(items) == 1 else None
        if isinstance(reason, InvalidRequest):
            raise reason from error
        raise InvalidRequest("; ".join(_complaint(model, item) for item in items)) from error


def _reason(item: ErrorDetails) -> Exception:
    """The error that a validator of ours raised."""
    reason: object = item.get("ctx", {}).get("error")
    return reason if isinstance(reason, Exception) else ValueError(item["msg"])


def _complaint(model: type[BaseModel], item: ErrorDetails) -> str:
    where = ".".join(str(part) for part in item["loc"])
    match item["type"]:
        case "extra_forbidden":
            return f"no field {where!r}; {_fields(model)}"
        case "missing":
            return f"{where}: missing"
        case _:
            return f"{where}: {_reason(item)}, given {repr(item['input'])[:_GIVEN_CHARS]}"


def _fields(model: type[BaseModel]) -> str:
    return f"fields: {', '.join(model.model_fields) or 'none'}"
