"""Requests to a dispatcher, and their answers: JSON or msgpack, in the format of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from ...bus.port import Bus, Message
from ...schemas import codec
from ...schemas.codec import CONTENT_TYPE, Format
from ...schemas.errors import GanglineError, MalformedMessage
from ...telemetry.logs import Log
from ..plain_call import write_error


class Answering:
    """Answers each request once. Counts for discovery."""

    def __init__(self, bus: Bus, log: Log) -> None:
        self._bus = bus
        self._log = log
        self.requests = 0
        self.errors = 0
        self.last_error = ""

    def serve(self, message: Message, handle: Callable[[Any], BaseModel]) -> None:
        """Answer with what `handle` makes of the body, or with the error that it raises."""
        self.requests += 1
        try:
            fmt = Format.of(message.headers)
        except MalformedMessage as error:
            self._fail(message, error, Format.JSON)
            return
        try:
            reply = handle(codec.decode(message.data, fmt))
            body = codec.encode(reply.model_dump(mode="json"), fmt)
        except GanglineError as error:
            self._fail(message, error, fmt)
        except Exception as error:
            self._log.exception("request %s failed", message.subject, extra={"action": "desk.bug"})
            self._fail(message, GanglineError(f"internal error: {error!r}"), fmt)
        else:
            self._send(message, body, {CONTENT_TYPE: fmt.value} if fmt is Format.MSGPACK else {})

    def _fail(self, message: Message, error: GanglineError, fmt: Format) -> None:
        self.errors += 1
        self.last_error = error.message
        self._send(message, *write_error(error, fmt, self._bus.max_payload))

    def _send(self, message: Message, body: bytes, fields: dict[str, str]) -> None:
        if not message.reply:
            return
        try:
            self._bus.publish(message.reply, body, headers=fields or None)
        except GanglineError as error:
            # Whoever asked asks again.
            self._log.debug("answer not sent: %s", error, extra={"action": "desk.answer_lost"})

    def __repr__(self) -> str:
        return f"Answering(requests={self.requests}, errors={self.errors})"
