"""A durable task as published: its subject, headers and body. Pure.

Every message on `<ns>.task.<endpoint>.<method>` is a durable task. Its body has the arguments, as in a call. Its
headers are those of schemas.wire.headers, all optional. A known header with an invalid value is never ignored: the task
becomes a dead letter at once, with an error that says what to write instead. An unknown header may be one of a later
version, and is ignored; its name is kept in `unknown_headers`, so that the dispatcher can warn of a misspelt one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ..errors.base import GanglineError, InvalidRequest
from ..limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S
from ..names import Names, check_job, check_name, is_job_of, job_of_tenant
from ..records.workers import MAX_PRIORITY
from ..schedules import check_schedule, check_time_zone
from ..text import parse_duration, parse_yes_no, plain
from ..wire import headers
from ..wire.codec import CONTENT_TYPE, Format, loses_in_json
from ..wire.own_headers import OWN

MAX_COUNTED: Final = 1_000_000_000
MAX_KEY_CHARS: Final = 1024
_COMMON: Final = frozenset(
    (
        CONTENT_TYPE,
        headers.MODEL,
        headers.POOL,
        headers.PRIORITY,
        headers.TIMEOUT,
        headers.MAX_ATTEMPTS,
        headers.BACKOFF,
        headers.RESULT_TTL,
        headers.EVENTS,
        headers.IDEMPOTENT,
    )
)
"""Headers whose meaning depends on nothing else. Most tasks of one producer share them."""
_UNREAD: Final = (headers.MESSAGE_ID, headers.FIRST)
"""Headers that say nothing about the task itself."""
_MOST_SHAPES: Final = 1024
_SHAPE_CHARS: Final = 1024
"""Longer headers are not cached."""
_shapes: Final[dict[tuple[str, ...], Submission]] = {}
"""Parsed headers by their text. Bounded."""
LAST_MOMENT: Final = datetime(2262, 1, 1, tzinfo=UTC).timestamp()
"""The server counts nanoseconds in 64 bits. It starts a task delayed beyond that at once."""


class Submission(NamedTuple):
    """The fields of a submission. None: as the endpoint's route or the task says, or the default. A tuple, since there
    are many of them."""

    endpoint: str
    method: str
    job: str
    """Its unique id; see headers.JOB. If it is a tenant's, it has the tenant's name (names.job_of_tenant)."""
    published_at: float = 0.0
    """Unix time, by the server's clock."""
    fmt: Format = Format.JSON
    accepts_msgpack: bool = False
    """Whether its producer reads a result in msgpack, if JSON would lose something."""
    key: str | None = None
    model: str | None = None
    pool: str | None = None
    priority: int | None = None
    ordered: bool = False
    deadline_at: float | None = None
    """Unix time of its deadline."""
    not_before: float | None = None
    """Unix time of its earliest start; only for the dispatcher, which hands it back to the server until then."""
    cron: str | None = None
    """It is a schedule, to be passed to the server."""
    time_zone: str = ""
    """Time zone of `cron`; empty: UTC."""
    schedule: str | None = None
    """The id of the schedule that it is a run of."""
    timeout_s: float | None = None
    """Time limit of one attempt."""
    max_attempts: int | None = None
    attempts: int = 0
    """Number of attempts before it became a dead letter, if it is submitted again as the same job. Its attempt
    numbers continue from there, so that they keep growing; `max_attempts` counts only further ones."""
    backoff_s: float | None = None
    result_ttl_s: float | None = None
    """0: the result is not stored."""
    events: bool = False
    trace: str | None = None
    """`traceparent` of the producer."""
    idempotent: bool | None = None
    """Whether it is safe to run it twice. None: as the task declares."""
    tenant: str = ""
    """Whose it is, as the server wrote into its subject; empty: Gangline's own account."""
    unknown_headers: tuple[str, ...] = ()
    """Names of headers of Gangline's that mean nothing on a submission: misspelt, or of a later version."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    @classmethod
    def parse(
        cls, names: Names, subject: str, given: Mapping[str, str] | None, *, sequence: int, published_at: float
    ) -> Submission:
        """Read subject and headers.

        Args:
            sequence: sequence in the stream; the id of a task without a `Gangline-Job`.
            published_at: Unix time at which the server stored it.

        Raises:
            InvalidRequest: says which header (or that the subject) is invalid, and how to write it.
        """
        if not given:
            endpoint, method, tenant = names.parse_task(subject)
            id = job_of_tenant(str(sequence), endpoint, tenant) if tenant else str(sequence)
            return cls(endpoint=endpoint, method=method, job=id, published_at=published_at, tenant=tenant)
        job, shape = None, [names.namespace, subject]
        for name, text in given.items():
            if name == headers.JOB:
                job = text.strip()
            elif name in _COMMON:
                shape += name, text
            elif name not in _UNREAD:
                return cls._parse(names, subject, given, sequence=sequence, published_at=published_at)
        known = _shapes.get(key := tuple(shape))
        if known is None or (job is not None and not is_job_of(job, known[0])):
            known = cls._parse(names, subject, given, sequence=sequence, published_at=published_at)
            if sum(map(len, key)) <= _SHAPE_CHARS:
                if len(_shapes) >= _MOST_SHAPES:
                    _shapes.clear()
                _shapes[key] = known
        job = job or str(sequence)
        if known.tenant:
            job = job_of_tenant(job, known[0], known.tenant)
        return cls._make((known[0], known[1], job, published_at, *known[4:]))

    @classmethod
    def _parse(
        cls, names: Names, subject: str, given: Mapping[str, str], *, sequence: int, published_at: float
    ) -> Submission:
        endpoint, method, tenant = names.parse_task(subject)
        fields: dict[str, Any] = {"job": str(sequence), "tenant": tenant}
        unknown = []
        for name, text in given.items():
            known = _HEADERS.get(lower := name.lower())
            if known is None:
                if lower.startswith(OWN) and lower not in _SILENT:
                    unknown.append(name)
            else:
                field, right, read = known
                try:
                    fields[field] = read(text.strip(), published_at)
                except ValueError as error:
                    raise InvalidRequest(f"{right}: {error}") from None
                except GanglineError as error:
                    raise type(error)(f"{right}: {error.message}") from None
        if unknown:
            fields["unknown_headers"] = tuple(unknown)
        if fields.get("time_zone"):
            if fields.get("cron") is None:
                raise InvalidRequest(f"{headers.TIME_ZONE} needs a {headers.CRON}: it is the time zone of that")
            check_schedule(fields["cron"], fields["time_zone"])
        # A delayed task was published by a schedule with its own id; a cron of an older version does not name itself.
        scheduler = fields.pop("scheduler", "")
        schedule = fields.get("schedule") or names.parse_schedule(scheduler)
        fields["schedule"] = schedule if is_job_of(schedule, endpoint) else None
        if not is_job_of(fields["job"], endpoint):
            raise InvalidRequest(f"{headers.JOB}: {fields['job']} is a job of another endpoint than {endpoint}")
        if tenant:
            for field in ("job", "schedule"):
                fields[field] = fields[field] and job_of_tenant(fields[field], endpoint, tenant)
        if fields["schedule"] == fields["job"]:
            fields["schedule"] = None
        if fields.get("ordered") and fields.get("key") is None:
            raise InvalidRequest(f"{headers.ORDERED} needs a {headers.KEY}: order is kept among tasks of one key")
        fields["accepts_msgpack"] = given is not None and given.get(headers.ACCEPT) == Format.MSGPACK.value
        return cls(endpoint=endpoint, method=method, fmt=Format.of(given), published_at=published_at, **fields)

    def format_of(self, value: Any) -> Format:
        """The format in which a result, or an item, is kept."""
        return Format.MSGPACK if self.accepts_msgpack and loses_in_json(value) else self.fmt


# Each function parses the text of one header; some need the time of publication.


def _text(text: str, _: float) -> str:
    return text


def _name(kind: str) -> Callable[[str, float], str]:
    return lambda text, _: check_name(text, kind)


def _job(text: str, _: float) -> str:
    return check_job(text)


def _key(text: str, _: float) -> str:
    if not text or len(text) > MAX_KEY_CHARS:
        raise ValueError(f"the key has {len(text)} characters: give 1 to {MAX_KEY_CHARS}")
    return text


def _schedule(text: str, _: float) -> str:
    return check_schedule(text)


def _time_zone(text: str, _: float) -> str:
    return check_time_zone(text)


def _flag(text: str, _: float) -> bool:
    return parse_yes_no(text)


def _whole(low: int, high: int) -> Callable[[str, float], int]:
    def parse(text: str, _: float) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"{text[:40]!r} is not a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"{number} is out of bounds: give {low} to {high}")
        return number

    return parse


def _length(low: float, high: float) -> Callable[[str, float], float]:
    def parse(text: str, _: float) -> float:
        seconds = parse_duration(text)
        if not low <= seconds <= high:
            raise ValueError(f"{text[:40]!r} is out of bounds: give {plain(low)} to {plain(high)} seconds")
        return seconds

    return parse


_ANY_LENGTH: Final = _length(0.0, MAX_DEADLINE_S)


def _until(text: str, start: float) -> float:
    """A duration from `start`, or a timestamp."""
    try:
        return start + _ANY_LENGTH(text, start)
    except ValueError as error:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{error}, or a timestamp such as 2030-01-31T12:00:00Z") from None
        if moment.tzinfo is None:
            raise ValueError(f"{text[:40]!r} has no time zone: add Z for UTC") from None
        if not moment.timestamp() < LAST_MOMENT:
            raise ValueError(f"{text[:40]!r} is after the year 2261: give an earlier time") from None
        return moment.timestamp()


_HEADERS: Final[dict[str, tuple[str, str, Callable[[str, float], Any]]]] = {
    name.lower(): (field, name, read)
    for name, field, read in (
        (headers.JOB, "job", _job),
        (headers.KEY, "key", _key),
        (headers.MODEL, "model", _text),
        (headers.POOL, "pool", _name("pool")),
        (headers.PRIORITY, "priority", _whole(-MAX_PRIORITY, MAX_PRIORITY)),
        (headers.ORDERED, "ordered", _flag),
        (headers.DEADLINE, "deadline_at", _until),
        (headers.DELAY, "not_before", _until),
        (headers.CRON, "cron", _schedule),
        (headers.TIME_ZONE, "time_zone", _time_zone),
        (headers.SCHEDULE_JOB, "schedule", _text),
        (headers.SCHEDULER, "scheduler", _text),
        (headers.TIMEOUT, "timeout_s", _length(0.001, MAX_DEADLINE_S)),
        (headers.MAX_ATTEMPTS, "max_attempts", _whole(1, MAX_ATTEMPTS)),
        (headers.ATTEMPTS, "attempts", _whole(0, MAX_COUNTED)),
        (headers.BACKOFF, "backoff_s", _length(0.0, MAX_BACKOFF_S)),
        (headers.RESULT_TTL, "result_ttl_s", _length(0.0, MAX_RESULT_TTL_S)),
        (headers.EVENTS, "events", _flag),
        (headers.TRACEPARENT, "trace", _text),
        (headers.IDEMPOTENT, "idempotent", _flag),
    )
}
"""By lower-case name: the field, the name in its usual spelling, and the parser."""
OF_DEAD_LETTERS: Final = frozenset(
    name.lower()
    for name in (
        headers.SUBJECT,
        headers.DEAD_REASON,
        headers.DEAD_ERROR,
        headers.DEAD_TRIES,
        headers.DEAD_AT,
        headers.DEAD_OBJECT,
    )
)
"""Headers, in lower case, that a dead letter has and its task has not."""
_READ_ELSEWHERE: Final = (headers.FIRST, headers.SCHEDULE_NAME)
_SILENT: Final = OF_DEAD_LETTERS | {name.lower() for name in (*_READ_ELSEWHERE, headers.PAUSED)}
"""Headers of Gangline's, in lower case, that other readers read: of schedules and of dead letters."""
OF_TASKS: Final = (
    *(name for _, name, _ in _HEADERS.values() if name.lower().startswith(OWN)),
    *_READ_ELSEWHERE,
)
"""Those of Gangline's headers that a submission may have."""
