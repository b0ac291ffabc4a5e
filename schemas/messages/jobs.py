"""Requests about durable tasks and queues, and their answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, computed_field, model_validator

from ..limits import MAX_LISTED_JOBS, MAX_NAME_CHARS, MAX_RESULT_WAIT_S, MAX_TOKEN_CHARS, MAX_WAITED_JOBS
from ..names import is_name
from ..records.jobs import FailedTry, JobFailure, JobState, ResultRecord
from .operations import Reply, Request

JobId = Annotated[
    str, Field(min_length=1, max_length=2 * MAX_NAME_CHARS + 1, pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?$")
]


class JobRequest(Request):
    """`<ns>.queue.<endpoint>.{get,why}`"""

    job: JobId
    sequence: Annotated[int, Field(ge=0)] = 0
    """Of its message in the stream; 0: not known. With it, a job far back in the queue is found at once."""


class CancelRequest(JobRequest):
    """`<ns>.queue.<endpoint>.cancel`"""

    unscheduled: bool = False
    """The sender has cancelled the job before it was due, and removed its schedule: for the history."""


class WaitRequest(Request):
    """`<ns>.queue.<endpoint>.wait`: answered once, as soon as one of the jobs has a result."""

    jobs: tuple[JobId, ...] = Field(min_length=1, max_length=MAX_WAITED_JOBS)
    sequences: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Sequences of their messages in the stream, in the same order; 0, or none at all: not known."""
    wait_s: float = Field(default=2.0, ge=0, le=MAX_RESULT_WAIT_S)
    """Answered after this time at the latest."""
    client: str = Field(default="", max_length=MAX_TOKEN_CHARS)
    """Who waits: each client has a share of the dispatcher's room for waiting requests."""

    @model_validator(mode="after")
    def _has_a_sequence_for_each(self) -> Self:
        if self.sequences and len(self.sequences) != len(self.jobs):
            raise ValueError(f"{len(self.sequences)} sequences for {len(self.jobs)} jobs: give one for each, or none")
        return self


class WaitReply(Reply):
    """The jobs that it does not name have not ended: ask again."""

    results: tuple[ResultRecord, ...] = ()
    """As they are stored."""
    look_up: tuple[str, ...] = ()
    """Jobs that have ended with a result too large for this answer, or that are not in the queue: look them up."""
    unseen: tuple[str, ...] = ()
    """Jobs that the dispatcher has not read from the stream yet."""


