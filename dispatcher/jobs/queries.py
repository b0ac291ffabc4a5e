"""The state of jobs and queues, from the dispatchers, or from the streams if these do not know; and the end of jobs:
waiting for it, and its result."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from ...bus.port.bus import (
    Bus,
    Conflict,
    ConnectionEvent,
    KvEntry,
    Message,
    NoResponders,
    NotPermitted,
    RequestTimeout,
    StorageUnavailable,
    StreamMessage,
)
from ...bus.rpc.requester import read_answer
from ...runtime.clock import Environment
from ...runtime.tasks import set_within
from ...schemas.errors.base import (
    Disconnected,
    GanglineError,
    InvalidName,
    InvalidRequest,
    JobCancelled,
    JobDead,
    MalformedMessage,
    NoDispatcher,
    ResultNotKept,
    Unavailable,
    UnknownJob,
    error_from_wire,
)
from ...schemas.messages.jobs import (
    CancelReply,
    CancelRequest,
    JobInfo,
    JobObstacle,
    JobRequest,
    JobWhyReply,
    QueueStats,
)
from ...schemas.names import QueueOperation, check_name, job_endpoint, job_of_tenant, short_job
from ...schemas.records.jobs import JobFailure, JobState, ResultRecord
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import Format
from ...telemetry.logs import logger_for
from .job_index import JobFinder
from .result_waits import LOOK_S, ResultWaits, Told
from .storage import TaskStreams, until_answered
from .stored import (
    UNREAD,
    JobRef,
    Schedule,
    header_of,
    info_of_schedule,
    info_of_task,
    is_number,
    job_of,
    submission_of,
    target_of,
)

RESULT_TTL_S: Final = 3600.0
"""How long to keep the record of a job that is cancelled in the stream."""
UNHELD_TTL_S: Final = 30 * 86_400.0
"""The same while its queue has no dispatcher: it must exist when one comes."""

_AGAIN_S: Final = 1.5
"""A request without an answer for this long is repeated: the dispatcher that got it may have died."""

TAKEN_WITHIN_S: Final = 3.0
"""A dispatcher looks for new queues every second (`look_s`), and takes one in less than that."""

_GENERATED: Final = re.compile(r"\.(j[A-Za-z0-9_-]{16,}|i[0-9a-f]{26})$")
"""Ids that clients draw, or make from idempotency keys: no two tenants have the same."""
_MAYBE_TENANTS: Final = ".t"
"""In all ids of tenants' jobs."""

_READING_S: Final = 120.0
"""How long a dispatcher has to look for a job in a long queue."""
_FINDERS: Final = 64
"""How many queues are remembered that this client has looked through."""
_DUE_SEARCHED: Final = 2_000
"""How many of the newest messages of schedules are read to find one."""

R = TypeVar("R", bound=BaseModel)
_log = logger_for("dispatcher")


class Asked(NamedTuple, Generic[R]):
    """What dispatchers say about a job."""

    reply: R | None
    """Of the one that knows it."""
    held: bool
    """Whether there was any dispatcher to ask."""
    certain: bool = False
    """Whether they know that the stream of tasks does not have the job either, or where it is."""
    sequence: int | None = None
    """Where it is in the stream, if the sender of the request has to read it."""


