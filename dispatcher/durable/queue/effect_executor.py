"""Carries out the effects of one queue's core, and reports the outcomes to it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from pydantic import ValidationError

from ....bus.port.bus import Consumer, StreamMessage
from ....bus.streams.history_recorder import HistorySummary
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import DeadlineExceeded, GanglineError, TaskCancelled
from ....schemas.messages.jobs import WorkerJob
from ....schemas.names import JobFeed as Feed
from ....schemas.records.history import HistoryKind
from ....schemas.records.jobs import JobEvent, JobItem, JobState
from ....schemas.wire.headers import copied_from
from ....telemetry.logs import Log
from ...jobs.storage import until_answered
from ...routing.worker_table import WorkerEntry
from ..core import effects as do
from ..core import events as on
from ..messages.entry import QueuedMessage, job_of
from ..persistence.outcome_store import OutcomeStore
from ..persistence.records import cause_of, failure_of, reason_of
from ..workers.context import DispatcherContext
from ..workers.pool_observer import PoolObserver
from .attempts import AttemptSender, late_error
from .result_waiters import ResultWaiters
from .slot_lessor import SlotLessor

_LONG_S: Final = 1.0
"""Attempts that succeed sooner are counted in the history, not recorded one by one."""

EventSink = Callable[..., None]
"""Reports an event to the core: its type, then its fields besides time and randomness, by name."""


class QueueEffectExecutor:
    """See the module's docstring. Every effect is started in the turn of its event."""

    def __init__(
        self,
        context: DispatcherContext,
        endpoint: str,
        *,
        entries: dict[int, QueuedMessage],
        tell: EventSink,
        tell_soon: EventSink,
        joins_turn: Callable[[], object],
        pool_observer: PoolObserver,
        waiters: ResultWaiters,
        sure: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """
        Args:
            waiters: who waits for results.
            entries: messages of the queue, by sequence; acknowledged ones are removed here.
            tell_soon: reports an event at the end of this turn, together with its other events.
            joins_turn: lets `report_credit` be called before these.
            sure: waits until ownership of the queue is certain.
        """
        self._context = context
        self._endpoint = endpoint
        self._entries = entries
        self._tell = tell
        self._tell_soon = tell_soon
        self._joins_turn = joins_turn
        self._pool_observer = pool_observer
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._log = context.log.bind(endpoint=endpoint)
        self.outcomes = OutcomeStore(
            endpoint,
            context.bus,
            context.names,
            context.streams,
            settings=context.settings,
            ambient=context.ambient,
            sure=sure,
            log=self._log,
            stored=waiters.stored,
        )
        self.sent_attempts = AttemptSender(
            context,
            endpoint,
            feed=self.outcomes.feed,
            look=self._look_for_cancellation,
            ended=self._on_ended,
        )
        self._history = context.history
        self._short = None if self._history is None else HistorySummary(self._history, HistoryKind.ATTEMPTS)
        self.lessors: dict[str, SlotLessor] = {}
        self.pulled = 0
        """Messages fetched so far."""
        self._consumer: Consumer | None = None
        self._acking: dict[int, QueuedMessage] = {}
        """Acknowledged but not confirmed yet, by sequence."""
        self._tried: dict[int, str] = {}
        """Acknowledged jobs that may have a TryRecord; by sequence."""
        self._last: QueuedMessage | None = None
        """The last acknowledged one: the event of its end may follow."""
        self._dirty: set[str] = set()
        """Pools whose credit has changed in this turn."""
        self._wants: dict[str, do.RequestSlots] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._background = TaskSet(f"effects of {endpoint}", self._log)
        self._closed = False

    def start(self, consumer: Consumer) -> None:
        """The queue is ours, with this consumer."""
        self._consumer = consumer
        self.outcomes.start()

    async def stop(self) -> None:
        """Start nothing more, drop work in progress, and release leases. Running attempts continue."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.sent_attempts.let_go()
        self._context.metrics.left(self._endpoint)
        if self._short is not None:
            self._short.flush()
        await self._background.stop()
        for lessor in self.lessors.values():
            await lessor.stop()
        await self.outcomes.stop()

    # -- effects --------------------------------------------------------------------------------------------------

    def carry_out(self, effect: do.Effect) -> None:
        """Start one."""
        HANDLERS[type(effect)](self, effect)

    def _pull(self, effect: do.Fetch) -> None:
        assert self._consumer is not None
        self.pulled += effect.count
        self._consumer.pull(effect.count)

    def _want(self, effect: do.RequestSlots) -> None:
        if not self._wants:
            self._context.bus.at_turn_end(self._ask_for_slots)  # when it is known how many the turn leaves free
        self._wants[effect.pool] = effect

    def _stop(self, effect: do.StopAttempt) -> None:
        if (entry := self._entries.get(effect.seq)) is not None:
            entry.why_stopped = effect.why
            self.sent_attempts.stop(entry, effect.attempt)

    def _start(self, effect: do.StartAttempt) -> None:
        context, entry = self._context, self._entries[effect.seq]
        waited_s = max(0.0, context.ambient.wall() - entry.message.at) if effect.attempt == 1 else None
        context.metrics.started(self._endpoint, effect.pool, waited_s)
        limit_s, deadline_at = effect.timeout_s, effect.deadline_at
        early = limit_s is not None and (deadline_at is None or context.ambient.wall() + limit_s < deadline_at)
        entry.timeout_s, entry.attached = limit_s if early else None, False
        if self._history is not None:
            entry.attempt_at = context.ambient.wall()
        self.sent_attempts.start(entry, effect, self.lessor(effect.pool), self._pool_observer.told_policy)

    def _look(self, effect: do.LookUpResult) -> None:
        seq = effect.seq
        self._entries[seq].doubts = self.sent_attempts.doubts
        self.outcomes.look(self._endpoint, effect, lambda found: self._tell_soon(on.Looked, seq=seq, finished=found))

    def _persist(self, effect: do.Persist) -> None:
        metrics, endpoint, seq, kind = self._context.metrics, self._endpoint, effect.seq, effect.kind
        match kind:
            case do.RecordKind.RESULT if effect.state is JobState.CANCELLED:
                metrics.cancelled(endpoint)
                self._record(HistoryKind.JOB_CANCELLED, self._entries[seq], "", attempt=effect.attempts)
            case do.RecordKind.TRY:
                metrics.retried(endpoint, cause_of(effect).code)
            case do.RecordKind.DEAD_LETTER:
                metrics.dead(endpoint, reason_of(effect).value)
                reason = reason_of(effect).value
                self._record(HistoryKind.JOB_DEAD, self._entries[seq], reason, attempt=effect.attempts)
            case _:
                pass

        def persisted(error: GanglineError | None) -> None:
            if kind is do.RecordKind.TRY and (entry := self._entries.get(seq)) is not None:
                entry.noted = entry.attempt
                self.sent_attempts.acknowledge(entry)
            self._tell_soon(on.Persisted, seq=seq, kind=kind, error=error)

        self.outcomes.persist(endpoint, self._entries[seq], effect, persisted)

    def _ack(self, effect: do.Ack) -> None:
        assert self._consumer is not None
        entry = self._entries.pop(effect.seq, None)
        if effect.end is JobState.DONE:
            self._context.metrics.done(self._endpoint)
        if entry is not None:
            self._last = entry
            if entry.submission is not None:
                self._waiters.left(entry.submission.job)
            if entry.started:
                self._acking[effect.seq] = entry
            copied = copied_from(entry.message.headers, self._context.names.schedules_stream)
            if copied is not None:
                self.outcomes.copies.remove(copied, functools.partial(self._acknowledge, entry.message))
            else:
                self._acknowledge(entry.message)
        if effect.tried:
            self._tried[effect.seq] = effect.job

    def _acknowledge(self, message: StreamMessage) -> None:
        assert self._consumer is not None
        if message.ack:
            self._consumer.ack(message)
        elif not self._closed:
            self._background.start(self._delete(message.sequence))

    async def _delete(self, seq: int) -> None:
        """Remove a message that the consumer has not delivered. Its end is stored, so that this is harmless even if the
        queue has another owner by now."""
        stream = await until_answered("opening the stream of tasks", self._context.streams.tasks, self._log)
        await until_answered("removing a task", functools.partial(stream.delete, seq), self._log)
        self.acknowledged([seq])

    def _publish_state(self, effect: do.EmitJobEvent) -> None:
        entry = self._entries.get(effect.seq)
        if entry is None and self._last is not None and self._last.seq == effect.seq:
            entry = self._last
        self.outcomes.feed.tell(
            JobEvent(
                job=effect.job,
                state=effect.state,
                attempt=effect.attempt,
                worker=entry.worker if entry is not None else "",
                at=effect.at,
                error=None if effect.error is None else failure_of(effect.error, 4096),
                reason=effect.reason,
            )
        )

    def _wake(self, effect: do.SetQueueTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if effect.at is not None and not self._closed:
            self._timer = self._loop.call_at(effect.at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tell(on.Tick)

    # -- attempts ----------------------------------------------------------------------------------------------------

    def lessor(self, pool: str) -> SlotLessor:
        """The leases of a pool."""
        lessor = self.lessors.get(pool)
        if lessor is None:
            context = self._context
            lessor = SlotLessor(
                pool, router=context.router, settings=context.settings, changed=self._credit_changed, log=self._log
            )
            self.lessors[pool] = lessor
            self.sent_attempts.feeds(lessor)
            self._pool_observer.follow(pool)
        return lessor

    def _look_for_cancellation(self, entry: QueuedMessage, then: Callable[[bool], None]) -> None:
        assert entry.submission is not None
        doubts, job = self.sent_attempts.doubts, entry.submission.job

        async def look() -> None:
            cancelled = bool(await self.outcomes.cancelled([job]))
            entry.doubts = doubts
            if cancelled:
                self._tell(on.Cancel, job=job)
            then(cancelled)

        self._background.start(look())

    def _on_ended(self, entry: QueuedMessage, attempt: int, error: GanglineError | None) -> None:
        pool = entry.feeder_pool
        if isinstance(error, (DeadlineExceeded, TaskCancelled)):
            error = late_error(entry, attempt, error)
        if self._history is not None:
            self._record_attempt(entry, attempt, error)
        self._tell_soon(
            on.AttemptEnded, seq=entry.seq, attempt=attempt, error=error, once=entry.once, policy=entry.policy
        )
        if pool:
            self._credit_changed(pool)

    def _record_attempt(self, entry: QueuedMessage, attempt: int, error: GanglineError | None) -> None:
        began_at = entry.attempt_at or self._context.ambient.wall()
        seconds = self._context.ambient.wall() - began_at
        if error is None and seconds < _LONG_S and self._short is not None:
            method = entry.submission.method if entry.submission is not None else ""
            self._short.add(seconds, pool=entry.feeder_pool, endpoint=self._endpoint, method=method)
        else:
            reason = "" if error is None else error.code
            self._record(HistoryKind.ATTEMPT_ENDED, entry, reason, attempt=attempt, since=round(began_at, 3))

    def _record(self, kind: HistoryKind, entry: QueuedMessage, reason: str, **facts: Any) -> None:
        if self._history is None:
            return
        pool, _, worker = entry.worker.partition(".")
        if entry.submission is not None:
            job, method = entry.submission.job, entry.submission.method
        else:
            job, method = job_of(entry.message, self._endpoint) or str(entry.seq), ""
        where = {"endpoint": self._endpoint, "method": method, "pool": pool, "worker": worker}
        self._history.record(kind, job=job, reason=reason, **where, **facts)

    def _credit_changed(self, pool: str) -> None:
        self._dirty.add(pool)
        self._joins_turn()

    def report_credit(self) -> None:
        """Report free slots once per turn, however many tasks end in it."""
        while self._dirty and not self._closed:
            dirty, self._dirty = self._dirty, set()
            for pool in sorted(dirty):
                self._tell_soon(on.SlotsGranted, pool=pool, free=self.lessor(pool).free)

    def _ask_for_slots(self) -> None:
        wants, self._wants = self._wants, {}
        for pool, want in wants.items():
            if not self._closed:
                self.lessor(pool).want(want.slots, want.largest)
                self._context.metrics.wanted(self._endpoint, pool, want.slots)

    def _attach(self, effect: do.ReattachAttempt) -> None:
        self._background.start(self._attach_to(self._entries[effect.seq], effect))

    async def _attach_to(self, entry: QueuedMessage, effect: do.ReattachAttempt) -> None:
        """Read how much of a stream is stored, then attach."""
        assert entry.submission is not None
        entry.items = None
        if self.sent_attempts.streams_on(effect.worker, entry.submission.method):
            subject = self._context.names.job(effect.job, Feed.ITEM)

            async def read() -> int:
                last = await (await self._context.streams.jobs()).last(subject)
                try:
                    item = None if last is None else JobItem.model_validate_json(last.data)
                except ValidationError:  # anybody can publish there
                    item = None
                return item.index + 1 if item is not None and item.attempt == effect.attempt else 0

            entry.items = await until_answered("reading items of a job", read, self._log)
        self.sent_attempts.attach(entry, effect)

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def has(self, seq: int) -> bool:
        """Whether this message is fetched, or its acknowledgement is not confirmed."""
        return seq in self._entries or seq in self._acking

    def acknowledged(self, sequences: list[int]) -> None:
        """The server has removed these."""
        if self._closed:
            return
        self._tell_soon(on.Acked, seqs=sequences)
        for seq in sequences:
            # Not earlier: as long as the message exists, the next owner of the queue would ask the worker.
            if (entry := self._acking.pop(seq, None)) is not None:
                self.sent_attempts.acknowledge(entry)
            if (job := self._tried.pop(seq, None)) is not None:
                self.outcomes.forget_try(self._endpoint, job)

    # -- inside ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"QueueEffectExecutor({self._endpoint}, {self.sent_attempts!r}, {self.outcomes!r})"


HANDLERS: Final[dict[type[do.Effect], Callable[[QueueEffectExecutor, Any], None]]] = {
    do.Fetch: QueueEffectExecutor._pull,
    do.LookUpResult: QueueEffectExecutor._look,
    do.RequestSlots: QueueEffectExecutor._want,
    do.StartAttempt: QueueEffectExecutor._start,
    do.ReattachAttempt: QueueEffectExecutor._attach,
    do.StopAttempt: QueueEffectExecutor._stop,
    do.Persist: QueueEffectExecutor._persist,
    do.Ack: QueueEffectExecutor._ack,
    do.EmitJobEvent: QueueEffectExecutor._publish_state,
    do.SetQueueTimer: QueueEffectExecutor._wake,
}
"""How each effect is started. A test checks that there is one for each of Effect."""


_LOOK_S: Final = 1.0
"""Interval of requests: a worker whose ends are all stored has left by then."""


class KeptEnds:
    """Ends that workers keep for one queue until an ACK says that they are stored.

    ACKs have no answers and may be lost, and a draining worker waits for each. So draining workers that were sent ACKs
    are asked what they still keep, until they keep nothing, and get the ACKs of stored ends again.
    """

    def __init__(
        self,
        *,
        find: Callable[[str], WorkerEntry | None],
        kept: Callable[[WorkerEntry], AsyncIterator[WorkerJob]],
        stored: Callable[[WorkerJob], bool],
        acknowledge: Callable[[str, WorkerJob], None],
        log: Log,
    ) -> None:
        """
        Args:
            find: finds the worker with a name, if known.
            kept: asks a worker what it runs and keeps of this queue.
            stored: tells whether an end is stored or no longer matters.
            acknowledge: sends an ACK to the worker of that name.
        """
        self._find = find
        self._kept = kept
        self._stored = stored
        self._acknowledge = acknowledge
        self._log = log
        self._told: dict[str, int] = {}
        """Workers that were sent ACKs, perhaps without success, and how many."""
        self._work = TaskSet("kept ends", log)

    def told(self, worker: str) -> None:
        """An ACK was sent there."""
        self._told[worker] = self._told.get(worker, 0) + 1
        if not self._work:
            self._work.start(self._go_on())

    async def stop(self) -> None:
        """Idempotent."""
        await self._work.stop()

    async def _go_on(self) -> None:
        while self._told:
            await asyncio.sleep(_LOOK_S)
            for name in list(self._told):
                worker = self._find(name)
                if worker is None:
                    del self._told[name]
                elif worker.draining:
                    await self._ask(name, worker)

    async def _ask(self, name: str, worker: WorkerEntry) -> None:
        told, keeps = self._told.get(name), False
        try:
            async for job in self._kept(worker):
                if job.unstored and not job.running:
                    keeps = True
                    if self._stored(job):
                        self._acknowledge(name, job)
        except (GanglineError, ValidationError) as error:
            extra = {"action": "kept.ask", "worker": name}
            self._log.debug("worker %s does not report what it keeps: %s", name, error, extra=extra)
            return
        if not keeps and self._told.get(name) == told:
            self._told.pop(name, None)

    def __repr__(self) -> str:
        return f"KeptEnds(told={len(self._told)})"
