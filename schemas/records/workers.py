"""Values of the ledger bucket. Always JSON, since `nats kv watch` prints them raw."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from ..limits import (
    MAX_ATTEMPTS,
    MAX_BACKOFF_S,
    MAX_DEADLINE_S,
    MAX_RECORD_ITEMS,
    MAX_RESULT_TTL_S,
    MAX_SLOTS,
    WIRE_VERSION,
)
from ..names import is_name
from ..text import problem_of


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
    return "; ".join(map(problem_of, items[:3])) + (f"; and {len(items) - 3} more" if len(items) > 3 else "")


MAX_PRIORITY: Final = 1_000_000
"""The highest priority of a task; the lowest is as far below 0."""


class TaskPolicy(BaseModel):
    """What the author of a task declared about its executions. None: not declared."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    timeout_s: float | None = Field(default=None, gt=0, le=MAX_DEADLINE_S)
    """Maximum duration of an execution, in seconds."""
    max_attempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS)
    """Maximum number of attempts of a submitted task, whether or not it is idempotent."""
    backoff_s: float | None = Field(default=None, ge=0, le=MAX_BACKOFF_S)
    """Wait before the second attempt, in seconds; doubles with each further one."""
    retry_on: tuple[str, ...] | None = None
    """Names of exception classes: after all others there is no further attempt. The worker judges that."""
    no_retry_on: tuple[str, ...] = ()
    """Names of exception classes after which there is no further attempt. The worker judges that."""
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Priority of submitted tasks."""
    result_ttl_s: float | None = Field(default=None, ge=0, le=MAX_RESULT_TTL_S)
    """How long results of submitted tasks are kept, in seconds; 0: they are not kept."""
    max_running: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Maximum number of executions at once, over all workers of the pool."""
    per_key: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Maximum number of executions of one key at once."""
    rate_per_s: float | None = Field(default=None, gt=0, le=1_000_000)
    """Maximum number of starts per second."""
    cron: str | None = None
    """Schedule on which it is submitted, without arguments."""
    time_zone: str | None = None
    """Time zone of `cron`. None: UTC."""

    @property
    def limited(self) -> bool:
        """Whether it limits how many executions there are, or how fast they start."""
        return self.max_running is not None or self.per_key is not None or self.rate_per_s is not None

    @property
    def divided(self) -> bool:
        """Whether it has limits that workers divide: a worker may have no share of them."""
        return self.max_running is not None or self.rate_per_s is not None


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
    schema_hash: str = ""
    """Names the JSON Schema of its parameters and result by content; the worker's operation `schemas` has it. Empty:
    the worker has none, as one of an earlier version or in another language."""
    policy: TaskPolicy | None = None
    """None: nothing is declared."""


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
    drain_by: float | None = None
    """While it drains: Unix time of its clock at which it exits at the latest. None: not known, as from workers of
    earlier versions."""
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
    stored: bool = False
    """It takes STORED frames."""

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


LEASE_SLACK_S: Final = 2.0
"""How much later than its record says a lease may end, if nobody renews it any more: a renewal rewrites the record only
when the key would expire before the lease."""


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
    """Likewise. A renewal that moves the end by less than LEASE_SLACK_S may not change it."""


class HeldShare(BaseModel):
    """A worker's units of a limit."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance: str
    """Of its registration: units of an earlier process with this name do not count for a later one."""
    units: int = Field(default=0, ge=0, le=MAX_SLOTS)
    """It runs at most so many executions at once, apart from those that ran before it gave units up."""


class LimitRecord(Record):
    """How the workers of a pool divide a limit of a task: `limit.<pool>.<method>` its `max_running`, and
    `limit.<pool>.<method>=rate` its rate. Any of them changes it by compare-and-set; see worker.slots.share_core."""

    incarnation: str
    """Random; new if the record was lost and written again."""
    limit: int = Field(ge=1, le=MAX_SLOTS)
    """As declared by the worker that started last."""
    declared_at: float = 0.0
    """Unix time of that worker's start."""
    settled: bool = True
    """False: the ledger was lost, and workers may still be about to write what runs there. Nobody takes free units for
    some seconds."""
    shares: dict[str, HeldShare] = Field(default_factory=dict)
    """By worker. A share ends with its worker's heartbeat."""
    waiting: tuple[str, ...] = ()
    """Workers that ask for a unit, in order."""
    interval_s: float = Field(default=0.0, ge=0)
    """Of a rate: how long a unit is in use after each start. As declared by the worker that started last."""
    spent: int = Field(default=0, ge=0, le=MAX_SLOTS)
    """Of a rate: how many of the units that no worker has may have been in use when they were freed. A worker that
    takes them counts them as in use from then on."""

    @property
    def rate_per_s(self) -> float | None:
        """Starts per second over all workers; None: it is no rate."""
        return self.limit / self.interval_s if self.interval_s else None