class JobQueries:
    """One per client."""

    def __init__(
        self,
        bus: Bus,
        streams: TaskStreams,
        ambient: Environment,
        *,
        noted: Callable[[str, str, str], AbstractAsyncContextManager[None]],
    ) -> None:
        """
        Args:
            noted: records an action of an operator (what, to what, why) in the audit trail.
        """
        self.bus = bus
        self.noted = noted
        self.streams = streams
        self.waits = ResultWaits(bus, streams.names)
        self._names = streams.names
        self._ambient = ambient
        self._finders: dict[str, JobFinder] = {}
        """By pattern: for queues without a dispatcher, and for tasks that have just become due."""

    # -- one job --------------------------------------------------------------------------------------------------

    async def own(self, ref: JobRef) -> JobRef:
        """The job that this user means by an id: a tenant's ids are its own, whatever others call their jobs. What this
        client submitted has its full id already.

        Raises:
            UnknownJob: the id does not say which endpoint it is of, and no dispatcher knows it.
        """
        if ref.submitted:
            return ref
        tenant = await self.streams.tenant()
        if not tenant:
            return ref
        for endpoint in await self._endpoints_of(ref):
            full, told = job_of_tenant(ref.id, endpoint, tenant), ""
            if full == ref.id or await self._record(full) is not None:
                return ref._replace(id=full, endpoint=endpoint)
            try:
                told = (await self.ask(endpoint, QueueOperation.GET, JobRequest(job=ref.id), JobInfo, STATUS_S)).job
                return ref._replace(id=told, endpoint=endpoint)
            except UnknownJob as error:
                told = str(error.details.get("job", ""))
            except Unavailable:
                pass
            if ref.endpoint is not None:
                # A dispatcher of our own account, which may have any name, takes the id as it is.
                return ref if told == ref.id else ref._replace(id=full)
        raise UnknownJob(f"job {ref.id!r} is not known: say which endpoint it is of", details={"job": ref.id})

    async def record(self, ref: JobRef) -> ResultRecord | None:
        """How the job ended; None: it has not, or its record has expired."""
        found = await self._record(ref.id)
        if found is None and _MAYBE_TENANTS in ref.id and _GENERATED.search(short := short_job(ref.id)):
            return await self._record(short)  # stored by a dispatcher of an earlier version
        if found is None or ref.endpoint in (None, found.endpoint) or job_endpoint(ref.id) is not None:
            return found
        # Another endpoint's job has used the id: see OutcomeStore.
        return await self._record(f"{ref.endpoint}.{ref.id}")

    async def _record(self, job: str) -> ResultRecord | None:
        entry = await (await self.streams.results(make=False)).get(self._names.result_key(job))
        if entry is None:
            return None
        try:
            return parse_result(job, entry.value)
        except MalformedMessage as error:  # not the end of a job: its dispatcher overwrites it
            _log.warning("%s", error.message, extra={"action": "record.unreadable", "key": entry.key})
            return None

    async def status(self, ref: JobRef, timeout_s: float) -> JobInfo:
        """The job's current state.

        Raises:
            UnknownJob: it is not known; `details["certain"]` is False if it is on its way to its queue.
        """
        ref = await self.own(ref)
        if (record := await self.record(ref)) is not None:
            return await self._declared_after(ref, record, timeout_s) or info_of_record(record)
        asked = await self._asked(ref, QueueOperation.GET, JobInfo, timeout_s)
        if asked.reply is not None:
            return asked.reply
        if (schedule := await self._schedule(ref)) is not None:
            return info_of_schedule(ref, schedule, self._names, wall=self._ambient.wall())
        found = await self._find(ref, asked)
        if found is not None:
            info = info_of_task(ref, found, self._names)
            untold = not asked.held and info.state is JobState.QUEUED
            reason = await self._absence(info.endpoint, found.at) if untold else None
            return info.model_copy(update={"reason": reason}) if reason is not None else info
        if (record := await self.record(ref)) is not None:  # it ended just now
            return info_of_record(record)
        if (schedule := await self._schedule(ref)) is not None:  # or was scheduled
            return info_of_schedule(ref, schedule, self._names, wall=self._ambient.wall())
        if await self._coming(ref) is not None:
            text = "its time has come and the server is moving it to its queue, or it has ended without a result"
            raise UnknownJob(f"job {ref.id!r} is not known yet: {text}", details={"job": ref.id, "certain": False})
        raise await self._unknown(ref, absent=not asked.held)

    async def cancel(self, ref: JobRef, timeout_s: float) -> bool:
        """Cancel the job; False: it had already ended.

        Raises:
            UnknownJob: it is not known.
        """
        ref = await self.own(ref)
        record = await self.record(ref)
        if record is not None and record.state is not JobState.CANCELLED:
            return False
        if (schedule := await self._schedule(ref)) is not None:
            return await self._unschedule(ref, schedule, timeout_s)
        if record is not None and await self._declared_after(ref, record, timeout_s) is None:
            return False
        asked = await self._asked(ref, QueueOperation.CANCEL, CancelReply, timeout_s)
        if asked.reply is not None:
            unsure = ref.scheduled or ref.sequence is None
            if unsure and (schedule := await self._schedule(ref)) is not None:  # stored meanwhile
                return await self._unschedule(ref, schedule, timeout_s)
            return asked.reply.cancelled
        found = await self._find(ref, asked, record)
        if found is None:
            if (schedule := await self._schedule(ref)) is not None:
                return await self._unschedule(ref, schedule, timeout_s)
            if (coming := await self._coming(ref)) is not None:
                return await self._cancel_coming(ref, coming, timeout_s)
            return (await self.status(ref, timeout_s)).state is JobState.CANCELLED
        if not await self._cancel_stored(ref, found, held=asked.held):
            return False
        if await self._schedule(ref) is not None:  # its dispatcher has just returned it to the server
            await (await self.streams.schedules()).purge(self._names.schedule(ref.id))
        info = info_of_task(ref, found, self._names)
        unscheduled = info.state is JobState.SCHEDULED and info.cron is None
        await self._stop_started(ref, timeout_s, unscheduled=unscheduled)
        return True

    async def why(self, ref: JobRef, timeout_s: float) -> JobWhyReply:
        """What the job waits for.

        Raises:
            UnknownJob: it is not known.
        """
        ref = await self.own(ref)
        asked = await self._asked(ref, QueueOperation.WHY, JobWhyReply, timeout_s)
        if asked.reply is not None:
            return asked.reply
        info = await self.status(ref, timeout_s)
        obstacles: tuple[JobObstacle, ...] = ()
        if info.state is JobState.SCHEDULED:
            obstacles = (
                JobObstacle(kind="schedule", text=info.reason or "its time has not come", until=info.next_try_at),
            )
        elif info.state is JobState.QUEUED:
            obstacles = (JobObstacle(kind="position", text=info.reason or UNREAD),)
        impaired = ""
        with contextlib.suppress(Unavailable):  # its dispatcher may be unable to take the queue over
            impaired = (await self.ask(info.endpoint, QueueOperation.STATS, None, QueueStats, timeout_s)).impaired
        return JobWhyReply(job=info, obstacles=obstacles, impaired=impaired)

    async def in_hand(self, ref: JobRef, timeout_s: float) -> bool:
        """Whether the dispatcher of its endpoint has fetched this very message, or does not know yet."""
        assert ref.endpoint is not None and ref.sequence is not None, ref
        try:
            request = JobRequest(job=ref.id, sequence=ref.sequence)
            info = await self.ask(ref.endpoint, QueueOperation.GET, request, JobInfo, timeout_s)
        except UnknownJob:
            return False
        except NoDispatcher as error:
            return not isinstance(error.__cause__, NoResponders) or await self._unfinished(ref)
        except RequestTimeout:
            return True
        return info.sequence == ref.sequence and info.reason != UNREAD

    async def changes_hands(self, ref: JobRef, within_s: float) -> bool:
        """Whether the job's queue has no dispatcher that answers, or has its dispatcher only since then."""
        for endpoint in await self._endpoints_of(ref):
            try:
                since = (await self.ask(endpoint, QueueOperation.STATS, None, QueueStats, STATUS_S)).since
            except Unavailable:
                continue
            if self._ambient.wall() - since >= within_s:
                return False
        return True

    async def _unfinished(self, ref: JobRef) -> bool:
        """Whether its queue has an owner that has not acknowledged it. An owner in doubt does not answer."""
        waits = await self._find(ref._replace(result_kept=False)) is not None
        return waits and ref.endpoint in await self.had()

    # -- queues ---------------------------------------------------------------------------------------------------

    async def queues(self, timeout_s: float) -> list[QueueStats]:
        """Every queue that has tasks or a dispatcher, by endpoint; `dispatcher` is empty for one without, and if
        `unanswered` says why it is not known."""
        depths = await self.depths()
        endpoints = sorted({*depths, *await self.had()})
        return list(await asyncio.gather(*(self._stats(name, depths.get(name, 0), timeout_s) for name in endpoints)))

    async def _stats(self, endpoint: str, depth: int, timeout_s: float) -> QueueStats:
        try:
            return await self.ask(endpoint, QueueOperation.STATS, None, QueueStats, timeout_s)
        except Unavailable as error:
            oldest = await (await self.streams.tasks(make=False)).next(self._names.tasks_of(endpoint))
            return QueueStats(
                endpoint=endpoint,
                dispatcher="",
                depth=depth,
                seen=0,
                running=0,
                waiting=0,
                blocked=0,
                credit=0,
                leased=0,
                oldest_s=None if oldest is None else max(0.0, self._ambient.wall() - oldest.at),
                unanswered="" if isinstance(error, NoDispatcher) else error.message,
            )

    async def depths(self) -> dict[str, int]:
        """Messages in the stream by endpoint."""
        found: dict[str, int] = {}
        tasks = await self.streams.tasks(make=False)
        for subject, count in (await tasks.state(self._names.tasks)).subjects.items():
            endpoint = subject.removeprefix(self._names.tasks[:-1]).partition(".")[0]
            if _is_name(endpoint):
                found[endpoint] = found.get(endpoint, 0) + count
        return found

    async def had(self) -> set[str]:
        """Endpoints whose queue some dispatcher has."""
        prefix = self._names.tasks[:-1]
        filters = (consumer.filter for consumer in await (await self.streams.tasks(make=False)).consumers())
        return {name for text in filters if _is_name(name := text.removeprefix(prefix).removesuffix(".>"))}

    async def _unknown(self, ref: JobRef, *, absent: bool) -> UnknownJob:
        text = "never submitted here, a cancelled cron, or ended so long ago that its result is no longer kept"
        with contextlib.suppress(GanglineError):
            state, name = await (await self.streams.tasks(make=False)).state(), self._names.tasks_stream
            if ref.submitted and not ref.scheduled and (ref.sequence or 0) > state.last_sequence:
                text = f"somebody has removed the stream {name}, which it was in"
            elif state.created:
                text += (
                    f"; or it was submitted before {name} was made, {state.created[:19]}Z, and lost with an earlier one"
                )
        if ref.endpoint is not None and absent:
            text += f" ({_nobody(ref.endpoint)})"
        return UnknownJob(f"job {ref.id!r} is not known: {text}", details={"job": ref.id, "certain": True})

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _absence(self, endpoint: str, published_at: float) -> str:
        """Text about a task whose queue has no dispatcher that answers."""
        if self._ambient.wall() - published_at < TAKEN_WITHIN_S:
            return (
                f"no dispatcher has the queue of {endpoint!r} yet: a running one takes it within seconds; if none "
                "runs, start one with 'gangline dispatcher'"
            )
        with contextlib.suppress(GanglineError):
            if endpoint in await self.had():
                return (
                    f"the queue of {endpoint!r} is changing hands, or its dispatcher has died: another one takes it "
                    "within seconds; if none runs, start one with 'gangline dispatcher'"
                )
        return _nobody(endpoint)

    async def ask(
        self, endpoint: str, operation: QueueOperation, request: BaseModel | None, reply: type[R], timeout_s: float
    ) -> R:
        body = b"" if request is None else codec.to_json(request.model_dump(mode="json", exclude_defaults=True))
        answer = await self._answer(endpoint, operation, body, timeout_s)
        return read_answer(answer, reply, f"the dispatcher of {endpoint}")

    async def _answer(self, endpoint: str, operation: QueueOperation, body: bytes, timeout_s: float) -> Message:
        subject, loop = self._names.private(self._names.queue(endpoint, operation)), asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while True:
            patience_s = min(_AGAIN_S, max(0.0, give_up_at - loop.time()))
            try:
                return await self.bus.request(subject, body, timeout_s=patience_s)
            except NoResponders as error:
                raise NoDispatcher(_nobody(endpoint)) from error
            except RequestTimeout as error:
                if loop.time() >= give_up_at:
                    raise RequestTimeout(
                        f"the dispatcher of {endpoint!r} did not answer within {timeout_s:g} s: ask again",
                        details=error.details,
                    ) from error

    async def _endpoints_of(self, ref: JobRef) -> list[str]:
        """The job's endpoint, or all whose queue has a dispatcher."""
        endpoint = _endpoint_of(ref)
        return [endpoint] if endpoint is not None else sorted(await self.had())

    async def _asked(self, ref: JobRef, operation: QueueOperation, reply: type[R], timeout_s: float) -> Asked[R]:
        held, certain = False, _endpoint_of(ref) is not None
        request = JobRequest(job=ref.id, sequence=_sequence_of(ref) or 0)
        for endpoint in await self._endpoints_of(ref):
            try:
                return Asked(await self._ask_while_it_reads(endpoint, operation, request, reply, timeout_s), True)
            except NoDispatcher:
                certain = False
            except UnknownJob as error:
                held = True
                if sequence := error.details.get("sequence"):
                    return Asked(None, True, True, int(sequence))
                certain = certain and bool(error.details.get("certain"))
        return Asked(None, held, held and certain)

    async def _ask_while_it_reads(
        self, endpoint: str, operation: QueueOperation, request: JobRequest, reply: type[R], timeout_s: float
    ) -> R:
        """Ask again while the dispatcher looks for the job in a long queue."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _READING_S
        while True:
            try:
                return await self.ask(endpoint, operation, request, reply, timeout_s)
            except UnknownJob as error:
                if not error.details.get("reading") or loop.time() >= give_up_at:
                    raise

    async def _coming(self, ref: JobRef) -> StreamMessage | None:
        """Its task, if its schedule has just published it. The server moves due tasks into the stream of tasks at once,
        except for half a minute after the loss of a leader."""
        names, endpoint = self._names, _endpoint_of(ref)
        pattern = names.due if endpoint is None else names.due_of(names.tasks_of(endpoint))
        message = await self._finder(pattern, names.due[:-1]).find(ref.id)
        return message if message is not None and self._ambient.wall() - message.at < _COMING_S else None

    async def _cancel_coming(self, ref: JobRef, coming: StreamMessage, timeout_s: float) -> bool:
        """Cancel a task that is on its way to its queue. Its dispatcher finds the record when it comes."""
        endpoint, _, method = coming.subject.removeprefix(self._names.due[:-1]).partition(".")
        try:
            await self._write_cancelled(ref, (endpoint, method), coming.at, UNHELD_TTL_S)
        except Conflict:
            record = await self.record(ref)
            if record is not None and record.state is not JobState.CANCELLED:
                return False  # it came and has ended
        await self._stop_started(ref, timeout_s)
        return True

    async def _schedule(self, ref: JobRef) -> StreamMessage | None:
        return await (await self.streams.schedules(make=False)).last(self._names.schedule(ref.id))

    async def _unschedule(self, ref: JobRef, schedule: StreamMessage, timeout_s: float) -> bool:
        """Remove a schedule from the server. The record is written first, and kept beyond the scheduled time, so the
        job is cancelled even if the answer to the purge is lost or its time comes right now. A recurring schedule needs
        one only for messages that declare it anew and wait in the queue."""
        info = info_of_schedule(ref, schedule, self._names, wall=self._ambient.wall())
        if info.cron is None and info.next_try_at is not None:
            left_s = max(0.0, info.next_try_at - self._ambient.wall())
            target = (info.endpoint, info.method)
            try:
                await self._write_cancelled(ref, target, schedule.at, left_s + RESULT_TTL_S)
            except Conflict:
                record = await self.record(ref)
                if record is not None and record.state is not JobState.CANCELLED:
                    return False  # its time came and it has ended
            except NotPermitted:
                pass  # the purge reports what is missing
        came = await self._cancel_submission(ref, schedule)
        if info.cron is not None and not came:
            await self._cancel_declarations(ref, schedule, (info.endpoint, info.method))
        purged = bool(await (await self.streams.schedules()).purge(self._names.schedule(ref.id)))
        unscheduled = purged and info.cron is None
        if not purged or came or unscheduled:
            await self._stop_started(ref, timeout_s, unscheduled=unscheduled)
        return True

    async def _cancel_declarations(self, ref: JobRef, schedule: StreamMessage, target: tuple[str, str]) -> None:
        """Cancel what came into the queue after the schedule was stored: see `ResultRecord.covers`."""
        newest = await (await self.streams.tasks(make=False)).last(self._names.tasks_of(target[0]))
        if newest is None or newest.at < schedule.at:
            return
        with contextlib.suppress(Conflict, NotPermitted):  # the purge reports what is missing
            await self._write_cancelled(ref, target, newest.at, UNHELD_TTL_S, await self._revision(ref))

    async def _revision(self, ref: JobRef) -> int:
        """That of the job's record; 0: it has none."""
        record = await (await self.streams.results(make=False)).get(self._names.result_key(ref.id))
        return 0 if record is None else record.revision

    async def _cancel_submission(self, ref: JobRef, schedule: StreamMessage) -> bool:
        """Cancel the message that a schedule was made from, if it is still there: its dispatcher, or the next owner of
        the queue, may store the schedule once more, and then finds the record."""
        try:
            message = await submission_of(await self.streams.tasks(make=False), schedule)
            return message is not None and await self._cancel_stored(ref, message, held=True)
        except NotPermitted:
            return False

    async def unschedule(self, schedule: Schedule, timeout_s: float) -> None:
        """Remove a recurring schedule. No-op if it is gone."""
        ref = JobRef(schedule.id, schedule.endpoint)
        if (message := await self._schedule(ref)) is not None:
            await self._unschedule(ref, message, timeout_s)

    async def _stop_started(self, ref: JobRef, timeout_s: float, *, unscheduled: bool = False) -> None:
        """A dispatcher may have just fetched it, and then it knows the job. If not, the history is all that it does."""
        request = CancelRequest(job=ref.id, unscheduled=unscheduled)
        for endpoint in await self._endpoints_of(ref):
            with contextlib.suppress(GanglineError):
                await self.ask(endpoint, QueueOperation.CANCEL, request, CancelReply, timeout_s)

    async def _find(
        self, ref: JobRef, asked: Asked[Any] | None = None, ended: ResultRecord | None = None
    ) -> StreamMessage | None:
        """The job's task in the stream; if the job has ended, one that was stored after that: see
        `ResultRecord.covers`.

        Args:
            asked: what its dispatcher says.
        """
        names, endpoint = self._names, _endpoint_of(ref)
        prefix = names.tasks[:-1]
        sequence = _sequence_of(ref) if asked is None or asked.sequence is None else asked.sequence
        if sequence is not None:
            message = await (await self.streams.tasks(make=False)).get(sequence)
            here = message is not None and message.subject.startswith(prefix) and job_of(message, prefix) == ref.id
            if message is not None and here and not (ended is not None and ended.covers(message.at)):
                return message
        if not ref.result_kept or (asked is not None and asked.certain):
            return None  # it has ended
        # Without a sequence, or dead and replayed.
        finder = self._finder(names.tasks if endpoint is None else names.tasks_of(endpoint), prefix)
        return await finder.find(ref.id, lambda message: ended is None or not ended.covers(message.at))

    def _finder(self, pattern: str, prefix: str) -> JobFinder:
        finder = self._finders.pop(pattern, None)
        if finder is None and pattern.startswith(self._names.due[:-1]):
            opened = functools.partial(self.streams.schedules, make=False)
            finder = JobFinder(opened, pattern, prefix, floor=lambda last: last - _DUE_SEARCHED)
        elif finder is None:
            finder = JobFinder(functools.partial(self.streams.tasks, make=False), pattern, prefix)
        self._finders[pattern] = finder
        while len(self._finders) > _FINDERS:
            del self._finders[next(iter(self._finders))]
        return finder

    async def _declared_after(self, ref: JobRef, record: ResultRecord, timeout_s: float) -> JobInfo | None:
        """The message that declares a recurring schedule anew after its cancellation, and waits in the queue."""
        if record.state is not JobState.CANCELLED:
            return None
        asked = await self._asked(ref, QueueOperation.GET, JobInfo, timeout_s)
        again = asked.reply
        if again is None and (message := await self._find(ref, asked, record)) is not None:
            again = info_of_task(ref, message, self._names)
        covered = again is None or record.covers(again.submitted_at or 0.0)
        return None if covered or again is None or again.cron is None else again

    async def _cancel_stored(self, ref: JobRef, found: StreamMessage, *, held: bool) -> bool:
        """Cancel a task that no dispatcher has fetched. The record is written first: a dispatcher that fetches and
        starts the task nevertheless cannot write a result.

        Args:
            held: its queue has a dispatcher. Otherwise an attempt of a dead dispatcher may still run: the message is
                left for the next dispatcher, which finds the record and stops the attempt. A due task is left in any
                case: only dispatchers may remove its copy from the stream of schedules, see DueCopyRemover.
        """
        target, tasks, at = target_of(found, self._names), await self.streams.tasks(make=False), found.at
        revision = 0
        if header_of(found.headers or {}, headers.CRON) is not None:
            # A later message of this id, such as a repetition, is cancelled as well: see `ResultRecord.covers`.
            newest = await tasks.last(found.subject)
            at = at if newest is None else newest.at
            revision = await self._revision(ref)
        try:
            await self._write_cancelled(ref, target, at, RESULT_TTL_S if held else UNHELD_TTL_S, revision)
        except Conflict:
            return False  # it ended just now
        if held and headers.copied_from(found.headers, self._names.schedules_stream) is None:
            await tasks.delete(found.sequence)
        return True

    async def _write_cancelled(
        self, ref: JobRef, target: tuple[str, str], submitted_at: float, ttl_s: float, revision: int = 0
    ) -> None:
        """
        Raises:
            Conflict: the job already has a record, or another than that of this revision.
        """
        record = ResultRecord(
            job=ref.id,
            endpoint=target[0],
            method=target[1],
            state=JobState.CANCELLED,
            submitted_at=submitted_at,
            finished_at=self._ambient.wall(),
        )
        key, value = self._names.result_key(ref.id), record.model_dump_json().encode()
        await (await self.streams.results()).put(key, value, ttl_s=ttl_s, revision=revision)


