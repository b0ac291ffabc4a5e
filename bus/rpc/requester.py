"""What an answer says, to who asked."""

from __future__ import annotations

from ...schemas.errors.base import GanglineError, MalformedMessage, error_from_wire
from ...schemas.wire import codec, headers
from ..port.bus import Message


def raise_if_error(answer: Message) -> None:
    """Raise the error that an answer carries, if it does."""
    if not answer.headers or headers.ERROR not in answer.headers:
        return
    try:
        body = codec.decode(answer.data, codec.Format.of(answer.headers))
    except MalformedMessage:
        body = None
    if not isinstance(body, dict):
        raise GanglineError(answer.headers[headers.ERROR])
    details = body.get("details")
    raise error_from_wire(
        str(body.get("code", "internal")),
        str(body.get("message", answer.headers[headers.ERROR])),
        details if isinstance(details, dict) else None,
        body.get("may_have_started") is True,
    )
