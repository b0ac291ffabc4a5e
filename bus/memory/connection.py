"""One connection to the in-memory server."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from ...runtime.clock import Environment
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, PayloadTooLarge
from ..jetstream.api import JetStreamApi
from ..nats_client.request_reply import ReplyMultiplexer
from ..port.bus import HIGH_WATER_BYTES, Answered, ConnectionEvent, Handler, Message, StreamMessage
from ..port.subjects import SubjectPattern, check_subject

_log = logging.getLogger("gangline.bus.memory")


class ServerLink(Enum):
    """State of the wire between one client and the server."""

    UP = auto()
    CUT = auto()
    """Partitioned: both ends think that it is up, but nothing gets through."""
    DOWN = auto()
    """Lost, and both ends know it."""
    CLOSED = auto()


class Hub(Protocol):
    """What connections and JetStream need from the server."""

    ambient: Environment
    context: contextvars.Context
    delivery_taps: list[Callable[[str, Message], None]]
    max_payload: int
    storage_timeout_s: float
    up: bool
    storage_up: bool
    still: bool

    def route(self, sender: MemoryConnection, message: Message) -> None: ...

    def hears(self, bus: MemoryConnection, subject: str) -> bool:
        """Whether that connection subscribes to the subject."""
        ...

    def tell(self, bus: MemoryConnection, subject: str, message: Message) -> None:
        """Deliver a message from JetStream to the connection's subscribers of that subject: in order, and at most once.
        The message may have another subject."""
        ...

    def later(self, delay: float, action: Callable[[], None]) -> None: ...

    def cuts_off(self, bus: MemoryConnection) -> bool: ...

    def to_or_from_leader(
        self, bus: MemoryConnection, pass_on: Callable[[], None], refuse: Callable[[], None] | None = None
    ) -> None: ...

    def pong_s(self, bus: MemoryConnection) -> float: ...

    def stored(self, stream: str, message: StreamMessage) -> None: ...

    def expired(self, stream: str, message: StreamMessage) -> None: ...

    def written(self, writer: str, stream: str, publications: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """A stream stored these, all in one write."""
        ...

    def listen(self, subscription: MemorySubscription) -> None: ...

    def unlisten(self, subscription: MemorySubscription) -> None: ...

    def forget(self, bus: MemoryConnection) -> None: ...


class MemorySubscription:
    """See port.Subscription. Handlers run in the context in which the subscription was made."""

    __slots__ = ("_context", "_handler", "bus", "pattern", "queue")

    def __init__(self, bus: MemoryConnection, subject: str, handler: Handler, queue: str) -> None:
        self.bus = bus
        self.pattern = SubjectPattern(subject)
        self.queue = queue
        self._handler: Handler | None = handler
        self._context = contextvars.copy_context()

    def __repr__(self) -> str:
        return f"<MemorySubscription {self.pattern.text!r} of {self.bus.name}>"

    def deliver(self, message: Message) -> None:
        """Pass the message to the handler on the loop's next turn."""
        asyncio.get_running_loop().call_soon(self._handle, message, context=self._context)

    def _handle(self, message: Message) -> None:
        if self._handler is None or self.bus.link is ServerLink.CLOSED:
            return
        for tap in self.bus.hub.delivery_taps:
            tap(self.bus.name, message)
        try:
            self._handler(message)
        except Exception:
            _log.exception(
                "handler of %s failed on a message to %s",
                self.pattern.text,
                message.subject,
                extra={"action": "bus.handler_failed", "subject": message.subject, "bus": self.bus.name},
            )

    def cancel(self) -> None:
        self._handler = None

    async def unsubscribe(self) -> None:
        self.stop()

    def stop(self) -> None:
        """`unsubscribe` without await; it never waits."""
        self.cancel()
        self.bus.remove(self)

    async def drain(self) -> None:
        self.bus.remove(self)
        try:
            await self.bus.flush()
        except GanglineError:
            pass
        finally:
            self.cancel()


