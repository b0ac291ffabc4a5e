"""Attempts of one queue's tasks: sent on leases, attached to, stopped, and reported when they end.

Laws:

1. Each StartAttempt and each ReattachAttempt is answered by exactly one `ended`, or by none after `let_go`.
2. An attempt is on one lease or on none; its slots go back to the lease when it ends.
3. `let_go` (another dispatcher has the queue now, or soon will) stops nothing: running attempts continue.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from ....schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidRequest,
    InvalidResult,
    LeaseBusy,
    StreamBroken,
    TaskCancelled,
    WorkerLost,
)
from ....schemas.messages.submission import Submission
from ....schemas.records.workers import TaskPolicy
from ....schemas.text import count_of, plain
from ....schemas.wire import codec
from ....schemas.wire.codec import Format
from ....schemas.wire.frames import AnswerOp, Frame, RequestOp, TaskFlag
from ....telemetry.tracing import NO_SPAN, tracer
from ...calls.call import refuses_token
from ...gangs.member_slots import GangHeldSlots
from ...routing.outcome import TryOutcome, error_of_fate
from ...routing.worker_table import WorkerEntry
from ...transport.exchange import RequestExchange
from ..core.effects import ReattachAttempt, StartAttempt, StopReason
from ..messages.entry import (
    AttemptListener,
    ItemTracker,
    ItemVerdict,
    JobAttempt,
    LeasedSlots,
    QueuedMessage,
    arguments_of,
    error_of_answer,
    lost_with_gang,
)
from ..persistence.writers import JobEventPublisher
from ..workers.context import DispatcherContext
from .joint_attempt import JointFlight
from .slot_lessor import SlotLessor

# Plain numbers: arithmetic with enum flags takes longer than the rest of a frame.
_TASK: Final = int(RequestOp.TASK)
_ACK: Final = int(RequestOp.ACK)
_OK: Final = int(AnswerOp.OK)
_JSON: Final = int(TaskFlag.JSON)
_STREAM: Final = int(TaskFlag.STREAM)
_ATTACH: Final = int(TaskFlag.ATTACH)
_NOTHING: Final = {fmt: codec.encode(None, fmt) for fmt in Format}
"""The result of a task that returns none."""
_ATTACH_AGAIN_S: Final = 0.1
_APPEARS_S: Final = 4.0
"""Longer than a heartbeat is valid: a ledger in memory may have been lost with the server, and is being rewritten."""


def _nothing(_worker: str) -> None:
    """The default of `on_acknowledged`."""


OnEnd = Callable[[QueuedMessage, int, GanglineError | None], None]
"""The entry, the attempt, and its error if it failed."""
Look = Callable[[QueuedMessage, Callable[[bool], None]], None]
"""Reads whether a client has cancelled the task without us, and calls the function with that."""


def late_error(entry: QueuedMessage, attempt: int, error: GanglineError) -> GanglineError:
    """The error of an attempt that ended with this one: if its time was over, which of its limits that was. Its worker
    only knows that it was told to stop, or that the time of the request was over."""
    why = entry.why_stopped if entry.stopped == attempt else ""
    told = isinstance(error, TaskCancelled) and (why != "" or _stopped_before(entry, error))
    late = isinstance(error, DeadlineExceeded) and "timeout_s" not in error.details
    if not (told or late) or not error.may_have_started or why == StopReason.CANCELLED:
        return error
    assert entry.submission is not None
    limit_s, details = entry.timeout_s, {name: value for name, value in error.details.items() if name != "by"}
    limit = "by its deadline"
    if why == StopReason.TIMED_OUT or (not why and limit_s is not None):
        limit = "within its timeout_s"
        if limit_s is not None:  # else another dispatcher started it
            limit, details = f"{limit} of {plain(limit_s)} s", {**details, "timeout_s": limit_s}
    return DeadlineExceeded(f"{entry.submission.target} did not end {limit}", may_have_started=True, details=details)


def _stopped_before(entry: QueuedMessage, error: TaskCancelled) -> bool:
    """Whether an earlier owner of the queue stopped it because of its `timeout_s`. Had a client cancelled the job, or
    had its deadline passed, we would have stopped it, too."""
    return entry.attached and entry.timeout_s is not None and error.details.get("by") == "caller"


def _unsent() -> TaskCancelled:
    return TaskCancelled("it was cancelled before it was sent", may_have_started=False)


class AttemptSender(AttemptListener):
    """See the module. All methods are plain calls."""

    def __init__(
        self,
        context: DispatcherContext,
        endpoint: str,
        *,
        feed: JobEventPublisher,
        look: Look,
        ended: OnEnd,
    ) -> None:
        self._endpoint = endpoint
        self._router = context.router
        self._exchange: RequestExchange = context.router.exchange
        self._ambient = context.ambient
        self._failure_detector = context.failure_detector
        self._feed = feed
        self._look = look
        self._ended = ended
        self._entries: dict[int, QueuedMessage] = {}
        """Entries with a current attempt, by sequence."""
        self._lessors: dict[str, SlotLessor] = {}
        self._retries: set[asyncio.TimerHandle] = set()
        self._adopted: dict[str, tuple[int, Sequence[str]]] = {}
        """By job: attempt and workers of a job that another dispatcher started on all ranks of a gang."""
        self.on_acknowledged: Callable[[str], None] = _nothing
        """Called with the name of each worker that was sent an ACK, which may be lost."""
        self.started = 0
        self.doubts = 0
        """How many times ownership of the queue has been in doubt: what was delivered before the last time is looked up
        before it starts, since the client that cancelled it may not have reached us."""
        self.turn = 0
        """Greater than that of any earlier owner. Attempt numbers go back at most by those unknown of the last owner,
        so the sum of both, the fence, grows with each start of a job."""

    def __len__(self) -> int:
        return len(self._entries)

    # -- beginning ------------------------------------------------------------------------------------------------

    def start(
        self,
        entry: QueuedMessage,
        start: StartAttempt,
        lessor: SlotLessor,
        known: Callable[[str, str], TaskPolicy | None],
    ) -> None:
        """Send a task on a lease. `known`: what the core knows that a task declares, by pool and method."""
        submission = entry.submission
        assert submission is not None, entry
        lease = lessor.take(start.cost, submission.method, submission.model)
        if lease is None:
            error = lessor.refusal or LeaseBusy(
                f"no lease of pool {start.pool} has {count_of(start.cost, 'slot')} free"
            )
            self._ended(entry, start.attempt, LeaseBusy(error.message))
            return
        worker = lease.worker
        method = worker.methods.get(submission.method)
        if method is not None and method.slots > start.cost:
            # Unknown when the core counted the slots; the core is told soon.
            lessor.give(lease, start.cost)
            text = f"{submission.target} takes {count_of(method.slots, 'slot')} on {worker.id}, not {start.cost}"
            self._ended(entry, start.attempt, LeaseBusy(text))
            return
        if method is not None and method.limited and known(start.pool, submission.method) is None:
            # Likewise: the core did not know that the task has limits.
            lessor.give(lease, start.cost)
            self._ended(entry, start.attempt, LeaseBusy(f"{submission.target} has limits on {worker.id}"))
            return
        entry.attempt, entry.cost, entry.slots, entry.feeder_pool = start.attempt, start.cost, lease, start.pool
        entry.worker, entry.workers, entry.started, entry.items = lease.name, (), True, None
        entry.count_items(known=True)
        if entry.earlier_attempt:
            entry.earlier_attempt = 0
        if entry.doubts == self.doubts:
            self._launch(entry, start, lease)
        else:
            self._look(entry, functools.partial(self._looked, entry, start, lease))

    def _looked(self, entry: QueuedMessage, start: StartAttempt, lease: LeasedSlots, cancelled: bool) -> None:
        if entry.slots is not lease or entry.attempt != start.attempt:
            return
        if cancelled or entry.stopped == start.attempt:
            self._settle(entry)
            self._ended(entry, start.attempt, _unsent())
        else:
            self._launch(entry, start, lease)

    def _launch(self, entry: QueuedMessage, start: StartAttempt, lease: LeasedSlots) -> None:
        assert entry.submission is not None, entry
        if isinstance(lease.hold, GangHeldSlots) and lease.hold.on_all:
            self.started += 1
            entry.declared(lease.worker.methods.get(entry.submission.method))
            self._start_on_all(entry, start, lease.hold)
            return
        sent_attempt = self._attempt(entry, lease.worker, attached=False)
        try:
            self._exchange.launch(sent_attempt, self._task_frame(entry, sent_attempt, start, lease.hold.token))
        except GanglineError as error:  # nothing was sent, for example because it is too large
            self._finish(entry, sent_attempt)
            self._ended(entry, start.attempt, error)
            return
        self.started += 1

    def _start_on_all(self, entry: QueuedMessage, start: StartAttempt, hold: GangHeldSlots) -> None:
        run = 1 + self._ambient.random.getrandbits(48)

        def frame_of(sent_attempt: JobAttempt, rank: int) -> Frame:
            if sent_attempt.attached:
                return self._attach_frame(entry, sent_attempt, rank)
            return self._task_frame(
                entry, sent_attempt, start, hold.parts[rank].token,
                {"rank": rank, "ranks": len(hold.parts), "run": run, "hold": True},
            )  # fmt: skip

        self._launch_jointly(entry, [str(part.worker.id) for part in hold.parts], frame_of, attached=False)

    def _launch_jointly(
        self,
        entry: QueuedMessage,
        names: Sequence[str],
        frame_of: Callable[[JobAttempt, int], Frame],
        *,
        attached: bool,
    ) -> None:
        entry.workers = names
        worker = next((worker for name in names if name and (worker := self.worker(name)) is not None), None)
        if worker is None:
            lost = WorkerLost(f"{', '.join(filter(None, names))}: gone", may_have_started=attached)
            self._settle(entry)
            self._ended(entry, entry.attempt, lost)
            return
        entry.streams = False
        entry.sent_attempt = sent_attempt = JointFlight(
            self._exchange,
            self._failure_detector,
            names,
            find=self.worker,
            frame_of=frame_of,
            ends=lambda sent_attempt, results, error: self._ended_on_all(entry, sent_attempt, results, error),
            worker=worker,
            seq=entry.seq,
            attempt=entry.attempt,
            attached=attached,
        )
        self._entries[entry.seq] = entry
        sent_attempt.launch()
        if attached and entry.stopped == entry.attempt:
            sent_attempt.cancel()

    def _ended_on_all(
        self, entry: QueuedMessage, sent_attempt: JointFlight, results: list[Any], error: GanglineError | None
    ) -> None:
        if error is None:
            error = self._take_result(entry, (_OK, sent_attempt.id, results))
        elif entry.stopped != entry.attempt:
            error = lost_with_gang(error, entry.worker)
        if entry.slots is not None and error is None:
            entry.slots.hold.used(sent_attempt.sent_at)
        self._finish(entry, sent_attempt)
        if entry.span is not NO_SPAN:
            entry.span.end(error)
        self._ended(entry, sent_attempt.attempt, error)

    def adopt(self, job: str, attempt: int, names: Sequence[str]) -> None:
        """An attempt to attach to runs on these workers, by rank; an empty name: unknown."""
        self._adopted[job] = (attempt, names)

    def attach(self, entry: QueuedMessage, attach: ReattachAttempt) -> None:
        """Wait for the end of an attempt that another dispatcher started."""
        entry.attempt, entry.cost, entry.slots, entry.feeder_pool = attach.attempt, 0, None, ""
        entry.worker, entry.workers, entry.started, entry.fence = attach.worker, (), True, 0
        entry.attached, entry.timeout_s = True, attach.timeout_s
        entry.count_items(known=False)
        attempt, names = self._adopted.get(attach.job, (0, ()))
        if attempt == attach.attempt:
            self._launch_jointly(
                entry, names, lambda sent_attempt, rank: self._attach_frame(entry, sent_attempt, rank), attached=True
            )
            return
        self._try_attach(entry, attach, self._exchange.loop.time() + _APPEARS_S)

    def _try_attach(self, entry: QueuedMessage, attach: ReattachAttempt, appears_by: float) -> None:
        """
        Args:
            appears_by: until then the router may not yet know the worker that reported the job.
        """
        worker = self.worker(attach.worker)
        if worker is None and self._exchange.loop.time() < appears_by:
            self._attach_later(entry, attach, appears_by)
            return
        if worker is None:
            lost = WorkerLost(f"{attach.worker} is gone, and may have run it", may_have_started=True)
            self._ended(entry, attach.attempt, lost)
            return
        sent_attempt = self._attempt(entry, worker, attached=True)
        self._exchange.launch(sent_attempt, self._attach_frame(entry, sent_attempt))
        if entry.stopped == entry.attempt:
            self._exchange.post(worker, (RequestOp.CANCEL, sent_attempt.id))

    def _attempt(self, entry: QueuedMessage, worker: WorkerEntry, *, attached: bool) -> JobAttempt:
        sent_attempt = entry.sent_attempt = JobAttempt(
            self._exchange, worker, self, seq=entry.seq, attempt=entry.attempt, attached=attached
        )
        method = worker.methods.get(entry.submission.method) if entry.submission is not None else None
        entry.streams = method is not None and method.streams
        entry.declared(method)
        self._entries[entry.seq] = entry
        self._failure_detector.watch(worker)
        return sent_attempt

    # -- frames ---------------------------------------------------------------------------------------------------

    def _task_frame(
        self,
        entry: QueuedMessage,
        sent_attempt: JobAttempt,
        start: StartAttempt,
        token: str,
        more: dict[str, Any] | None = None,
    ) -> Frame:
        submission = entry.submission
        assert submission is not None
        args, kwargs = entry.arguments or arguments_of(entry.message.data, submission.fmt)
        entry.arguments = None  # a retry waits longer than it takes to decode them again
        flags = _JSON if submission.fmt is Format.JSON else 0
        if entry.streams:
            flags |= _STREAM
        deadline_ms: int | None = None if start.timeout_s is None else max(1, round(start.timeout_s * 1000))
        if start.deadline_at is not None:
            left_ms = max(1, round((start.deadline_at - self._ambient.wall()) * 1000))
            deadline_ms = left_ms if deadline_ms is None else min(deadline_ms, left_ms)
        trace = submission.trace
        if tracer.on():
            trace = self._trace(entry, submission) if entry.span is NO_SPAN or not more else entry.span.traceparent()
        entry.fence = self.turn + entry.attempt
        meta = self._meta(entry, submission)
        meta["fence"] = entry.fence
        if start.timeout_s is not None:
            meta["timeout_s"] = start.timeout_s  # in place of what the task declares
        if entry.slots is not None and isinstance(entry.slots.hold, GangHeldSlots):
            meta.update(generation=entry.slots.hold.formation.later, pool=start.pool, **(more or {}))
        return (_TASK, sent_attempt.id, submission.method, args, kwargs, deadline_ms, token, trace, flags, meta)

    def _trace(self, entry: QueuedMessage, submission: Submission) -> str | None:
        entry.span = tracer.start(
            f"gangline.job {submission.target}",
            kind="producer",
            parent=submission.trace,
            attributes={
                "gangline.job": submission.job,
                "gangline.worker": entry.worker,
                "gangline.attempt": entry.attempt,
            },
        )
        return entry.span.traceparent()

    def _attach_frame(self, entry: QueuedMessage, sent_attempt: JobAttempt, rank: int | None = None) -> Frame:
        submission = entry.submission
        assert submission is not None
        flags, meta = _ATTACH, self._meta(entry, submission)
        if entry.streams:
            flags |= _STREAM
            meta["items"] = entry.item_count.credited
        if rank is not None:
            meta["rank"] = rank
        return (_TASK, sent_attempt.id, submission.method, None, None, None, None, None, flags, meta)

    def _meta(self, entry: QueuedMessage, submission: Submission) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "job": entry.id_of_attempt(entry.attempt) if entry.earlier_attempt else submission.job,
            "endpoint": self._endpoint,
            "attempt": entry.attempt,
            "sequence": entry.seq,
            "acks": True,
        }
        if submission.key is not None:
            meta["key"] = submission.key
        if submission.model is not None:
            meta["model"] = submission.model
        return meta

    # -- after the end --------------------------------------------------------------------------------------------

    def acknowledge(self, entry: QueuedMessage) -> None:
        """Tell the worker of its last attempt that the attempt's end is stored, or no longer matters."""
        if entry.submission is None or not entry.started:
            return
        job, seq, attempt = entry.submission.job, entry.seq, entry.attempt
        if entry.earlier_attempt:
            job = entry.id_of_attempt(attempt)
        if not entry.workers:
            self.acknowledge_on(entry.worker, job, seq, 0, attempt)
        for rank, name in enumerate(entry.workers):
            self.acknowledge_on(name, job, seq, rank, attempt)

    def acknowledge_on(self, name: str, job: str, seq: int, rank: int, attempt: int) -> None:
        """The same for one execution. A worker that misses it forgets the end later by itself."""
        worker = self.worker(name)
        if worker is not None and worker.acks:
            self._exchange.post(worker, (_ACK, self._endpoint, job, seq, rank, attempt))
            self.on_acknowledged(name)

    # -- stopping -------------------------------------------------------------------------------------------------

    def stop(self, entry: QueuedMessage, attempt: int) -> None:
        """Tell the worker to cancel an attempt."""
        entry.stopped = attempt
        sent_attempt = entry.sent_attempt
        if sent_attempt is None or entry.attempt != attempt:
            return  # its end was reported meanwhile; or it is stopped when it is attached to
        if isinstance(sent_attempt, JointFlight):
            sent_attempt.cancel()
        elif self._exchange.recall(sent_attempt):
            self._finish(entry, sent_attempt)
            self._ended(entry, attempt, _unsent())
        else:
            self._exchange.post(sent_attempt.worker, (RequestOp.CANCEL, sent_attempt.id))

    def let_go(self) -> None:
        """Ignore everything that follows. Unsent frames are not sent."""
        for timer in self._retries:
            timer.cancel()
        self._retries.clear()
        for entry in list(self._entries.values()):
            sent_attempt = entry.sent_attempt
            assert sent_attempt is not None
            if isinstance(sent_attempt, JointFlight):
                sent_attempt.let_go()
            elif not self._exchange.recall(sent_attempt):
                self._exchange.forget(sent_attempt)
            self._finish(entry, sent_attempt)

    # -- ends: AttemptListener ------------------------------------------------------------------------------------

    def item(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        """Store an item; then the worker may send more."""
        entry = self._entries.get(sent_attempt.seq)
        if entry is None or entry.sent_attempt is not sent_attempt or entry.submission is None:
            return
        submission, count, index = entry.submission, entry.item_count, frame[2]
        match count.take(index):
            case ItemVerdict.GAP:
                self._ask_for_items(entry, sent_attempt, count)
                return
            case ItemVerdict.AGAIN:
                return
            case ItemVerdict.NEXT:
                pass
        error = self._feed.item(
            submission.job,
            sent_attempt.attempt,
            index,
            frame[3],
            submission.format_of(frame[3]),
            lambda: self._credit(entry, count, index),
            sequence=entry.seq,
        )
        if error is not None:
            self._break_off(entry, sent_attempt, error)

    def _break_off(self, entry: QueuedMessage, sent_attempt: JobAttempt, error: GanglineError) -> None:
        self._exchange.forget(sent_attempt)
        self._exchange.post(sent_attempt.worker, (RequestOp.CANCEL, sent_attempt.id))
        self._finish(entry, sent_attempt)
        self._ended(entry, sent_attempt.attempt, error)

    def _ask_for_items(self, entry: QueuedMessage, sent_attempt: JobAttempt, count: ItemTracker) -> None:
        """Items were lost: request them, at once the first time, then with growing pauses, and not forever."""
        wait_s = count.ask_after_s()
        if wait_s is None:
            text = f"{entry.worker} does not send item {count.received}, although it was asked several times"
            self._break_off(entry, sent_attempt, StreamBroken(text, may_have_started=True))
            return
        if not wait_s:
            self._attach_anew(entry, sent_attempt)
            return
        self._exchange.forget(sent_attempt)  # its answers will be sent again

        def again() -> None:
            if entry.sent_attempt is sent_attempt:
                self._attach_anew(entry, sent_attempt)

        self._later(wait_s, again)

    def _later(self, wait_s: float, call: Callable[[], None]) -> None:
        def ring() -> None:
            self._retries.discard(timer)
            call()

        timer = self._exchange.loop.call_later(wait_s, ring)
        self._retries.add(timer)

    def _credit(self, entry: QueuedMessage, count: ItemTracker, index: int) -> None:
        more, sent_attempt = count.stored(index), entry.sent_attempt
        if more and sent_attempt is not None and entry.item_count is count:
            worker, id = sent_attempt.worker, sent_attempt.id
            frame = (RequestOp.STORED, id, count.credited) if worker.stored else (RequestOp.CREDIT, id, more)
            self._exchange.post(worker, frame)

    def _attach_anew(self, entry: QueuedMessage, sent_attempt: JobAttempt) -> None:
        """Request the items that are not stored."""
        self._exchange.forget(sent_attempt)
        self._failure_detector.unwatch(sent_attempt.worker)
        again = self._attempt(entry, sent_attempt.worker, attached=True)
        self._exchange.launch(again, self._attach_frame(entry, again))

    def still_runs(self, sent_attempt: JobAttempt) -> None:
        """The task may wait for lost credit, or its items may have been lost."""
        entry = self._entries.get(sent_attempt.seq)
        if (
            entry is not None
            and entry.sent_attempt is sent_attempt
            and entry.streams
            and entry.item_count.stands_still()
        ):
            self._attach_anew(entry, sent_attempt)

    def landed(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        entry = self._entries.get(sent_attempt.seq)
        if entry is None or entry.sent_attempt is not sent_attempt:
            return
        if sent_attempt.refused(frame):
            self._finish(entry, sent_attempt)
            self._ask_again(entry, sent_attempt)
            return
        if frame[0] == AnswerOp.END and entry.item_count.lacks(frame[2]) and entry.item_count.may_ask():
            self._attach_anew(entry, sent_attempt)
            return
        fine = frame[0] == _OK
        error = (None if fine else error_of_answer(frame, entry.worker)) or self._take_result(entry, frame)
        if error is not None and entry.stopped != entry.attempt:
            error = lost_with_gang(error, entry.worker)
        if entry.slots is not None and (fine or not refuses_token(frame)):
            entry.slots.hold.used(sent_attempt.sent_at)
        self._finish(entry, sent_attempt)
        if entry.span is not NO_SPAN:
            entry.span.end(error)
        if error is None and frame[0] == AnswerOp.END:
            # The end counts when all items can be read.
            self._feed.when_stored(lambda: self._ended(entry, sent_attempt.attempt, None))
        else:
            self._ended(entry, sent_attempt.attempt, error)

    def _take_result(self, entry: QueuedMessage, frame: Frame) -> GanglineError | None:
        """Keep the result as it will be stored."""
        assert entry.submission is not None
        if frame[0] == AnswerOp.END:
            if entry.item_count.known and entry.item_count.lacks(frame[2]):
                return StreamBroken(f"of {count_of(frame[2], 'item')}, some were lost", may_have_started=True)
            entry.body, entry.items = None, frame[2]
            return None
        entry.fmt = entry.submission.format_of(frame[2])
        if frame[2] is None:
            entry.body, entry.items = _NOTHING[entry.fmt], None
            return None
        try:
            entry.body, entry.items = codec.encode(frame[2], entry.fmt), None
        except InvalidRequest as error:
            return InvalidResult(f"the result {error.message}", may_have_started=True)
        return None

    def crashed(self, sent_attempt: JobAttempt, fate: TryOutcome) -> None:
        entry = self._entries.get(sent_attempt.seq)
        if entry is None or entry.sent_attempt is not sent_attempt:
            return
        self._finish(entry, sent_attempt)
        if sent_attempt.asks_again(fate):
            self._ask_again(entry, sent_attempt)
            return
        error = error_of_fate(fate, entry.worker, idempotent=not entry.once)
        entry.span.end(error)
        self._ended(entry, sent_attempt.attempt, error)

    def _ask_again(self, entry: QueuedMessage, sent_attempt: JobAttempt) -> None:
        assert entry.submission is not None
        attach = ReattachAttempt(
            seq=entry.seq, job=entry.submission.job, attempt=sent_attempt.attempt, worker=str(sent_attempt.worker.id)
        )
        self._attach_later(entry, attach, float("-inf"))

    def _attach_later(self, entry: QueuedMessage, attach: ReattachAttempt, appears_by: float) -> None:
        self._later(_ATTACH_AGAIN_S, lambda: self._try_attach(entry, attach, appears_by))

    def _finish(self, entry: QueuedMessage, sent_attempt: JobAttempt) -> None:
        """Law 2."""
        if not isinstance(sent_attempt, JointFlight):
            self._failure_detector.unwatch(sent_attempt.worker)
        self._settle(entry)

    def _settle(self, entry: QueuedMessage) -> None:
        entry.sent_attempt = None
        self._entries.pop(entry.seq, None)
        slots, entry.slots = entry.slots, None
        if slots is not None:
            self._lessors[entry.feeder_pool].give(slots, entry.cost)

    def streams_on(self, worker: str, method: str) -> bool:
        """Whether the task yields items on that worker."""
        known = self.worker(worker)
        found = None if known is None else known.methods.get(method)
        return found is not None and found.streams

    def feeds(self, lessor: SlotLessor) -> None:
        """Attempts may use leases of this lessor."""
        self._lessors[lessor.pool] = lessor

    def worker(self, name: str) -> WorkerEntry | None:
        """The worker with this name, if the router knows it."""
        pool_name, _, worker = name.partition(".")
        pool = self._router.pools.get(pool_name)
        return None if pool is None else pool.core.view.workers.get(worker)

    def __repr__(self) -> str:
        return f"AttemptSender({self._endpoint}, running={len(self._entries)})"
