"""Parses answers for the requester."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ...schemas.errors.base import GanglineError, MalformedMessage, error_from_wire
from ...schemas.wire import codec, headers
from ..port.bus import Message, RequestTimeout

R = TypeVar("R", bound=BaseModel)


def error_in(answer: Message) -> GanglineError | None:
    """The error in an answer, if any."""
    text = answer.headers.get(headers.ERROR) if answer.headers else None
    if text is None:
        return None
    try:
        body = codec.decode(answer.data, codec.Format.of(answer.headers))
    except MalformedMessage:
        body = None
    if not isinstance(body, dict):
        return GanglineError(text)
    details = body.get("details")
    return error_from_wire(
        str(body.get("code", "internal")),
        str(body.get("message", text)),
        details if isinstance(details, dict) else None,
        body.get("may_have_started") is True,
    )


def raise_if_error(answer: Message) -> None:
    """Raise the error in an answer, if any."""
    error = error_in(answer)
    if error is not None:
        raise error


def timeout_of(who: str, error: RequestTimeout) -> RequestTimeout:
    """The same error, with who did not answer."""
    return RequestTimeout(f"{who}: {error.message}", details=error.details)


def read_answer(answer: Message, model: type[R], who: object) -> R:
    """The record in the answer of `who`.

    Raises:
        MalformedMessage: there is none.
        GanglineError: the error in the answer.
    """
    raise_if_error(answer)
    return parse_answer(answer, model, who)


def parse_answer(answer: Message, model: type[R], who: object) -> R:
    """Like `read_answer`, for an answer without an error."""
    try:
        if not answer.headers:
            return model.model_validate_json(answer.data)
        return model.model_validate(codec.decode(answer.data, codec.Format.of(answer.headers)))
    except (ValidationError, MalformedMessage) as error:
        raise MalformedMessage(f"unreadable answer from {who}: {error}") from error
