"""What can happen to one endpoint's queue. Time and chance arrive in the event; the core has neither of its own.

The order in which a shell tells of a takeover: `Routed` and `PoolSeen` as they are known, `QueueTaken`; then, in any
order, `TaskArrived` / `Malformed` (as they come), `Looked`, `TaskAdopted`; then `Recovered`. Only then tasks are
started, retried, expired and cancelled. One core serves one possession of the queue: when the queue is lost, drop the
core and all that it asked for, and make another after the next takeover.

Nobody changes an event, nor an effect. They are not frozen all the same, since there are ten of them for each task, and
to fill in a frozen one takes twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.routes import RouteRecord


@dataclass(slots=True, kw_only=True)
class QueueEvent:
    now: float
    """Seconds of a monotonic clock; never less than in the event before."""
    wall: float
    """Unix time. Used to turn Unix times of others (deadlines, `not_before`) into ours, and ours into theirs."""
    draw: float = 0.5
    """A fresh draw from [0, 1): chooses the pool of what arrives, and the jitter of a retry."""


# -- taking over ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class QueueTaken(QueueEvent):
    """The queue is ours: our consumer was made. The first event but for `Routed` and `PoolSeen`; pulling begins."""

    waiting: int | None = None
    """Messages of the queue in the stream, counted after that; None: not counted."""


@dataclass(slots=True, kw_only=True)
class TaskAdopted(QueueEvent):
    """A worker said that a job is there, running, or ended with its answer still kept. At any time before `Recovered`
    (later it is honoured, too, unless the task was started anew meanwhile). The task is attached to, not started, as
    soon as it has arrived; of two workers with one job the higher attempt counts."""

    job: str
    worker: str
    """`<pool>.<worker>`; named again in Attach."""
    attempt: int
    pool: str = ""
    """In which it counts; empty: that of the worker."""


@dataclass(slots=True, kw_only=True)
class Recovered(QueueEvent):
    """Both are true: every worker that may run tasks of this endpoint was asked and has answered, or its heartbeat has
    expired; and what the predecessor had in hand has arrived: as much as was pulled has come, or the consumer says that
    nothing is pending and all that it delivered has come.

    A predecessor had no more tasks running than stand in the first `window_tasks` messages of the stream, so with the
    same window in every dispatcher all that runs is known now, and counted against limits.
    """


@dataclass(slots=True, kw_only=True)
class OwnershipDoubted(QueueEvent):
    """Whether the queue is still ours is not sure (the process was frozen, or the connection was away). Nothing is
    started, stored, noted, buried, scheduled or acknowledged until `OwnershipConfirmed`; what would have been comes
    then."""


@dataclass(slots=True, kw_only=True)
class OwnershipConfirmed(QueueEvent):
    """The server said, after the last `OwnershipDoubted`, that our consumer is there. (If it is not: drop the core.)"""


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TaskArrived(QueueEvent):
    """The consumer delivered a message. The same sequence again (redelivery) does no harm: what was acknowledged is
    acknowledged once more, else nothing. One whose job is in the queue already under another sequence is acknowledged,
    and nothing is started for it."""

    seq: int
    submission: Submission
    size: int
    """Bytes that the dispatcher keeps for it, subject and headers included."""
    look: bool = False
    """It may have ended before: look its result up before anything is done. True for every sequence up to the stream's
    last at takeover, and for every message whose job id may have been used by another message: ids made of an
    idempotency key, and what a schedule fired with the job of its submission."""
    attempts: int = 0
    """As its TryRecord says; without one, as its submission says."""
    not_before: float = 0.0
    """Unix time of its next try, as its TryRecord says."""
    cancelled: bool = False
    """Its TryRecord says that somebody was told that it is cancelled."""


@dataclass(slots=True, kw_only=True)
class Malformed(QueueEvent):
    """The consumer delivered a message that is no task: the subject, a header or a schedule cannot be understood."""

    seq: int
    size: int
    error: GanglineError
    """Its text says what is wrong."""
    job: str = ""
    """Its id, if that at least could be read; else the sequence is."""
    published_at: float = 0.0
    """Unix time."""


@dataclass(slots=True, kw_only=True)
class Looked(QueueEvent):
    """Answers Look."""

    seq: int
    finished: bool
    """A ResultRecord of the job stands in the bucket."""


@dataclass(slots=True, kw_only=True)
class Acked(QueueEvent):
    """The server confirmed an Ack. Until then the sequence is remembered, so that a late redelivery is not run again,
    and counts in the window."""

    seq: int


# -- what workers say -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SlotsGranted(QueueEvent):
    """What is free, on leases that are good now, to start tasks with in a pool. Absolute: it replaces what was said
    before and what the core has counted since. Tell it whenever a lease comes, goes, grows or is retired, and of a task
    that used a slot just before its `AttemptEnded` (after it, the core would want more slots for an instant). Not
    needed after Start: the core has deducted that, from the smallest lease that had room; if the shell took another, it
    says so by telling SlotsGranted again."""

    pool: str
    free: tuple[int, ...]
    """Free slots of each lease; in any order, zeros may be left out."""


@dataclass(slots=True, kw_only=True)
class AttemptEnded(QueueEvent):
    """A try is over: answers Start and Attach, exactly once, whatever happened (a Stop does not change that).

    The result itself does not pass through the core: the shell keeps it under `seq` until Ack.
    """

    seq: int
    attempt: int
    """That of the Start or Attach; others are ignored."""
    error: GanglineError | None = None
    """None: it succeeded. Else see retry_policy.classify, which says what becomes of it. A job that an Attach did not
    find any more: ResultLost."""
    once: bool = False
    """The worker does not declare it idempotent: known of the try before it is known of the pool."""


# -- what the server has stored ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Noted(QueueEvent):
    """Answers Note: the TryRecord is stored."""

    seq: int


@dataclass(slots=True, kw_only=True)
class Marked(QueueEvent):
    """Answers Mark: the TryRecord is stored."""

    seq: int


@dataclass(slots=True, kw_only=True)
class Stored(QueueEvent):
    """Answers Store: a ResultRecord of the job stands in the bucket (ours, or that of somebody who was first), or none
    is wanted (`result_ttl_s` 0)."""

    seq: int


@dataclass(slots=True, kw_only=True)
class Buried(QueueEvent):
    """Answers Bury: the dead letter is in its stream, and the ResultRecord in its bucket."""

    seq: int


@dataclass(slots=True, kw_only=True)
class Scheduled(QueueEvent):
    """Answers Schedule: the server has the schedule."""

    seq: int


@dataclass(slots=True, kw_only=True)
class ScheduleRefused(QueueEvent):
    """Answers Schedule: the server will never take it, and says why. InvalidSchedule: dead "malformed"; another
    error: dead "impossible"."""

    seq: int
    error: GanglineError


# -- people and settings ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Cancel(QueueEvent):
    """Somebody asks that a job be cancelled. What came of it: `QueueCore.info(job)` afterwards: None, unknown here;
    final, too late; else it will be cancelled unless it ends first. Whoever asked may be told so when
    `QueueCore.promised(job)`: then no takeover forgets it."""

    job: str


@dataclass(slots=True, kw_only=True)
class Routed(QueueEvent):
    """The endpoint's route, at the beginning and whenever it changes. Tasks that have not started are drawn anew (with
    their old draw, so that few of them move)."""

    route: RouteRecord
    explicit: bool
    """It stands in the bucket; else it is the default, and `route` is `RouteRecord()`."""


@dataclass(slots=True, kw_only=True)
class PoolSeen(QueueEvent):
    """What is known of a pool, whenever it changes: of each pool of the route, and of each that a Want named (also one
    that wants nothing)."""

    pool: str
    known: bool
    """A worker of it lives, or is registered, or was since the dispatcher began. An endpoint that has neither an
    explicit route nor a known pool is unknown, and what arrives for it is dead after `unknown_after_s`."""
    workers: int = 0
    """How many live."""
    largest: int = 0
    """Most slots that one living worker has; 0: none lives."""
    costs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slots that a task takes, by method; 1 for one that is not told."""
    once: frozenset[str] = frozenset()
    """Methods that are not declared idempotent: their tasks are started once, if nothing else is said."""


@dataclass(slots=True, kw_only=True)
class Tick(QueueEvent):
    """The time of the last Wake has come. Ticks too many do no harm."""


AnyEvent = (
    QueueTaken
    | TaskAdopted
    | Recovered
    | OwnershipDoubted
    | OwnershipConfirmed
    | TaskArrived
    | Malformed
    | Looked
    | Acked
    | SlotsGranted
    | AttemptEnded
    | Noted
    | Marked
    | Stored
    | Buried
    | Scheduled
    | ScheduleRefused
    | Cancel
    | Routed
    | PoolSeen
    | Tick
)
