"""A submission as the message that is published. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_ATTEMPTS
from ...schemas.names import Names, split_target
from ...schemas.wire import headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ..calls.call import CallOptions, SubmitOptions, check_header_text
from .body import write_arguments

MIN_TIMEOUT_S: Final = 0.001
_NOTHING: Final = SubmitOptions()


class TaskMessage(NamedTuple):
    """What is published, and which job that is."""

    endpoint: str
    method: str
    job: str
    subject: str
    data: bytes
    headers: dict[str, str]
    scheduled: bool = False
    """The server keeps it until its time."""
    repeats: bool = False
    """It is a schedule that runs again and again, each time as a job of its own."""
    result_kept: bool = True

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"


def job_of_key(target: str, key: str) -> str:
    """The job that an idempotency key stands for."""
    return "i" + sha256(f"{target}\n{key}".encode()).hexdigest()[:26]


def task_message(
    names: Names,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CallOptions,
    *,
    token: str,
    wall: float,
    trace: str | None,
    part: int | None = None,
) -> TaskMessage:
    """Put a submission into words.

    Args:
        token: unguessable; the job's id, unless an idempotency key is given.
        wall: Unix time.
        trace: `traceparent` of whoever submits.
        part: number among several that are submitted with one idempotency key.

    Raises:
        InvalidName, InvalidSettings, InvalidRequest: what is wrong, before anything is sent.
    """
    endpoint, method = split_target(target)
    submit = options.submit or _NOTHING
    data, fmt = write_arguments(args, kwargs)
    key = submit.idempotency_key
    if key is not None and part is not None:
        key = f"{key}/{part}"
    # Ids start with a letter: they cannot be mistaken for options of a command, nor for sequences.
    job = f"j{token}" if key is None else job_of_key(target, key)
    fields = _fields(options, submit)
    if fmt is Format.MSGPACK:
        fields[CONTENT_TYPE] = fmt.value
    if trace is not None:
        fields[headers.TRACEPARENT] = trace
    fields[headers.MESSAGE_ID] = job
    subject = names.task(endpoint, method)
    when = _when(submit, wall)
    if when is not None:
        fields[headers.SCHEDULE] = when
        fields[headers.SCHEDULE_TARGET] = subject
        subject = names.schedule(job)
    if submit.cron is None:
        fields[headers.JOB] = job
    else:
        # Declared again with another pattern or other arguments, it replaces the first: it is no duplicate then.
        fields[headers.MESSAGE_ID] = f"{job}-{sha256(_what(when, fields, data)).hexdigest()[:16]}"
    return TaskMessage(
        endpoint=endpoint,
        method=method,
        job=job,
        subject=subject,
        data=data,
        headers=fields,
        scheduled=when is not None,
        repeats=submit.cron is not None,
        result_kept=submit.result_ttl_s != 0,
    )


def _what(when: str | None, fields: Mapping[str, str], data: bytes) -> bytes:
    """All that makes a repeated task what it is."""
    told = {name: value for name, value in fields.items() if name not in (headers.MESSAGE_ID, headers.TRACEPARENT)}
    return repr((when, sorted(told.items()), data)).encode()


def _fields(options: CallOptions, submit: SubmitOptions) -> dict[str, str]:
    if options.labels:
        raise InvalidSettings("labels are for calls: the workers of a submitted task are those of its endpoint's route")
    if submit.ordered and options.key is None:
        raise InvalidSettings("ordered needs a key: order is kept among the tasks of one key")
    if options.max_attempts is not None and options.max_attempts > MAX_ATTEMPTS:
        raise InvalidSettings(f"max_attempts is {options.max_attempts}, it must be at most {MAX_ATTEMPTS} here")
    if options.timeout_s is not None and options.timeout_s < MIN_TIMEOUT_S:
        raise InvalidSettings(f"timeout_s is {options.timeout_s!r}, it must be at least {MIN_TIMEOUT_S} here")
    check_header_text("key", options.key)
    check_header_text("model", options.model)
    fields: dict[str, str] = {}
    for name, text in (
        (headers.KEY, options.key),
        (headers.MODEL, options.model),
        (headers.POOL, options.pool),
        (headers.TIMEOUT, options.timeout_s),
        (headers.MAX_ATTEMPTS, options.max_attempts),
        (headers.PRIORITY, submit.priority),
        (headers.DEADLINE, submit.deadline_s),
        (headers.BACKOFF, submit.backoff_s),
        (headers.RESULT_TTL, submit.result_ttl_s),
    ):
        if text is not None:
            fields[name] = text if isinstance(text, str) else number(text)
    if options.idempotent is not None:
        fields[headers.IDEMPOTENT] = "true" if options.idempotent else "false"
    if submit.ordered:
        fields[headers.ORDERED] = "true"
    if submit.events:
        fields[headers.EVENTS] = "true"
    return fields


def number(value: float) -> str:
    """A number as headers have it: never with an exponent."""
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")


def _when(submit: SubmitOptions, wall: float) -> str | None:
    """The server's schedule; None: at once."""
    if submit.cron is not None:
        return submit.cron
    if submit.at is not None:
        return schedule_at(submit.at)
    if submit.delay_s:
        return schedule_at(datetime.fromtimestamp(wall, UTC) + timedelta(seconds=submit.delay_s))
    return None


def schedule_at(moment: datetime) -> str:
    """`@at` and the moment, as the server reads it."""
    return f"@at {moment.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"


def moment_of(schedule: str) -> float | None:
    """Unix time of an `@at` schedule; None for those that repeat."""
    if not schedule.startswith("@at "):
        return None
    try:
        return datetime.fromisoformat(schedule[4:].strip()).timestamp()
    except ValueError:
        return None
