"""Jobs that no dispatcher knows: schedules, and tasks far down a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from ...bus.port.bus import Stream, StreamMessage
from ...schemas.errors.base import GanglineError, InvalidSchedule
from ...schemas.messages.jobs import JobInfo
from ...schemas.messages.submission import Submission
from ...schemas.names import Names, job_of_tenant, short_job, split_tenant
from ...schemas.records.jobs import JobState
from ...schemas.schedules import check_time_zone, parse_schedule
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import Format
from .submitter import job_of_declared, moment_of

DUE_KEPT: Final = "24h"
"""How long a message published by a schedule is kept in its stream: the stream of tasks copies it at once, or when it
has a leader again, or room. Then it is lost: docs/explanation/what-is-not-promised.md."""
UNREAD: Final = "no dispatcher has read that far down the queue yet"
"""The `reason` of a queued job."""
SCHEDULED: Final = "sched"
BURIED: Final = "dead"
"""Prefixes of the message ids of schedules and of dead letters."""
_MOST_DIGITS: Final = 20


class TaskOrigin(NamedTuple):
    """The task's message that a schedule or a dead letter was made from."""

    sequence: int
    at_ms: int
    """When it was stored: Unix time in milliseconds; 0: unknown."""


class JobRef(NamedTuple):
    """What the owner of a reference knows about a job."""

    id: str
    endpoint: str | None = None
    method: str | None = None
    sequence: int | None = None
    """Sequence of its task in the stream; if it is `scheduled`, of the message that requested that."""
    scheduled: bool = False
    repeats: bool = False
    result_kept: bool = True
    events: bool = False
    """Whether each change of its state is published as an event."""
    submitted: bool = False
    """Whether this client submitted it, so it exists or existed."""
    created: bool | None = None
    """Whether that made it, unlike an earlier submission with its idempotency key; None: it was not submitted here."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}" if self.endpoint and self.method else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring task. Each of its runs is a job of its own, whose `schedule` is this id."""

    id: str
    name: str
    """The `idempotency_key` that it was submitted with; empty: none."""
    endpoint: str
    method: str
    cron: str
    """Six fields, `@every 5m`, or a name such as `@daily`."""
    time_zone: str
    """Of `cron`; empty: UTC."""
    paused_at: float | None
    """Unix time since when it is paused; None: it is not."""
    next_at: float | None
    """Unix time of its next run, as far as this process can tell; None while it is paused."""
    declared_at: float
    """Unix time at which it was stored."""
    data: bytes
    headers: Mapping[str, str]

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    @property
    def in_code(self) -> bool:
        """Whether the task itself declares it, with `@pool.task(cron=)`. If it is deleted, a dispatcher stores it
        again within seconds. To stop it, pause it, or remove `cron=`."""
        return self.id == job_of_declared(self.endpoint, self.method)

    @property
    def arguments(self) -> Any:
        """The decoded arguments; raw bytes if they cannot be decoded."""
        return decoded(self.data, self.headers)


def decoded(data: bytes, fields: Mapping[str, str]) -> Any:
    """A task's arguments; raw bytes if they cannot be decoded."""
    try:
        return codec.decode(data, Format.of(fields))
    except GanglineError:
        return data


def recurring(names: Names, message: StreamMessage, *, wall: float) -> Schedule | None:
    """The schedule in a message; None: it is a task that waits for its time."""
    given = message.headers or {}
    paused = header_of(given, headers.PAUSED)
    cron = header_of(given, headers.CRON if paused is not None else headers.SCHEDULE) or ""
    if not cron or cron.startswith("@at "):
        return None
    zone = header_of(given, headers.TIME_ZONE if paused is not None else headers.SCHEDULE_TIME_ZONE) or ""
    if paused is not None:
        endpoint, method = split_subject(header_of(given, headers.SUBJECT) or "", names.tasks[:-1])
    else:
        endpoint, method = split_subject(header_of(given, headers.SCHEDULE_TARGET) or "", names.due[:-1])
    return Schedule(
        id=names.parse_schedule(message.subject),
        name=header_of(given, headers.SCHEDULE_NAME) or "",
        endpoint=endpoint,
        method=method,
        cron=cron,
        time_zone=zone,
        paused_at=None if paused is None else _moment(paused, message.at),
        next_at=None if paused is not None else _next(cron, zone, message.at, wall),
        declared_at=message.at,
        data=message.data,
        headers=dict(given),
    )


def _moment(text: str, otherwise: float) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return otherwise


