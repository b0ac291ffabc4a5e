"""What the queue's core wants done. Effects of one event are carried out in order; each is begun before the next, none
need be finished.

What must precede what is built into the order of events: an Ack is in the world only after the end of the task was
stored (Stored, Buried, Scheduled, or a LookUpResult that found it; or the message only repeats a job that is in the
queue); a second StartAttempt only after the Ended of the first and the Noted of its failure. Store, Bury, Note, Mark
and Schedule are repeated by the shell, through lost connections and storage that is away, until the server has stored
them or the queue is lost; each is answered exactly once. TryRecords of one job are written in the order asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ....schemas.errors.base import GanglineError
from ....schemas.records.jobs import DeadReason, JobState


class StopReason(StrEnum):
    """Why a running task is stopped."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The job's deadline passed."""
    TIMED_OUT = "timed_out"
    """The try has run for its `timeout_s`."""


@dataclass(slots=True, kw_only=True)
class Fetch:
    """Ask the consumer for so many more messages. Adds up: `Consumer.pull(count)`."""

    count: int


@dataclass(slots=True, kw_only=True)
class LookUpResult:
    """Read the job's ResultRecord; answer with Looked."""

    seq: int
    job: str


@dataclass(slots=True, kw_only=True)
class RequestSlots:
    """So many more slots could be used in the pool now, beyond the credit that is free. Absolute; replaces the
    RequestSlots of that pool before. Not exact above 8: told again only when it has changed much. 0: nothing waits for
    the pool that could start; told first of a pool that is not in the route, so that PoolSeen is told of it."""

    pool: str
    slots: int
    largest: int
    """Slots that the next task takes: a lease with fewer is of no use now. 0 with `slots` 0."""


@dataclass(slots=True, kw_only=True)
class StartAttempt:
    """Run the task on a lease of that pool that has `cost` free slots; answer with Ended."""

    seq: int
    job: str
    attempt: int
    """From 1."""
    pool: str
    cost: int
    """Slots; already deducted from the credit."""
    timeout_s: float | None
    """How long this try may run; the worker is told whichever ends first of this and the deadline."""
    deadline_at: float | None
    """Unix time until which the job may run."""


@dataclass(slots=True, kw_only=True)
class ReattachAttempt:
    """Be told how the try ends that a worker has; nothing is started. Answer with Ended. It takes no credit."""

    seq: int
    job: str
    attempt: int
    worker: str
    """`<pool>.<worker>`"""


@dataclass(slots=True, kw_only=True)
class StopAttempt:
    """Have the worker cancel the try. It ends with Ended all the same, which may tell of success."""

    seq: int
    job: str
    attempt: int
    why: StopReason


@dataclass(slots=True, kw_only=True)
class Note:
    """Write the TryRecord; answer with Noted. Only then the wait for the next try counts."""

    seq: int
    job: str
    attempts: int
    not_before: float
    """Unix time of the next try."""
    error: GanglineError
    started_at: float | None = None
    """Unix time, of the try that failed; None: it began before the takeover."""


@dataclass(slots=True, kw_only=True)
class Mark:
    """Write the TryRecord, as one that is cancelled; answer with Marked. For a task that cannot be ended at once."""

    seq: int
    job: str
    attempts: int
    """That failed."""


@dataclass(slots=True, kw_only=True)
class Store:
    """Create the ResultRecord (first writer wins; the loser's is dropped); answer with Stored."""

    seq: int
    job: str
    state: Literal[JobState.DONE, JobState.CANCELLED]
    """DONE: with the result of the last Ended."""
    attempts: int
    started_at: float | None
    """Unix time, of the last try; None if it never started (or before the takeover)."""
    result_ttl_s: float
    """How long the record is kept; 0: none is wanted."""


@dataclass(slots=True, kw_only=True)
class Bury:
    """Publish the dead letter, create the ResultRecord, broadcast the event; answer with Buried."""

    seq: int
    job: str
    reason: DeadReason
    error: GanglineError
    """The last."""
    attempts: int
    started_at: float | None
    result_ttl_s: float


@dataclass(slots=True, kw_only=True)
class Schedule:
    """Give the message back to the server, as a schedule: `not_before` or `cron` of its submission; answer with
    Scheduled or ScheduleRefused."""

    seq: int
    job: str


@dataclass(slots=True, kw_only=True)
class Ack:
    """Acknowledge the message; answer with Acked once the server has confirmed it. What the shell keeps of `seq` is not
    needed any more."""

    seq: int
    job: str
    tried: bool
    """A TryRecord of the job may stand: delete it."""


@dataclass(slots=True, kw_only=True)
class EmitJobEvent:
    """Publish a JobEvent: the job asked for it. The shell adds the worker."""

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
    """Send a Tick at this time; replaces the SetQueueTimer before. None: no Tick is needed."""

    at: float | None


Effect = (
    Fetch
    | LookUpResult
    | RequestSlots
    | StartAttempt
    | ReattachAttempt
    | StopAttempt
    | Note
    | Mark
    | Store
    | Bury
    | Schedule
    | Ack
    | EmitJobEvent
    | SetQueueTimer
)
