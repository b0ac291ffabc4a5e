"""Values of the ledger bucket. Always JSON, since `nats kv watch` prints them raw."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from ..limits import MAX_RECORD_ITEMS, WIRE_VERSION
from ..names import is_name


class Record(BaseModel):
    """Readers ignore unknown fields, so that a newer writer does not break an older reader."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    v: int = WIRE_VERSION

    @classmethod
    def read(cls, value: bytes) -> Self:
        """Read the value of a key, or a message that is like one.

        Raises:
            ValidationError: it is not such a record, or has so many values that to read it would take long.
        """
        if value.count(b",") >= MAX_RECORD_ITEMS:
            many = PydanticCustomError("too_many_values", "it has too many values")
            raise ValidationError.from_exception_data(cls.__name__, [{"type": many, "input": None}])
        return cls.model_validate_json(value)


def complaint(error: ValidationError) -> str:
    """What is wrong with a record, in one line; the first three places."""
    items = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{where}: {item['msg']}" if (where := _place(item["loc"])) else item["msg"] for item in items[:3]]
    return "; ".join(told) + (f"; and {len(items) - 3} more" if len(items) > 3 else "")


def _place(parts: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in parts)[:200]


class MethodInfo(BaseModel):
    """What a router needs to know about a task."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    slots: int = 1
    """Slots that one execution takes."""
    idempotent: bool = False
    """Whether it is safe to run it twice, so that it may be sent again when the outcome of an attempt is unknown."""
    streams: bool = False
    """Whether it yields items."""
    description: str = ""


class Registration(Record):
    """`reg.<pool>.<worker>`: a worker and what it serves. Written at start, epoch change, drain and resize."""

    pool: str
    worker: str
    epoch: int
    instance: str
    """Random for each process; distinguishes two processes with one id."""
    channel: str = ""
    """Part of the private subjects of this process (Names.worker), where routers, coordinators and dispatchers reach
    it. Empty: it has none and uses its public subjects, like workers of earlier versions and in other languages."""
    state: Literal["serving", "draining"] = "serving"
    drain_grace_s: float | None = None
    """While it drains: seconds from the beginning of the drain until it exits, whatever is still running."""
    slots: int
    methods: dict[str, MethodInfo] = Field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Ids of loaded models (multiplexing)."""
    max_models: int = 0
    """Maximum number of loaded models; 0: the pool is not multiplexed."""
    node: str = ""
    """Machine: the first locality tier."""
    zone: str = ""
    """Failure domain: the second locality tier."""
    address: str = ""
    """Where other members of a gang can reach this process; host or host:port."""
    labels: dict[str, str] = Field(default_factory=dict)
    pid: int = 0
    version: str = ""
    """Version of the gangline package."""
    started_at: float = 0.0
    """Unix time."""
    acks: bool = False
    """It keeps the outcomes of durable tasks until ACK frames confirm that they are stored."""

    @field_validator("channel", mode="after")
    @classmethod
    def _one_token(cls, value: str) -> str:
        return value if is_name(value) else ""  # it becomes part of a subject, whoever wrote it


class Heartbeat(Record):
    """`alive.<pool>.<worker>`: rewritten every second, expires after three. Has the load (queue length)."""

    epoch: int
    instance: str
    running: int
    reserved: int
    total: int
    draining: bool = False
    models: tuple[str, ...] = ()


class LeaseRecord(Record):
    """`lease.<pool>.<worker>.<id>`: one lease. The key has its public id without the first character."""

    pool: str
    worker: str
    epoch: int
    token: str
    """Its public id. Workers of earlier versions write the token itself, also into the key."""
    slots: int
    fence: int
    single_use: bool
    owner: str = ""
    """Who requested it: the router's name, or the `owner` of an operator's request."""
    granted_at: float
    """Unix time of the worker's clock, shown to people; the worker's monotonic clock decides expiry."""
    expires_at: float
    """Likewise; changes with every renewal."""
