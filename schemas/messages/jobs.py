"""Requests about durable tasks and queues, and what is answered."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..limits import MAX_NAME_CHARS
from ..records.jobs import FailedTry, JobFailure, JobState
from .operations import Reply, Request


class JobRequest(Request):
    """`<ns>.queue.<endpoint>.{get,cancel,why}`"""

    job: str = Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[A-Za-z0-9_-]+$")


class JobInfo(Reply):
    """What is known of one job now."""

    job: str
    endpoint: str
    method: str = ""
    state: JobState
    attempts: int = 0
    worker: str = ""
    sequence: int | None = None
    priority: int = 0
    key: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    next_try_at: float | None = None
    error: JobFailure | None = None
    reason: str | None = None
    tries: tuple[FailedTry, ...] = ()
    """That failed: the last ten, oldest first."""


class CancelReply(Reply):
    cancelled: bool
    """False: it had ended already; `state` says how."""
    state: JobState


class JobObstacle(Reply):
    """One thing that stands in a job's way."""

    kind: Literal[
        "slots", "key", "rate", "order", "backoff", "schedule", "no_workers", "pool_limit", "position", "paused"
    ]
    text: str
    """A sentence."""
    until: float | None = None
    """Unix time when it ends, if that is known."""
    jobs: tuple[str, ...] = ()
    """Jobs that are in the way (some of them)."""


class JobWhyReply(Reply):
    job: JobInfo
    position: int | None = None
    """How many of its queue go before it, as far as the dispatcher has looked."""
    obstacles: tuple[JobObstacle, ...] = ()


class QueueStats(Reply):
    """`<ns>.queue.<endpoint>.stats`"""

    endpoint: str
    dispatcher: str
    depth: int
    """Tasks in the stream, running ones included."""
    seen: int
    """... that the dispatcher has pulled."""
    running: int
    waiting: int
    """... that failed and wait for their next try."""
    blocked: int
    """... that a limit or the order of their key keeps back."""
    credit: int
    """Slots leased for the queue and free now."""
    leased: int
    oldest_s: float | None = None
    """Age of the oldest that has not started."""
    done: int = 0
    """Counts since the dispatcher took the queue over, likewise below."""
    dead: int = 0
    retried: int = 0
    since: float = 0.0
    """Unix time when it did."""


class JobsRequest(Request):
    """`<ns>.worker.<pool>.<worker>.jobs`: which durable tasks of an endpoint (None: all) are here."""

    endpoint: str | None = None
    after: str | None = None
    """`next` of the answer before, for those that had no room in it."""


class WorkerJob(Reply):
    job: str
    endpoint: str
    sequence: int = 0
    """Of its message in the stream, if its dispatcher said so."""
    attempt: int
    running: bool
    """False: it ended, and its answer is still kept."""
    rank: int = 0
    """Of the gang on which it runs, if it runs on all of its ranks."""
    ranks: int = 0
    """On how many ranks of a gang it runs, if on all of them; else 0."""
    pool: str = ""
    """The pool or standing set that it was sent to by name; empty: not said."""
    unstored: bool = False
    """The worker waits for an ACK of its end, or will when it ends."""


class JobsReply(Reply):
    epoch: int
    jobs: tuple[WorkerJob, ...] = ()
    """What runs, then ends that nobody has stored yet, then what else ended, the newest end first."""
    next: str | None = None
    """There are more: ask again with this as `after`."""


class DispatcherStats(Reply):
    """`<ns>.dispatcher.<dispatcher>.{ping,stats}`"""

    dispatcher: str
    name: str = ""
    node: str = ""
    since: float = 0.0
    queues: tuple[QueueStats, ...] = ()
    """Of `stats` only."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Since the start; of `stats` only."""
