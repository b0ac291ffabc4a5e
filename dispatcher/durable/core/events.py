"""What can happen to one endpoint's queue. Time and randomness come with the event; the core has neither of its own.

The order of a takeover: `Routed` and `PoolSeen` as they are known, then `QueueTaken`; then, in any order, `TaskArrived`
and `Malformed` (as they come), `Looked` and `TaskAdopted`; then `Recovered`. Tasks are started, retried, expired and
cancelled only after that. One core serves one term of ownership: when the queue is lost, drop the core and all effects
that are under way, and make another core after the next takeover.

Events and effects are never changed. They are not frozen, since each task takes ten of them, and a frozen one takes
twice as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.routes import RouteRecord
from .effects import RecordKind


@dataclass(slots=True, kw_only=True)
class QueueEvent:
    now: float
    """Seconds of a monotonic clock; never less than in the event before."""
    wall: float
    """Unix time. Converts the Unix times of others (deadlines, `not_before`) to the monotonic clock, and back."""
    draw: float = 0.5
    """Random, from [0, 1): chooses the pool of what arrives, and the jitter of a retry."""


# -- taking over ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class QueueTaken(QueueEvent):
    """The queue is ours: our consumer exists. Fetching starts."""

    waiting: int | None = None
    """Messages of the queue in the stream, counted after that; None: not counted."""


@dataclass(slots=True, kw_only=True)
class TaskAdopted(QueueEvent):
    """A worker has a job, which runs, or has ended with its answer still kept. At any time before `Recovered`; later it
    counts, too, unless the task was started again meanwhile. The dispatcher attaches to the task, and does not start
    it, once it has arrived. If two workers have the job, the higher attempt counts."""

    job: str
    worker: str
    """`<pool>.<worker>`"""
    attempt: int
    pool: str = ""
    """Pool that it counts in; empty: that of the worker."""


@dataclass(slots=True, kw_only=True)
class Recovered(QueueEvent):
    """Every worker that may run tasks of this endpoint has answered, or its heartbeat has expired. And all messages
    that the predecessor had in hand have arrived: as many as were fetched, or all that the consumer has.

    All running tasks of a predecessor are among the first `window_tasks` messages of the stream. So if all dispatchers
    have the same window, everything that runs is known now, and counts against limits.
    """


@dataclass(slots=True, kw_only=True)
class OwnershipDoubted(QueueEvent):
    """The queue may be another's now: the process was frozen, or the connection was lost. Nothing is started, stored or
    acknowledged until `OwnershipConfirmed`; then it is."""


@dataclass(slots=True, kw_only=True)
class OwnershipConfirmed(QueueEvent):
    """After the last `OwnershipDoubted` the server has confirmed that our consumer exists. (If not, drop the core.)"""


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TaskArrived(QueueEvent):
    """The consumer delivered a message. A redelivery does no harm: it is acknowledged again if it was before. So is a
    message whose job is in the queue already under another sequence, and nothing is started for it."""

    seq: int
    submission: Submission
    size: int
    """Bytes that the dispatcher keeps for it, subject and headers included."""
    look: bool = False
    """It may have ended before: look its result up first. True up to the stream's last sequence at the takeover, and if
    another message may have used the job id: an id made from an idempotency key, or a firing of a schedule."""
    attempts: int = 0
    """From its TryRecord; without one, from its submission."""
    not_before: float = 0.0
    """Unix time of its next attempt, from its TryRecord."""
    cancelled: bool = False
    """Its TryRecord says that its cancellation was confirmed."""


@dataclass(slots=True, kw_only=True)
class Malformed(QueueEvent):
    """The consumer delivered a message that is no task: its subject, a header or its schedule is invalid."""

    seq: int
    size: int
    error: GanglineError
    job: str = ""
    """Its id if that could be read; otherwise the sequence is used."""
    published_at: float = 0.0
    """Unix time."""


@dataclass(slots=True, kw_only=True)
class Looked(QueueEvent):
    """Answers LookUpResult."""

    seq: int
    finished: bool
    """The job has a ResultRecord."""


@dataclass(slots=True, kw_only=True)
class Acked(QueueEvent):
    """The server confirmed an Ack. Until then the core remembers the sequence, so that a late redelivery does not run
    again, and counts it in the window."""

    seq: int


# -- what workers report ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SlotsGranted(QueueEvent):
    """Free slots in a pool, on leases that are valid now. Replaces the last one and what the core has deducted since.
    Sent whenever a lease comes, goes, changes or is retired, and just before the `AttemptEnded` of a task that used a
    slot (afterwards, the core would briefly request more slots). Not needed after StartAttempt: the core has deducted
    its cost from the smallest lease that had room; if the shell used another one, it sends SlotsGranted again."""

    pool: str
    free: tuple[int, ...]
    """Free slots of each lease; in any order, zeros may be left out."""


@dataclass(slots=True, kw_only=True)
class AttemptEnded(QueueEvent):
    """Answers StartAttempt and ReattachAttempt exactly once, also after a StopAttempt. The shell keeps the result
    itself, under `seq`, until Ack."""

    seq: int
    attempt: int
    """That of the effect; others are ignored."""
    error: GanglineError | None = None
    """None: it succeeded. Otherwise retry_policy.classify decides. ResultLost: the attempt to attach to is unknown."""
    once: bool = False
    """The worker does not declare it idempotent: known of the attempt before it is known of the pool."""


# -- what the server has stored ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Persisted(QueueEvent):
    """Answers Persist: the server has the record. A ResultRecord may be another writer's who was first, and there is
    none if none was wanted."""

    seq: int
    kind: RecordKind
    error: GanglineError | None = None
    """Of a schedule: the server will never take it. InvalidSchedule: dead "malformed"; others: dead "impossible"."""


# -- people and settings ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Cancel(QueueEvent):
    """Somebody cancels a job. Afterwards `QueueCore.info(job)` tells: None: it is unknown here; final: too late;
    otherwise it will be cancelled unless it ends first. Confirm it when `QueueCore.promised(job)`: then no takeover
    forgets it."""

    job: str


@dataclass(slots=True, kw_only=True)
class Routed(QueueEvent):
    """The endpoint's route, at first and whenever it changes. Tasks that have not started choose their pools again
    (with their old draw, so that few of them move)."""

    route: RouteRecord
    explicit: bool
    """It is in the bucket. Otherwise it is the default, `RouteRecord()`."""


@dataclass(slots=True, kw_only=True)
class PoolSeen(QueueEvent):
    """What is known of a pool, whenever it changes: of each pool of the route, and of each that a RequestSlots named
    (also one for no slots)."""

    pool: str
    known: bool
    """A worker of it lives, or is registered, or has been since the dispatcher started. An endpoint that has neither an
    explicit route nor a known pool is unknown, and its tasks are dead after `unknown_after_s`."""
    workers: int = 0
    """How many live."""
    largest: int = 0
    """The most slots of one living worker; 0: none lives."""
    costs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slots that a task takes, by method; 1 if not given."""
    once: frozenset[str] = frozenset()
    """Methods not declared idempotent: their tasks are started once, unless they say otherwise."""


@dataclass(slots=True, kw_only=True)
class Tick(QueueEvent):
    """The time of the last SetQueueTimer has come. Extra ticks do no harm."""


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
    | Persisted
    | Cancel
    | Routed
    | PoolSeen
    | Tick
)
