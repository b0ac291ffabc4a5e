"""Who sent one request to the leader, and how to answer it: once, in the request's own format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from ...bus.port.bus import Bus, Message
from ...schemas.errors.base import GanglineError, MalformedMessage, PayloadTooLarge
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...telemetry.logs import Log

_ENVELOPE_BYTES: Final = 1024
"""Room that an answer's headers may take."""
_MAX_HEADER_CHARS: Final = 500


class Asker:
    """One request."""

    __slots__ = ("_bus", "_log", "_message", "answered", "fmt")

    def __init__(self, bus: Bus, message: Message, log: Log) -> None:
        self._bus = bus
        self._message = message
        self._log = log
        self.answered = False
        try:
            self.fmt = Format.of(message.headers)
        except MalformedMessage:
            self.fmt = Format.JSON

    def body(self) -> Any:
        """The decoded body.

        Raises:
            MalformedMessage: it cannot be read.
        """
        return codec.decode(self._message.data, Format.of(self._message.headers))

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    def reply(self, value: BaseModel, *, shorter: BaseModel | None = None) -> None:
        """Answer; with `shorter` where `value` does not fit a message."""
        limit = self._bus.max_payload - _ENVELOPE_BYTES
        size = 0
        for candidate in (value, shorter):
            if candidate is None:
                continue
            encoded = codec.encode_model(candidate, self.fmt)
            if len(encoded) <= limit:
                self._send(encoded)
                return
            size = len(encoded)
        self.fail(
            PayloadTooLarge(
                f"the answer has {size} bytes and at most {limit} fit a message: ask for less, or raise the server's "
                "max_payload",
                details={"size": size, "limit": limit},
            )
        )

    def fail(self, error: GanglineError) -> None:
        """Answer with an error."""
        line = " ".join(error.message.split()) or "error"
        fields = {
            headers.ERROR: line.encode("ascii", "backslashreplace").decode()[:_MAX_HEADER_CHARS],
            headers.ERROR_CODE: str(error.status),
        }
        wire = error.to_wire()
        encoded = codec.encode(wire, self.fmt)
        if len(encoded) > self._bus.max_payload - _ENVELOPE_BYTES:
            encoded = codec.encode({**wire, "message": error.message[:2000], "details": {}}, self.fmt)
        self._send(encoded, fields)

    def _send(self, body: bytes, extra: Mapping[str, str] | None = None) -> None:
        if self.answered:
            return
        self.answered = True
        if not self._message.reply:
            return
        fields = dict(extra or {})
        if self.fmt is Format.MSGPACK:
            fields[CONTENT_TYPE] = self.fmt.value
        try:
            self._bus.publish(self._message.reply, body, headers=fields or None)
        except GanglineError as error:
            # With the same id and owner token they ask again, and find the same gang.
            self._log.debug("answer not sent: %s", error, extra={"action": "answer.lost"})
