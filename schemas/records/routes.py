"""Routes: how an endpoint's traffic is distributed over pools.

A route is JSON in the route bucket under the endpoint's name, so `nats kv put` can change it. An endpoint without a
route is the pool of that name. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors.base import GanglineError, InvalidRoute
from ..limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_RECORD_ITEMS, MAX_RESULT_TTL_S, MAX_SLOTS, WIRE_VERSION
from ..text import problem_of
from ..wire import codec
from .gangs import PoolName

MAX_POOLS: Final = 64
_MOST_PROBLEMS: Final = 8
MAX_WEIGHT: Final = 1_000_000.0

Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class _Part(BaseModel):
    """Unknown fields are refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QueueRules(_Part):
    """Rules for the endpoint's durable tasks. Limits apply over all dispatchers together."""

    max_running: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Maximum number of tasks of the endpoint that run at once."""
    per_key: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Maximum number of tasks of one `Gangline-Key` that run at once."""
    ordered: bool = False
    """Tasks of one key run one at a time, in order of publication, including the retries of a failed one."""
    rate_per_s: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)
    """Maximum number of starts per second, on average."""
    burst: int = Field(default=1, ge=1, le=1_000_000)
    """Maximum number of starts at once, after a pause."""
    max_attempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS)
    """Maximum number of attempts, whether or not the task is idempotent. Unset: 1 for a task that is not idempotent."""
    backoff_s: float | None = Field(default=None, ge=0, le=MAX_BACKOFF_S)
    backoff_max_s: float | None = Field(default=None, ge=0, le=MAX_BACKOFF_S)
    timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of one attempt."""
    result_ttl_s: float | None = Field(default=None, ge=0, le=MAX_RESULT_TTL_S)
    paused: bool = False
    """Nothing is started; submitted tasks wait."""


class RouteRecord(_Part):
    """One endpoint's route."""

    v: int = WIRE_VERSION
    to: dict[PoolName, Weight] = Field(default_factory=dict, max_length=MAX_POOLS)
    """Weights of pools; any scale. Empty: the pool of the endpoint's name."""
    shadow: dict[PoolName, Percent] = Field(default_factory=dict, max_length=MAX_POOLS)
    """Pools that get copies of this percentage of the requests, each chosen independently. The outcome of a copy is
    ignored."""
    by_key: bool = True
    """Requests with a `Gangline-Key` do not choose a pool at random: a key stays with its pool while the weights do
    not change."""
    limits: dict[PoolName, Annotated[int, Field(ge=1, le=MAX_SLOTS)]] = Field(default_factory=dict)
    """Maximum number of requests that one router runs in a pool at once. Beyond it, requests go to other pools of
    the route, or wait if none has room."""
    queue: QueueRules = QueueRules()

    @field_validator("v")
    @classmethod
    def _known_version(cls, value: int) -> int:
        if value > WIRE_VERSION:
            raise ValueError(f"version {value} is newer than this program understands ({WIRE_VERSION})")
        return value

    @model_validator(mode="after")
    def _can_be_followed(self) -> RouteRecord:
        if self.to and not sum(self.to.values()) > 0:
            raise ValueError("the weights in `to` add up to 0: give at least one pool a weight above 0")
        both = sorted(set(self.to) & set(self.shadow))
        if both:
            raise ValueError(f"{', '.join(both)} is in both `to` and `shadow`: a pool cannot shadow itself")
        return self

    def pools(self, endpoint: str) -> dict[str, float]:
        """Weights of the pools that answer."""
        return dict(self.to) or {endpoint: 1.0}


class RouteEvent(BaseModel):
    """Published on `<ns>.event.route.<endpoint>` when an invalid value is written to the route bucket. Every router
    publishes it once per revision, so listeners should use the first message per revision."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = WIRE_VERSION
    endpoint: str
    """The key, which may not be a valid name."""
    kind: Literal["invalid"] = "invalid"
    revision: int
    error: str
    """What is wrong with the value."""
    kept: bool
    """Whether an earlier route of that endpoint stays in force; if not, the endpoint is the pool of that name."""
    by: str
    """Name of the connection that published this."""


def parse_route(endpoint: str, value: bytes) -> RouteRecord:
    """Read a route from its value in the bucket.

    Raises:
        InvalidRoute: names the invalid field and says why.
    """
    if value.count(b",") >= MAX_RECORD_ITEMS:
        raise InvalidRoute(f"route {endpoint}: it has too many values")
    try:
        body: Any = codec.from_json(value)
    except GanglineError as error:
        raise InvalidRoute(f"route {endpoint}: {error.message}") from error
    if not isinstance(body, dict):
        raise InvalidRoute(f"route {endpoint}: it is a {type(body).__name__}: write an object, such as {EXAMPLE}")
    try:
        return RouteRecord.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        where = ".".join(str(part) for part in problems[0]["loc"])
        text = "; ".join(map(problem_of, problems[:_MOST_PROBLEMS]))
        raise InvalidRoute(f"route {endpoint}: {text}", details={"field": where}) from error


EXAMPLE: Final = '{"to": {"resize-v1": 90, "resize-v2": 10}, "shadow": {"resize-v3": 5}}'
