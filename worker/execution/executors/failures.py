"""From what a task raised to how its execution ended."""

from __future__ import annotations

import asyncio
import traceback
from types import TracebackType

from ....schemas.errors.base import GanglineError, InvalidResult, NonRetryable, TaskCancelled, TaskFailed

_EXECUTORS = str(__package__)

MAX_TRACEBACK_CHARS = 16_384
"""A traceback is cut in its middle to so many characters."""


def failure_of(
    error: BaseException, reason: GanglineError | None, where: str, *, with_traceback: bool = True
) -> GanglineError:
    """The error that the caller gets.

    Args:
        error: what the task raised.
        reason: why the execution was told to stop, if it was; whatever it raised then is its way of stopping.
        where: the task's full name.
        with_traceback: whether the caller may see the traceback.

    Returns:
        Of a task that raised, its exception is the `__cause__`, for the log.
    """
    if reason is not None:
        return reason
    if isinstance(error, InvalidResult):
        return error
    if isinstance(error, asyncio.CancelledError):
        return TaskCancelled(f"{where} cancelled itself")
    kind = type(error).__qualname__
    text = _text_of(error)
    details: dict[str, object] = {"type": kind, "message": text}
    if isinstance(error, NonRetryable):
        details["non_retryable"] = True
    if with_traceback:
        details["traceback"] = _traceback_of(error)
    failed = TaskFailed(f"{where} raised {kind}: {text}" if text else f"{where} raised {kind}", details=details)
    failed.__cause__ = BaseException.with_traceback(error, _users_part(error.__traceback__))
    return failed


class ChildTraceback(Exception):
    """What a task raised in a child process, as text: its traceback."""

    def __str__(self) -> str:
        return f"\n{self.args[0].rstrip()}"


def failure_from_child(error: GanglineError, *, with_traceback: bool) -> GanglineError:
    """The error that the caller gets, of a task that ran in a child process, which tells its traceback.

    Args:
        with_traceback: whether the caller may see it.

    Returns:
        With the traceback as its `__cause__`, for the log.
    """
    if isinstance(error, TaskFailed) and error.remote_traceback:
        details = dict(error.details)
        cause = ChildTraceback(details.pop("traceback"))
        error = error if with_traceback else TaskFailed(error.message, details=details)
        error.__cause__ = cause
    return error


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
        text.encode()
    except Exception:  # a user's __str__ may do anything
        return ""
    return text if len(text) <= MAX_TRACEBACK_CHARS else text[:MAX_TRACEBACK_CHARS] + "..."


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__)))
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception:  # the same
        return ""
    if len(text) > MAX_TRACEBACK_CHARS:
        half = MAX_TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n... cut ...\n{text[-half:]}"
    return text


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the executor's own frames at its top."""
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__package__")).startswith(_EXECUTORS)
