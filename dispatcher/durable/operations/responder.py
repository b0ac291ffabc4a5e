"""Requests to a dispatcher, and their answers: JSON or msgpack, in the format of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel

from ....bus.port.bus import Bus, Message
from ....schemas.errors.base import GanglineError, MalformedMessage
from ....schemas.wire import codec
from ....schemas.wire.codec import CONTENT_TYPE, Format
from ....telemetry.logs import Log
from ...gateway.plain_request import write_error


class Answering:
    """Answers each request once. Counts for discovery."""

    def __init__(self, bus: Bus, log: Log) -> None:
        self._bus = bus
        self._log = log
        self.requests = 0
        self.errors = 0
        self.last_error = ""
        self._tasks: set[asyncio.Task[None]] = set()
        """Requests that are answered later."""

    def serve(self, message: Message, handle: Callable[[Any], BaseModel]) -> None:
        """Answer with what `handle` makes of the body, or with the error that it raises."""
        fmt = self._begin(message)
        if fmt is None:
            return
        try:
            self._answer(message, handle(codec.decode(message.data, fmt)), fmt)
        except Exception as error:
            self._fail(message, error, fmt)

    def serve_later(self, message: Message, handle: Callable[[Any], Awaitable[BaseModel]]) -> None:
        """As `serve`, when `handle` is done."""

        async def serve() -> None:
            fmt = self._begin(message)
            if fmt is None:
                return
            try:
                self._answer(message, await handle(codec.decode(message.data, fmt)), fmt)
            except Exception as error:
                self._fail(message, error, fmt)

        task = asyncio.get_running_loop().create_task(serve(), name="gangline-answer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, message: Message) -> Format | None:
        """The format of a request; None: it has none that we know, and that was answered."""
        self.requests += 1
        try:
            return Format.of(message.headers)
        except MalformedMessage as error:
            self._fail(message, error, Format.JSON)
            return None

    def _answer(self, message: Message, reply: BaseModel, fmt: Format) -> None:
        body = codec.encode(reply.model_dump(mode="json"), fmt)
        self._send(message, body, {CONTENT_TYPE: fmt.value} if fmt is Format.MSGPACK else {})

    def _fail(self, message: Message, error: Exception, fmt: Format) -> None:
        if not isinstance(error, GanglineError):
            self._log.error("request %s failed", message.subject, exc_info=error, extra={"action": "desk.bug"})
            error = GanglineError(f"internal error: {error!r}")
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
