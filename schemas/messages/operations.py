"""Requests and answers on a worker's own subjects, for operators and other languages (JSON or msgpack).

Gangline's clients use frames instead (schemas.wire.frames). Both use the same lease table.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..errors.base import InvalidRequest
from ..limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TOKEN_CHARS, MAX_TTL_S, MIN_TTL_S, WIRE_VERSION
from ..text import problem_of
from ..wire.frames import Load

_GIVEN_CHARS = 60
"""How much of an invalid value an error quotes."""

_MOST_COMPLAINTS = 8
"""How many invalid fields an error names."""

_Token = Field(min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")
_SeatToken = Field(min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^~?[A-Za-z0-9_-]+$")


class Request(BaseModel):
    """Unknown fields are refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReserveRequest(Request):
    """`<ns>.worker.<pool>.<worker>.reserve`. `{}` reserves one slot for 15 seconds."""

    rid: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS, pattern=r"^[A-Za-z0-9_-]+$")
    """Request id. The same id gets the same answer, and a reserve can be released by it before its answer arrives."""
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    ttl_s: float = Field(default=15.0, ge=MIN_TTL_S, le=MAX_TTL_S)
    """The lease expires if it is not renewed or used for this time."""
    claim_s: float | None = Field(default=None, ge=0.05, le=MAX_TTL_S)
    """Time until it must be used or renewed for the first time. None: `ttl_s`, which gives people time to type."""
    single_use: bool = False
    """True: the token admits one task and ends with it."""
    ledger: Literal["behind", "sync"] = "behind"
    """`sync`: write the ledger before answering."""
    owner: str = Field(default="", max_length=256)
    """Who holds this and why; shown to people who read the ledger."""


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
    """Reason of a rejection: `full`, `draining`, `expired`."""
    token: str | None = None
    epoch: int
    fence: int | None = None
    ttl_s: float | None = None
    load: LoadReply


class DispatchRequest(Request):
    """`<ns>.worker.<pool>.<worker>.dispatch`: run one task on a lease. The answer's body is the bare result."""

    token: str = _SeatToken
    """Of a standing gang's seat: its public id, as in the ledger."""
    epoch: int | None = Field(default=None, ge=0)
    """If given, it must be the worker's epoch. Without it the token decides: it is invalid in any other epoch."""
    method: str
    arguments: dict[str, Any] | list[Any] | None = None
    """An object holds keyword arguments, an array positional ones; none means no arguments."""
    timeout_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)


class RenewRequest(Request):
    """`<ns>.worker.<pool>.<worker>.renew`"""

    token: str = _Token
    epoch: int | None = Field(default=None, ge=0)
    ttl_s: float | None = Field(default=None, ge=MIN_TTL_S, le=MAX_TTL_S)
    """None: as the lease was granted."""


class RenewReply(Reply):
    ttl_s: float
    load: LoadReply


class ReleaseRequest(Request):
    """`<ns>.worker.<pool>.<worker>.release`: by token or by request id. Idempotent; releasing an unknown lease does
    nothing."""

    token: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS)
    rid: str | None = Field(default=None, min_length=1, max_length=MAX_TOKEN_CHARS)


class ReleaseReply(Reply):
    released: bool
    """False: there was nothing to release."""
    load: LoadReply


class ItemsRequest(Request):
    """`<ns>.stream.<gateway>.<stream>`: the next items of a streamed call. `{}` or nothing: what comes next."""

    after: int | None = Field(default=None, ge=0)
    """Number of items received so far: if the last answer was lost, it is sent again. None: they all arrived."""
    close: bool = False
    """True: no more are wanted, and the task is cancelled."""


class ItemsReply(Reply):
    """Answer to a streamed call, and to each request for its next items."""

    items: list[Any]
    """May be empty, if none came within two seconds."""
    next: str | None
    """The subject for the next items, within 30 seconds; None: there are no more."""


class DrainRequest(Request):
    """`<ns>.worker.<pool>.<worker>.drain`: grant nothing new, finish what is running, exit."""

    grace_s: float | None = Field(default=None, ge=0, le=MAX_DEADLINE_S)
    """Tasks still running after this time are cancelled. None: the worker's own setting."""


class DrainReply(Reply):
    draining: bool
    load: LoadReply


class ResizeRequest(Request):
    """`<ns>.worker.<pool>.<worker>.resize`: change the number of slots, live."""

    slots: int = Field(ge=0, le=MAX_SLOTS)
    """If fewer than are in use, nothing new is granted until they fit. 0 pauses the worker."""


class ResizeReply(Reply):
    slots: int
    load: LoadReply


class LeaseInfo(Reply):
    token: str
    """Its public id, with which nobody can release it. Workers in other languages may send the token itself."""
    slots: int
    running: int
    single_use: bool
    owner: str
    expires_in_s: float
    """Of a gang's seat: how long the gang counts as alive without a message from the coordinator."""
    gang: str | None = None
    """The gang that the seat belongs to, or from whose seat the lease takes slots."""
    seat: str | None = None
    """Of a lease or selection on slots of a gang's seat: the seat's public id. The slots are part of the seat's, and
    not in the ledger."""


