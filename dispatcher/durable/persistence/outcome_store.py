"""Stores what the core wants persisted: results, failed attempts, dead letters and schedules.

`answer` is always called: a task that is never settled keeps its place in the window forever, and with enough of those
nothing in the queue runs any longer.

The order matters if the process crashes in between: the large result is stored before the record that names it; the
dead letter before the record; the record before the answer to the core, which then acknowledges. A TryRecord is deleted
only after the acknowledgement is confirmed, or when another record of the end is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeGuard, assert_never

from ....bus.port.bus import Bus, Conflict, KvEntry, Published, PublishRefused
from ....runtime.clock import Environment
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidSchedule, PayloadTooLarge, QuotaExceeded
from ....schemas.names import Names, job_endpoint
from ....schemas.records.jobs import JobState, ResultRecord
from ....schemas.wire import headers
from ....telemetry.logs import LineLimit, Log
from ...jobs.schedules import put_schedule
from ...jobs.storage import TaskStreams, result_in, until_answered, until_taken
from ...jobs.stored import BURIED, SCHEDULED, origin_id, origin_of
from ..core.effects import LookUpResult, Persist, RecordKind
from ..messages.entry import QueuedMessage, size_of
from ..policies.settings import DispatcherSettings
from . import records
from .scheduled_tasks import ScheduledTasks, ScheduleRoom
from .writers import DueCopyRemover, JobEventPublisher, KvWriteBatcher

_LOOKS: Final = 64
"""Results looked up at once."""
_BAD_PATTERN: Final = 10189
_LOGGED_CHARS: Final = 400
"""Maximum length of a logged error."""

Answer = Callable[[GanglineError | None], None]


class OutcomeStore:
    """Stores outcomes of one queue. Methods start the work and return; `answer` is called once when it is done, unless
    the queue is lost before."""

    def __init__(
        self,
        endpoint: str,
        bus: Bus,
        names: Names,
        streams: TaskStreams,
        *,
        settings: DispatcherSettings,
        ambient: Environment,
        sure: Callable[[], Awaitable[None]],
        log: Log,
        stored: Callable[[Persist, bytes], None] = lambda effect, record: None,
    ) -> None:
        """
        Args:
            endpoint: that of the queue; empty: none.
            sure: waits until ownership of the queue is certain.
            stored: called with each result that the server has acknowledged, and its record.
        """
        self._endpoint = endpoint
        self._bus = bus
        self._names = names
        self._streams = streams
        self.writer = KvWriteBatcher(streams.results, sure=sure, log=log)
        due = names.due if not endpoint else names.due_of(names.tasks_of(endpoint))
        self.copies = DueCopyRemover(streams.schedules, due, sure=sure, log=log)
        self.feed = JobEventPublisher(streams.jobs, names, limit_bytes=lambda: bus.max_payload, sure=sure, log=log)
        self._scheduled = ScheduledTasks(endpoint, names, settings.quotas)
        self._schedule_room = ScheduleRoom(streams.tasks_wanted_bytes)
        self._settings = settings
        self._ambient = ambient
        self._sure = sure
        self._on_stored = stored
        self._log = log
        self._log_limit = LineLimit(lambda: asyncio.get_running_loop().time())
        self._background = TaskSet("outcome", log)
        self._looks = asyncio.Semaphore(_LOOKS)

    def start(self) -> None:
        """Idempotent."""
        self.writer.start()
        self.copies.start()
        self.feed.start()

    async def stop(self) -> None:
        """Stop writing, and drop work in progress. Idempotent, safe before `start`."""
        await self._background.stop()
        await self.feed.stop()
        await self.copies.stop()
        await self.writer.stop()

    # -- results --------------------------------------------------------------------------------------------------

    def look(self, endpoint: str, effect: LookUpResult, answer: Callable[[bool], None]) -> None:
        """Whether the job has ended before. If so, its leftover TryRecord is deleted."""

        async def work() -> None:
            async with self._looks:
                found = await until_taken("looking a result up", lambda: self._entry(effect.job), self._log)
            ended = found is not None and self._reads(found) is not None
            if ended:
                self.forget_try(endpoint, effect.job)
            answer(ended)

        self._background.start(work())

    def _reads(self, found: KvEntry) -> ResultRecord | None:
        """None: it cannot be parsed, and so ends no job: anybody may have written it."""
        record = result_in(found)
        if record is None:
            self._log.error(
                "%s is not a result and ends no job: find out who else writes there",
                found.key,
                extra={"action": "record.unreadable", "key": found.key},
            )
        return record

    async def cancelled(self, jobs: Iterable[str]) -> list[str]:
        """Those with a record of their cancellation, whose clients found no dispatcher."""

        async def look(job: str) -> bool:
            async with self._looks:
                record = await until_taken("looking a result up", lambda: self._record(job), self._log)
            return record is not None and record.state is JobState.CANCELLED

        asked = list(jobs)
        return [job for job, gone in zip(asked, await asyncio.gather(*map(look, asked)), strict=True) if gone]

    def persist(self, endpoint: str, entry: QueuedMessage, effect: Persist, answer: Answer) -> None:
        """Start to store the record. `answer` gets an error if the server will never accept a schedule."""
        try:
            match effect.kind:
                case RecordKind.TRY | RecordKind.CANCELLATION:
                    self._put_try(endpoint, entry, effect, answer)
                case RecordKind.RESULT:
                    self._store(entry, effect, answer)
                case RecordKind.DEAD_LETTER:
                    records.note_try(entry, effect, wall=self._ambient.wall())
                    self._start(lambda: self._bury(entry, effect, answer), entry, effect, answer)
                case RecordKind.SCHEDULE:
                    self._start(lambda: self._schedule(entry, answer), entry, effect, answer)
                case _:
                    assert_never(effect.kind)
        except Exception as error:
            self._background.start(self._settle(entry, effect, answer, error))

    def _start(
        self, work: Callable[[], Awaitable[None]], entry: QueuedMessage, effect: Persist, answer: Answer
    ) -> None:
        async def settling() -> None:
            try:
                await work()
            except Exception as error:
                await self._settle(entry, effect, answer, error)

        self._background.start(settling())

    async def _settle(self, entry: QueuedMessage, effect: Persist, answer: Answer, error: Exception) -> None:
        """The outcome cannot be stored as it is, for an unforeseen reason."""
        self._log.error(
            "job %s: its %s cannot be stored: %s",
            effect.job,
            effect.kind.value,
            repr(error)[:_LOGGED_CHARS],
            exc_info=error,
            extra={"action": "outcome.bug", "job": effect.job},
        )
        if effect.kind is RecordKind.SCHEDULE:
            answer(error if isinstance(error, GanglineError) else InvalidSchedule(f"it cannot be stored: {error!r}"))
            return
        if effect.kind in (RecordKind.DEAD_LETTER, RecordKind.RESULT):
            # A record that can always be written.
            record = records.broken_result(entry, effect, error, wall=self._ambient.wall())
            given = records.broken_headers(entry, record)

            async def publish() -> None:
                await self._sure()
                await (await self._streams.dead()).publish(self._names.dead("", ""), entry.message.data, headers=given)

            try:
                await until_taken("burying a task", publish, self._log)
                if effect.result_ttl_s > 0:
                    await self._created(effect, record.model_dump_json().encode())
            except Exception:
                self._log.exception("job %s is lost", effect.job, extra={"action": "outcome.lost", "job": effect.job})
        answer(None)

    # -- results --------------------------------------------------------------------------------------------------

    def _store(self, entry: QueuedMessage, effect: Persist, answer: Answer) -> None:
        if effect.result_ttl_s <= 0:
            answer(None)
            return
        record = records.result_of(entry, effect, wall=self._ambient.wall())
        if entry.body is None or len(record) <= self._inline:
            self._create(effect, record, lambda first: self._stored(entry, effect, first, answer))
        else:
            body = entry.body
            self._start(lambda: self._store_large(entry, effect, body, answer), entry, effect, answer)

    async def _store_large(self, entry: QueuedMessage, effect: Persist, body: bytes, answer: Answer) -> None:
        name = f"{effect.job}-{effect.attempts}-{self._ambient.token()[:8]}"

        async def put() -> None:
            await self._sure()
            objects = await self._streams.objects()
            await objects.put(name, body, ttl_s=effect.result_ttl_s)

        await until_taken("storing a large result", put, self._log)
        record = records.result_of(entry, effect, wall=self._ambient.wall(), object=name)
        first = await self._created(effect, record)
        if not first:
            await self._drop_unless_named(effect.job, name)
        self._stored(entry, effect, first, answer)

    def _stored(self, entry: QueuedMessage, effect: Persist, first: bool, answer: Answer) -> None:
        """`first`: whether the record is ours. Otherwise its writer had lost the queue without knowing, and will not
        delete a TryRecord that it wrote after our takeover."""
        if not first:
            self.forget_try(records.target_of(entry)[0], effect.job)
        answer(None)

    async def _drop_unless_named(self, job: str, name: str) -> None:
        """Delete the object unless a record names it: another record was first, or it was ours and the answer was
        lost."""
        with contextlib.suppress(GanglineError):
            record = await self._record(job)
            if record is None or record.object != name:
                await (await self._streams.objects()).delete(name)

    async def _record(self, job: str) -> ResultRecord | None:
        return result_in(await self._entry(job))

    async def _entry(self, job: str) -> KvEntry | None:
        """The job's result, as it is stored."""
        results = await self._streams.results()
        found = await results.get(self._names.result_key(job))
        if not self._has_other(job, found):
            return found
        return await results.get(self._names.result_key(f"{self._endpoint}.{job}"))

    def _has_other(self, job: str, found: KvEntry | None) -> bool:
        """Whether this is the result of another endpoint's job, which has used an id without an endpoint. Then our
        job's result is stored under its id with the endpoint."""
        alone = bool(self._endpoint) and job_endpoint(job) is None
        record = result_in(found) if alone else None
        return record is not None and record.endpoint != self._endpoint

    def _create(self, effect: Persist, record: bytes, done: Callable[[bool], None]) -> None:
        def created(first: bool) -> None:
            if first:
                self._on_stored(effect, record)
                done(True)
            else:
                self._background.start(self._contest(effect, record, done))

        self.writer.create(self._names.result_key(effect.job), record, ttl_s=effect.result_ttl_s, done=created)

    async def _contest(self, effect: Persist, record: bytes, done: Callable[[bool], None]) -> None:
        """The key exists already. An unreadable record is overwritten. The result of another endpoint's job with this
        id is kept, and ours is stored beside it."""
        key = self._names.result_key(effect.job)

        async def read() -> KvEntry | None:
            return await (await self._streams.results()).get(key)

        async def write_over(found: KvEntry) -> bool:
            with contextlib.suppress(Conflict):
                results = await self._streams.results()
                await results.put(key, record, ttl_s=effect.result_ttl_s, revision=found.revision)
                return True
            return False

        found = await until_taken("looking a result up", read, self._log)
        if self._has_other(effect.job, found):
            beside = self._names.result_key(f"{self._endpoint}.{effect.job}")
            self.writer.create(beside, record, ttl_s=effect.result_ttl_s, done=done)
        elif found is None or self._reads(found) is not None:
            done(False)
        else:
            done(await until_taken("storing a result", lambda: write_over(found), self._log))

    async def _created(self, effect: Persist, record: bytes) -> bool:
        """Whether the record is ours."""
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(made: bool) -> None:
            if not written.done():  # its waiter may have been cancelled
                written.set_result(made)

        self._create(effect, record, done)
        return await written

    @property
    def _inline(self) -> int:
        return min(self._settings.result_inline_bytes, self._bus.max_payload - 1024)

    # -- tries ----------------------------------------------------------------------------------------------------

    def _put_try(self, endpoint: str, entry: QueuedMessage, effect: Persist, answer: Answer) -> None:
        wall = self._ambient.wall()
        records.note_try(entry, effect, wall=wall)
        key, record = self._names.try_key(endpoint, effect.job), records.try_of(effect, entry.tries, wall=wall)
        self.writer.put(key, record, done=lambda _: answer(None))
        left_out = None if effect.error is None else self._log_limit.admit(effect.error.code)
        if left_out is not None:
            self._log.warning(
                "job %s (%s): attempt %d failed: %s%s",
                effect.job,
                entry.message.subject,
                effect.attempts,
                " ".join(records.cause_of(effect).message[:_LOGGED_CHARS].split()),
                f" ({left_out} similar lines were left out)" if left_out else "",
                extra={
                    "action": "job.attempt_failed",
                    "job": effect.job,
                    "attempt": effect.attempts,
                    "code": records.cause_of(effect).code,
                    "worker": entry.worker,
                },
            )

    def forget_try(self, endpoint: str, job: str) -> None:
        self.writer.delete(self._names.try_key(endpoint, job))

    # -- dead letters ---------------------------------------------------------------------------------------------

    async def _bury(self, entry: QueuedMessage, effect: Persist, answer: Answer) -> None:
        wall = self._ambient.wall()
        parsed = entry.submission is not None
        if parsed and await until_taken("looking a result up", lambda: self._ended_otherwise(effect.job), self._log):
            answer(None)  # for example, its client cancelled it in the stream while no dispatcher had the queue
            return
        letter = await until_taken("burying a task", lambda: self._publish_dead(entry, effect, wall), self._log)
        if letter.duplicate:
            told = functools.partial(self._told_before, effect, letter.sequence)
            effect = await until_taken("reading a dead letter", told, self._log)
        if effect.result_ttl_s > 0:
            await self._created(effect, records.result_of(entry, effect, wall=wall))
        reason = records.reason_of(effect).value
        self._log.warning(
            "job %s (%s) is dead: %s: %s",
            effect.job,
            entry.message.subject,
            reason,
            " ".join(records.cause_of(effect).message[:_LOGGED_CHARS].split()),
            extra={"action": "job.dead", "job": effect.job, "reason": reason, "code": records.cause_of(effect).code},
        )
        endpoint, _ = records.target_of(entry)
        with contextlib.suppress(GanglineError):
            self._bus.publish(self._names.task_event(endpoint), records.dead_event(entry, effect, wall=wall))
        answer(None)

    async def _ended_otherwise(self, job: str) -> bool:
        """Whether another record was first, and is not of a dead task."""
        record = await self._record(job)
        return record is not None and record.state is not JobState.DEAD

    async def _told_before(self, effect: Persist, sequence: int) -> Persist:
        """A dispatcher published the letter and was killed; it may have given another reason than we would."""
        message = await (await self._streams.dead()).get(sequence)
        return effect if message is None else records.as_told(effect, message.headers or {})

    async def _publish_dead(self, entry: QueuedMessage, effect: Persist, wall: float) -> Published:
        await self._sure()
        dead = await self._streams.dead()
        endpoint, method = records.target_of(entry)
        subject = self._names.dead(endpoint, method)
        for limit in (records.MAX_FAILURE_BYTES, 8192, 1024, 0):
            given = records.dead_headers(entry, effect, wall=wall, limit=limit)
            if limit and records.size_of_headers(given) > records.MAX_HEADER_BYTES:
                continue
            try:
                return await dead.publish(subject, entry.message.data, headers=given)
            except PayloadTooLarge:
                continue
        # The body is almost as large as a message, and does not fit together with the reason.
        name = origin_id(BURIED, entry.message)
        await (await self._streams.objects()).put(name, entry.message.data)
        return await dead.publish(subject, b"", headers={**given, headers.DEAD_OBJECT: name})

    # -- schedules ------------------------------------------------------------------------------------------------

    async def _schedule(self, entry: QueuedMessage, answer: Answer) -> None:
        submission = entry.submission
        assert submission is not None

        def schedule() -> tuple[str, dict[str, str]]:
            return records.schedule_of(self._names, entry.message, submission, wall=self._ambient.wall())

        try:
            subject, given = schedule()
        except (ValueError, OverflowError, OSError) as error:  # a date that no calendar has
            answer(InvalidSchedule(f"its time is invalid: {error}"))
            return

        async def publish() -> None:
            await self._sure()
            if submission.cron is not None and await self._cancelled_before(entry):
                return
            schedules, repeats = await self._streams.schedules(), submission.cron is not None

            async def put() -> None:
                _, now_given = schedule()
                if repeats:
                    await put_schedule(schedules, self._names, subject, entry.message.data, now_given)
                else:
                    await schedules.publish(subject, entry.message.data, headers=now_given)

            size = size_of(entry.message)
            await self._schedule_room.take(size, await self._streams.tasks(), schedules)
            await self._scheduled.store(submission.tenant, schedules, subject, size, put, repeats=repeats)

        async def publish_or_refuse() -> QuotaExceeded | None:
            try:
                await publish()
            except QuotaExceeded as error:  # final, unlike other reasons for which something is unavailable
                return error
            return None

        try:
            refusal = await until_answered("scheduling a task", publish_or_refuse, self._log)
        except PublishRefused as error:
            bad = error.details.get("err_code") == _BAD_PATTERN
            answer(InvalidSchedule(_refused(given)) if bad else error)
        except GanglineError as error:
            answer(error)
        else:
            if refusal is None:
                await until_taken("looking a result up", lambda: self._settle_cancellation(entry, subject), self._log)
            answer(refusal)

    async def _settle_cancellation(self, entry: QueuedMessage, subject: str) -> None:
        """Remove a schedule that was cancelled meanwhile. Otherwise it is in force, whatever was cancelled before."""
        assert entry.submission is not None
        found = await self._entry(entry.submission.job)
        if found is None or not _is_cancelled(record := result_in(found)):
            return
        if record.covers(entry.message.at):
            schedules = await self._streams.schedules()
            stored = await schedules.last(subject)
            origin = None if stored is None else origin_of(SCHEDULED, stored.headers or {})
            later = origin is not None and (
                origin.sequence > entry.message.sequence or not record.covers(origin.at_ms / 1000, within_s=0.001)
            )
            if stored is not None and not later:
                await schedules.purge(subject, before=stored.sequence + 1)
        elif entry.submission.cron is not None:
            with contextlib.suppress(Conflict):
                await (await self._streams.results()).delete(found.key, revision=found.revision)

    async def _cancelled_before(self, entry: QueuedMessage) -> bool:
        """Whether a client has cancelled it as a task."""
        assert entry.submission is not None
        record = await self._record(entry.submission.job)
        return _is_cancelled(record) and record.covers(entry.message.at)

    def __repr__(self) -> str:
        return f"OutcomeStore({self.writer!r}, under way={len(self._background)})"


def _is_cancelled(record: ResultRecord | None) -> TypeGuard[ResultRecord]:
    return record is not None and record.state is JobState.CANCELLED


def _refused(given: Mapping[str, str]) -> str:
    """Why the server refuses a schedule that has been checked."""
    zone = given.get(headers.SCHEDULE_TIME_ZONE)
    text = f"the server refused the schedule {given[headers.SCHEDULE]!r}"
    if zone:
        return f"{text} with the time zone {zone!r}: that needs nats-server 2.14 or later, and its time zone database"
    return f"{text}: repeating needs nats-server 2.14 or later"
