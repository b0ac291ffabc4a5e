"""The effects of the queue's core. Those of one event are carried out in order: each is started before the next, and
none is awaited.

The core keeps the necessary order: an Ack comes after the end of the task was stored (a Persisted, or a Looked that
found it), for a message that repeats a job of the queue, or at once for a task that is done if nobody keeps its result;
a second StartAttempt comes after the AttemptEnded of the first and the Persisted of its failure. The shell repeats each
Persist, through lost connections and unavailable storage, until the server has stored it or the queue is lost.
TryRecords of one job are written in the requested order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ....schemas.errors.base import GanglineError
from ....schemas.records.jobs import DeadReason, JobState

EndState = Literal[JobState.DONE, JobState.DEAD, JobState.CANCELLED]


class StopReason(StrEnum):
    """Why a running task is stopped."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The job's deadline passed."""
    TIMED_OUT = "timed_out"
    """The attempt has run for its `timeout_s`."""


class RecordKind(StrEnum):
    """What is stored for a task."""

    TRY = "try"
    """The TryRecord of a failed attempt: `error`, `not_before`. The wait for the next attempt starts when it is
    stored."""
    CANCELLATION = "cancellation"
    """The TryRecord of a task that is cancelled but cannot be ended at once."""
    RESULT = "result"
    """The ResultRecord, done or cancelled; the first writer wins. Done: with the result of the last attempt."""
    DEAD_LETTER = "dead letter"
    """The dead letter, then the ResultRecord; broadcasts the event. Has `error` and `reason`."""
    SCHEDULE = "schedule"
    """The message goes back to the server until the submission's `not_before`, or as its `cron`."""


@dataclass(slots=True, kw_only=True)
class Fetch:
    """Request more messages from the consumer, in addition to earlier requests."""

    count: int


@dataclass(slots=True, kw_only=True)
class LookUpResult:
    """Read the job's ResultRecord; answer with Looked."""

    seq: int
    job: str


@dataclass(slots=True, kw_only=True)
class RequestSlots:
    """How many more slots the pool could use now, beyond the free ones. Replaces the pool's last RequestSlots. Above 8
    the number is rounded up, so that only large changes are sent. 0: no startable task waits for the pool; also sent
    first for a pool outside the route, so that PoolSeen follows for it."""

    pool: str
    slots: int
    largest: int
    """Slots of the next task: smaller leases are of no use now. 0 if `slots` is 0."""


@dataclass(slots=True, kw_only=True)
class StartAttempt:
    """Run the task on a lease of the pool that has `cost` free slots; answer with AttemptEnded."""

    seq: int
    job: str
    attempt: int
    """From 1."""
    pool: str
    cost: int
    """Slots; already deducted from the credit."""
    timeout_s: float | None
    """How long this attempt may run; the worker gets the earlier of this and the deadline."""
    deadline_at: float | None
    """Unix time until which the job may run."""


@dataclass(slots=True, kw_only=True)
class ReattachAttempt:
    """Wait for the end of an attempt that a worker already has; nothing is started and no credit is used. Answer with
    AttemptEnded."""

    seq: int
    job: str
    attempt: int
    worker: str
    """`<pool>.<worker>`"""
    timeout_s: float | None = None
    """How long this attempt may run."""


@dataclass(slots=True, kw_only=True)
class StopAttempt:
    """Tell the worker to cancel the attempt. AttemptEnded still follows, and may report success."""

    seq: int
    job: str
    attempt: int
    why: StopReason


@dataclass(slots=True, kw_only=True)
class Persist:
    """Store a record of the task; answer with Persisted, once."""

    seq: int
    job: str
    kind: RecordKind
    attempts: int = 0
    """For a cancellation: the number of failed attempts."""
    state: EndState = JobState.DEAD
    """How the task ended."""
    reason: DeadReason | None = None
    error: GanglineError | None = None
    """The last error."""
    not_before: float = 0.0
    """Unix time of the next attempt."""
    started_at: float | None = None
    """Unix time of the last attempt; None: it never started, or started before the takeover."""
    result_ttl_s: float = 0.0
    """How long the ResultRecord is kept; 0: store none."""


@dataclass(slots=True, kw_only=True)
class Ack:
    """Acknowledge the message; answer with Acked once the server has confirmed it. The shell may forget `seq`."""

    seq: int
    job: str
    tried: bool
    """Whether the job may have a TryRecord, which must be deleted."""
    end: JobState | None = None
    """How the task ended; None: before, or in another message."""


@dataclass(slots=True, kw_only=True)
class EmitJobEvent:
    """Publish a JobEvent that the job asked for. The shell adds the worker."""

    seq: int
    job: str
    state: JobState
    attempt: int
    at: float
    """Unix time."""
    error: GanglineError | None = None
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class SetQueueTimer:
    """Send a Tick at this time; replaces the last SetQueueTimer. None: no Tick is needed."""

    at: float | None


Effect = (
    Fetch
    | LookUpResult
    | RequestSlots
    | StartAttempt
    | ReattachAttempt
    | StopAttempt
    | Persist
    | Ack
    | EmitJobEvent
    | SetQueueTimer
)
