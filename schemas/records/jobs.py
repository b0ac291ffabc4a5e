"""What is known of durable tasks: records, and what passes about them between clients, dispatchers and workers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from .workers import Record


class JobState(StrEnum):
    """Where a job stands. The last three are final, and only they stand in a ResultRecord."""

    SCHEDULED = "scheduled"
    """The server keeps it until its time."""
    QUEUED = "queued"
    """In the stream; not started yet."""
    WAITING = "waiting"
    """It failed, and waits for its next try."""
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
    """No pool, standing set or route of that name appeared in the time allowed."""
    UNKNOWN_METHOD = "unknown_method"
    INVALID_ARGUMENTS = "invalid_arguments"
    INVALID_RESULT = "invalid_result"
    """It ran, and its result cannot be serialized; running it again would not help."""
    EXPIRED = "expired"
    """Its deadline passed."""
    FAILED = "failed"
    """It raised at its last attempt."""
    CRASHED = "crashed"
    """Its process died, or its worker vanished, at its last attempt."""
    TIMED_OUT = "timed_out"
    """It ran into its time-out at its last attempt."""
    IMPOSSIBLE = "impossible"
    """It takes more slots than any worker has, or a schedule that the server refused."""


class JobFailure(Record):
    """An error as records carry it."""

    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)


MOST_TRIES: Final = 10
"""Failed tries that are kept of a job: the last ones."""


class FailedTry(BaseModel):
    """One try of a job that failed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    attempt: int
    worker: str = ""
    """`<pool>.<worker>`."""
    started_at: float | None = None
    """Unix time; None: not known, another dispatcher began it."""
    ended_at: float = 0.0
    """Unix time."""
    error: JobFailure | None = None
    """Without a traceback, its message cut to 500 characters; of a task that raised, `details` has `type`."""


class ResultRecord(Record):
    """`result.<job>`: how a job ended. Written once: the first writer wins."""

    job: str
    endpoint: str
    method: str
    state: Literal[JobState.DONE, JobState.DEAD, JobState.CANCELLED]
    result: Any = None
    encoding: Literal["json", "msgpack"] = "json"
    """`msgpack`: `result` is base64 of msgpack, since the job was submitted so, and its bytes have no form in JSON."""
    object: str | None = None
    """The result is too large for a key: the body stands in the object store under this name, in `encoding`."""
    items: int | None = None
    """Of a task that yields: how many items stand in the job's feed."""
    reason: DeadReason | None = None
    error: JobFailure | None = None
    attempts: int = 0
    worker: str = ""
    """`<pool>.<worker>` that ran it last."""
    fence: int = 0
    """What the last attempt was given as its fence; 0: it was another dispatcher that started it."""
    submitted_at: float = 0.0
    """Unix time, likewise below."""
    started_at: float | None = None
    """Of the last attempt."""
    finished_at: float = 0.0
    trace: str | None = None
    tries: tuple[FailedTry, ...] = ()
    """That failed: the last ten, oldest first."""


class TryRecord(Record):
    """`try.<endpoint>.<job>`: a job that was started and did not succeed, so far. Written before the next try waits,
    and when one is cancelled that cannot be ended at once."""

    job: str
    sequence: int
    attempts: int
    not_before: float
    """Unix time of the next."""
    error: JobFailure | None = None
    cancelled: bool = False
    """Somebody was told that it is cancelled: there shall be no next, and what runs is being stopped."""
    tries: tuple[FailedTry, ...] = ()
    """That failed: the last ten, oldest first."""


class TurnRecord(Record):
    """`turn.<endpoint>`: which dispatcher took the endpoint's queue last. Written before it starts anything: fences of
    durable tasks are the revision of this plus the attempt."""

    dispatcher: str
    at: float


class JobEvent(Record):
    """`<ns>.job.<job>.state`: told when the job asked for it (`Gangline-Events`), and of those that yield."""

    job: str
    state: JobState
    attempt: int = 0
    worker: str = ""
    at: float
    error: JobFailure | None = None
    reason: str | None = None


class JobProgress(Record):
    """`<ns>.job.<job>.progress`: what a task said with `current_task().progress(...)`."""

    job: str
    attempt: int
    number: int
    """From 1 within an attempt."""
    at: float
    value: Any = None


class JobItem(Record):
    """`<ns>.job.<job>.item`: one item that the task yielded. A retry yields from the beginning: items of an older
    attempt do not count."""

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
    """`here` comes every second."""
    queues: tuple[str, ...] = ()
    """Of `handed_over`: endpoints whose queues are free now."""
    has: int = 0
    """How many queues it has."""
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
    """In the stream of tasks, where it is no longer."""
    at: float
    trace: str | None = None
