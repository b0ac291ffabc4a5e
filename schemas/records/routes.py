"""Routes: which pools an endpoint's traffic goes to, and how much of it.

A route is JSON in the bucket of routes under the endpoint's name, so that `nats kv put` changes it. Without a route, an
endpoint is the pool of its name. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..errors.base import GanglineError
from ..errors.tasks import InvalidRoute
from ..limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_RESULT_TTL_S, MAX_SLOTS, WIRE_VERSION
from ..wire import codec
from .gangs import PoolName

MAX_POOLS: Final = 64
MAX_WEIGHT: Final = 1_000_000.0

Weight = Annotated[float, Field(ge=0, le=MAX_WEIGHT, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]


class _Part(BaseModel):
    """A misspelt field must not be ignored in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QueueRules(_Part):
    """How the endpoint's durable tasks are run. All are kept over all dispatchers together."""

    max_running: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Most tasks of the endpoint that run at once."""
    per_key: int | None = Field(default=None, ge=1, le=MAX_SLOTS)
    """Most tasks of one `Gangline-Key` that run at once."""
    ordered: bool = False
    """Tasks of one key one at a time, in the order of their publication, a failing one's retries included."""
    rate_per_s: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)
    """Most starts a second, in the long run."""
    burst: int = Field(default=1, ge=1, le=1_000_000)
    """... and at once, after a pause."""
    max_attempts: int | None = Field(default=None, ge=1, le=MAX_ATTEMPTS)
    """How often a task is started, whether it is declared idempotent or not. Unsaid: once, if it is not."""
    backoff_s: float | None = Field(default=None, ge=0, le=MAX_BACKOFF_S)
    backoff_max_s: float | None = Field(default=None, ge=0, le=MAX_BACKOFF_S)
    timeout_s: float | None = Field(default=None, gt=0)
    """How long one try may run."""
    result_ttl_s: float | None = Field(default=None, ge=0, le=MAX_RESULT_TTL_S)
    paused: bool = False
    """Nothing is started; what is submitted waits."""


class RouteRecord(_Part):
    """One endpoint's route."""

    v: int = WIRE_VERSION
    to: dict[PoolName, Weight] = Field(default_factory=dict, max_length=MAX_POOLS)
    """Pools and their weights, which need not add up to anything. Empty: the pool of the endpoint's name."""
    shadow: dict[PoolName, Percent] = Field(default_factory=dict, max_length=MAX_POOLS)
    """Pools that get a copy of so many percent of the requests, each with a draw of its own. What becomes of a copy
    is ignored."""
    by_key: bool = True
    """Requests with a `Gangline-Key` are not drawn at random: the same key stays with its pool while the weights do."""
    limits: dict[PoolName, Annotated[int, Field(ge=1, le=MAX_SLOTS)]] = Field(default_factory=dict)
    """Most requests that one router has running in a pool at once; above, another pool of the route takes them, and if
    none has room they wait."""
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
    """On `<ns>.event.route.<endpoint>`: somebody put a value into the bucket of routes that cannot be followed. Told
    once by each router for each revision, so listeners take the first of a revision."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = WIRE_VERSION
    endpoint: str
    """The key, which may not even be a name."""
    kind: Literal["invalid"] = "invalid"
    revision: int
    error: str
    """What is wrong with it."""
    kept: bool
    """Whether an earlier route of that endpoint stays in force; otherwise the endpoint is the pool of its name."""
    by: str
    """The connection that tells."""


def parse_route(endpoint: str, value: bytes) -> RouteRecord:
    """Read a route as somebody put it into the bucket.

    Raises:
        InvalidRoute: which field, and why.
    """
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
        text = "; ".join(_told(".".join(map(str, item["loc"])), item["msg"]) for item in problems)
        raise InvalidRoute(f"route {endpoint}: {text}", details={"field": where}) from error


def _told(where: str, message: str) -> str:
    plain = message.removeprefix("Value error, ")
    return f"{where}: {plain}" if where else plain


EXAMPLE: Final = '{"to": {"resize-v1": 90, "resize-v2": 10}, "shadow": {"resize-v3": 5}}'
