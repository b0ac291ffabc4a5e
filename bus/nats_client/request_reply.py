"""Answers to our own requests: one wildcard subscription; each request has a random token.

A responder sees the prefix. If it could guess tokens, it could also answer requests sent to others. nats-py's random
inbox for each request costs a system call and two tasks; tokens drawn many at a time cost a slice of a string.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from ...schemas.errors.base import GanglineError
from ..port.bus import Answered, Message, NoResponders, RequestTimeout

_TOKEN_CHARS: Final = 16
"""96 bits: nobody can try that many."""


class PendingRequest:
    """Replaces a future for callers that want a callback. Errors are passed in another turn: the callback may send a
    new request, and the errors of many come at once."""

    __slots__ = ("_loop", "_then", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Answered) -> None:
        self._loop = loop
        self._then: Answered | None = then
        self.timer: asyncio.TimerHandle

    def done(self) -> bool:
        return self._then is None

    def set_result(self, message: Message) -> None:
        then = self._end()
        then(message)

    def set_exception(self, error: GanglineError) -> None:
        self._loop.call_soon(self._end(), error)

    def exception(self) -> None:
        """No-op: the callback got the error."""

    def _end(self) -> Answered:
        then, self._then = self._then, None
        self.timer.cancel()
        assert then is not None
        return then


class ReplyMultiplexer:
    """Futures by reply subject.

    Invariant: every future in `_waiting` is not done, or its waiter is about to `forget` it.
    """

    def __init__(self, prefix: str, loop: asyncio.AbstractEventLoop, token: Callable[[], str]) -> None:
        """`token` draws a new unguessable name."""
        self._prefix = f"{prefix}."
        self._loop = loop
        self._token = token
        self._waiting: dict[str, tuple[asyncio.Future[Message] | PendingRequest, str]] = {}

    @property
    def pattern(self) -> str:
        """The subject to subscribe to."""
        return f"{self._prefix}*"

    @property
    def waiting(self) -> int:
        """Number of unanswered requests."""
        return len(self._waiting)

    def receive(self, message: Message) -> None:
        """The handler of the one subscription. Late and duplicate answers are dropped."""
        waiter = self._waiting.pop(message.subject, None)
        if waiter is None:
            return
        future, subject = waiter
        if future.done():
            return
        if message.headers is not None and not message.data and message.headers.get("Status") == "503":
            future.set_exception(no_responders(subject))
            future.exception()  # its waiter may have been cancelled in this very turn
        else:
            future.set_result(message)

    def expect(self, subject: str) -> tuple[str, asyncio.Future[Message]]:
        """A new reply subject for a request to `subject`, and the future of its answer."""
        reply = f"{self._prefix}{self._token()[:_TOKEN_CHARS]}"
        future: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[reply] = (future, subject)
        return reply, future

    def call(self, subject: str, then: Answered, timeout_s: float) -> str:
        """Like `expect`, with a callback for the answer or the error."""
        reply = f"{self._prefix}{self._token()[:_TOKEN_CHARS]}"
        call = PendingRequest(self._loop, then)
        self._waiting[reply] = (call, subject)
        call.timer = self._loop.call_later(timeout_s, self._call_late, reply, call, timeout_s)
        return reply

    def _call_late(self, reply: str, call: PendingRequest, timeout_s: float) -> None:
        self._waiting.pop(reply, None)
        _time_out(call, timeout_s)

    def take_back(self, reply: str, error: GanglineError) -> None:
        """A call could not be sent."""
        waiter = self._waiting.pop(reply, None)
        if waiter is not None:
            waiter[0].set_exception(error)

    def forget(self, reply: str) -> None:
        self._waiting.pop(reply, None)

    def fail(self, make_error: Callable[[str], GanglineError], *, subject: str | None = None) -> bool:
        """End waiting requests with an error: all of them, or those to one subject. False: there were none."""
        ended = [*self._matching(subject)]
        for reply, future in ended:
            del self._waiting[reply]
            if not future.done():
                future.set_exception(make_error(reply))
                future.exception()  # its waiter may have been cancelled in this very turn
        return bool(ended)

    def _matching(self, subject: str | None) -> Iterator[tuple[str, asyncio.Future[Message] | PendingRequest]]:
        for reply, (future, asked) in self._waiting.items():
            if subject is None or subject == asked:
                yield reply, future

    async def wait(self, reply: str, future: asyncio.Future[Message], timeout_s: float) -> Message:
        """Wait for the answer; forgets the request however this ends.

        Raises:
            RequestTimeout: no answer came within `timeout_s`.
        """
        # A bare timer: asyncio.timeout and wait_for cost more than the rest of the request.
        timer = self._loop.call_later(timeout_s, _time_out, future, timeout_s)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(reply, None)


def _time_out(future: asyncio.Future[Message] | PendingRequest, timeout_s: float) -> None:
    if not future.done():
        future.set_exception(
            RequestTimeout(f"no answer within {timeout_s:g} s: it may have been received; ask again if that is safe")
        )


def no_responders(subject: str) -> NoResponders:
    """The error for a 503."""
    return NoResponders(f"nobody listens on {subject!r}: start what serves it, or check the name")