class JobInfo(Reply):
    """What is known about one job. `model_dump(mode="json")` gives plain values, for JSON."""

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
    ended_at: float | None = None
    next_try_at: float | None = None
    error: JobFailure | None = None
    reason: str | None = None
    tries: tuple[FailedTry, ...] = ()
    """The last ten failed attempts, oldest first."""
    cron: str | None = None
    """It is a schedule: each of its runs is a job of its own."""
    schedule: str | None = None
    """It is a run of this schedule."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def title(self) -> str:
        """For people: of a run `<schedule>-<job>`, since its id is only a number. `find_job` and commands take it."""
        return title_of(self.job, self.schedule)


def title_of(job: str, schedule: str | None) -> str:
    """How people are shown a job, which may be a run of a schedule."""
    if schedule is None or not job.isdecimal():
        return job
    title = f"{schedule}-{job}"
    return title if is_name(title.rpartition(".")[2]) else job


def run_of(title: str) -> tuple[str, str] | None:
    """Schedule and id of the run with this title; None: no run can have it."""
    schedule, dash, job = title.rpartition("-")
    return (schedule, job) if dash and schedule and job.isascii() and job.isdecimal() else None


class ListRequest(Request):
    """`<ns>.queue.<endpoint>.list`: what its dispatcher has fetched, in the order of publication. Conditions that are
    not given match every job."""

    states: tuple[JobState, ...] = ()
    key: str | None = None
    schedule: JobId | None = None
    since: float | None = None
    """Unix time: only jobs submitted then or later."""
    prefix: str = Field(default="", max_length=2 * MAX_NAME_CHARS + 1)
    """The beginning of ids, or of their part after the endpoint."""
    after: Annotated[int, Field(ge=0)] = 0
    """`next` of the previous answer."""
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED_JOBS)] = MAX_LISTED_JOBS


class ListReply(Reply):
    jobs: tuple[JobInfo, ...] = ()
    """Errors in it have no details, and earlier attempts are left out: `get` has them."""
    next: int | None = None
    """There are more: ask again with this as `after`."""
    read_to: int = 0
    """The sequence up to which the dispatcher has read the stream. Beyond it, it knows only tasks that it has read
    ahead for tenants: they are not in `jobs`."""
    ahead: tuple[JobInfo, ...] = ()
    """Tasks beyond `read_to`, in any state, that meet the other conditions. The last page of `jobs` has the first of
    them. A field of its own: clients of earlier versions take the place of a job for how far the stream was read."""
    ahead_next: int | None = None
    """There are more in `ahead`: ask again with this as `after`."""
    recovering: bool = False
    """It is taking the queue over: tasks that are `queued` or `waiting` here may run."""


class CancelReply(Reply):
    cancelled: bool
    """False: it had already ended; `state` says how."""
    state: JobState


class JobObstacle(Reply):
    """Something that prevents a job from starting."""

    kind: Literal[
        "slots",
        "key",
        "method",
        "rate",
        "order",
        "backoff",
        "schedule",
        "no_workers",
        "pool_limit",
        "position",
        "paused",
    ]
    text: str
    """A sentence."""
    until: float | None = None
    """Unix time when it ends, if known."""
    jobs: tuple[str, ...] = ()
    """Jobs that it waits for (some of them)."""


class LineTask(Reply):
    """Tasks that go before a job in the line of its pool: neighbours that are alike."""

    method: str
    count: int = 1
    slots: int = 1
    """Of each."""
    at_most_s: float | None = None
    """How long each can take its slots at most, all its attempts together. None: not limited."""
    not_before: float | None = None
    """Unix time of the next attempt, if one failed."""
    once: bool = False
    """Each starts at its place, at most once."""


class LineRunning(Reply):
    """A running task of the queue, in the pool of the job."""

    seq: int
    """Sequence of its message in the stream."""
    method: str
    slots: int = 1
    worker: str = ""
    """`<pool>.<worker>`; empty: not known."""
    started_at: float | None = None
    """Unix time; None: before the dispatcher took the queue over."""
    at_most_s: float | None = None
    """How long it can take its slots from now on at most, with further attempts. None: not limited."""
    once: bool = False
    """It has no further attempt."""


class LineLease(Reply):
    """Slots of a worker that the queue has leased."""

    lease: str
    """Its public id."""
    worker: str
    """`<pool>.<worker>`"""
    slots: int


class JobLine(Reply):
    """What goes before a job that waits for slots, for `gangline when`."""

    pool: str
    method: str
    slots: int = 1
    """Slots that the job takes."""
    ahead: tuple[LineTask, ...] = ()
    """First the next one to start. Beyond the first MAX_LINE_TASKS they are in no order."""
    running: tuple[LineRunning, ...] = ()
    leases: tuple[LineLease, ...] = ()
    turns: bool = False
    """Tasks of other tenants wait, too, and tenants take turns."""
    router: str = ""
    """The dispatcher's, as in RouterQueues: what waits there are requests of queues."""
    most_running: int | None = None
    """How many tasks may run there at once. None: any number."""
    only_slots: bool = True
    """Nothing besides slots and `most_running` holds it and those ahead of it back: no rate, for example."""


class JobTurn(Reply):
    """What goes before a job that waits for its turn under a limit, or in the order of its key, for `gangline when`.
    Afterwards it waits for slots."""

    kind: Literal["key", "method", "order"]
    """As of its obstacle."""
    most_running: int = 1
    running: tuple[LineRunning, ...] = ()
    ahead: tuple[LineTask, ...] = ()
    """First the next one to start."""
    turns: bool = False
    """Tasks of other tenants wait for it, too, and tenants take turns."""
    last: bool = True
    """Nothing besides slots follows: no further limit."""
    line: JobLine
    """What would go before it if it had its turn."""


class JobWhyReply(Reply):
    job: JobInfo
    position: int | None = None
    """Number of jobs before it in the queue, as far as the dispatcher has read it."""
    obstacles: tuple[JobObstacle, ...] = ()
    line: JobLine | None = None
    """None: it does not wait for slots, or the dispatcher is of an earlier version."""
    turn: JobTurn | None = None
    """None: it does not wait for its turn, or the dispatcher is of an earlier version."""
    impaired: str = ""
    """What its dispatcher has no room to store, or may not do any more, so that tasks may be unable to end; empty:
    nothing."""


