"""The durable part of a plan: who submits which tasks with which options, which routes apply, which dispatchers run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ....schemas.records.jobs import DeadReason
from ....schemas.records.routes import RouteRecord

INLINE_BYTES = 1024
"""What simulated dispatchers keep in the bucket of results."""
UNKNOWN_AFTER_S = 3.0
"""How long simulated dispatchers wait for an endpoint that nobody serves."""


class JobKind(StrEnum):
    """What a client does in one step."""

    SUBMIT = "submit"
    WATCH = "submit and wait for the result"
    ITEMS = "submit and read the items"
    CANCEL = "submit and cancel"
    PUBLISH = "publish without the SDK"
    BAD = "publish what cannot run"
    REPLAY = "submit, and replay when it is dead"
    """From here on, not among the kinds that every plan draws."""
    REPEAT = "submit a schedule, and cancel it"
    REPEAT_RAW = "publish a schedule without the SDK, and cancel it"
    UNREPEAT = "cancel what is left of a schedule"


class JobEnding(StrEnum):
    """What one attempt does after its sleep."""

    RETURN = "return"
    RAISE = "raise"
    NEVER = "never"
    """Sleeps until it is cancelled."""
    SLOW = "slow"
    """... and takes a moment to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A message that must become a dead letter. `{n}` in a text stands for the step's number."""

    subject: str
    body: str
    headers: tuple[tuple[str, str], ...]
    reason: DeadReason


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """One durable task. `at_s` counts from the beginning of the traffic."""

    number: int
    at_s: float
    client: str
    kind: JobKind
    endpoint: str
    method: str
    duration_s: float
    endings: tuple[JobEnding, ...]
    """Of the first attempt, the second, and so on; all later ones end like the last."""
    items: int = 0
    """Items that an attempt of `job_items` yields."""
    key: str | None = None
    ordered: bool = False
    priority: int = 0
    deadline_s: float | None = None
    delay_s: float | None = None
    timeout_s: float | None = None
    """Of one attempt."""
    max_attempts: int = 3
    backoff_s: float = 0.1
    keeps_result: bool = True
    once: int | None = None
    """An idempotency key; steps with the same key differ only in who submits and when."""
    msgpack: bool = False
    """Arguments that JSON cannot express."""
    cancel_after_s: float | None = None
    """Cancel the whole step then, whatever it is doing. The job goes on."""
    doom_after_s: float = 0.0
    """Of CANCEL and REPEAT: when, after it was stored. Of REPLAY: when, after it died."""
    at_once: int = 1
    """Of REPLAY: how many clients do it at the same time."""
    bad: Bad | None = None
    padding: int = 0
    """Extra characters that it returns: a long result goes to the object store."""
    period_s: int | None = None
    """Of a schedule."""
    series: int | None = None
    """Number of the schedule; several steps may concern one."""

    @property
    def cron(self) -> str | None:
        """How the period is written for the server."""
        if self.period_s is None:
            return None
        return f"*/{self.period_s} * * * * *" if self.number % 2 else f"@every {self.period_s}s"

    @property
    def idempotency_key(self) -> str | None:
        return f"cron {self.series}" if self.series is not None else None if self.once is None else f"key {self.once}"

    @property
    def named(self) -> str | None:
        """The job's id, if its publisher chooses one."""
        if self.kind is JobKind.REPEAT_RAW:
            return f"cron-{self.series}"
        return f"named-{self.number}" if self.kind is JobKind.PUBLISH and self.number % 2 else None

    @property
    def request(self) -> str:
        """Names the task in its own arguments."""
        if self.series is not None:
            return f"cron{self.series}"
        return f"j{self.number}" if self.once is None else f"once{self.once}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStep:
    """An operator writes a route. Routes from before the traffic have an `at_s` below 0."""

    at_s: float
    endpoint: str
    route: RouteRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTraffic:
    """The part of a plan that is about durable tasks."""

    dispatchers: tuple[str, ...]
    steps: tuple[JobStep, ...]
    routes: tuple[RouteStep, ...]
    age_step_s: float = 10.0
    """Of all dispatchers."""
    item_bytes: int | None = None
    """How many items workers keep that no dispatcher has taken; None: their default."""

    def one_pool(self, endpoint: str) -> bool:
        """Whether all its tasks go to one pool, whatever its route."""
        routes = [step.route for step in self.routes if step.endpoint == endpoint]
        return len({pool for route in routes or [RouteRecord()] for pool in route.pools(endpoint)}) == 1

    def most(self, endpoint: str, rule: str) -> float | None:
        """The most generous value that a rule of an endpoint ever has; None: it has no such rule at some time."""
        routes = [step.route.queue for step in self.routes if step.endpoint == endpoint]
        values = [getattr(rules, rule) for rules in routes]
        return max(values) if values and None not in values else None

    def summary(self) -> str:
        changes = sum(1 for step in self.routes if step.at_s > 0)
        return f"{len(self.dispatchers)} dispatchers, {len(self.steps)} durable tasks, {changes} route changes"
