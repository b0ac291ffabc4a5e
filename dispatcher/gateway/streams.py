"""Streamed calls of a gateway: callers ask for the next items, so each answer belongs to one request.

Many answers to one reply subject could not pass from account to account, since the server forgets where answers go
after the first one. And nothing is sent that the caller has no room for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

from ...bus.port.bus import Bus, Message
from ...bus.rpc.responder import Responder
from ...runtime.clock import Environment
from ...runtime.tasks import TaskSet, set_within
from ...schemas.errors.base import InvalidRequest, InvalidResult, StreamBroken
from ...schemas.messages.operations import ItemsReply, ItemsRequest, parse_request
from ...schemas.names import Names
from ...schemas.text import count_of
from ...telemetry.logs import Log

USUAL_ITEMS: Final = 64
MAX_ITEMS: Final = 1000
"""Maximum number of items in one answer."""
WAIT_S: Final = 2.0
"""How long an answer waits for the first item, in seconds. Shorter than the default timeout of the `nats` CLI."""
IDLE_S: Final = 30.0
"""A stream is closed if its caller asks for nothing for this many seconds."""


def items_per_answer(text: str | None) -> int:
    """The value of `Gangline-Stream`. 0: the call is not streamed.

    Raises:
        InvalidRequest: it is neither yes or no nor a number.
    """
    if text is None or text.lower() in ("false", "no", "0"):
        return 0
    if text.lower() in ("true", "yes"):
        return USUAL_ITEMS
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_ITEMS:
        return int(text)
    raise InvalidRequest(
        f"Gangline-Stream is {text[:40]!r}: give 'true', or how many items an answer may have, from 1 to {MAX_ITEMS}"
    )


class GatewayStream:
    """The items of one call. As many as one answer may have are read ahead."""

    def __init__(self, subject: str, most: int, tenant: str) -> None:
        """
        Args:
            subject: where the caller asks for the next items.
            most: maximum number of items in one answer.
            tenant: whose call it is; empty: a caller in Gangline's own account.
        """
        self.subject = subject
        self.tenant = tenant
        self.finished = asyncio.Event()
        """The caller has got everything, has closed the stream, or is gone."""
        self.idle: asyncio.TimerHandle | None = None
        self._most = most
        self._turn = asyncio.Lock()
        self._items: deque[Any] = deque()
        self._last: list[Any] = []
        """The items of the last answer. The next request shows that they have arrived."""
        self._sent = 0
        """Number of items in all answers."""
        self._error: Exception | None = None
        self._over = False
        """All items have been read."""
        self._room, self._news = asyncio.Event(), asyncio.Event()

    async def read(self, items: AsyncGenerator[Any, None]) -> None:
        """Read the items of the call."""
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    self._items.append(item)
                    self._news.set()
                    if len(self._items) >= self._most:
                        self._room.clear()
                        await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._over = True
            self._news.set()

    async def answer(self, responder: Responder, after: int | None) -> None:
        """Send the next items, or the last ones again if they were lost. Waits WAIT_S for the first.

        Raises:
            StreamBroken: the caller lacks more than the last answer.
            InvalidResult: an item cannot be sent.
            Exception: the error that ended the task.
        """
        async with self._turn:
            lost = after is not None and bool(self._last) and after == self._sent - len(self._last)
            if not lost:
                if after not in (None, self._sent):
                    raise StreamBroken(
                        f"of {count_of(self._sent, 'item')} sent, {after} arrived: call again", details={"items": after}
                    )
                await self._take()
            self._send(responder)

    async def _take(self) -> None:
        if not self._items and not self._over:
            self._news.clear()
            await set_within(self._news, WAIT_S)
        if not self._items and self._error is not None:
            raise self._error
        self._last = [self._items.popleft() for _ in range(min(self._most, len(self._items)))]
        self._sent += len(self._last)
        self._room.set()

    def _send(self, responder: Responder) -> None:
        while True:
            ends = self._over and not self._items and self._error is None
            try:
                responder.result(_reply(self._last, None if ends else self.subject), "", what="the list of items")
            except InvalidResult:
                if len(self._last) <= 1:
                    raise
                kept = len(self._last) // 2
                self._items.extendleft(reversed(self._last[kept:]))
                self._sent -= len(self._last) - kept
                del self._last[kept:]
            else:
                if ends:
                    self.finished.set()
                return


def _reply(items: list[Any], following: str | None) -> dict[str, Any]:
    """An ItemsReply. Items are written as results are, so they are not validated."""
    return vars(ItemsReply.model_construct(items=items, next=following))


class GatewayStreams:
    """The streamed calls of one gateway."""

    def __init__(self, bus: Bus, names: Names, ambient: Environment, log: Log) -> None:
        self._bus = bus
        self._names = names
        self._ambient = ambient
        self._log = log
        self._gateway = ambient.token()
        self._open: dict[str, GatewayStream] = {}
        self._answering = TaskSet("gateway stream", log)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Where callers ask for items."""
        return self._names.both(self._names.stream(self._gateway, "*"))

    async def run(self, responder: Responder, items: AsyncGenerator[Any, None], most: int, tenant: str) -> None:
        """Answer a call with its first items, then each request for the next ones. Ends with the stream; cancelling
        ends it, too.

        Raises:
            Exception: the error that ended the task, if there were no items.
        """
        id = self._ambient.token()
        stream = GatewayStream(self._names.stream(self._gateway, id), most, tenant)
        self._open[id] = stream
        reading = asyncio.ensure_future(stream.read(items))
        try:
            await self._answer(stream, responder, None)
            await stream.finished.wait()
        finally:
            del self._open[id]
            self._rest(stream)
            reading.cancel()
            await asyncio.wait([reading])

    def serve(self, message: Message, tenant: str) -> None:
        """Answer a request for the next items."""
        self._answering.start(self._serve(Responder(self._bus, message, self._log), tenant))

    def stop(self) -> None:
        """Close all streams."""
        for stream in self._open.values():
            stream.finished.set()
        self._answering.cancel()

    async def _serve(self, responder: Responder, tenant: str) -> None:
        stream = None
        try:
            request = parse_request(ItemsRequest, responder.body())
            stream = self._open.get(self._names.parse_stream(responder.subject))
            if stream is None or stream.tenant != tenant or stream.finished.is_set():
                stream = None
                raise StreamBroken(
                    f"there is no such stream: it has ended, or nobody asked for its items for {IDLE_S:g} s"
                )
            if request.close:
                stream.finished.set()
                responder.result(_reply([], None), "")
                return
            await self._answer(stream, responder, request.after)
        except Exception as error:
            responder.fail(error)
            if stream is not None:
                stream.finished.set()

    async def _answer(self, stream: GatewayStream, responder: Responder, after: int | None) -> None:
        self._rest(stream)
        await stream.answer(responder, after)
        if not stream.finished.is_set():
            self._rest(stream)
            stream.idle = asyncio.get_running_loop().call_later(IDLE_S, stream.finished.set)

    @staticmethod
    def _rest(stream: GatewayStream) -> None:
        if stream.idle is not None:
            stream.idle.cancel()
            stream.idle = None
