"""Requests in JSON or msgpack, and their answers: once, in the request's format, and no larger than a message.

An error is sent as `Nats-Service-Error` and `Nats-Service-Error-Code`, with a body that has the details. A request
without a reply subject is carried out but not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError, InvalidResult, MalformedMessage, PayloadTooLarge, UnknownMethod
from ...schemas.limits import MAX_TRACEPARENT_CHARS
from ...schemas.text import known_names
from ...schemas.wire import codec, headers
from ...schemas.wire.codec import CONTENT_TYPE, Format
from ...telemetry.logs import Log
from ..port.bus import Bus, Handler, Message
from ..port.subjects import SubjectSubscription

_MSGPACK: Final = Format.MSGPACK
_ENVELOPE_BYTES: Final = 1024
"""Room for an answer's headers."""
_MAX_HEADER_CHARS: Final = 500
_SHORT_CHARS: Final = 2000
"""Length of an error's message if the whole error does not fit."""


class Responder:
    """One request, and how to answer it."""

    __slots__ = ("_bus", "_log", "_message", "answered", "fmt")

    def __init__(self, bus: Bus, message: Message, log: Log) -> None:
        self._bus = bus
        self._message = message
        self._log = log
        self.answered = False
        try:
            self.fmt = Format.of(message.headers)
        except MalformedMessage:
            self.fmt = Format.JSON  # the error is sent in JSON

    def body(self, *, large: bool = False) -> Any:
        """The decoded body.

        Args:
            large: it may be as large as a message, since it has arguments or comes from a coordinator.

        Raises:
            MalformedMessage: it cannot be decoded.
            PayloadTooLarge: it has too many bytes or values.
        """
        decode = codec.decode_arguments if large else codec.decode_request
        return decode(self._message.data, Format.of(self._message.headers))

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    @property
    def traceparent(self) -> str | None:
        """The caller's span in W3C format; None if there is none or it is too long."""
        value = self.headers.get(headers.TRACEPARENT)
        return value if value is None or len(value) <= MAX_TRACEPARENT_CHARS else None

    @property
    def subject(self) -> str:
        return self._message.subject

    @property
    def is_heard(self) -> bool:
        """Whether the requester waits for an answer."""
        return bool(self._message.reply)

    def reply(self, value: BaseModel, *, shorter: BaseModel | None = None) -> None:
        """Answer with a record; with `shorter` if `value` does not fit into a message."""
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
                f"the answer has {size} bytes and a message takes at most {limit}: ask for less, or raise the server's "
                "max_payload",
                details={"size": size, "limit": limit},
            )
        )

    def reply_json(self, encoded: bytes, model: type[BaseModel]) -> None:
        """Answer with a `model` that is JSON already, and fits into a message."""
        if self.fmt is Format.JSON:
            self._send(encoded)
        else:
            self.reply(model.model_validate_json(encoded))

    def result(self, value: Any, worker: str, *, what: str = "the result") -> None:
        """Answer with a task's bare result.

        Raises:
            InvalidResult: it cannot be serialized, or is too large for a message.
        """
        try:
            encoded = codec.encode(value, self.fmt)
        except GanglineError as error:
            raise InvalidResult(f"{what} {error.message}") from error
        limit = self._bus.max_payload - _ENVELOPE_BYTES
        if len(encoded) > limit:
            raise InvalidResult(
                f"{what} is {len(encoded)} bytes and a message takes at most {limit}: store it and return where, or "
                "raise the server's max_payload",
                details={"size": len(encoded), "limit": limit},
            )
        self._send(encoded, {headers.WORKER: worker} if worker else {})

    def fail(self, error: Exception) -> GanglineError:
        """Answer with an error. An exception that is not a GanglineError is a bug: it is logged, and sent without
        details.

        Returns:
            The error that was sent.
        """
        if not isinstance(error, GanglineError):
            self._log.error("request %s failed", self.subject, exc_info=error, extra={"action": "request.failed"})
            error = GanglineError(f"internal error ({type(error).__name__}): see the log of the process that answered")
        fields = {headers.ERROR: _header_text(error.message), headers.ERROR_CODE: str(error.status)}
        self._send(self._error_body(error), fields)
        return error

    def _error_body(self, error: GanglineError) -> bytes:
        """Details that cannot be serialized or do not fit are omitted."""
        wire = error.to_wire()
        for body in (wire, {**wire, "message": error.message[:_SHORT_CHARS], "details": {}}):
            try:
                encoded = codec.encode(body, self.fmt)
            except GanglineError:
                continue
            if len(encoded) <= self._bus.max_payload - _ENVELOPE_BYTES:
                return encoded
        return b""

    def _send(self, body: bytes, more: Mapping[str, str] | None = None) -> None:
        if self.answered:
            return
        self.answered = True
        if not self._message.reply:
            return
        fields = dict(more or {})
        if self.fmt is _MSGPACK:
            fields[CONTENT_TYPE] = self.fmt.value
        try:
            self._bus.publish(self._message.reply, body, headers=fields or None)
        except GanglineError as error:
            # The requester times out after seconds, and asks again.
            extra = {"action": "answer.lost", "subject": self.subject}
            self._log.debug("answer to %s not sent: %s", self.subject, error, extra=extra)


