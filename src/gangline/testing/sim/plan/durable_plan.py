"""The durable part of a plan: tasks and their options, routes, and dispatchers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ....schemas.records.jobs import DeadReason
from ....schemas.records.routes import RouteRecord
from ....schemas.records.workers import TaskPolicy

UNDECLARED = TaskPolicy()
INLINE_BYTES = 1024
"""Results up to this size are stored in the bucket, larger ones in the object store."""
UNKNOWN_AFTER_S = 3.0
"""How long simulated dispatchers wait for workers of an unknown endpoint."""


class JobKind(StrEnum):
    """What a client does in one step."""

    SUBMIT = "submit"
    WATCH = "submit and wait for the result"
    ITEMS = "submit and read the items"
    CANCEL = "submit and cancel"
    PUBLISH = "publish without the SDK"
    BAD = "publish what cannot run"
    REPLAY = "submit, and replay when it is dead"
    """This and the following kinds are drawn separately."""
    REPEAT = "submit a schedule, and cancel it"
    REPEAT_RAW = "publish a schedule without the SDK, and cancel it"
    UNREPEAT = "cancel what is left of a schedule"
    LIST = "list all jobs"


class JobEnding(StrEnum):
    """What an attempt does after its sleep."""

    RETURN = "return"
    RAISE = "raise"
    NEVER = "never"
    """Sleeps until it is cancelled."""
    SLOW = "slow"
    """Like NEVER, and takes a moment to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A message that must become a dead letter."""

    subject: str
    body: str
    headers: tuple[tuple[str, str], ...]
    reason: DeadReason


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """One durable task. `at_s` is measured from the beginning of the traffic."""

    number: int
    at_s: float
    client: str
    kind: JobKind
    endpoint: str
    method: str
    duration_s: float
    endings: tuple[JobEnding, ...] = (JobEnding.RETURN,)
    """By attempt; further attempts end like the last one."""
    items: int = 0
    """Number of items that an attempt of `job_items` yields."""
    key: str | None = None
    ordered: bool = False
    priority: int = 0
    deadline_s: float | None = None
    delay_s: float | None = None
    timeout_s: float | None = None
    """Timeout of one attempt."""
    max_attempts: int = 3
    backoff_s: float = 0.1
    says_attempts: bool = True
    """Whether the submission says both; otherwise its task declares them."""
    keeps_result: bool = True
    once: int | None = None
    """An idempotency key; steps with the same key differ only in client and time."""
    msgpack: bool = False
    """Whether it has arguments that JSON cannot express."""
    cancel_after_s: float | None = None
    """When the client's code of the step is cancelled; the job continues."""
    doom_after_s: float = 0.0
    """CANCEL and REPEAT: time between storing and cancelling. REPLAY: time between its death and the replay."""
    at_once: int = 1
    """REPLAY: number of clients that do it at the same time."""
    bad: Bad | None = None
    padding: int = 0
    """Number of extra characters in its result, which make it go to the object store."""
    period_s: int | None = None
    """Period of a schedule."""
    series: int | None = None
    """Number of the schedule; several steps may concern one."""
    tenant: str = ""
    """PUBLISH: the account from which it comes, as the server would say; empty: Gangline's own."""
    called: str | None = None
    """PUBLISH: the id that its publisher chooses, perhaps that of another tenant's job."""

    @property
    def cron(self) -> str | None:
        """The period as a cron expression."""
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
        if self.called is not None:
            return self.called
        return f"named-{self.number}" if self.kind is JobKind.PUBLISH and self.number % 2 else None

    @property
    def request(self) -> str:
        """The task's name in its own arguments."""
        if self.series is not None:
            return f"cron{self.series}"
        return f"j{self.number}" if self.once is None else f"once{self.once}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStep:
    """An operator writes a route; before the traffic if `at_s` is below 0."""

    at_s: float
    endpoint: str
    route: RouteRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableTraffic:
    """The part of a plan that concerns durable tasks."""

    dispatchers: tuple[str, ...]
    steps: tuple[JobStep, ...]
    routes: tuple[RouteStep, ...]
    age_step_s: float = 10.0
    """Setting of all dispatchers."""
    window_tasks: int = 4096
    """Setting of all dispatchers."""
    most_passed: int | None = None
    """How many tasks of other tenants may start, at most, while a task of a tenant could; None: not known."""
    item_bytes: int | None = None
    """Limit on items that workers keep; None: their default."""
    declared: tuple[tuple[str, TaskPolicy], ...] = ()
    """What tasks declare, by method, in all pools."""

    def policy(self, method: str) -> TaskPolicy:
        """What a task declares."""
        return dict(self.declared).get(method, UNDECLARED)

    def one_pool(self, endpoint: str) -> bool:
        """Whether all tasks of the endpoint always go to one pool."""
        routes = [step.route for step in self.routes if step.endpoint == endpoint]
        return len({pool for route in routes or [RouteRecord()] for pool in route.pools(endpoint)}) == 1

    def most(self, endpoint: str, rule: str) -> float | None:
        """The highest value that a rule of an endpoint ever has; None: sometimes there is no such rule."""
        routes = [step.route.queue for step in self.routes if step.endpoint == endpoint]
        values = [getattr(rules, rule) for rules in routes]
        return max(values) if values and None not in values else None

    def summary(self) -> str:
        changes = sum(1 for step in self.routes if step.at_s > 0)
        return f"{len(self.dispatchers)} dispatchers, {len(self.steps)} durable tasks, {changes} route changes"