class RankTimes(Reply):
    """What the tasks of one rank of a gang have spent their time on, since this generation began. Tasks that run at
    once count each; those that run now count until now."""

    rank: int
    busy_s: float = 0.0
    """Seconds in which tasks ran."""
    waiting_s: float = 0.0
    """Seconds of these in which they waited for other ranks, in barriers, broadcasts and all-gathers. The rank that
    waits least is the one that the others wait for."""
    ended: int = 0
    """Number of tasks that have ended."""
    run: int = 0
    """Number of the last call of `gang.run` in this generation; 0: there was none."""
    run_busy_s: float = 0.0
    run_waiting_s: float = 0.0
    """As `busy_s` and `waiting_s`, of that call."""

    @property
    def worked_s(self) -> float:
        """Seconds in which its tasks ran without waiting for other ranks."""
        return round(max(0.0, self.busy_s - self.waiting_s), 3)

    @property
    def run_worked_s(self) -> float:
        """As `worked_s`, of the last call of `gang.run`."""
        return round(max(0.0, self.run_busy_s - self.run_waiting_s), 3)


class GangShare(Reply):
    """A worker's share of one gang."""

    gang: str
    generation: int = 0
    state: Literal["kept", "held", "formed", "over", "stopping"]
    """Slots are reserved; held for a commit; its members run; their epoch ended; they are being stopped."""
    ranks: tuple[int, ...] = ()
    slots: int
    """Slots reserved or in use for it."""
    times: tuple[RankTimes, ...] = ()
    """Of its ranks here that have run tasks. Workers of earlier versions name none."""


class StatsRequest(Request):
    """`<ns>.worker.<pool>.<worker>.stats`: has no fields."""


class LimitShare(BaseModel):
    """A worker's share of a limit of a task that holds over all workers of its pool: of its `max_running` or rate."""

    method: str
    limit: int
    """Over all workers."""
    share: int
    """How many units this worker may use now, one for each execution."""
    running: int
    """How many units are in use: executions that run or, of a rate, have started in the last moment."""
    waiting: bool = False
    """It asks other workers for a part of theirs."""
    by_worker: dict[str, int] = Field(default_factory=dict)
    """All shares, as this worker last read them."""
    per_s: float | None = None
    """Of a rate: starts per second over all workers. None: it is a `max_running`."""


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
    limits: tuple[LimitShare, ...] = ()
    """Of the tasks that declare `max_running`."""
    ledger: dict[str, int]
    """Ledger writer: pending (not yet written), written, deleted, retried."""


class SchemasRequest(Request):
    """`<ns>.worker.<pool>.<worker>.schemas`. `{}` asks for all."""

    hashes: tuple[str, ...] = Field(default=(), max_length=1024)
    """Only these; see MethodInfo.schema_hash."""


class SchemasReply(Reply):
    """JSON Schemas of tasks. If they are too many for one answer, the rest is asked for by its hashes."""

    schemas: dict[str, dict[str, Any]]
    """By hash: the first 32 hexadecimal digits of the SHA-256 of the schema as JSON with sorted keys and no blanks."""


class RouterQueues(BaseModel):
    """Published on `<ns>.event.router.<router>` once a second while requests wait in that router, and once more when
    none waits any longer."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = WIRE_VERSION
    router: str
    """Id of a client, gateway or dispatcher; new for each."""
    owner: str
    """The client's name, shown to people."""
    node: str
    waiting: dict[str, int]
    """Number of requests that wait for a worker with free slots, by pool or standing set; 0: no more waiting."""


R = TypeVar("R", bound=BaseModel)


def parse_request(model: type[R], value: Any, *, empty: bool = True) -> R:
    """Validate a decoded body.

    Args:
        empty: whether nothing counts as an empty object. Not where a request without fields has an effect: nats-server
            itself sends empty messages to the reply subjects that others name.

    Raises:
        InvalidRequest: names each invalid field and says why.
    """
    if value is None:
        if not empty:
            raise InvalidRequest(f"the body is empty: send an object, at least {{}}; {_fields(model)}")
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
        told = [_complaint(model, item) for item in items[:_MOST_COMPLAINTS]]
        if len(items) > len(told):
            told.append(f"and {len(items) - len(told)} more")
        raise InvalidRequest("; ".join(told)) from error


def _reason(item: ErrorDetails) -> Exception:
    """The error that one of our validators raised."""
    reason: object = item.get("ctx", {}).get("error")
    return reason if isinstance(reason, Exception) else ValueError(item["msg"])


def _complaint(model: type[BaseModel], item: ErrorDetails) -> str:
    match item["type"]:
        case "extra_forbidden":
            return f"{problem_of(item)}; {_fields(model)}"
        case "missing":
            return problem_of(item)
        case _:
            where = ".".join(map(str, item["loc"]))
            return f"{where}: {_reason(item)}, given {repr(item['input'])[:_GIVEN_CHARS]}"


def _fields(model: type[BaseModel]) -> str:
    return f"fields: {', '.join(model.model_fields) or 'none'}"
