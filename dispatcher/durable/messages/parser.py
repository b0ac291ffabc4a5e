"""Messages of the stream as events of the core: what arrives is a task, or cannot be understood. Pure."""

from __future__ import annotations

from typing import Any, Final

from ....bus.port.bus import StreamMessage
from ....schemas.errors.base import GanglineError, MalformedMessage
from ....schemas.messages.submission import Submission
from ....schemas.names import Names
from ....schemas.wire import codec, headers
from ....schemas.wire.codec import Format

_KEPT_BYTES: Final = 256
"""What a message costs beside its own bytes."""


def read_message(names: Names, message: StreamMessage) -> tuple[Submission, Arguments] | GanglineError:
    """The task that a message is, and its arguments; or what is wrong with it."""
    try:
        submission = Submission.parse(
            names, message.subject, message.headers, sequence=message.sequence, published_at=message.at
        )
        return submission, arguments_of(message.data, submission.fmt)
    except GanglineError as error:
        return error


def size_of(message: StreamMessage) -> int:
    """Bytes that keeping it takes."""
    size = len(message.subject) + len(message.data) + _KEPT_BYTES
    if message.headers:
        for name, text in message.headers.items():
            size += len(name) + len(text)
    return size


def may_have_ended(message: StreamMessage, job: str, *, recorded: bool) -> bool:
    """Whether another message may have had this job's id, or this one been delivered to another consumer of ours.

    Args:
        recorded: jobs such as this leave a record when they end; without one there is nothing to be found of an earlier
            message.
    """
    given = message.headers
    if message.delivered > 1:
        return True
    return given is not None and (headers.SCHEDULER in given or (recorded and given.get(headers.MESSAGE_ID) == job))


def job_of(message: StreamMessage) -> str:
    """The id that a message which is no task names; empty: none that is one."""
    job = (message.headers or {}).get(headers.JOB, "")
    return job if job and job.isascii() and job.replace("-", "").replace("_", "").isalnum() and len(job) <= 128 else ""


Arguments = tuple[list[Any] | None, dict[str, Any] | None]
"""Positional and named ones."""


def arguments_of(body: bytes, fmt: Format) -> Arguments:
    """Positional and named arguments: an array is the former, an object the latter, nothing is none.

    Raises:
        MalformedMessage: it is not in that format, or a bare value.
    """
    value = codec.decode(body, fmt)
    if value is None:
        return None, None
    if isinstance(value, list):
        return value or None, None
    if isinstance(value, dict):
        bad = next((name for name in value if not isinstance(name, str)), None)
        if bad is not None:
            raise MalformedMessage(f"argument name {bad!r} is not a text")
        return None, value or None
    raise MalformedMessage(
        f"the body is a bare {type(value).__name__}: publish an object of named arguments, or an array of them"
    )