def parse_result(job: str, value: bytes) -> ResultRecord:
    """Parse a record of the results bucket.

    Raises:
        MalformedMessage: it is not a valid record; somebody else wrote there.
    """
    try:
        return ResultRecord.model_validate_json(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise MalformedMessage(f"result.{job} is not a valid result record: {where}{first['msg']}") from error


def info_of_record(record: ResultRecord) -> JobInfo:
    return JobInfo(
        job=record.job,
        endpoint=record.endpoint,
        method=record.method,
        state=record.state,
        attempts=record.attempts,
        worker=record.worker,
        submitted_at=record.submitted_at or None,
        started_at=record.started_at,
        error=record.error,
        reason=None if record.reason is None else record.reason.value,
        tries=record.tries,
        ended_at=record.finished_at or None,
        key=record.key,
        schedule=record.schedule,
    )


def _nobody(endpoint: str | None) -> str:
    return f"no dispatcher has the queue of {endpoint!r}: start one with 'gangline dispatcher'"


def _sequence_of(ref: JobRef) -> int | None:
    """Where its message was stored first. A delayed one is elsewhere once the server has returned it."""
    return int(ref.id) if ref.sequence is None and is_number(ref.id) else ref.sequence


def _endpoint_of(ref: JobRef) -> str | None:
    """The job's endpoint, as far as its reference or its id names it."""
    if ref.endpoint is not None:
        return ref.endpoint
    endpoint = job_endpoint(ref.id)
    return endpoint if endpoint is not None and _is_name(endpoint) else None


def _is_name(text: str) -> bool:
    try:
        check_name(text, "endpoint")
    except InvalidName:
        return False
    return True


_COMING_S: Final = 120.0
"""A task that was due this long ago has reached its queue."""
STATUS_S: Final = 5.0
"""How long dispatchers have to say whether a job exists."""
_DOUBT_S: Final = 1.0
"""How long after its dispatcher did not know a job that is checked again: between them it may have ended."""
LOOKS_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between the checks after a notification, which may be faster than storage."""


async def owned(queries: JobQueries, ref: JobRef) -> JobRef:
    """See JobQueries.own; waits through lost connections."""
    return await until_answered("asking for the id of a job", functools.partial(queries.own, ref), _log)


async def wait_for_record(queries: JobQueries, ref: JobRef) -> ResultRecord:
    """The record of the job's end, as soon as there is one. Waits through lost connections.

    The dispatcher of its queue tells it. If that does not answer or does not know the job, the record is looked up and
    watched for.

    Raises:
        UnknownJob: there is no such job.
        InvalidRequest: it is a schedule.
    """
    if not ref.submitted:
        ref = await owned(queries, ref)
    told = await _told(queries, ref)
    if isinstance(told, ResultRecord):
        return told
    results = await until_answered("opening the bucket of results", queries.streams.results, _log)
    news, names = asyncio.Event(), queries.streams.names

    def on_write(entry: KvEntry) -> None:
        # The server may refuse this write, since another was first: it is only a sign to check.
        news.set()

    def on_connection(event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.DISCONNECTED:
            news.set()

    key = names.result_key(ref.id)
    feed = await until_answered("watching a result", lambda: results.observe(key, on_write), _log)
    forget = queries.bus.on_connection(on_connection)
    try:
        doubts = 0 if ref.submitted and told is None else 1
        patience_s = LOOK_S if told is None else _DOUBT_S
        looks: tuple[float, ...] = LOOKS_S[:1]
        while True:
            for pause_s in looks:
                await asyncio.sleep(pause_s)
                if (record := await _look(queries, ref)) is not None:
                    return record
            doubts = await _still_there(queries, ref, doubts)
            heard = await heard_within(news, patience_s)
            looks = LOOKS_S if heard else LOOKS_S[:1]
            doubts += not heard
            patience_s = LOOK_S
    finally:
        forget()
        await feed.unsubscribe()


async def _told(queries: JobQueries, ref: JobRef) -> Told:
    """The record as its dispatcher tells it; otherwise look for it."""
    endpoint = job_endpoint(ref.id)
    if endpoint is None or ref.scheduled or ref.endpoint not in (None, endpoint):
        return None
    fresh = ref.submitted and ref.sequence is not None
    if not fresh and (record := await _look(queries, ref)) is not None:
        return record
    told = await queries.waits.wait(endpoint, ref.id, ref.sequence or 0)
    return told if isinstance(told, ResultRecord) else await _look(queries, ref) or told


async def heard_within(news: asyncio.Event, timeout_s: float) -> bool:
    if not await set_within(news, timeout_s):
        return False
    news.clear()
    return True


async def _look(queries: JobQueries, ref: JobRef) -> ResultRecord | None:
    try:
        return await queries.record(ref)
    except (Disconnected, StorageUnavailable):
        return None  # the reconnect or the next check reads it


async def _still_there(queries: JobQueries, ref: JobRef, doubts: int) -> int:
    """After a long silence, or if the job was never known to exist, check that it is known somewhere. A job submitted
    here is checked twice, since it may be on its way from the stream to a dispatcher.

    Raises:
        UnknownJob: it is not known.
        InvalidRequest: it is a schedule, which never ends.
    """
    if not doubts:
        return 0
    try:
        info = await queries.status(ref, STATUS_S)
    except UnknownJob as error:
        if error.details.get("certain") and (doubts > 1 or not ref.submitted):
            raise
        return doubts
    except GanglineError:
        return doubts  # nobody answered
    if info.cron is not None:
        raise InvalidRequest(
            f"job {ref.id!r} is a schedule ({info.cron}), it has no end: each of its runs is a job of its own; "
            f"'gangline jobs ls --schedule {ref.id}' lists them",
            details={"job": ref.id},
        )
    return 0


async def value_of(streams: TaskStreams, record: ResultRecord) -> Any:
    """The result of a job that succeeded.

    Raises:
        JobDead, JobCancelled: it did not succeed; the last error is the cause.
        ResultNotKept: its large result is no longer there.
        MalformedMessage: the record is invalid.
    """
    if record.state is not JobState.DONE:
        raise failure_of(record) from _cause(record.error)
    fmt = Format.MSGPACK if record.encoding == "msgpack" else Format.JSON
    if record.object is not None:
        name = record.object

        async def read() -> bytes | None:
            return await (await streams.objects()).get(name)

        body = await until_answered("reading a large result", read, _log)
        if body is None:
            raise ResultNotKept(
                f"the result of job {record.job!r} was in the object store under {record.object!r} and is gone",
                details={"job": record.job},
            )
        return codec.decode(body, fmt)
    return plain_value(record.result, record.encoding)


def plain_value(value: Any, encoding: str) -> Any:
    """The value in a record or an item.

    Raises:
        MalformedMessage: it should be base64 of msgpack, but is not.
    """
    if encoding != "msgpack":
        return value
    try:
        body = base64.b64decode(str(value).translate(_ANY_ALPHABET), validate=True)
    except ValueError as error:
        raise MalformedMessage(f"not base64: {error}") from error
    return codec.decode(body, Format.MSGPACK)


_ANY_ALPHABET: Final = str.maketrans("-_", "+/")


def failure_of(record: ResultRecord) -> JobDead | JobCancelled:
    """Why there is no result."""
    job, target = record.job, f"{record.endpoint}.{record.method}"
    if record.state is JobState.CANCELLED:
        return JobCancelled(f"job {job!r} ({target}) was cancelled", details={"job": job, "attempts": record.attempts})
    reason = "" if record.reason is None else record.reason.value
    times = f"{record.attempts} attempt{'' if record.attempts == 1 else 's'}"
    last = f": {record.error.message}" if record.error is not None else ""
    return JobDead(
        f"job {job!r} ({target}) is a dead letter, {reason or 'for some reason'} after {times}{last}",
        details={
            "job": job,
            "reason": reason,
            "attempts": record.attempts,
            "error": None if record.error is None else record.error.model_dump(mode="json"),
        },
        may_have_started=record.attempts > 0,
    )


def _cause(error: JobFailure | None) -> GanglineError | None:
    return None if error is None else error_from_wire(error.code, error.message, error.details, True)
