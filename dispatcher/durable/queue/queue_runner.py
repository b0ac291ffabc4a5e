"""One endpoint's queue while this dispatcher owns it: its core, the executor of the core's effects, and the messages.

Laws:

1. The core receives events in the order in which they happened; events caused by an effect come after it.
2. After the end (`close`, or the consumer lost) nothing is reported and nothing new starts: another dispatcher may own
   the queue by then. Running attempts continue, and the next owner attaches to them.
3. From a doubt (see DoubtMonitor and verifier) until the server confirms that the consumer is ours, the core holds
   everything back: it receives OwnershipDoubted before any other event, and then OwnershipConfirmed, or nothing more.
   Writes wait as well.
4. Nothing is fetched before the failed attempts are known. Nothing starts before every worker that may run tasks of
   this queue has reported what it runs. And workers are not asked before a previous owner that did not give up the
   queue has stopped trusting its ownership.
5. If a client cancelled a job and could not reach us, there is only a record of it. So what was fetched before a doubt
   starts only after its record has been looked for, and so do tasks that arrive until clients reach us again. When they
   do, the keys of all records written meanwhile are read at once, and those of other jobs are looked for no more.
   Records of what runs are read after each doubt; after a reconnection, those of all fetched jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from ....bus.port.bus import (
    Consumer,
    ConsumerLost,
    ConsumerSettings,
    ConsumerTaken,
    NotPermitted,
    Stream,
    StreamMessage,
    StreamState,
)
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, NoDispatcher, UnknownJob
from ....schemas.messages.jobs import (
    PURGED,
    JobInfo,
    JobLine,
    JobWhyReply,
    LineRunning,
    ListReply,
    ListRequest,
    QueueObstacle,
    QueueStats,
    WorkerJob,
)
from ....schemas.messages.submission import OF_TASKS, Submission
from ....schemas.names import WorkerId, job_of_tenant
from ....schemas.records.history import HistoryKind
from ....schemas.records.jobs import TryRecord
from ....schemas.records.routes import QueueRules, RouteRecord
from ....schemas.text import count_of
from ...calls.unknown_headers import warn_of_unknown_headers
from ...jobs.job_index import JobFinder
from ...jobs.listing import info_matches, without_details
from ...jobs.storage import MOST_S, until_answered
from ...jobs.stored import job_of as stored_job_of
from ..core import events as on
from ..core.queue_core import QueueCore
from ..messages.entry import QueuedMessage, job_of, may_have_ended, read_message, size_of
from ..ownership.manager import DISPATCHER, PRIVATELY, consumer_name
from ..ownership.ownership_core import Take
from ..ownership.verifier import OwnershipProof, OwnershipVerifier
from ..workers.context import DispatcherContext
from ..workers.pool_observer import PoolObserver
from .effect_executor import KeptEnds, QueueEffectExecutor
from .recovery import QueueRecovery, by_try
from .result_waiters import JobPlace, ResultWaiters
from .tenant_reader import TenantReader

_ACK_WAIT_S: Final = 30.0
"""Tasks run and wait for longer, but redelivering a fetched message costs next to nothing. It matters if a delivery was
lost unnoticed."""
_SETTLED_S: Final = 2.5
"""How long workers may take to come back after a restart of the server."""
_UNFETCHED: Final = 1024
"""How many jobs are remembered that were to be cancelled before they were fetched."""
_PAUSE_S: Final = 0.02
_SMALL: Final = 512
"""Bodies up to this number of bytes are not decoded again for the start."""
_HEARD_S: Final = 0.25
"""How long until all servers of a cluster know our subscription."""
_SWEEP_S: Final = 60.0
"""How often to search for TryRecords without a task."""
_INDEX_PAUSE_S: Final = 0.02
_INDEX_LOOK_S: Final = 1.0
_INDEX_STARTS: Final = 20.0
"""Starts a second above which a queue is left alone."""
_SEARCH_S: Final = 1.0
"""How long one request waits while a job is looked for in the stream."""
_LAST_WORDS_S: Final = 1.0
"""How long `close` waits for writes in progress."""


class QueueRunner:
    """One term of ownership: `take`, then `close`."""

    def __init__(self, context: DispatcherContext, endpoint: str, *, on_lost: Callable[[QueueRunner], None]) -> None:
        """`on_lost`: the consumer is gone; called once, and not after `close`."""
        self.endpoint = endpoint
        self.since = context.ambient.wall()
        self.entries: dict[int, QueuedMessage] = {}
        """Delivered but not acknowledged, by sequence."""
        self.core = QueueCore(endpoint, context.settings)
        self._context = context
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._log = context.log.bind(endpoint=endpoint)
        self._events: deque[on.AnyEvent] = deque()
        self._telling = False
        self._due = False
        """Whether the core gets events at the end of this turn, and the clocks were read for them."""
        self._now = self._wall = 0.0
        self._draw = context.chance.random
        self._closed = False
        self._died = False
        """Whether the last owner never gave up the queue."""
        self._pool_observer = PoolObserver(
            context.router, context.known, tell=functools.partial(self.tell, on.PoolSeen), log=self._log
        )
        self._verifier: OwnershipVerifier | None = None
        self._consumer: Consumer | None = None
        self._tasks = TaskSet(f"queue {endpoint}")
        self._searching = False
        self._searched_at = self._loop.time()
        """When the records of cancelled jobs were last looked for."""
        self._unlisten: Callable[[], None] | None = None
        self._tries: dict[str, TryRecord] = {}
        self._stream_created = ""
        """Creation time of the stream that our consumer is of."""
        self._arrived = 0
        self._newest = 0
        """The highest sequence delivered."""
        self._gone: set[int] = set()
        """Higher sequences of messages that were removed before the takeover."""
        self.was_certain = False
        """Whether it was known that the queue was ours until it was lost: nobody else can have ended its tasks."""
        self._unread = 0
        """Messages in the stream that were not fetched, as of the last count and without those fetched since."""
        self._counted_to = 0
        """The last sequence of that count."""
        self._purged = 0
        """Fetched tasks whose messages somebody else has removed, as of that count."""
        self._old_to = 0
        """Up to this sequence a message may have ended before."""
        self._asked_of = False
        """Whether clients that cancel a task that arrives now reach us. Otherwise there may be a record instead."""
        self._records_to: int | None = None
        """The records up to this revision are known to concern no job that waits ..."""
        self._known_since = 0
        """... and was last looked for, or fetched, after so many doubts."""
        self._result_ttl_s = context.settings.result_ttl_s
        """Default for tasks that do not set one."""
        self._asking: asyncio.Future[None] | None = None
        self._warned: set[str] = set()
        """Names of unknown headers that a warning was logged about."""
        self._unheard_s = context.guard.unheard_s
        self.waiters = ResultWaiters(context.bus, locate=self._locate)
        self._executor = QueueEffectExecutor(
            context,
            endpoint,
            entries=self.entries,
            tell=self.tell,
            tell_soon=self.tell_soon,
            joins_turn=self._joins_turn,
            pool_observer=self._pool_observer,
            waiters=self.waiters,
            sure=self._sure,
        )
        self._recovery = QueueRecovery(context, endpoint, log=self._log)
        sent_attempts = self._executor.sent_attempts
        self._kept = KeptEnds(
            find=sent_attempts.worker,
            kept=lambda worker: self._recovery.pages(worker.id, worker.channel),
            stored=self._end_stored,
            acknowledge=self._acknowledge_again,
            log=self._log,
        )
        sent_attempts.on_acknowledged = self._kept.told
        self._reader = TenantReader(
            context,
            endpoint,
            entries=self.entries,
            newest=lambda: self._newest,
            wanted=lambda: self.core.crowded and not self._closed,
            read=self._read_ahead,
            log=self._log,
        )
        prefix = context.names.tasks[:-1]
        self._finder = JobFinder(
            context.streams.tasks, context.names.tasks_of(endpoint), prefix, floor=lambda _last: self._newest
        )
        """Of what is not fetched yet."""
        self._indexing = False
        self._searches: dict[str, asyncio.Future[StreamMessage | None]] = {}
        """By job: those that somebody looks for in the stream."""
        self._cancels: dict[str, asyncio.Future[JobInfo]] = {}
        """By job: cancellations that wait until no takeover can forget them."""
        self._answering = False
        self._unfetched: dict[str, float] = {}
        """Jobs that were to be cancelled before they were fetched, and when. Their clients cancel them in the stream,
        but their message may be on its way."""
        self._grace_ends_at = float("inf")
        self.recovery_s: float | None = None
        """Time from the takeover to the first possible start."""

    # -- taking ---------------------------------------------------------------------------------------------------

    async def take(self, take: Take) -> str | None:
        """Create our consumer in place of those of dead owners; returns its name, or None if another dispatcher was
        faster.

        Raises:
            Unavailable: storage did not answer; the consumer may exist or not.
        """
        context = self._context
        stream = await context.streams.tasks()
        self._died = take.died
        for name in take.over:
            await stream.delete_consumer(name)
        name = consumer_name(self.endpoint, context.ambient)
        settings = ConsumerSettings(
            filter=context.names.tasks_of(self.endpoint),
            ack_wait_s=_ACK_WAIT_S,
            max_pending=2 * context.settings.window_tasks + 1024,
            metadata={
                DISPATCHER: context.dispatcher,
                PRIVATELY: "true",
                "gangline-name": context.name,
                "gangline-node": context.settings.node,
                "gangline-since": str(self.since),
            },
        )
        try:
            self._consumer = await stream.consume(
                name, settings, self._on_message, on_lost=self._lost, on_acknowledged=self._executor.acknowledged
            )
        except ConsumerTaken:
            return None
        turn = OwnershipProof(
            context.streams.results,
            context.names.turn_key(self.endpoint),
            dispatcher=context.dispatcher,
            ambient=context.ambient,
            log=self._log,
        )
        self._verifier = OwnershipVerifier(
            context.guard,
            turn,
            self._consumer.state,
            doubted=self._on_doubt,
            sure=self._on_sure,
            lost=self._lost,
            log=self._log,
        )
        context.metrics.taken(self.endpoint)
        self._executor.start(self._consumer)
        self._tasks.start(self._recover_patiently(stream, turn)).add_done_callback(self._recovered)
        return name

    def _recovered(self, task: asyncio.Future[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NotPermitted):
            self._log.warning("the queue is not taken over: %s", error, extra={"action": "queue.not_permitted"})
        elif not isinstance(error, ConsumerLost):
            self._log.error("the queue cannot be taken over", exc_info=error, extra={"action": "queue.bug"})
        self._lost()

    async def _recover_patiently(self, stream: Stream, turn: OwnershipProof) -> None:
        try:
            await self._recover(stream, turn)
        except NotPermitted:
            await asyncio.sleep(MOST_S)  # the next attempt follows at once
            raise

    async def _recover(self, stream: Stream, turn: OwnershipProof) -> None:
        """Law 4."""
        context, recovery, began_at = self._context, self._recovery, self._loop.time()
        pattern = context.names.tasks_of(self.endpoint)
        state = await until_answered("looking at the stream of tasks", lambda: stream.state(pattern), self._log)
        self._stream_created = state.created
        self._old_to, waiting = state.last_sequence, sum(state.subjects.values())
        self.counted(waiting, state.last_sequence)
        self._tries = await recovery.tries()
        noted = {(record.job, record.sequence): record.attempts for record in self._tries.values()}
        if not waiting:
            self._newest = self._old_to  # no earlier message will come
        sent_attempts = self._executor.sent_attempts
        sent_attempts.turn, had = await turn.take()
        self._records_to = sent_attempts.turn
        await context.router.routes.ready()
        self._unlisten = context.router.routes.listen(self._on_route)
        self._follow(context.router.routes.get(self.endpoint))
        await self._pool_observer.open(
            sorted((context.router.routes.get(self.endpoint) or _DEFAULT).pools(self.endpoint))
        )
        self.tell(on.QueueTaken, waiting=waiting)
        if waiting and (had or self._died):
            await self._let_others_come_back(recovery, turn)
        jobs = await recovery.jobs()
        await self._catch_up()
        await self._read_what_runs(stream, jobs)
        sequences = {entry.submission.job: seq for seq, entry in self.entries.items() if entry.submission is not None}
        for found in by_try(
            # A replayed dead letter has its old id: attempts of the old message do not count for the new one.
            (worker, job)
            for worker, job in ((worker, self._named_as_now(job)) for worker, job in jobs)
            if not job.sequence or sequences.get(job.job, job.sequence) == job.sequence
        ):
            if found.workers:
                sent_attempts.adopt(found.job, found.attempt, found.workers)
            self.tell(on.TaskAdopted, job=found.job, worker=found.worker, attempt=found.attempt, pool=found.pool)
        self.recovery_s = self._loop.time() - began_at
        context.metrics.recovered(self.endpoint, self.recovery_s)
        self._asked_of = False
        self.tell(on.Recovered)
        self.waiters.locate_again()
        self._forget_orphans(self._tries)
        self._settle_reported(jobs, noted)
        self._log.info(
            "took over the queue in %.3f s: found %s, %d running",
            self.recovery_s,
            count_of(len(self.entries), "task"),
            self.core.statistics().running,
            extra={"action": "queue.taken"},
        )
        await self._be_asked()
        while True:
            # Writes of a previous owner may arrive long after we have read everything.
            await asyncio.sleep(_SWEEP_S)
            self._forget_orphans(await recovery.tries())

    async def _let_others_come_back(self, recovery: QueueRecovery, turn: OwnershipProof) -> None:
        """After a restart of the server, workers that run tasks of a previous owner may come back later than we do. And
        a previous owner that was taken for dead may start tasks until it notices that it has no proof."""
        context = self._context
        wait_s = _SETTLED_S - await recovery.ledger_age(context.ambient.wall())
        if self._died:
            wait_s = max(wait_s, context.guard.connected_at + _SETTLED_S - self._loop.time(), turn.others_trust_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _read_what_runs(self, stream: Stream, jobs: list[tuple[WorkerId, WorkerJob]]) -> None:
        """Tasks beyond the window that a previous owner had read ahead and started."""
        prefix = self._context.names.tasks_of(self.endpoint).removesuffix(">")
        for seq in sorted({job.sequence for _, job in jobs if job.sequence > self._newest} - self.entries.keys()):
            message = await until_answered("reading a task", functools.partial(stream.get, seq), self._log)
            if message is None:
                self._gone.add(seq)
            elif message.subject.startswith(prefix):
                self._read_ahead(message)

    async def _catch_up(self) -> None:
        """Wait until all messages that a previous owner had fetched have arrived."""
        consumer = self._consumer
        assert consumer is not None
        while self._arrived < self._executor.pulled:
            state = await until_answered("asking after our consumer", consumer.state, self._log)
            if state.pending == 0 and state.unacknowledged <= len(self.entries):
                return
            await asyncio.sleep(_PAUSE_S)

    def _forget_orphans(self, tries: dict[str, TryRecord]) -> None:
        """Delete TryRecords of jobs that have ended: their owner died first, or wrote them after our takeover."""
        jobs = {entry.submission.job for entry in self.entries.values() if entry.submission is not None}
        for job, record in list(tries.items()):
            if record.sequence <= self._newest:
                del tries[job]
                # A resubmitted job has its old id: its record is of another message than the one that was read.
                if job not in jobs and not self._executor.has(record.sequence):
                    self._executor.outcomes.forget_try(self.endpoint, job)

    def _settle_reported(self, jobs: list[tuple[WorkerId, WorkerJob]], noted: dict[tuple[str, int], int]) -> None:
        """Workers keep ends for a previous owner that has stored them but could not acknowledge them, or run what was
        started on another worker as well: acknowledge these."""
        for worker, job in jobs:
            ids = {job.job, self._named_as_now(job).job}
            if job.attempt <= max(noted.get((id, job.sequence), 0) for id in ids):
                self._acknowledge_again(str(worker), job)
            else:
                self._settle_one(str(worker), job)

    def returned(self, worker: str, job: WorkerJob) -> bool:
        """A worker that was away runs or keeps this job of ours. False: we are taking over the queue, and do not know
        yet what that means."""
        if self.core.open:
            self._settle_one(worker, job)
        return self.core.open

    def _settle_one(self, worker: str, job: WorkerJob) -> None:
        entry = self.entries.get(job.sequence)
        if self._end_stored(job) or (entry is not None and self._is_twin(entry, worker, job)):
            if job.running or job.unstored:
                self._acknowledge_again(worker, job)
        elif entry is not None and job.attempt > entry.attempt and not job.ranks:
            job = self._named_as_now(job)
            self.tell(on.TaskAdopted, job=job.job, worker=worker, attempt=job.attempt, pool=job.pool)

    def _named_as_now(self, job: WorkerJob) -> WorkerJob:
        """With the id that it has in this version. A tenant's job that a dispatcher of an earlier version started has
        one without the tenant on its worker; then its message tells which job it is."""
        entry = self.entries.get(job.sequence)
        if entry is None or entry.submission is None or job.job != entry.earlier_id:
            return job
        entry.earlier_attempt = max(entry.earlier_attempt, job.attempt)
        return job.model_copy(update={"job": entry.submission.job})

    @staticmethod
    def _is_twin(entry: QueuedMessage, worker: str, job: WorkerJob) -> bool:
        """Whether this attempt runs on another worker, too, which is the one that counts."""
        if not entry.started or job.attempt != entry.attempt:
            return False
        counts = entry.workers[job.rank] if job.rank < len(entry.workers) else entry.worker
        return bool(counts) and counts != worker

    def _end_stored(self, job: WorkerJob) -> bool:
        """Whether the attempt's end is stored or no longer matters."""
        entry = self.entries.get(job.sequence)
        if entry is not None:
            return job.attempt <= entry.noted or job.attempt < entry.attempt
        seen = 0 < job.sequence <= self._newest or job.sequence in self._gone
        return seen and not self._executor.has(job.sequence)

    def _acknowledge_again(self, worker: str, job: WorkerJob) -> None:
        self._executor.sent_attempts.acknowledge_on(worker, job.job, job.sequence, job.rank, job.attempt)

    # -- the end --------------------------------------------------------------------------------------------------

    async def close(self, *, grace_s: float = 0.0) -> None:
        """Hand over the queue: the next owner gets all unacknowledged messages, and attaches to running tasks.

        Args:
            grace_s: how long to wait first for running tasks to finish here; nothing starts meanwhile.
        """
        if self._closed:
            return
        if grace_s > 0 and self.core.open:
            await self._finish(grace_s)
        consumer = self._consumer
        if consumer is not None:
            with contextlib.suppress(GanglineError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._executor.outcomes.writer.settled()
                    await self._executor.outcomes.copies.settled()
                    await consumer.settled()
        # The next owner must wait for the previous owner as we would have.
        await self.drop(delete=self.core.open or not self._died)

    async def drop(self, *, delete: bool = False) -> None:
        """Law 2. Idempotent.

        Args:
            delete: delete our consumer, so that others can take the queue at once.
        """
        self._closed = True
        self._events.clear()
        cancels, self._cancels = self._cancels, {}
        for waiting in cancels.values():
            waiting.set_exception(self._changing_hands())
        self.waiters.close(self._changing_hands())
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        await self._tasks.stop()
        if self._verifier is not None:
            await self._verifier.stop()
        await self._kept.stop()
        await self._reader.stop()
        await self._pool_observer.stop()
        await self._executor.stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(GanglineError):
                await consumer.close(delete=delete)

    async def _finish(self, grace_s: float) -> None:
        """Start nothing more, and wait for running attempts."""
        route = self._context.router.routes.get(self.endpoint)
        rules = (route or _DEFAULT).queue.model_copy(update={"paused": True})
        paused = (route or _DEFAULT).model_copy(update={"queue": rules})
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self.tell(on.Routed, route=paused, explicit=route is not None)
        self._grace_ends_at = self._loop.time() + grace_s
        while (  # noqa: ASYNC110 - only the core hears of ends
            self.core.statistics().running and not self._closed and self._loop.time() < self._grace_ends_at
        ):
            await asyncio.sleep(min(0.05, grace_s))

    def hurry(self) -> None:
        """End the grace time of `close`."""
        self._grace_ends_at = float("-inf")

    def is_of_removed(self, state: StreamState) -> bool:
        """Whether this stream has taken the place of the one that the queue was in."""
        return bool(self._stream_created) and state.created != self._stream_created

    def _lost(self) -> None:
        if not self._closed:
            self._closed = True
            self.was_certain = self._verifier is not None and self._verifier.certain
            self._on_lost(self)

    # -- events of the core -----------------------------------------------------------------------------------------

    def tell(self, event: type[Any], /, **fields: Any) -> None:
        """Law 1."""
        self._look()
        if not self._closed:
            self._read_clocks()
            self._append(event, fields)
            self._work()

    def tell_soon(self, event: type[Any], /, **fields: Any) -> None:
        """Like `tell`, but at the end of this turn with its other events, so that their effects are sent together."""
        if self._joins_turn():
            self._append(event, fields)

    def _joins_turn(self) -> bool:
        """Prepare for an event that the core gets at the end of this turn: doubts and clocks are checked once for all
        of them. False: the queue is closed."""
        if not self._due:
            self._look()
            if not self._closed:
                self._due = True
                self._read_clocks()
                self._context.bus.at_turn_end(self._end_turn)
        return not self._closed

    def _end_turn(self) -> None:
        self._look()  # the process may have been frozen since the first event of this turn
        self._executor.report_credit()
        self._work()

    def _read_clocks(self) -> None:
        self._now, self._wall = self._loop.time(), self._context.ambient.wall()
        unheard_s = self._context.guard.unheard_s - self._unheard_s
        if unheard_s:
            self._unheard_s += unheard_s
            self._append(on.Unheard, {"seconds": unheard_s})

    def _append(self, event: type[Any], fields: dict[str, Any]) -> None:
        self._events.append(event(now=self._now, wall=self._wall, draw=self._draw(), **fields))

    def _work(self) -> None:
        self._due = False
        if self._telling:
            return
        self._telling = True
        try:
            while self._events and not self._closed:
                events = tuple(self._events)
                self._events.clear()
                for effect in self.core.handle(*events):
                    if self._closed:
                        break
                    self._executor.carry_out(effect)
                if self._cancels and not self._answering:
                    self._answering = True
                    self._context.bus.at_turn_end(self._answer_cancels)
            if self.core.crowded and not self._closed:
                self._reader.wake()
        except Exception:
            # The core may be wrong now: the next owner starts from the server's state.
            self._log.exception("the queue failed; giving it up", extra={"action": "queue.bug"})
            self._lost()
        finally:
            self._telling = False

    def _on_message(self, message: StreamMessage) -> None:
        self._arrived += 1
        if not self._joins_turn():
            return
        self._newest = max(self._newest, message.sequence)
        self._receive(message)

    def _read_ahead(self, message: StreamMessage) -> None:
        """A message beyond the window was read. Meanwhile the consumer may have delivered it, or it may have ended."""
        seq = message.sequence
        if self._joins_turn() and seq > self._newest and seq not in self.entries and not self.core.knows(seq):
            self._receive(message, ahead=True)

    def _receive(self, message: StreamMessage, *, ahead: bool = False) -> None:
        seq = message.sequence
        known = self.entries.get(seq)
        if known is not None and known.submission is not None:
            known.message = message
            self._take(message, known.submission)
            return
        if seq <= self._counted_to and self._unread and seq not in self.entries:
            self._unread -= 1
        read = read_message(self._context.names, message)
        if isinstance(read, GanglineError):
            self.entries.setdefault(seq, QueuedMessage(message, None)).message = message
            self.tell(
                on.Malformed,
                seq=seq,
                size=size_of(message),
                error=read,
                job=job_of(message, self.endpoint),
                published_at=message.at,
                ahead=ahead,
            )
            return
        if read[0].unknown_headers:
            warn_of_unknown_headers(
                self._log,
                self._warned,
                read[0].unknown_headers,
                OF_TASKS,
                of=f"job {read[0].job}",
                kind="submitted task",
                action="submission.unknown_header",
                job=read[0].job,
            )
        entry = self.entries[seq] = QueuedMessage(message, read[0])
        if self._executor.sent_attempts.doubts:
            entry.doubts = self._executor.sent_attempts.doubts
        if len(message.data) <= _SMALL:
            entry.arguments = read[1]
        self._take(message, read[0], ahead=ahead)

    def _take(self, message: StreamMessage, submission: Submission, *, ahead: bool = False) -> None:
        """A task arrived. Like `tell_soon`, after `_joins_turn`."""
        seq, job = message.sequence, submission.job
        old = seq <= self._old_to or not self._asked_of or not self.core.open or job in self._unfetched
        record = self._try_of(self.entries[seq]) if self._tries else None
        if record is not None:
            self.entries[seq].tries = record.tries
        self._events.append(
            on.TaskArrived(
                now=self._now,
                wall=self._wall,
                draw=self._draw(),
                seq=seq,
                submission=submission,
                size=size_of(message),
                ahead=ahead,
                look=old or may_have_ended(message, recorded=self._recorded(submission)),
                attempts=record.attempts if record is not None else submission.attempts,
                not_before=record.not_before if record is not None else 0.0,
                cancelled=record is not None and record.cancelled,
            )
        )

    def _try_of(self, entry: QueuedMessage) -> TryRecord | None:
        """Its failed attempts; perhaps under its id in earlier versions."""
        assert entry.submission is not None
        earlier = self._tries.get(entry.earlier_id or "")
        found = (self._tries.pop(entry.submission.job, None), earlier)
        return max(
            (record for record in found if record is not None and record.sequence == entry.seq),
            key=lambda record: record.attempts,
            default=None,
        )

    def _recorded(self, submission: Submission) -> bool:
        """Whether its result will be kept."""
        ttl_s = submission.result_ttl_s
        return (self._result_ttl_s if ttl_s is None else ttl_s) > 0

    def _look(self) -> None:
        """Report a doubt first, if any."""
        if self._verifier is not None:
            self._verifier.look()
        else:
            self._context.guard.look()

    def _on_doubt(self) -> None:
        # A restarted server may deliver messages again that were acknowledged before.
        self._old_to = max(self._old_to, self._newest)
        self._asked_of = False
        self._executor.sent_attempts.doubts += 1
        if self._closed:
            return
        if self._events:
            first = self._events[0]
            self._events.appendleft(on.OwnershipDoubted(now=first.now, wall=first.wall))
        else:
            self._read_clocks()
            self._append(on.OwnershipDoubted, {})
        self._work()

    def _on_sure(self) -> None:
        """Law 5."""
        if self.core.open:
            if self._asking is not None:
                self._asking.cancel()
            self._asking = self._tasks.start(self._be_asked())
        self.tell(on.OwnershipConfirmed)
        if not self._searching:
            self._searching = True
            self._tasks.start(self._search())

    async def _search(self) -> None:
        """Stop what clients have cancelled without us. What waits is checked before it starts; but after a
        reconnection, that is looked for as well."""
        doubts = -1
        while doubts != self._executor.sent_attempts.doubts:
            doubts, began_at = self._executor.sent_attempts.doubts, self._loop.time()
            every = self._searched_at < self._context.guard.reconnected_at
            entries = (entry for entry in self.entries.values() if every or entry.sent_attempt is not None)
            jobs = [entry.submission.job for entry in entries if entry.submission is not None]
            for job in await self._executor.outcomes.cancelled(jobs):
                self.tell(on.Cancel, job=job)
            self._searched_at = began_at
        self._searching = False

    async def _be_asked(self) -> None:
        """From now on clients reach us: only tasks published earlier may have been cancelled without us."""
        doubts = self._executor.sent_attempts.doubts
        await asyncio.sleep(_HEARD_S)
        stream = await self._context.streams.tasks()
        state = await until_answered("looking at the stream of tasks", stream.state, self._log)
        if doubts == self._executor.sent_attempts.doubts:
            self._old_to = max(self._old_to, state.last_sequence)
            self._asked_of = True
            await self._read_new_records(doubts)

    async def _read_new_records(self, doubts: int) -> None:
        """Find out whose records were written since this was last known, unless it costs more than to look for each job
        that waits."""
        since = self._records_to
        try:
            results = await self._context.streams.results()
            to, keys = await results.written(since or 0, most=len(self.entries))
        except GanglineError as error:
            self._log.debug("new results are not known: %s", error, extra={"action": "queue.unknown_results"})
            return
        if doubts != self._executor.sent_attempts.doubts:
            return
        if keys is not None and since is not None:
            # Without the endpoint, which some ids have: two jobs may look like one, which costs a look.
            new = {key.rpartition(".")[2] for key in keys if key.startswith("result.")}
            for entry in self.entries.values():
                job = "" if entry.submission is None else entry.submission.job.rpartition(".")[2]
                if entry.doubts >= self._known_since and job not in new:
                    entry.doubts = doubts
        self._records_to, self._known_since = to, doubts

    def _on_route(self, endpoint: str, record: RouteRecord | None) -> None:
        if endpoint == self.endpoint:
            self._follow(record)

    def _follow(self, record: RouteRecord | None) -> None:
        own = (record or _DEFAULT).queue.result_ttl_s
        self._result_ttl_s = self._context.settings.result_ttl_s if own is None else own
        self.tell(on.Routed, route=record or _DEFAULT, explicit=record is not None)
        for pool in (record or _DEFAULT).pools(self.endpoint):
            self._pool_observer.follow(pool)

    async def _sure(self) -> None:
        assert self._verifier is not None
        await self._verifier.wait()

    # -- what can be seen -----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it is closed or lost."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether it is open and has no tasks."""
        return self.core.open and not self.entries

    @property
    def started(self) -> int:
        """Number of attempts sent."""
        return self._executor.sent_attempts.started

    @property
    def leased(self) -> int:
        """Number of slots leased."""
        return sum(lessor.leased for lessor in self._executor.lessors.values())

    def info(self, job: str) -> JobInfo | None:
        """The state of a job; None if it is not fetched."""
        self._work()
        info = self.core.info(job)
        entry = None if info is None or info.sequence is None else self.entries.get(info.sequence)
        if info is None or entry is None:
            return info
        return info.model_copy(update={"worker": entry.worker or info.worker, "tries": entry.tries})

    async def looked_up(self, job: str) -> JobInfo | None:
        """Like `info`; says whether somebody has removed the job's message, if that has happened to this queue."""
        info = self.info(job)
        if not self._purged or info is None or info.sequence is None:
            return info
        stored = await (await self._context.streams.tasks()).get(info.sequence)
        if stored is not None or (now := self.info(job)) is None:
            return info
        return now.model_copy(update={"reason": "; ".join(filter(None, (PURGED, now.reason)))})

    async def unread(self, job: str, sequence: int = 0) -> StreamMessage | None:
        """The message of a job that takes no part in the queue when this is called, since it was not fetched, or is
        being scheduled; None: the stream does not have it.

        Args:
            sequence: where it is, if the caller knows that.

        Raises:
            UnknownJob: it may be among those that are still to be read; `details["reading"]`: ask again.
            StorageUnavailable, Disconnected.
        """
        if (seq := self.core.unentered(job)) is not None:
            return self.entries[seq].message
        if sequence:
            stream, prefix = await self._context.streams.tasks(), self._context.names.tasks[:-1]
            message = await stream.get(sequence)
            if message is not None and stored_job_of(message, prefix) == job:
                return message
        search = self._searches.get(job)
        if search is None:
            search = self._searches[job] = self._tasks.start(self._finder.find(job))
            search.add_done_callback(functools.partial(self._searched, job))
        await asyncio.wait((search,), timeout=_SEARCH_S)
        if search.cancelled():
            raise self._changing_hands()
        if search.done():
            return search.result()
        raise UnknownJob(
            f"job {job} is not among the tasks of {self.endpoint} up to number {self._finder.read_to} of the stream; "
            "the dispatcher is reading the rest: ask again",
            details={"job": job, "certain": False, "reading": True},
        )

    def _searched(self, job: str, search: asyncio.Future[StreamMessage | None]) -> None:
        del self._searches[job]
        if not search.cancelled():
            search.exception()  # whoever asked may have got another answer meanwhile

    def read_ahead(self, message: StreamMessage) -> None:
        """Let a message beyond the window take part in the queue."""
        self._read_ahead(message)
        self._work()

    async def _index(self) -> None:
        """While tasks wait behind the window, learn where they are, for those who ask: in at most half of the time, and
        not while tasks start quickly."""
        try:
            while self._unread and not self._closed:
                started, began_at = self.started, self._loop.time()
                if not await self._finder.read_some():
                    return
                await asyncio.sleep(max(_INDEX_PAUSE_S, self._loop.time() - began_at))
                while self.started - started > _INDEX_STARTS * (self._loop.time() - began_at):
                    started, began_at = self.started, self._loop.time()
                    await asyncio.sleep(_INDEX_LOOK_S)
        except GanglineError as error:
            self._log.debug("cannot read the ids of jobs: %s", error, extra={"action": "queue.index"})
        finally:
            self._indexing = False

    def why(self, job: str) -> JobWhyReply | None:
        """What a job waits for; None if it is not fetched."""
        info = self.info(job)
        why = self.core.why(job)
        if info is None or why is None:
            return why
        line, turn = why.line, why.turn
        if line is not None:
            line = self._line(line)
        if turn is not None:
            update = {"running": self._on_workers(turn.running), "line": self._line(turn.line)}
            turn = turn.model_copy(update=update)
        return why.model_copy(update={"job": info, "line": line, "turn": turn})

    def _line(self, line: JobLine) -> JobLine:
        """With the workers that run its tasks, and the leases of its pool."""
        lessor = self._executor.lessors.get(line.pool)
        leases = () if lessor is None else lessor.told
        running = self._on_workers(line.running)
        return line.model_copy(update={"running": running, "leases": leases, "router": self._context.router.public_id})

    def _on_workers(self, running: Iterable[LineRunning]) -> tuple[LineRunning, ...]:
        entries = [(each, self.entries.get(each.seq)) for each in running]
        return tuple(
            each if entry is None else each.model_copy(update={"worker": entry.worker}) for each, entry in entries
        )

    def listed(self, request: ListRequest, tenant: str = "") -> ListReply:
        """The fetched tasks that match, in the order of publication; for a tenant, its own."""
        self._work()
        found: list[JobInfo] = []
        ahead: list[JobInfo] = []
        following: int | None = None
        in_any_state = request.model_copy(update={"states": ()})
        for info in self.core.listed(request.after):
            beyond = (info.sequence or 0) > self._newest
            if not info_matches(info, in_any_state if beyond else request):
                continue
            if tenant and job_of_tenant(info.job, self.endpoint, tenant) != info.job:
                continue
            if len(found) + len(ahead) == request.limit:
                following = (ahead or found)[-1].sequence
                break
            entry = self.entries.get(info.sequence or 0)
            worker = info.worker if entry is None else entry.worker or info.worker
            (ahead if beyond else found).append(without_details(info.model_copy(update={"worker": worker})))
        return ListReply(
            jobs=tuple(found),
            next=None if ahead else following,
            read_to=self._newest,
            ahead=tuple(ahead),
            ahead_next=following if ahead else None,
            recovering=not self.core.open,
        )

    async def cancel(self, job: str) -> JobInfo | None:
        """Cancel a job. Returns its state when its end or its cancellation is stored; None: it is not fetched.

        Raises:
            NoDispatcher: the queue was lost meanwhile, and its next owner may not know of the request.
        """
        self.tell(on.Cancel, job=job)
        if self._closed:
            raise self._changing_hands()
        info = self.info(job)
        if info is None:
            self._remember(job)
        if info is None or self.core.promised(job):
            return info
        return await asyncio.shield(self._cancels.setdefault(job, self._loop.create_future()))

    async def unscheduled(self, job: str) -> None:
        """A client says that it has cancelled a delayed job before it was due: record that, if the job's result says
        so, too."""
        history = self._context.history
        if history is not None and await self._executor.outcomes.cancelled([job]):
            history.record(HistoryKind.JOB_CANCELLED, job=job, endpoint=self.endpoint, attempt=0)

    def _remember(self, job: str) -> None:
        now = self._loop.time()
        self._unfetched.pop(job, None)
        self._unfetched[job] = now
        while len(self._unfetched) > _UNFETCHED or next(iter(self._unfetched.values())) < now - _ACK_WAIT_S:
            del self._unfetched[next(iter(self._unfetched))]

    def _locate(self, job: str, sequence: int) -> JobPlace:
        if not self.core.open:
            return JobPlace.UNSEEN
        if not sequence:
            return JobPlace.UNKNOWN if self.info(job) is None else JobPlace.FETCHED
        entry = self.entries.get(sequence)
        if entry is not None and entry.submission is not None and entry.submission.job == job:
            return JobPlace.FETCHED
        coming = sequence > self._counted_to or self._unread > 0
        return JobPlace.UNSEEN if sequence > self._newest and coming else JobPlace.UNKNOWN

    def _changing_hands(self) -> NoDispatcher:
        return NoDispatcher(f"the queue of {self.endpoint} is changing hands: ask again")

    def _answer_cancels(self) -> None:
        """Once a turn: many may wait."""
        self._answering = False
        for job, waiting in list(self._cancels.items()):
            if self.core.promised(job):
                del self._cancels[job]
                info = self.info(job)
                if info is not None and not waiting.done():
                    waiting.set_result(info)

    def counted(self, depth: int, last_sequence: int) -> None:
        """So many of its messages are in the stream, whose last one has this sequence."""
        known = sum(seq <= last_sequence for seq in self.entries)
        self._unread, purged = max(0, depth - known), max(0, known - depth)
        self._counted_to = last_sequence
        if purged and not self._purged:
            self._log.warning(
                "somebody has removed %s of the queue %s from the stream: they still run, from the memory of this "
                "dispatcher; to stop them, pause the queue ('gangline route set %s --pause') and cancel them",
                count_of(purged, "task"),
                self.endpoint,
                self.endpoint,
                extra={"action": "queue.purged", "tasks": purged},
            )
        self._purged = purged
        if self._unread and self.core.open and not self._indexing and not self._closed:
            self._indexing = True
            self._tasks.start(self._index())

    def statistics(self, delayed: int = 0) -> QueueStats:
        """`delayed`: number of tasks that wait for their time, in another stream."""
        counts, unread = self.core.statistics(), self._unread
        pending = {QueueObstacle.SCHEDULE.value: delayed, QueueObstacle.UNREAD.value: unread, **counts.pending}
        oldest_s = None if counts.oldest_at is None else max(0.0, self._context.ambient.wall() - counts.oldest_at)
        return QueueStats(
            endpoint=self.endpoint,
            dispatcher=self._context.dispatcher,
            depth=counts.seen + unread,
            seen=counts.seen,
            running=counts.running,
            waiting=counts.waiting,
            blocked=counts.blocked,
            credit=counts.credit,
            leased=self.leased,
            oldest_s=oldest_s,
            done=counts.done,
            dead=counts.dead,
            retried=counts.retried,
            since=self.since,
            paused=self.core.paused,
            purged=self._purged,
            pending={what: count for what, count in pending.items() if count},
        )

    def __repr__(self) -> str:
        return f"QueueRunner({self.endpoint}, {self.core!r}, {self._executor!r})"


_DEFAULT: Final = RouteRecord(queue=QueueRules())
