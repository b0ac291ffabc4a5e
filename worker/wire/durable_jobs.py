"""Durable jobs on the frames path: one execution of each; every request for it gets the outcome.

Attached requests get the same frames as any task: ITEM, OK, END or ERROR with their own ids. The differences:

- A job is answered only when its code has stopped, even if it was cancelled or its deadline has passed: the answer
  allows the next attempt to start, which must not overlap with the previous one.
- CANCEL from any listener cancels the job. The deadline is that of the request that started it.
- If a job yields items, a request that attaches with STREAM gets the items that were not credited yet, starting at
  `meta["items"]` if given, and then all that follow, with their own numbers. From then on it is the *reader*: only its
  credit counts. If some of those items are no longer kept, the job fails with StreamBroken. A job stays as it was
  started: without STREAM there are no items, but one list of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...bus.port.bus import Bus
from ...bus.rpc.responder import Responder
from ...schemas.errors.base import GanglineError, InvalidRequest, InvalidResult, StreamBroken, TaskCancelled
from ...schemas.messages import jobs
from ...schemas.messages import operations as messages
from ...schemas.names import Names, check_name, is_job_of
from ...schemas.wire import codec
from ...schemas.wire.frames import Frame, Reason, TaskFlag, encode_frame
from ...telemetry.logs import Log
from ..context.progress import ProgressPublisher
from ..execution.runner import TaskRun
from ..ledger.core_driver import CoreDriver
from ..pool.pool import Outcome
from ..slots.job_table import FIRST, JobKey, JobListener, RunningJob
from ..slots.lease_table import RouterHistory, TaskRecord
from .answer_batcher import AnswerBatcher, FrameResponder, error_frame

# Plain numbers: arithmetic with enum flags takes longer than the rest of checking a frame.
_STREAM: Final = int(TaskFlag.STREAM)
_ATTACH: Final = int(TaskFlag.ATTACH)
LISTED = 2000
"""Maximum number of jobs in one answer to the operation `jobs`; fewer if they do not fit into a message."""
MOST_HEARERS = 1000
"""Maximum number of listeners of one job. Nobody has that many dispatchers; it stops endless repeats."""
ID_BYTES = 8
"""How much longer one request's id may be than another's."""
_ENTRY_BYTES = 192
"""Size of one job in such an answer, without its names."""
_MOST_CHARS: Final = 256


class JobName(NamedTuple):
    """The job that a request names."""

    key: JobKey
    attempt: int
    attach: bool
    """Nothing may start."""
    ranks: int = 0
    pool: str = ""
    acks: bool = False
    """See job_table.RunningJob."""

    @classmethod
    def of(cls, meta: dict[str, Any] | None, flags: int, pool: str) -> JobName | None:
        """None: the request is not for a job.

        Raises:
            InvalidRequest: `meta` is invalid.
        """
        attach = flags & _ATTACH != 0
        job = None if meta is None else meta.get("job")
        if meta is None or job is None:
            if attach:
                raise InvalidRequest("nothing to attach to: name the job in meta")
            return None
        endpoint = check_name(meta.get("endpoint") or pool, "endpoint")
        if type(job) is not str or not is_job_of(job, endpoint):
            raise InvalidRequest(f"job {str(job)[:80]!r} is not the id of a job of {endpoint}")
        sent_to = meta.get("pool")
        return cls(
            JobKey(endpoint, job, _number(meta.get("sequence"), 0), _number(meta.get("rank"), 0)),
            _number(meta.get("attempt"), 1),
            attach,
            _number(meta.get("ranks"), 0),
            sent_to[:_MOST_CHARS] if isinstance(sent_to, str) else "",
            meta.get("acks") is True,
        )


class JobRun:
    """The requests that wait for one execution of a job: the caller of its run, and where that reports progress."""

    __slots__ = ("_answers", "_driver", "_failure", "_publisher", "_publisher_of", "job")

    def __init__(
        self,
        job: RunningJob,
        publisher_of: Callable[[RunningJob], ProgressPublisher],
        driver: CoreDriver,
        answer_batcher: AnswerBatcher,
    ) -> None:
        self.job = job
        self._publisher: ProgressPublisher | None = None
        """Created for the first report: most tasks make none."""
        self._publisher_of = publisher_of
        self._driver = driver
        self._answers = answer_batcher
        self._failure: GanglineError | None = None
        """Why it was stopped, if the reason is not its own."""

    @property
    def progress(self) -> JobRun:
        """See ResultSink."""
        return self

    def report(self, value: Any) -> None:
        """See Progress."""
        try:
            here = asyncio.get_running_loop() is self._driver.loop
        except RuntimeError:
            here = False
        if here:
            self._publish(value)
            return
        try:
            self._driver.loop.call_soon_threadsafe(self._publish, value)
        except RuntimeError:
            pass  # The loop has closed: nobody is left to report to.

    def _publish(self, value: Any) -> None:
        if not self.job.running:
            return
        if self._publisher is None:
            self._publisher = self._publisher_of(self.job)
        self._publisher.take(value)

    def answer(self, run: TaskRun, outcome: Outcome) -> GanglineError | None:
        """Answer all listeners; the job has ended."""
        if self._publisher is not None:
            self._publisher.close()
        core, now, record = self._driver.core, self._driver.now(), run.record
        error = self._failure or outcome.error
        first = self.job.listeners[0]
        try:
            ended = outcome if self._failure is None else Outcome(error=self._failure)
            frame = _caller(first).frame(run, ended, ID_BYTES)
        except InvalidResult as unwritable:
            error = unwritable
            frame = error_frame(record.id, error, self._answers.largest_frame - ID_BYTES)
        for listener in self.job.listeners:
            own = frame if listener is first else _readdressed(frame, listener.id)
            core.settle(listener.sender, listener.id, own, now)
            _caller(listener).send(own)
        if error is not None and not error.may_have_started:
            core.jobs.undo(self.job.key)  # the same attempt may be sent again
        else:
            core.jobs.end(self.job, frame, failed=error is not None, now=now)
        return error

    def completed(self, answer: bytes, now: float) -> None:
        """It succeeded in the turn in which it started, so there is no other listener."""
        if self._publisher is not None:
            self._publisher.close()
        _caller(self.job.listeners[0]).send(answer)
        self._driver.core.jobs.end(self.job, answer, failed=False, now=now)

    def item(self, run: TaskRun, sequence: int, value: Any) -> None:
        """Send an item to all that read them. One that cannot be sent ends the job with InvalidResult."""
        if self._failure is not None:
            return
        try:
            frame = _caller(self.job.listeners[0]).item_frame(run, sequence, value, ID_BYTES)
        except InvalidResult as error:
            self.fail(run, error)
            return
        self._driver.core.jobs.add_item(self.job, frame)
        for listener in self.job.listeners:
            if listener.streams:
                _caller(listener).send(frame if listener.id == run.record.id else _readdressed(frame, listener.id))

    def fail(self, run: TaskRun, error: GanglineError) -> None:
        """Stop it for a reason that is not its own."""
        self._failure = error
        run.cancel(TaskCancelled(error.message))

    def credit(self, sender: RouterHistory, task_id: int, items: int, run: TaskRun) -> None:
        """A listener has taken `items` more items."""
        self.stored(sender, task_id, self.job.read + items, run)

    def stored(self, sender: RouterHistory, task_id: int, count: int, run: TaskRun) -> None:
        """A listener has taken the first `count` items."""
        reader = self.job.reader
        if reader is not None and reader.sender is sender and reader.id == task_id:
            run.credit(self._driver.core.jobs.take_items(self.job, count))


class DurableJobServer:
    """The durable jobs of one worker."""

    def __init__(self, bus: Bus, names: Names, driver: CoreDriver, answer_batcher: AnswerBatcher, *, log: Log) -> None:
        self._bus = bus
        self._names = names
        self._driver = driver
        self._core = driver.core
        self._answers = answer_batcher
        self._pool = driver.worker.pool
        self._log = log

    def named(self, meta: dict[str, Any] | None, flags: int) -> JobName | None:
        """See JobName.of."""
        return JobName.of(meta, flags, self._pool)

    def attach(
        self, name: JobName, sender: RouterHistory, caller: FrameResponder, frame: Frame, now: float
    ) -> Reason | None:
        """Answer a TASK frame with what is known of its job, now or at its end; or return why not. UNKNOWN_JOB: no
        known job will do."""
        job = self._core.known_job(name.key, name.attempt, attach=name.attach)
        if job is None:
            return Reason.UNKNOWN_JOB
        if len(job.listeners) >= MOST_HEARERS:
            return Reason.FULL
        task_id, meta = frame[1], frame[9]
        listener = JobListener(sender, task_id, caller, streams=frame[8] & _STREAM != 0)
        items = meta.get("items")
        start = items if type(items) is int and items >= 0 else None
        self._driver.record("attach", id=f"{sender.name}.{task_id}", job=name.key.job, attempt=job.attempt)
        if not job.running:
            self._answer_again(job, listener, start, now)
            self._core.jobs.asked(job, acks=name.acks, now=now)  # last: this may drop its answer
            return None
        self._core.jobs.asked(job, acks=name.acks, now=now)
        run = job.record.handle
        if listener.streams and start is not None and isinstance(run, TaskRun):
            run.credit(self._core.jobs.take_items(job, start))
        if listener.streams and job.lost(start or 0) and isinstance(run, TaskRun) and isinstance(run.caller, JobRun):
            # Otherwise the reader would wait forever for these items, and the job for its reader.
            run.caller.fail(run, _items_lost(job, start))
        for item in self._core.attach(job, listener, start):
            caller.send(_readdressed(item, task_id))
        return None

    def begin(self, name: JobName, record: TaskRecord, caller: FrameResponder, *, stream: bool) -> JobRun:
        """An execution starts: returns its caller."""
        first = JobListener(record.sender, record.id, caller, streams=stream)
        job = self._core.jobs.begin(
            name.key, name.attempt, record, first, ranks=name.ranks, pool=name.pool, acks=name.acks
        )
        return JobRun(job, self._publisher_of, self._driver, self._answers)

    def _publisher_of(self, job: RunningJob) -> ProgressPublisher:
        return ProgressPublisher(
            self._bus,
            self._names,
            job.key.job,
            job.attempt,
            ambient=self._driver.ambient,
            loop=self._driver.loop,
            log=self._log,
        )

    def stored(self, frame: Frame, now: float) -> None:
        """Handle an ACK frame: a dispatcher has stored the end of a job."""
        _, endpoint, job, sequence, rank, attempt = frame
        twin = self._core.jobs.stored(JobKey(endpoint, job, sequence, rank), attempt, now)
        run = None if twin is None else twin.record.handle
        if isinstance(run, TaskRun) and isinstance(run.caller, JobRun):
            run.caller.fail(run, TaskCancelled("another worker has run this attempt: this one was taken for lost"))

    def on_list(self, responder: Responder, body: Any) -> None:
        """The operation `jobs`."""
        request = messages.parse_request(jobs.JobsRequest, body)
        room = self._answers.largest_frame - 1024
        found, more = self._core.jobs.listing(request.endpoint, request.after or FIRST, LISTED)
        shown: list[RunningJob] = []
        for job in found:
            room -= len(job.key.job) + len(job.key.endpoint) + len(job.pool) + _ENTRY_BYTES
            if room < 0 and shown:
                more = shown[-1].place
                break
            shown.append(job)
        responder.reply(jobs.JobsReply(epoch=self._core.epoch, jobs=tuple(map(_listed, shown)), next=more))

    def _answer_again(self, job: RunningJob, listener: JobListener, start: int | None, now: float) -> None:
        """Send the kept answer of an ended job, and the items that nobody has taken."""
        caller, answer = _caller(listener), job.answer
        assert answer is not None
        if listener.streams and not job.failed and job.lost(start or 0):
            frame = error_frame(listener.id, _items_lost(job, start), self._answers.largest_frame)
            self._core.settle_new(listener.sender, listener.id, frame, now)
            caller.send(frame)
            return
        if listener.streams:
            for item in self._core.jobs.items(job, start):
                caller.send(_readdressed(item, listener.id))
        own = _readdressed(answer, listener.id)
        self._core.settle_new(listener.sender, listener.id, own, now)
        caller.send(own)


def _items_lost(job: RunningJob, start: int | None) -> StreamBroken:
    first, kept = max(start or 0, job.read), job.sent - len(job.items)
    return StreamBroken(
        f"items {first} to {kept - 1} are no longer kept: they were too many bytes for the worker's memory",
        may_have_started=True,
    )


def _caller(listener: JobListener) -> FrameResponder:
    assert isinstance(listener.handle, FrameResponder)
    return listener.handle


def _readdressed(frame: bytes, task_id: int) -> bytes:
    """The same frame with another request's id."""
    operation, _, *rest = codec.unpack(frame)
    return encode_frame((operation, task_id, *rest))


def _listed(job: RunningJob) -> jobs.WorkerJob:
    endpoint, name, sequence, rank = job.key
    return jobs.WorkerJob(
        job=name,
        endpoint=endpoint,
        sequence=sequence,
        attempt=job.attempt,
        running=job.running,
        rank=rank,
        ranks=job.ranks,
        pool=job.pool,
        unstored=job.acks,
    )


def _number(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default
