"""One message of the stream until it is acknowledged: the task that it submits, and what a queue keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from ....bus.port.bus import StreamMessage
from ....runtime.timers import exponential_s
from ....schemas.errors.base import GanglineError, MalformedMessage, ResultLost, TaskCancelled, WorkerLost
from ....schemas.messages.submission import Submission
from ....schemas.names import Names, is_job_of, is_name, job_of_tenant, split_tenant
from ....schemas.records.jobs import MOST_TRIES, FailedTry, JobFailure
from ....schemas.records.workers import TaskPolicy
from ....schemas.wire import codec, headers
from ....schemas.wire.codec import Format
from ....schemas.wire.frames import AnswerOp, Frame, Reason
from ....telemetry.tracing import NO_SPAN, Span
from ...calls.call import error_of
from ...jobs.stored import header_of
from ...leases.held_slots import HeldSlots
from ...routing.outcome import TryOutcome, error_of_fate
from ...routing.worker_table import Method, WorkerEntry
from ...transport.channel import InFlightRequest
from ...transport.exchange import RequestExchange


class LeasedSlots:
    """One lease, and how much of it is used."""

    __slots__ = ("born_at", "hold", "idle_since", "name", "retired", "used")

    def __init__(self, hold: HeldSlots, now: float) -> None:
        self.hold = hold
        self.name = str(hold.worker.id)
        """Name of the worker."""
        self.used = 0
        self.born_at = now
        self.idle_since = now
        """Since when some slots are unused."""
        self.retired = False
        """Whether it takes no more tasks and is released when one of its tasks ends."""

    @property
    def worker(self) -> WorkerEntry:
        return self.hold.worker

    @property
    def free(self) -> int:
        """Slots that a task may use now."""
        left = self.hold.slots - self.used
        return left if left > 0 and self.usable else 0

    @property
    def usable(self) -> bool:
        """Whether it takes tasks, if there is room."""
        hold = self.hold
        trusted = not hold.ended and hold.trouble() is None and not hold.leaving
        return not self.retired and trusted and hold.worker.reachable

    def __repr__(self) -> str:
        return f"LeasedSlots({self.worker.id}, {self.used}/{self.hold.slots}{', retired' if self.retired else ''})"


class AttemptListener:
    """Receives a worker's messages about an attempt."""

    def landed(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        """The final answer arrived."""
        raise NotImplementedError

    def crashed(self, sent_attempt: JobAttempt, fate: TryOutcome) -> None:
        """There will be no answer."""
        raise NotImplementedError

    def item(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        """An item of a stream."""

    def held(self, sent_attempt: JobAttempt) -> None:
        """It has its slots and waits for BEGIN."""

    def still_runs(self, sent_attempt: JobAttempt) -> None:
        """It is running."""


class JobAttempt(InFlightRequest):
    """A TASK frame of a durable task."""

    __slots__ = ("attached", "attempt", "listener", "seq", "sent_at")

    checked = True
    durable = True

    def __init__(
        self,
        exchange: RequestExchange,
        worker: WorkerEntry,
        listener: AttemptListener,
        *,
        seq: int,
        attempt: int,
        attached: bool,
    ) -> None:
        """
        Args:
            attached: it starts nothing; another dispatcher started the task.
        """
        self.id = exchange.new_id()
        self.worker = worker
        self.seq = seq
        self.attempt = attempt
        self.attached = attached
        self.listener = listener
        self.sent_at = exchange.loop.time()

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == AnswerOp.ITEM:
            self.listener.item(self, frame)
            return False
        if frame[0] == AnswerOp.HELD:
            self.listener.held(self)
            return False
        self.listener.landed(self, frame)
        return True

    def runs(self) -> None:
        self.listener.still_runs(self)

    def lose(self, fate: TryOutcome) -> None:
        self.listener.crashed(self, fate)

    def refused(self, frame: Frame) -> bool:
        """Whether the worker refused the request, which says nothing about the job: then ask again."""
        return self.attached and frame[0] == AnswerOp.REJECTED and frame[2] != Reason.UNKNOWN_JOB

    def asks_again(self, fate: TryOutcome) -> bool:
        """Whether the request was lost, or the answer was forgotten while the worker keeps the end for longer: then ask
        again."""
        if fate is TryOutcome.FORGOTTEN:
            return not self.attached and self.worker.acks
        return self.attached and not fate.may_have_started


def error_of_answer(frame: Frame, worker: str) -> GanglineError | None:
    """The error of an answer; None: it is a result."""
    if frame[0] in (AnswerOp.OK, AnswerOp.END):
        return None
    if frame[0] == AnswerOp.ERROR:
        return error_of(frame)
    if frame[0] != AnswerOp.REJECTED:
        return GanglineError(f"{worker} answered a task with frame {frame[0]}: versions differ?", may_have_started=True)
    if frame[2] == Reason.UNKNOWN_JOB:
        return ResultLost(f"{worker} no longer knows the job", details={"worker": worker})
    return error_of_fate(TryOutcome.of_reason(frame[2]), worker)


def lost_with_gang(error: GanglineError, worker: str) -> GanglineError:
    """The error of an attempt that nobody stopped. If its worker stopped it because its gang was torn down, it counts
    as lost, like one whose worker died."""
    if not isinstance(error, TaskCancelled) or "gang" not in error.details:
        return error
    return WorkerLost(
        f"{worker}: {error.message}",
        may_have_started=error.may_have_started,
        details={"worker": worker, **error.details},
    )


MOST_GAPS: Final = 6
"""How many times in a row missing items are requested without success, over about three seconds."""


class ItemVerdict(Enum):
    """What to do with an item."""

    NEXT = auto()
    """Store it."""
    AGAIN = auto()
    """It is known."""
    GAP = auto()
    """An earlier item was lost: request it again."""


class ItemTracker:
    """The items of one attempt.

    Args:
        known: it starts with item 0. False: another dispatcher stored the first ones; any item may come next.
    """

    __slots__ = ("_asked_at", "_gaps", "_still", "_stored", "credited", "known", "received")

    def __init__(self, *, known: bool) -> None:
        self.known = known
        self.credited = 0
        """Number of items stored without a gap."""
        self.received = 0
        """Number of items that arrived without a gap."""
        self._stored: set[int] = set()
        """Stored items beyond a gap."""
        self._asked_at: int | None = None
        """How many had arrived when the end came too early."""
        self._gaps = 0
        """Requests in a row after which no missing item arrived."""
        self._still: tuple[int, int] = (-1, 0)
        """How many had arrived at the last check, and for how many checks that was unchanged."""

    def __repr__(self) -> str:
        return f"ItemTracker({self.received} came, {self.credited} stored{'' if self.known else ', begin unknown'})"

    def take(self, index: int) -> ItemVerdict:
        """An item came."""
        if not self.known:
            self.known, self.received, self.credited = True, index, index
        if index != self.received:
            return ItemVerdict.AGAIN if index < self.received else ItemVerdict.GAP
        self.received += 1
        self._gaps = 0
        return ItemVerdict.NEXT

    def ask_after_s(self) -> float | None:
        """How long to wait before missing items are requested; None: give up."""
        self._gaps += 1
        if self._gaps > MOST_GAPS:
            return None
        return 0.0 if self._gaps == 1 else exponential_s(0.1, float("inf"), self._gaps - 2)

    def stored(self, index: int) -> int:
        """An item is stored. Returns the new credit: how many more are stored without a gap."""
        self._stored.add(index)
        before = self.credited
        while self.credited in self._stored:
            self._stored.discard(self.credited)
            self.credited += 1
        return self.credited - before

    def lacks(self, count: int) -> bool:
        """At the end: whether some of these `count` items are missing."""
        return count != self.received if self.known else count > 0

    def may_ask(self) -> bool:
        """Whether to request them again: only if items have arrived since the last request."""
        received = self.received if self.known else -1
        if self._asked_at == received:
            return False
        self._asked_at = received
        return True

    def stands_still(self) -> bool:
        """Whether to ask the worker because nothing has arrived for long: it may be waiting for lost credit. Called
        periodically; the intervals grow while nothing changes."""
        received, times = self._still
        if received != self.received:
            self._still = (self.received, 0)
            return False
        times += 1
        self._still = (received, times)
        return times & (times - 1) == 0


_KEPT_BYTES: Final = 256
"""Memory that a message takes besides its own bytes."""


def read_message(names: Names, message: StreamMessage) -> tuple[Submission, Arguments] | GanglineError:
    """The task of a message, and its arguments; or what is wrong with it."""
    try:
        submission = Submission.parse(
            names, message.subject, message.headers, sequence=message.sequence, published_at=message.at
        )
        return submission, arguments_of(message.data, submission.fmt)
    except GanglineError as error:
        return error


def size_of(message: StreamMessage) -> int:
    """Memory that a message takes."""
    size = len(message.subject) + len(message.data) + _KEPT_BYTES
    if message.headers:
        size += sum(map(len, message.headers)) + sum(map(len, message.headers.values()))
    return size


def may_have_ended(message: StreamMessage, *, recorded: bool) -> bool:
    """Whether another message may have had this job id, or this message was delivered before.

    Args:
        recorded: such jobs leave a record when they end; without one there is no trace of an earlier message.
    """
    given = message.headers
    if message.delivered > 1:
        return True
    if given is None:
        return False
    if headers.SCHEDULER in given:
        return True
    # Whoever chooses the id may publish it again: the server forgets the `Nats-Msg-Id` when it restarts.
    return recorded and headers.FIRST not in given and header_of(given, headers.JOB) is not None


def job_of(message: StreamMessage, endpoint: str) -> str:
    """The job id of a message that is not a task; empty: none that a task of this endpoint can have."""
    job, tenant = (message.headers or {}).get(headers.JOB, ""), split_tenant(message.subject)[1]
    job = job if is_job_of(job, endpoint) else ""
    if not tenant:
        return job
    return job_of_tenant(job or str(message.sequence), endpoint, tenant) if is_name(endpoint) else ""


Arguments = tuple[list[Any] | None, dict[str, Any] | None]
"""Positional and named ones."""


def arguments_of(body: bytes, fmt: Format) -> Arguments:
    """An array is positional arguments, an object named ones, an empty body none.

    Raises:
        MalformedMessage: it is not in this format, or is a bare value.
        PayloadTooLarge: it has more lists and maps than the wire allows.
    """
    value = codec.decode_arguments(body, fmt)
    if value is None:
        return None, None
    if isinstance(value, list):
        return value or None, None
    if isinstance(value, dict):
        bad = next((name for name in value if not isinstance(name, str)), None)
        if bad is not None:
            raise MalformedMessage(f"argument name {bad!r} is not a text")
        return None, value or None
    raise MalformedMessage(
        f"the body is a bare {type(value).__name__}: publish an object of named arguments, or an array of them"
    )


class QueuedMessage:
    """One message. `submission` is None if it is not a task."""

    # No __slots__: attributes that most instances never set are on the class, which makes instances cheaper to create.

    arguments: Arguments | None = None
    """As decoded on arrival, if small; for the first attempt."""
    sent_attempt: JobAttempt | None = None
    """The current attempt."""
    attempt = 0
    slots: LeasedSlots | None = None
    """The lease of the attempt; None if it was attached to."""
    feeder_pool = ""
    cost = 0
    fence = 0
    stopped = 0
    """The attempt to be stopped, if any."""
    why_stopped = ""
    """Why: a StopReason."""
    timeout_s: float | None = None
    """The `timeout_s` of the current attempt, if it has one that ends before the job's deadline."""
    attached = False
    """Whether another dispatcher started the current attempt, and may have stopped it."""
    worker = ""
    """`<pool>.<worker>` of the last attempt."""
    workers: Sequence[str] = ()
    """The workers by rank, if it was on all ranks of a gang; an empty name: unknown."""
    body: bytes | None = None
    """The encoded result, in `fmt`."""
    fmt = Format.JSON
    items: int | None = None
    """Number of items, if it yielded."""
    streams = False
    once = False
    """Whether the attempt's worker does not declare the task idempotent."""
    policy: TaskPolicy | None = None
    """What the attempt's worker declares about the task."""
    started = False
    doubts = 0
    """Doubts about the queue's ownership before it was known that no client had cancelled it."""
    attempt_at = 0.0
    """Unix time at which the current attempt was sent, if a history is written."""
    noted = 0
    """The last attempt that is stored as failed."""
    earlier_attempt = 0
    """The attempt that a dispatcher of an earlier version started, under `earlier_id`."""
    tries: tuple[FailedTry, ...] = ()
    """The last failed attempts, oldest first."""
    span: Span = NO_SPAN
    _item_count: ItemTracker | None = None
    _known = True

    def __init__(self, message: StreamMessage, submission: Submission | None) -> None:
        self.message = message
        self.submission = submission
        self.seq = message.sequence

    @property
    def earlier_id(self) -> str | None:
        """The id of a tenant's job in earlier versions: as its submitter wrote it, without the tenant. None: as now."""
        if self.submission is None or not self.submission.tenant:
            return None
        given = (header_of(self.message.headers or {}, headers.JOB) or "").strip() or str(self.seq)
        return None if given == self.submission.job else given

    def id_of_attempt(self, attempt: int) -> str:
        """The id by which the worker of that attempt knows the job."""
        assert self.submission is not None
        return (attempt == self.earlier_attempt and self.earlier_id) or self.submission.job

    @property
    def item_count(self) -> ItemTracker:
        """The items of the current attempt."""
        if self._item_count is None:
            self._item_count = ItemTracker(known=self._known)
        return self._item_count

    def declared(self, method: Method | None) -> None:
        """Note what the attempt's worker declares about the task; None: it does not have it, as far as is known."""
        self.once = method is not None and not method.idempotent
        self.policy = None if method is None else method.policy

    def count_items(self, *, known: bool) -> None:
        """An attempt starts; `known` as for ItemTracker."""
        self._known = known
        if self._item_count is not None:
            self._item_count = None

    def failed(self, attempt: int, error: JobFailure, *, started_at: float | None, ended_at: float) -> None:
        """Note a failed attempt. No-op if it is known."""
        if self.started and not (self.tries and self.tries[-1].attempt >= attempt):
            last = FailedTry(attempt=attempt, worker=self.worker, started_at=started_at, ended_at=ended_at, error=error)
            self.tries = (*self.tries, last)[-MOST_TRIES:]

    def __repr__(self) -> str:
        target = self.submission.target if self.submission is not None else self.message.subject
        return f"QueuedMessage(#{self.seq} {target}, attempt={self.attempt}, worker={self.worker or '-'})"