class OperationTable:
    """Operations by name. Each request goes to its operation's handler, which answers now or later, or raises.

    Args:
        who: whose operations they are, as in "a worker".
        counts: requests and errors by operation, to be continued.
    """

    def __init__(self, who: str, bus: Bus, log: Log, *, counts: dict[str, list[int]] | None = None) -> None:
        self._who = who
        self._bus = bus
        self._log = log
        self._handlers: dict[str, Callable[[Responder, Any], None]] = {}
        self._large: set[str] = set()
        self.counts = {} if counts is None else counts

    def add(self, handlers: Mapping[str, Callable[[Responder, Any], None]], *, large: bool = False) -> None:
        """For `large` see Responder.body."""
        self._handlers.update(handlers)
        if large:
            self._large.update(handlers)

    def take(self, operation: str, message: Message) -> None:
        """Carry out one request; it is answered exactly once."""
        responder = Responder(self._bus, message, self._log)
        handler = self._handlers.get(operation)
        counts = [0, 0] if handler is None else self.counts.setdefault(operation, [0, 0])
        counts[0] += 1
        try:
            if handler is None:
                known = known_names(operation, self._handlers)
                raise UnknownMethod(f"{self._who} has no operation {operation[:80]!r}; {known}")
            handler(responder, responder.body(large=operation in self._large))
        except Exception as error:
            counts[1] += 1
            responder.fail(error)


class CountingResponder:
    """Answers each request with the result of a function of its body. Counts requests and errors, for discovery."""

    def __init__(self, bus: Bus, log: Log) -> None:
        self._bus = bus
        self._log = log
        self.requests = 0
        self.errors = 0
        self.last_error = ""
        self._later = TaskSet("answer", log)

    def serve(self, message: Message, handle: Callable[[Any], BaseModel]) -> None:
        """Answer with the result of `handle`, or with the error that it raises."""
        responder = self._begin(message)
        try:
            responder.reply(handle(responder.body()))
        except Exception as error:
            self._fail(responder, error)

    def serve_later(self, message: Message, handle: Callable[[Any], Awaitable[BaseModel]]) -> None:
        """Like `serve`, when `handle` is done."""

        async def serve() -> None:
            responder = self._begin(message)
            try:
                responder.reply(await handle(responder.body()))
            except Exception as error:
                self._fail(responder, error)

        self._later.start(serve())

    def serve_when(self, message: Message, handle: Callable[[Responder, Any], None]) -> None:
        """`handle` answers through the responder, now or later; an error that it raises is the answer."""
        responder = self._begin(message)
        try:
            handle(responder, responder.body())
        except Exception as error:
            self._fail(responder, error)

    def _begin(self, message: Message) -> Responder:
        self.requests += 1
        return Responder(self._bus, message, self._log)

    def _fail(self, responder: Responder, error: Exception) -> None:
        self.errors += 1
        self.last_error = responder.fail(error).message

    def __repr__(self) -> str:
        return f"CountingResponder(requests={self.requests}, errors={self.errors})"


def _header_text(text: str) -> str:
    """One line of ASCII that is valid in a header."""
    line = " ".join(text.split()) or "error"
    return line.encode("ascii", "backslashreplace").decode()[:_MAX_HEADER_CHARS]


class Listening:
    """Several subscriptions that end together."""

    def __init__(self) -> None:
        self._subscriptions: list[SubjectSubscription] = []

    async def unsubscribe(self) -> None:
        """See port.Subscription."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in subscriptions))

    async def drain(self) -> None:
        """See port.SubjectSubscription."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.drain() for subscription in subscriptions))

    async def add(self, bus: Bus, subject: str, handler: Handler, queue: str = "") -> None:
        self._subscriptions.append(await bus.subscribe(subject, handler, queue=queue))

    def __repr__(self) -> str:
        return f"Listening({self._subscriptions})"


async def listen(bus: Bus, subjects: Iterable[str], handler: Handler, *, queue: str = "") -> Listening:
    """Subscribe to all of `subjects`, or to none; otherwise like Bus.subscribe."""
    listening = Listening()
    try:
        for subject in subjects:
            await listening.add(bus, subject, handler, queue)
    except BaseException:
        await listening.unsubscribe()
        raise
    return listening
