"""What is known of jobs and queues: asked of the dispatchers, and read from the streams where they cannot tell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from ..bus.ambient import Ambient
from ..bus.port import Bus, Conflict, NoResponders, StreamMessage
from ..schemas import codec, headers
from ..schemas.errors import InvalidName, MalformedMessage, Unavailable
from ..schemas.jobs import (
    CancelReply,
    JobInfo,
    JobRequest,
    JobState,
    Obstacle,
    QueueStats,
    ResultRecord,
    WhyReply,
)
from ..schemas.names import QueueOperation, check_name
from ..schemas.task_errors import NoDispatcher, UnknownJob
from .durable.task_streams import TaskStreams
from .operators import raise_if_error
from .submit_message import moment_of

SCANNED: Final = 2000
"""Most messages of the stream that are looked at for a job whose sequence is not known."""
RESULT_TTL_S: Final = 3600.0
"""Of the record of a job that is cancelled in the stream."""

R = TypeVar("R", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRef:
    """A job, as far as its holder knows it."""

    id: str
    endpoint: str | None = None
    method: str | None = None
    sequence: int | None = None
    """Of its task in the stream; of the schedule's if it is `scheduled`."""
    scheduled: bool = False
    repeats: bool = False
    result_kept: bool = True
    events: bool = False
    """Each change of its state is told."""
    submitted: bool = False
    """We submitted it ourselves, so that it exists, or existed."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}" if self.endpoint and self.method else "?"


class JobDesk:
    """Asks and reads. One per client."""

    def __init__(self, bus: Bus, streams: TaskStreams, ambient: Ambient) -> None:
        self.bus = bus
        self.streams = streams
        self._names = streams.names
        self._ambient = ambient

    # -- one job --------------------------------------------------------------------------------------------------

    async def record(self, job: str) -> ResultRecord | None:
        """How the job ended; None: it has not, or so long ago that it is forgotten."""
        entry = await (await self.streams.results()).get(self._names.result_key(job))
        return None if entry is None else parse_result(job, entry.value)

    async def status(self, ref: JobRef, timeout_s: float) -> JobInfo:
        """What is known of the job now.

        Raises:
            UnknownJob: nothing is.
        """
        if (record := await self.record(ref.id)) is not None:
            return _info_of(record)
        told, absent = await self._told(ref, timeout_s)
        if told is not None:
            return told
        stored = await self._stored(ref)
        if stored is not None:
            if absent and stored.state is JobState.QUEUED:
                return stored.model_copy(update={"reason": _nobody(stored.endpoint)})
            return stored
        if (record := await self.record(ref.id)) is not None:  # it ended just now
            return _info_of(record)
        where = "" if ref.endpoint else "; naming its endpoint lets the dispatcher of that be asked"
        alone = f" ({_nobody(ref.endpoint)})" if absent and ref.endpoint else ""
        raise UnknownJob(
            f"job {ref.id!r} is not known: never submitted here, or ended so long ago that its result is no longer "
            f"kept{alone}{where}",
            details={"job": ref.id},
        )

    async def cancel(self, ref: JobRef, timeout_s: float) -> bool:
        """Have it not run, or stop; False: it had ended.

        Raises:
            UnknownJob: nothing is known of it.
        """
        if await self.record(ref.id) is not None:
            return False
        tasks = await self.streams.tasks()
        if await tasks.purge(self._names.schedule(ref.id)):
            return True
        for endpoint in await self._endpoints_of(ref):
            try:
                request = JobRequest(job=ref.id)
                return (await self._ask(endpoint, QueueOperation.CANCEL, request, CancelReply, timeout_s)).cancelled
            except (NoDispatcher, UnknownJob):
                continue
        found = await self._find(ref)
        if found is not None:
            return await self._cancel_stored(ref, found)
        info = await self.status(ref, timeout_s)
        return info.state is JobState.CANCELLED

    async def why(self, ref: JobRef, timeout_s: float) -> WhyReply:
        """What it waits for.

        Raises:
            UnknownJob: nothing is known of it.
        """
        for endpoint in await self._endpoints_of(ref):
            try:
                return await self._ask(endpoint, QueueOperation.WHY, JobRequest(job=ref.id), WhyReply, timeout_s)
            except (NoDispatcher, UnknownJob):
                continue
        info = await self.status(ref, timeout_s)
        obstacles: tuple[Obstacle, ...] = ()
        if info.state is JobState.SCHEDULED:
            obstacles = (
                Obstacle(kind="schedule", text=info.reason or "its time has not come", until=info.next_try_at),
            )
        elif info.state is JobState.QUEUED:
            text = info.reason or "its dispatcher has not looked so far down the queue yet"
            obstacles = (Obstacle(kind="position", text=text),)
        return WhyReply(job=info, obstacles=obstacles)

    # -- queues ---------------------------------------------------------------------------------------------------

    async def queues(self, timeout_s: float) -> list[QueueStats]:
        """Every queue that has tasks or a dispatcher, by endpoint; `dispatcher` is empty where nobody has it."""
        depths = await self._depths()
        endpoints = sorted({*depths, *await self._had()})
        return list(await asyncio.gather(*(self._stats(name, depths.get(name, 0), timeout_s) for name in endpoints)))

    async def _stats(self, endpoint: str, depth: int, timeout_s: float) -> QueueStats:
        try:
            return await self._ask(endpoint, QueueOperation.STATS, None, QueueStats, timeout_s)
        except Unavailable:
            oldest = await (await self.streams.tasks()).next(self._names.tasks_of(endpoint))
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
            )

    async def _depths(self) -> dict[str, int]:
        """Messages in the stream by endpoint."""
        found: dict[str, int] = {}
        for subject, count in (await (await self.streams.tasks()).state(self._names.tasks)).subjects.items():
            endpoint = subject.removeprefix(self._names.tasks[:-1]).partition(".")[0]
            if _is_name(endpoint):
                found[endpoint] = found.get(endpoint, 0) + count
        return found

    async def _had(self) -> set[str]:
        """Endpoints whose queue some dispatcher has."""
        prefix = self._names.tasks[:-1]
        filters = (consumer.filter for consumer in await (await self.streams.tasks()).consumers())
        return {name for text in filters if _is_name(name := text.removeprefix(prefix).removesuffix(".>"))}

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _ask(
        self, endpoint: str, operation: QueueOperation, request: BaseModel | None, reply: type[R], timeout_s: float
    ) -> R:
        body = b"" if request is None else codec.to_json(request.model_dump(mode="json"))
        try:
            answer = await self.bus.request(self._names.queue(endpoint, operation), body, timeout_s=timeout_s)
        except NoResponders as error:
            raise NoDispatcher(_nobody(endpoint)) from error
        raise_if_error(answer)
        try:
            return reply.model_validate_json(answer.data)
        except ValidationError as error:
            raise MalformedMessage(f"unreadable answer of the dispatcher of {endpoint}: {error}") from error

    async def _endpoints_of(self, ref: JobRef) -> list[str]:
        """Whom to ask: the job's endpoint, or all whose queue somebody has."""
        return [ref.endpoint] if ref.endpoint is not None else sorted(await self._had())

    async def _told(self, ref: JobRef, timeout_s: float) -> tuple[JobInfo | None, bool]:
        """What dispatchers say, and whether there was none to ask."""
        absent = True
        for endpoint in await self._endpoints_of(ref):
            try:
                found = await self._ask(endpoint, QueueOperation.GET, JobRequest(job=ref.id), JobInfo, timeout_s)
                return found, False
            except NoDispatcher:
                continue
            except UnknownJob:
                absent = False
        return None, absent

    async def _stored(self, ref: JobRef) -> JobInfo | None:
        """What the stream shows: a schedule, or a task that no dispatcher has looked at."""
        schedule = await (await self.streams.tasks()).last(self._names.schedule(ref.id))
        if schedule is not None:
            return self._info_of_schedule(ref, schedule)
        found = await self._find(ref)
        if found is None:
            return None
        endpoint, method = _target_of(found, self._names.tasks[:-1])
        return JobInfo(
            job=ref.id,
            endpoint=endpoint,
            method=method,
            state=JobState.QUEUED,
            sequence=found.sequence,
            submitted_at=found.at,
        )

    def _info_of_schedule(self, ref: JobRef, message: StreamMessage) -> JobInfo:
        fields = message.headers or {}
        when = fields.get(headers.SCHEDULE, "")
        target = fields.get(headers.SCHEDULE_TARGET, "").removeprefix(self._names.tasks[:-1])
        endpoint, _, method = target.partition(".")
        moment = moment_of(when)
        return JobInfo(
            job=ref.id,
            endpoint=endpoint,
            method=method,
            state=JobState.SCHEDULED,
            sequence=message.sequence,
            submitted_at=message.at,
            next_try_at=moment,
            reason="its time has not come" if moment is not None else f"runs again and again: {when}",
        )

    async def _find(self, ref: JobRef) -> StreamMessage | None:
        """Its task in the stream."""
        tasks = await self.streams.tasks()
        sequence = ref.sequence if not ref.scheduled else None
        if sequence is None and ref.id.isdecimal():
            sequence = int(ref.id)
        if sequence is not None:
            message = await tasks.get(sequence)
            return message if message is not None and _is_job(message, ref.id, self._names.tasks[:-1]) else None
        pattern = self._names.tasks if ref.endpoint is None else self._names.tasks_of(ref.endpoint)
        place = 1
        for _ in range(SCANNED):
            message = await tasks.next(pattern, place)
            if message is None or _is_job(message, ref.id, self._names.tasks[:-1]):
                return message
            place = message.sequence + 1
        return None

    async def _cancel_stored(self, ref: JobRef, found: StreamMessage) -> bool:
        """Cancel a task that no dispatcher has looked at. Its record comes first: whoever starts it all the same, since
        it was just then taken from the stream, finds that it cannot write a result."""
        endpoint, method = _target_of(found, self._names.tasks[:-1])
        record = ResultRecord(
            job=ref.id,
            endpoint=endpoint,
            method=method,
            state=JobState.CANCELLED,
            submitted_at=found.at,
            finished_at=self._ambient.wall(),
        )
        key, value = self._names.result_key(ref.id), record.model_dump_json().encode()
        try:
            await (await self.streams.results()).put(key, value, ttl_s=RESULT_TTL_S, revision=0)
        except Conflict:
            return False  # it ended just now
        await (await self.streams.tasks()).delete(found.sequence)
        return True


def parse_result(job: str, value: bytes) -> ResultRecord:
    """Read a record of the bucket of results.

    Raises:
        MalformedMessage: somebody else wrote there.
    """
    try:
        return ResultRecord.model_validate_json(value)
    except ValidationError as error:
        raise MalformedMessage(f"the result of job {job!r} cannot be read: {error}") from error


def _info_of(record: ResultRecord) -> JobInfo:
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
    )


def _nobody(endpoint: str | None) -> str:
    return f"no dispatcher has the queue of {endpoint!r}: start one with 'gangline dispatcher'"


def _is_name(text: str) -> bool:
    try:
        check_name(text, "endpoint")
    except InvalidName:
        return False
    return True


def _is_job(message: StreamMessage, job: str, prefix: str) -> bool:
    if not message.subject.startswith(prefix):
        return False
    named = {name.lower(): value for name, value in (message.headers or {}).items()}.get(headers.JOB.lower())
    return (named or str(message.sequence)) == job


def _target_of(message: StreamMessage, prefix: str) -> tuple[str, str]:
    endpoint, _, method = message.subject.removeprefix(prefix).partition(".")
    return endpoint, method
