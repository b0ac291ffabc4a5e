"""The events of one endpoint's queue. Time and randomness come with the event; the core has neither of its own.

The order of a takeover: `Routed` and `PoolSeen` as they become known, then `QueueTaken`; then, in any order,
`TaskArrived` and `Malformed` (as they arrive), `Looked` and `TaskAdopted`; then `Recovered`. Only after that are tasks
started, retried, expired and cancelled. One core serves one term of ownership: when the queue is lost, drop the core
and all effects in progress, and create another core after the next takeover.

Events and effects are never changed. They are not frozen, since each task needs ten of them, and a frozen one takes
twice as long to create.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.routes import RouteRecord
from ....schemas.records.workers import TaskPolicy
from .effects import RecordKind


@dataclass(slots=True, kw_only=True)
class QueueEvent:
    now: float
    """Seconds of a monotonic clock; never less than in the previous event."""
    wall: float
    """Unix time. Converts the Unix times of others (deadlines, `not_before`) to the monotonic clock, and back."""
    draw: float = 0.5
    """Random, from [0, 1): chooses the pool of a new task, and the jitter of a retry."""


# -- taking over ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class QueueTaken(QueueEvent):
    """The queue is ours: our consumer exists. Fetching starts."""

    waiting: int | None = None
    """Messages of the queue in the stream, counted after the takeover; None: not counted."""


@dataclass(slots=True, kw_only=True)
class TaskAdopted(QueueEvent):
    """A worker has a job that runs, or that has ended with its answer still kept. Comes before `Recovered`; later, it
    counts only if the task was not started again meanwhile. When the task arrives, the dispatcher attaches to it and
    does not start it. If two workers have the job, the higher attempt counts."""

    job: str
    worker: str
    """`<pool>.<worker>`"""
    attempt: int
    pool: str = ""
    """Pool that it counts for; empty: that of the worker."""


@dataclass(slots=True, kw_only=True)
class Recovered(QueueEvent):
    """Every worker that may run tasks of this endpoint has answered, or its heartbeat has expired. And all messages
    that the previous owner had fetched have arrived: as many as were fetched, or all that the consumer has.

    All running tasks of a previous owner are among the first `window_tasks` messages of the stream. So if all
    dispatchers have the same window, all running tasks are known now and count against limits.
    """


@dataclass(slots=True, kw_only=True)
class OwnershipDoubted(QueueEvent):
    """Another dispatcher may own the queue now: the process was frozen, or the connection was lost. Nothing is started,
    stored or acknowledged until `OwnershipConfirmed`."""


@dataclass(slots=True, kw_only=True)
class OwnershipConfirmed(QueueEvent):
    """The server has confirmed, after the last `OwnershipDoubted`, that our consumer exists. (If it does not, drop the
    core.)"""


@dataclass(slots=True, kw_only=True)
class Unheard(QueueEvent):
    """This process was frozen or disconnected: what came and went meanwhile, it does not know. Comes before any other
    event after that time."""

    seconds: float


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class TaskArrived(QueueEvent):
    """The consumer delivered a message. A redelivery is harmless: it is acknowledged again if it was before. A message
    whose job is already in the queue under another sequence is acknowledged too, and nothing is started for it."""

    seq: int
    submission: Submission
    size: int
    """Bytes that the dispatcher keeps for it, subject and headers included."""
    ahead: bool = False
    """Whether it was read beyond the window, so that its tenant's turn can come, and not delivered by the consumer,
    which may still deliver it."""
    look: bool = False
    """Whether to look up its result first, since it may have ended before. True up to the stream's last sequence at the
    takeover, and if another message may have used the job id: an id from an idempotency key, or a run of a schedule."""
    attempts: int = 0
    """Attempts from its TryRecord; without one, from its submission."""
    not_before: float = 0.0
    """Unix time of its next attempt, from its TryRecord."""
    cancelled: bool = False
    """Whether its TryRecord says that its cancellation was confirmed."""


@dataclass(slots=True, kw_only=True)
class Malformed(QueueEvent):
    """The consumer delivered a message that is not a task: its subject, a header or its schedule is invalid."""

    seq: int
    size: int
    error: GanglineError
    job: str = ""
    """Its id if that could be read; otherwise the sequence is used."""
    ahead: bool = False
    """As of TaskArrived."""
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
    """The server confirmed some Acks. Until then the core remembers the sequences, so that a late redelivery does not
    run again, and counts them in the window."""

    seqs: Sequence[int]


# -- what workers report ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class SlotsGranted(QueueEvent):
    """Free slots in a pool, on currently valid leases. Replaces the last one and what the core has deducted since. Sent
    whenever a lease is added, removed, changed or retired, and just before the `AttemptEnded` of a task that used a
    slot (afterwards, the core would briefly request more slots). Not needed after StartAttempt: the core has deducted
    its cost from the smallest lease with enough free slots; if the shell used another one, it sends SlotsGranted again.
    """

    pool: str
    free: tuple[int, ...]
    """Free slots of each lease, in any order; zeros may be omitted."""


@dataclass(slots=True, kw_only=True)
class AttemptEnded(QueueEvent):
    """Answers StartAttempt and ReattachAttempt exactly once, also after a StopAttempt. The shell keeps the result
    itself, under `seq`, until Ack."""

    seq: int
    attempt: int
    """The attempt of the effect; others are ignored."""
    error: GanglineError | None = None
    """None: it succeeded. Otherwise retry_policy.classify decides. ResultLost: the attempt to attach to is unknown."""
    once: bool = False
    """Whether the worker does not declare it idempotent: the attempt may tell before the pool does."""
    policy: TaskPolicy | None = None
    """What the worker declares about the task, likewise."""


# -- what the server has stored ---------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Persisted(QueueEvent):
    """Answers Persist: the server has the record. The ResultRecord may be that of another writer who was first; there
    is none if none was requested."""

    seq: int
    kind: RecordKind
    error: GanglineError | None = None
    """For a schedule: the server will never accept it. InvalidSchedule: dead "malformed"; others: dead "impossible"."""


# -- people and settings ----------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Cancel(QueueEvent):
    """A client cancels a job. Afterwards `QueueCore.info(job)` tells the result: None: it is unknown here; final: too
    late; otherwise it will be cancelled unless it ends first. Confirm it when `QueueCore.promised(job)`: then no
    takeover forgets it."""

    job: str


@dataclass(slots=True, kw_only=True)
class Routed(QueueEvent):
    """The endpoint's route, initially and whenever it changes. Tasks that have not started choose their pools again
    (with their old draw, so that few of them move)."""

    route: RouteRecord
    explicit: bool
    """Whether it is in the bucket. Otherwise it is the default, `RouteRecord()`."""


@dataclass(slots=True, kw_only=True)
class PoolSeen(QueueEvent):
    """What is known of a pool, whenever it changes: for each pool of the route, and for each that a RequestSlots named
    (even with 0 slots)."""

    pool: str
    known: bool
    """Whether a worker of it is alive or registered, or has been since the dispatcher started. An endpoint that has
    neither an explicit route nor a known pool is unknown, and its tasks are dead after `unknown_after_s`."""
    workers: int = 0
    """Number of live workers."""
    largest: int = 0
    """The most slots of one live worker; 0: there is none."""
    costs: Mapping[str, int] = field(default_factory=dict[str, int])
    """Slots that a task takes, by method; 1 if not given."""
    once: frozenset[str] = frozenset()
    """Methods not declared idempotent: their tasks are started once, unless they say otherwise."""
    policies: Mapping[str, TaskPolicy] = field(default_factory=dict[str, TaskPolicy])
    """What tasks declare about their executions, by method."""
    methods: frozenset[str] = frozenset()
    """Methods that a live worker has; empty: not known."""
    near: str = ""
    """The pool, standing set or route that was perhaps meant, if this one is unknown."""


@dataclass(slots=True, kw_only=True)
class Tick(QueueEvent):
    """The time of the last SetQueueTimer has come. Extra ticks do no harm."""


AnyEvent = (
    QueueTaken
    | TaskAdopted
    | Recovered
    | OwnershipDoubted
    | OwnershipConfirmed
    | Unheard
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