class QueueObstacle(StrEnum):
    """What a task in a queue waits for: the first of these that applies."""

    SCHEDULE = "schedule"
    """Its time has not come: the server keeps it, and it does not count for the depth. A schedule counts as one."""
    UNREAD = "unread"
    """The dispatcher has not fetched it: it has enough others."""
    BACKOFF = "backoff"
    """It failed, and its next attempt is not due."""
    PAUSED = "paused"
    """The route pauses the queue."""
    TAKEOVER = "takeover"
    """A dispatcher takes the queue over, or asks the server whether it still owns it."""
    ORDER = "order"
    """An older task of its ordered key has not ended."""
    SIZE = "size"
    """It needs more slots than any worker of its pool has."""
    WORKERS = "workers"
    """Its pool has no worker."""
    LIMIT = "limit"
    """A limit or rate of its key, its method, its route or its pool is reached."""
    SLOTS = "slots"
    """A slot of its pool must become free."""


PURGED: Final = (
    "removed from the stream, and still to run from the memory of the dispatcher: pause the queue and cancel"
)
"""What is said of such tasks."""


class QueueStats(Reply):
    """`<ns>.queue.<endpoint>.stats`"""

    endpoint: str
    dispatcher: str
    depth: int
    """Tasks in the stream, running ones included."""
    seen: int
    """Tasks that the dispatcher has pulled."""
    running: int
    waiting: int
    """Tasks that failed and wait for their next attempt."""
    blocked: int
    """Tasks that wait because of a limit or the order of their key."""
    credit: int
    """Slots leased for the queue that are idle."""
    leased: int
    oldest_s: float | None = None
    """Age of the oldest task that has not started."""
    done: int = 0
    """This count and those below start when the dispatcher takes the queue over."""
    dead: int = 0
    retried: int = 0
    since: float = 0.0
    """Unix time of the takeover."""
    paused: bool = False
    """Its route says so: nothing is started."""
    purged: int = 0
    """Tasks that somebody removed from the stream: they still run, and are lost if the dispatcher dies."""
    pending: dict[str, int] = Field(default_factory=dict)
    """Tasks that neither run nor have ended, by what they wait for (QueueObstacle), without zeros. Earlier versions do
    not say."""
    impaired: str = ""
    """What the dispatcher has no room to store, or may not do any more, so that tasks may be unable to end; empty:
    nothing."""
    unanswered: str = ""
    """Written by whoever asks: why nothing but `depth` and `oldest_s` is known, if the queue may have a dispatcher."""


class JobsRequest(Request):
    """`<ns>.worker.<pool>.<worker>.jobs`: which durable tasks of an endpoint (None: of all) are on the worker."""

    endpoint: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    after: str | None = Field(default=None, max_length=MAX_TOKEN_CHARS)
    """`next` of the previous answer, to get those that did not fit into it."""


class WorkerJob(Reply):
    job: str
    endpoint: str
    sequence: int = 0
    """Sequence of its message in the stream, if its dispatcher sent it."""
    attempt: int
    running: bool
    """False: it has ended, and its answer is still kept."""
    rank: int = 0
    """Its rank, if it runs on all ranks of a gang."""
    ranks: int = 0
    """The number of ranks, if it runs on all ranks of a gang; else 0."""
    pool: str = ""
    """The pool or standing set that it was sent to by name; empty: not given."""
    unstored: bool = False
    """The worker waits for an ACK of its outcome, or will when it ends."""


class JobsReply(Reply):
    epoch: int
    jobs: tuple[WorkerJob, ...] = ()
    """Running jobs, then those whose outcome is not stored yet, then other ended jobs, newest first."""
    next: str | None = None
    """There are more: ask again with this as `after`."""


class DispatcherStats(Reply):
    """`<ns>.dispatcher.<dispatcher>.{ping,stats}`"""

    dispatcher: str
    name: str = ""
    node: str = ""
    since: float = 0.0
    queues: tuple[QueueStats, ...] = ()
    """Only in answers to `stats`."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Since the start; only in answers to `stats`."""