class MemoryConnection:
    """A connection without storage, which `MemoryBus` adds."""

    @property
    def server_version(self) -> str:
        """The in-memory server behaves like this version."""
        return "2.15.0"

    @property
    def server_place(self) -> str:
        return "the server in memory"

    @property
    def jetstream_domain(self) -> str:
        return ""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.ambient = hub.ambient
        self.inbox = f"_INBOX.{hub.ambient.token()}"
        self.link = ServerLink.UP
        self.losses = 0
        """How often the connection was lost. Anything the server keeps for another count is outdated."""
        self.subscriptions: list[MemorySubscription] = []
        self.held: list[Callable[[], None]] = []
        """Messages that a partition holds back in both directions, in order."""
        self.unheard: list[Callable[[], None]] | None = None
        """Messages from this client that do not arrive while only this direction is cut, in order."""
        self.told_at = 0.0
        """Server time at which the last message from the server itself arrives."""
        self.stores_at = 0.0
        """Server time at which the last message to JetStream reaches the leader."""
        self.loses = False
        """Whether `unheard` messages are lost, not just late."""
        self._context = contextvars.copy_context()
        self._listeners: list[Callable[[ConnectionEvent], None]] = []
        self._pings: dict[asyncio.Future[None], None] = {}
        self._numbers = itertools.count(1)
        self._replies: ReplyMultiplexer | None = None
        self.api = JetStreamApi(self, timeout_s=hub.storage_timeout_s)

    def __repr__(self) -> str:
        return f"<MemoryBus {self.name} {self.link.name.lower()} subscriptions={len(self.subscriptions)}>"

    @property
    def connected(self) -> bool:
        return self.link in (ServerLink.UP, ServerLink.CUT)

    @property
    def closed(self) -> bool:
        """Whether it is closed for good."""
        return self.link is ServerLink.CLOSED

    @property
    def max_payload(self) -> int:
        return self.hub.max_payload

    # -- messages -------------------------------------------------------------------------------------------------

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.check_open()
        check_subject(subject)
        size = len(data) + _header_bytes(headers)
        if size > self.hub.max_payload:
            raise PayloadTooLarge(
                f"a message of {size} bytes to {subject} is over the server's limit of {self.hub.max_payload}: "
                "send less, or raise max_payload on the server",
                details={"size": size, "limit": self.hub.max_payload},
            )
        message = Message(subject, bytes(data), reply, dict(headers) if headers else None)
        self.depart(lambda: self.hub.route(self, message))

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def prompt(self, publish: Callable[[], None]) -> None:
        publish()

    def push(self) -> None:
        pass  # `publish` has already sent it

    async def writable(self, below_bytes: int = HIGH_WATER_BYTES) -> None:
        self.check_open()

    def publish_known(self, subject: str, data: bytes, reply: str) -> None:
        """Publish to a subject that the server or we made: without checks."""
        self.check_open()
        message = Message(subject, data, reply)
        self.depart(lambda: self.hub.route(self, message))

    def publish_each(self, subjects: Iterable[str], text: str) -> None:
        """`publish_known` the same ASCII text to each of these subjects, without a reply."""
        for subject in subjects:
            self.publish_known(subject, text.encode(), "")

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        reply, future = self.start_request(subject, data, headers=headers)
        return await self.finish_request(reply, future, timeout_s)

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        replies = self._multiplexer()
        reply = replies.call(subject, then, timeout_s)
        try:
            self.publish(subject, data, reply=reply)
        except GanglineError as error:
            replies.take_back(reply, error)

    def start_request(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> tuple[str, asyncio.Future[Message]]:
        """Publish a request, for callers with many in flight. End it with `finish_request` or `forget_request`."""
        self.check_open()
        replies = self._multiplexer()
        reply, future = replies.expect(subject)
        try:
            self.publish(subject, data, reply=reply, headers=headers)
        except BaseException:
            replies.forget(reply)
            raise
        return reply, future

    async def finish_request(self, reply: str, future: asyncio.Future[Message], timeout_s: float) -> Message:
        """Wait for the answer of `start_request`; errors as `request`."""
        return await self._multiplexer().wait(reply, future, timeout_s)

    def forget_request(self, reply: str) -> None:
        """Stop waiting for the answer."""
        self._multiplexer().forget(reply)

    def _multiplexer(self) -> ReplyMultiplexer:
        replies = self._replies
        if replies is None:
            # A level below the inbox: `<inbox>.*` is free for subscriptions of the application's own.
            prefix, numbers = f"{self.inbox}.r", self._numbers
            replies = ReplyMultiplexer(prefix, asyncio.get_running_loop(), lambda: str(next(numbers)))
            self._replies = replies
            self._listen(replies.pattern, replies.receive, "")
        return replies

    def new_inbox(self) -> str:
        """A new subject to subscribe to."""
        return f"{self.inbox}.i.{next(self._numbers)}"

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> MemorySubscription:
        self.check_open(connected=False)
        return self._listen(subject, handler, queue)

    async def flush(self) -> None:
        await self.ping()

    async def ping(self) -> None:
        """Make a round trip. It is never dropped while connected, and ends after everything the server sent before."""
        self.check_open()
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[pong] = None

        def at_server() -> None:
            if self.connected:
                self.hub.later(self.hub.pong_s(self), lambda: self.arrive(settle, None))

        def settle(_: object) -> None:
            asyncio.get_running_loop().call_soon(_answer, pong, context=self.hub.context)

        self.depart(at_server)
        try:
            async with asyncio.timeout(self.hub.storage_timeout_s):
                await pong
        except TimeoutError:
            raise Disconnected("the in-memory server did not answer in time: it is partitioned") from None
        finally:
            self._pings.pop(pong, None)

    def _listen(self, subject: str, handler: Handler, queue: str) -> MemorySubscription:
        subscription = MemorySubscription(self, subject, handler, queue)
        self.subscriptions.append(subscription)
        if self.link is ServerLink.UP:
            self.hub.listen(subscription)
        elif self.link is ServerLink.CUT:
            self.held.append(lambda: self.hub.listen(subscription))
        return subscription

    def remove(self, subscription: MemorySubscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            self.hub.unlisten(subscription)

    # -- the wire -------------------------------------------------------------------------------------------------

    def depart(self, action: Callable[[], None]) -> None:
        """Do something at the server, unless a partition holds it back."""
        if self.unheard is not None:
            if not self.loses:
                self.unheard.append(action)
        elif self.link is ServerLink.CUT:
            self.held.append(action)
        else:
            action()

    def arrive(self, take: Callable[[Any], None], what: object) -> None:
        """Take something from the server that has reached this client's socket."""
        if self.link is ServerLink.UP:
            take(what)
        elif self.link is ServerLink.CUT:
            self.held.append(lambda: take(what))

    def from_leader(self, take: Callable[[Any], None], what: object) -> None:
        """Take something from JetStream's leader, unless a split keeps it from this client's server."""
        self.hub.to_or_from_leader(self, lambda: self.arrive(take, what))

    def fail_waiting(self, error: Callable[[], GanglineError] | None = None) -> None:
        """End every wait for an answer with an error; by default, that the connection was lost."""
        made = error or _lost
        if self._replies is not None:
            # In this client's context, whoever caused the loss.
            self._context.copy().run(self._replies.fail, lambda _: made())
        for pong in self._pings:
            if not pong.done():
                pong.set_exception(made())

    def check_open(self, *, connected: bool = True) -> None:
        if self.link is ServerLink.CLOSED:
            raise ClosedError("this bus was closed")
        if connected and self.link is ServerLink.DOWN:
            raise Disconnected("no connection to the server right now: try again after it is back")

    # -- the connection -------------------------------------------------------------------------------------------

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def impairments(self) -> list[str]:
        return self.api.shortage.reasons()

    def tell(self, event: ConnectionEvent) -> None:
        """Notify the listeners on the loop's next turn."""
        for listener in list(self._listeners):
            asyncio.get_running_loop().call_soon(self._tell_one, listener, event, context=self._context)

    def _tell_one(self, listener: Callable[[ConnectionEvent], None], event: ConnectionEvent) -> None:
        if listener not in self._listeners:
            return
        try:
            listener(event)
        except Exception:
            _log.exception("connection listener failed", extra={"action": "bus.listener_failed", "bus": self.name})

    async def close(self) -> None:
        if self.link is ServerLink.CLOSED:
            return
        self.hub.forget(self)
        self.link = ServerLink.CLOSED
        self.held.clear()
        if self.unheard is not None:
            self.unheard.clear()
        for subscription in self.subscriptions:
            subscription.cancel()
        self.fail_waiting(lambda: ClosedError("this bus was closed while waiting"))
        self.tell(ConnectionEvent.CLOSED)
        await asyncio.sleep(0)


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    if not headers:
        return 0
    return len("NATS/1.0\r\n\r\n") + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())


def _lost() -> GanglineError:
    return Disconnected("the connection was lost while waiting; the request may have arrived", may_have_started=True)


def _answer(pong: asyncio.Future[None]) -> None:
    if not pong.done():
        pong.set_result(None)
