"""Values of the ledger bucket. Always JSON, since `nats kv watch` prints them raw."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..limits import WIRE_VERSION
from ..names import is_name


class Record(BaseModel):
    """Readers ignore fields they do not know, so that a newer writer does not break an older reader."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = WIRE_VERSION


class MethodInfo(BaseModel):
    """What a router needs to know of one task."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    slots: int = 1
    """Slot cost of one execution."""
    idempotent: bool = False
    """Whether running it twice does no harm, so that it may be sent again when a try's outcome is unknown."""
    streams: bool = False
    """Whether it yields items."""
    description: str = ""


class Registration(Record):
    """`reg.<pool>.<worker>`: who serves, since when, with what. Written at start, epoch change, drain and resize."""

    pool: str
    worker: str
    epoch: int
    instance: str
    """Random for each process; tells two processes that claim one id apart."""
    channel: str = ""
    """Names the private subjects of this process (Names.worker), where routers, coordinators and dispatchers reach it.
    Empty: it has none, and is reached on its public ones, like workers of earlier versions and of other languages."""
    state: Literal["serving", "draining"] = "serving"
    drain_grace_s: float | None = None
    """While it drains: within how many seconds of the beginning it leaves, whatever still runs."""
    slots: int
    methods: dict[str, MethodInfo] = Field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Model ids loaded now (multiplexing)."""
    max_models: int = 0
    """Most models loaded at once; 0: the pool is not multiplexed."""
    node: str = ""
    """Machine; the nearest locality tier."""
    zone: str = ""
    """Failure domain; the second tier."""
    address: str = ""
    """Where other members of a gang can reach this process; host or host:port."""
    labels: dict[str, str] = Field(default_factory=dict)
    pid: int = 0
    version: str = ""
    """Version of the gangline package."""
    started_at: float = 0.0
    """Unix time."""
    acks: bool = False
    """It keeps the ends of durable tasks until it is told, by ACK frames, that they are stored."""

    @field_validator("channel", mode="after")
    @classmethod
    def _one_token(cls, value: str) -> str:
        return value if is_name(value) else ""  # it becomes part of a subject, whoever wrote it


class Heartbeat(Record):
    """`alive.<pool>.<worker>`: rewritten every second, expires after three. Carries the load (queue length)."""

    epoch: int
    instance: str
    running: int
    reserved: int
    total: int
    draining: bool = False
    models: tuple[str, ...] = ()


class LeaseRecord(Record):
    """`lease.<pool>.<worker>.<token>`: one token."""

    pool: str
    worker: str
    epoch: int
    token: str
    slots: int
    fence: int
    single_use: bool
    owner: str = ""
    """Who asked: the router's name, or what an operator wrote into the request."""
    granted_at: float
    """Unix time of the worker's clock, for people; the worker's monotonic clock decides expiry."""
    expires_at: float
    """Likewise; moves with every renewal."""