def _next(cron: str, zone: str, since: float, wall: float) -> float | None:
    try:
        schedule = parse_schedule(cron, check_time_zone(zone))
    except InvalidSchedule:  # a server of another version took it
        return None
    if schedule.every_s is not None and wall > since:
        # The server counts from when it stored the schedule.
        start = int(since + 0.5)
        return start + (int((wall - start) // schedule.every_s) + 1) * schedule.every_s
    return schedule.next(wall)


SHORTEST: Final = 4
"""Minimum length of an abbreviated id."""


def abbreviates(text: str) -> bool:
    """Whether it may be the beginning of an id. A sequence is an id of its own."""
    name = text.rpartition(".")[2]
    return len(name) >= SHORTEST and not name.isdecimal()


def begins(id: str, text: str) -> bool:
    """Whether a text is the beginning of an id, or of its part after the endpoint, with or without its tenant."""
    return abbreviates(text) and begins_with(id, text)


def begins_with(id: str, text: str) -> bool:
    """Like `begins`, however short the text."""
    return any(each.startswith(text) or each.rpartition(".")[2].startswith(text) for each in (id, short_job(id)))


async def submission_of(tasks: Stream, schedule: StreamMessage) -> StreamMessage | None:
    """The message that a schedule was made from, if no dispatcher has acknowledged it.

    Raises:
        NotPermitted, StorageUnavailable, Disconnected.
    """
    given = schedule.headers or {}
    origin = origin_of(SCHEDULED, given)
    message = None if origin is None else await tasks.get(origin.sequence)
    id = header_of(given, headers.MESSAGE_ID)
    return None if message is None or origin_id(SCHEDULED, message) != id else message


def origin_id(what: str, message: StreamMessage) -> str:
    """`Nats-Msg-Id` of the schedule or dead letter that is made from a message in the stream of tasks."""
    return f"{what}-{message.sequence}-{round(message.at * 1000)}"


def origin_of(what: str, given: Mapping[str, str]) -> TaskOrigin | None:
    """The message that one with these headers was made from. None: unknown; an operator has changed the schedule, or
    workers declare it."""
    kind, _, rest = (header_of(given, headers.MESSAGE_ID) or "").partition("-")
    sequence, _, at_ms = rest.partition("-")
    if kind != what or not is_number(sequence):
        return None
    return TaskOrigin(int(sequence), int(at_ms) if is_number(at_ms) else 0)


def is_number(text: str) -> bool:
    """Whether it is a number of the server's 64 bits. Python refuses to parse one with thousands of digits."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def declared_at_ms(schedule: Mapping[str, str]) -> int:
    """When the message that a schedule with these headers was made from was stored; see TaskOrigin."""
    origin = origin_of(SCHEDULED, schedule)
    return 0 if origin is None else origin.at_ms


async def messages_of(stream: Stream, pattern: str, first: int, last: int) -> AsyncIterator[StreamMessage]:
    """The messages of a pattern between two sequences, one request each: for users who may not create consumers.

    Raises:
        StorageUnavailable, Disconnected, NotPermitted.
    """
    sequence = max(1, first)
    while sequence <= last:
        message = await stream.next(pattern, sequence)
        if message is None or message.sequence > last:
            return
        yield message
        sequence = message.sequence + 1


def info_of_task(ref: JobRef, message: StreamMessage, names: Names) -> JobInfo:
    """The state of a task that no dispatcher has fetched."""
    endpoint, method = target_of(message, names)
    try:
        given, at = message.headers, message.at
        task = Submission.parse(names, message.subject, given, sequence=message.sequence, published_at=at)
    except GanglineError:  # its dispatcher says what is wrong
        task = Submission(endpoint, method, ref.id)
    moment, cron = task.not_before, task.cron
    later = moment is not None or cron is not None
    return JobInfo(
        job=ref.id,
        endpoint=endpoint,
        method=method,
        state=JobState.SCHEDULED if later else JobState.QUEUED,
        attempts=task.attempts,
        sequence=message.sequence,
        priority=task.priority or 0,
        key=task.key,
        submitted_at=message.at,
        next_try_at=moment,
        reason=_reason(moment, cron, task.time_zone) if later else UNREAD,
        cron=cron,
        schedule=task.schedule,
    )


def info_of_schedule(ref: JobRef, message: StreamMessage, names: Names, *, wall: float) -> JobInfo:
    """The state of a scheduled task."""
    fields = message.headers or {}
    schedule = recurring(names, message, wall=wall)
    if schedule is not None:
        return JobInfo(
            job=ref.id,
            endpoint=schedule.endpoint,
            method=schedule.method,
            state=JobState.SCHEDULED,
            sequence=message.sequence,
            submitted_at=message.at,
            next_try_at=schedule.next_at,
            reason=_reason(None, schedule.cron, schedule.time_zone, paused=schedule.paused),
            cron=schedule.cron,
        )
    endpoint, method = split_subject(fields.get(headers.SCHEDULE_TARGET, ""), names.due[:-1])
    moment = moment_of(fields.get(headers.SCHEDULE, ""))
    return JobInfo(
        job=ref.id,
        endpoint=endpoint,
        method=method,
        state=JobState.SCHEDULED,
        sequence=message.sequence,
        submitted_at=message.at,
        key=header_of(fields, headers.KEY),
        next_try_at=moment,
        reason=_reason(moment, None),
    )


def _reason(moment: float | None, cron: str | None, zone: str = "", *, paused: bool = False) -> str:
    if cron is None:
        return "its time has not come" if moment is not None else "its time is not known"
    return f"{'paused; ' if paused else ''}recurring: {cron}{f' ({zone})' if zone else ''}"


def target_of(message: StreamMessage, names: Names) -> tuple[str, str]:
    """Endpoint and method of a task's subject."""
    return split_subject(message.subject, names.tasks[:-1])


def split_subject(subject: str, prefix: str) -> tuple[str, str]:
    """Endpoint and method, as far as it has them, without the tenant that may follow."""
    endpoint, _, method = subject.removeprefix(prefix).partition(".@")[0].partition(".")
    return endpoint, method


def job_of(message: StreamMessage, prefix: str) -> str:
    """The id of the job of a message whose subject begins with `prefix`: that of the header, or the sequence."""
    job = header_of(message.headers or {}, headers.JOB) or str(message.sequence)
    tenant = split_tenant(message.subject)[1]
    return job_of_tenant(job, split_subject(message.subject, prefix)[0], tenant) if tenant else job


def header_of(fields: Mapping[str, str], name: str) -> str | None:
    """One header, in upper or lower case."""
    value = fields.get(name)
    if value is not None:
        return value
    wanted = name.lower()
    return next((text for key, text in fields.items() if key.lower() == wanted), None)
