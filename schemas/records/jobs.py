"""Records of durable tasks, and messages about them between clients, dispatchers and workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from .workers import Record

_SAME_S: Final = 2e-6
"""Tolerance: the server writes the time at which a message was stored with nine digits or fewer."""


class JobState(StrEnum):
    """State of a job. The last three are final, and only they occur in a ResultRecord."""

    SCHEDULED = "scheduled"
    """The server holds it until its time."""
    QUEUED = "queued"
    """In the stream; not started yet."""
    WAITING = "waiting"
    """It failed and waits for its next attempt."""
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobState.DONE, JobState.DEAD, JobState.CANCELLED)


class DeadReason(StrEnum):
    """Why a task became a dead letter."""

    MALFORMED = "malformed"
    """Subject, headers or body cannot be understood."""
    UNKNOWN_ENDPOINT = "unknown_endpoint"
    """No pool, standing set or route of that name appeared in time."""
    UNKNOWN_METHOD = "unknown_method"
    INVALID_ARGUMENTS = "invalid_arguments"
    INVALID_RESULT = "invalid_result"
    """It ran, and its result cannot be serialized; running it again would not help."""
    EXPIRED = "expired"
    """Its deadline has passed."""
    FAILED = "failed"
    """It raised at its last attempt."""
    CRASHED = "crashed"
    """Its process died, or its worker was lost, at its last attempt."""
    TIMED_OUT = "timed_out"
    """Its last attempt timed out."""
    IMPOSSIBLE = "impossible"
    """It needs more slots than any worker has, or the server refused its schedule."""
    REFUSED = "refused"
    """Its tenant's quotas do not allow it: the error is `quota_exceeded` or `not_entitled`."""
    REMOVED = "removed"
    """Somebody removed the stream of tasks while it waited or ran."""


class JobFailure(Record):
    """An error, as stored in records."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


MOST_TRIES: Final = 10
"""Number of failed attempts that are kept per job: the last ones."""


class FailedTry(BaseModel):
    """One failed attempt of a job."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    attempt: int
    worker: str = ""
    """`<pool>.<worker>`."""
    started_at: float | None = None
    """Unix time; None: unknown, because another dispatcher started it."""
    ended_at: float = 0.0
    """Unix time."""
    error: JobFailure | None = None
    """Without a traceback, its message cut to 500 characters; if the task raised, `details` has `type`."""


class ResultRecord(Record):
    """`result.<job>`: the outcome of a job. Written once: the first writer wins."""

    job: str
    endpoint: str
    method: str
    state: Literal[JobState.DONE, JobState.DEAD, JobState.CANCELLED]
    result: Any = None
    encoding: Literal["json", "msgpack"] = "json"
    """`msgpack`: `result` is base64 of msgpack, because the job was submitted in msgpack, or JSON would lose something
    of it."""
    object: str | None = None
    """If the result is too large for a key: the name of the object in the object store that has the body, in
    `encoding`."""
    items: int | None = None
    """Of a task that yields: the number of items in the job's feed."""
    reason: DeadReason | None = None
    error: JobFailure | None = None
    attempts: int = 0
    worker: str = ""
    """`<pool>.<worker>` that ran it last."""
    fence: int = 0
    """Fence of the last attempt; 0: another dispatcher started it."""
    submitted_at: float = 0.0
    """Unix time; so are those below."""
    started_at: float | None = None
    """Start of the last attempt."""
    finished_at: float = 0.0
    trace: str | None = None
    tries: tuple[FailedTry, ...] = ()
    """The last ten failed attempts, oldest first."""
    key: str | None = None
    schedule: str | None = None
    """The schedule that it is a run of."""

    def covers(self, stored_at: float, *, within_s: float = _SAME_S) -> bool:
        """Whether it tells the end of a message stored at that Unix time, and not only of an earlier one of its id.

        Args:
            within_s: how far the time may be rounded.
        """
        return self.submitted_at > stored_at - within_s


class TryRecord(Record):
    """`try.<endpoint>.<job>`: a job whose attempts have failed so far. Written before it waits for the next attempt,
    and when a job is cancelled that cannot end at once."""

    job: str
    sequence: int
    attempts: int
    not_before: float
    """Unix time of the next attempt."""
    error: JobFailure | None = None
    cancelled: bool = False
    """It was cancelled, and the cancellation confirmed: there must be no further attempt, and a running one is being
    stopped."""
    tries: tuple[FailedTry, ...] = ()
    """The last ten failed attempts, oldest first."""


class TurnRecord(Record):
    """`turn.<endpoint>`: the dispatcher that took the endpoint's queue last. Written before it starts anything: the
    fence of a durable task is the revision of this record plus the attempt."""

    dispatcher: str
    at: float


class JobEvent(Record):
    """`<ns>.job.<job>.state`: published if the job asked for it (`Gangline-Events`), and for jobs that yield."""

    job: str
    state: JobState
    attempt: int = 0
    worker: str = ""
    at: float
    error: JobFailure | None = None
    reason: str | None = None


class JobProgress(Record):
    """`<ns>.job.<job>.progress`: a report by the task with `current_task().progress(...)`."""

    job: str
    attempt: int
    number: int
    """From 1 within an attempt."""
    at: float
    value: Any = None
    packed: str | None = None
    """The value as base64 of msgpack, if JSON loses something of it (bytes, infinities, keys that are not text)."""


class JobItem(Record):
    """`<ns>.job.<job>.item`: one item that the task yielded. A retry yields from the beginning, so items of older
    attempts do not count."""

    job: str
    attempt: int
    index: int
    value: Any = None
    encoding: Literal["json", "msgpack"] = "json"


# -- queues -----------------------------------------------------------------------------------------------------------


# -- workers ----------------------------------------------------------------------------------------------------------


# -- dispatchers ------------------------------------------------------------------------------------------------------


class DispatcherEvent(Record):
    """`<ns>.event.dispatcher.<dispatcher>`"""

    dispatcher: str
    event: Literal["joined", "here", "handed_over", "left"]
    """`here` is sent every second."""
    queues: tuple[str, ...] = ()
    """With `handed_over`: endpoints whose queues are free now."""
    has: int = 0
    """Number of queues it owns."""
    at: float


class TaskDeadEvent(Record):
    """`<ns>.event.task.<endpoint>`: a task became a dead letter."""

    job: str
    endpoint: str
    method: str
    reason: DeadReason
    attempts: int
    error: JobFailure | None = None
    sequence: int | None = None
    """Sequence that it had in the task stream, from which it is removed."""
    at: float
    trace: str | None = None
