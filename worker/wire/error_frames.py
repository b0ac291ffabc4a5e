"""Errors as frames."""

from __future__ import annotations

from typing import Any, Final

from ...schemas.errors.base import GanglineError, InvalidRequest
from ...schemas.wire.frames import AnswerOp, encode_frame

MAX_MESSAGE_CHARS: Final = 2000
"""An error's text is cut to so many characters if its frame does not fit a message."""


def error_frame(task_id: int, error: GanglineError, limit: int) -> bytes:
    """An ERROR frame, cut down if need be until it fits."""
    frame = _error(task_id, error, error.message, error.details or None)
    if len(frame) > limit:
        frame = _error(task_id, error, error.message[:MAX_MESSAGE_CHARS], None)
    return frame


def _error(task_id: int, error: GanglineError, message: str, details: dict[str, Any] | None) -> bytes:
    try:
        return encode_frame((AnswerOp.ERROR, task_id, error.code, message, details, error.may_have_started))
    except InvalidRequest:  # details of somebody's own error, or text that is not Unicode
        clean = message.encode("utf-8", "backslashreplace").decode()
        return encode_frame((AnswerOp.ERROR, task_id, error.code, clean, None, error.may_have_started))
