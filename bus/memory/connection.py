"""One connection to the in-memory hub."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Protocol

from ...runtime.clock import Environment
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, PayloadTooLarge
from ..port.bus import (
    Answered,
    ConnectionEvent,
    Handler,
    Message,
    NoResponders,
    RequestTimeout,
    StorageUnavailable,
    StreamMessage,
)
from ..port.subjects import SubjectPattern, check_subject
from .faults import WriteOutcome

_log = logging.getLogger("gangline.bus.memory")

Waiting = asyncio.Future[Any]


class ServerLink(Enum):
    """State of the wire between one client and the hub."""

    UP = auto()
    CUT = auto()
    """Partitioned: both ends believe in it, nothing passes."""
    DOWN = auto()
    """Lost, and both ends know."""
    CLOSED = auto()


class Hub(Protocol):
    """What a connection needs of the server."""

    ambient: Environment
    context: contextvars.Context
    delivery_taps: list[Callable[[str, Message], None]]
    stored_taps: list[Callable[[str, StreamMessage], None]]
    max_payload: int
    storage_timeout_s: float
    up: bool
    storage_up: bool
    still: bool

    def route(self, sender: MemoryConnection, message: Message) -> None: ...

    def show(self, sender: MemoryConnection, message: Message) -> bool: ...

    def say(self, bus: MemoryConnection, subject: str, take: Callable[[Any], None], what: object) -> None: ...

    def later(self, delay: float, action: Callable[[], None]) -> None: ...

    def cuts_off(self, bus: MemoryConnection) -> bool: ...

    def to_or_from_leader(
        self, bus: MemoryConnection, pass_on: Callable[[], None], refuse: Callable[[], None] | None = None
    ) -> None: ...

    def storage_fate(self, bus: MemoryConnection) -> WriteOutcome: ...

    def pong_fate(self, bus: MemoryConnection) -> WriteOutcome: ...

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
        """Hand the message over on the loop's next turn."""
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
    """A connection, without what is stored; `MemoryBus` has that, too."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self.inbox = f"_INBOX.{hub.ambient.token()}"
        self.link = ServerLink.UP
        self.losses = 0
        """How often the connection was lost: what the server has for another number of them is dead."""
        self.subscriptions: list[MemorySubscription] = []
        self.held: list[Callable[[], None]] = []
        """What a partition holds back, both ways, in order."""
        self.unheard: list[Callable[[], None]] | None = None
        """What has left and does not arrive, in order, while only that way is cut."""
        self.told_at = 0.0
        """Server time when the last message that the server itself sent arrives."""
        self.loses = False
        """Nor will it ever arrive."""
        self._context = contextvars.copy_context()
        self._listeners: list[Callable[[ConnectionEvent], None]] = []
        self._waiting: dict[Waiting, None] = {}
        self._requests: dict[str, Waiting] = {}
        self._numbers = itertools.count(1)
        self._answers: MemorySubscription | None = None

    def __repr__(self) -> str:
        return f"<MemoryBus {self.name} {self.link.name.lower()} subscriptions={len(self.subscriptions)}>"

    @property
    def connected(self) -> bool:
        return self.link in (ServerLink.UP, ServerLink.CUT)

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
        pass  # what is published here has left

    async def writable(self) -> None:
        self.check_open()

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        waiting, forget = self._asked(subject, data, timeout_s, headers)
        try:
            answer: Message = await waiting
        finally:
            forget()
        if _is_503(answer):
            raise NoResponders(f"nobody listens on {subject}")
        return answer

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        try:
            waiting, forget = self._asked(subject, data, timeout_s, None)
        except GanglineError as error:
            asyncio.get_running_loop().call_soon(then, error)
            return

        def answered(waiting: Waiting) -> None:
            forget()
            error = waiting.exception()
            if error is None:
                answer: Message = waiting.result()
                then(NoResponders(f"nobody listens on {subject}") if _is_503(answer) else answer)
            elif isinstance(error, GanglineError):
                then(error)

        waiting.add_done_callback(answered)

    def _asked(
        self, subject: str, data: bytes, timeout_s: float, headers: Mapping[str, str] | None
    ) -> tuple[Waiting, Callable[[], None]]:
        """A request that is under way: its answer, and what ends the waiting for it."""
        self.check_open()
        if self._answers is None:
            # Two tokens below the inbox: `<inbox>.*` is free for subscriptions of the application's own.
            self._answers = self._listen(f"{self.inbox}._req.*", self._on_answer, "")
        loop = asyncio.get_running_loop()
        reply = f"{self.inbox}._req.{next(self._numbers)}"
        waiting: Waiting = loop.create_future()
        timer = loop.call_later(
            timeout_s, _fail, waiting, RequestTimeout(f"no answer from {subject} in {timeout_s:g} s")
        )
        self._requests[reply] = waiting
        self._waiting[waiting] = None

        def forget() -> None:
            timer.cancel()
            self._requests.pop(reply, None)
            self._waiting.pop(waiting, None)

        try:
            self.publish(subject, data, reply=reply, headers=headers)
        except BaseException:
            forget()
            raise
        return waiting, forget

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> MemorySubscription:
        self.check_open(connected=False)
        return self._listen(subject, handler, queue)

    async def flush(self) -> None:
        await self.ping()

    async def ping(self) -> None:
        try:
            await self.operate(lambda: None, self.hub.pong_fate(self), storage=False)
        except TimeoutError:
            raise Disconnected("the in-memory server did not answer in time: it is partitioned") from None

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

    def _on_answer(self, message: Message) -> None:
        waiting = self._requests.get(message.subject)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

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
        """Something from the server has reached this client's socket."""
        if self.link is ServerLink.UP:
            take(what)
        elif self.link is ServerLink.CUT:
            self.held.append(lambda: take(what))

    def from_leader(self, take: Callable[[Any], None], what: object) -> None:
        """Something from JetStream's leader is at the servers."""
        self.hub.to_or_from_leader(self, lambda: self.arrive(take, what))

    async def operate(
        self,
        action: Callable[[], Any],
        fate: WriteOutcome | None = None,
        *,
        timeout_s: float | None = None,
        storage: bool = True,
        passing: Callable[[], None] | None = None,
    ) -> Any:
        """A storage operation's way to the server and back; `action` runs there.

        Args:
            fate: drawn if not given.
            storage: whether JetStream's leader does it; else the server that we are connected to.
            passing: called as soon as it has reached the server that we are connected to.

        Raises:
            Disconnected, ClosedError, TimeoutError (after `timeout_s`, or the hub's `storage_timeout_s`), and what
            `action` raises.
        """
        self.check_open()
        loop = asyncio.get_running_loop()
        fate = fate or self.hub.storage_fate(self)
        waiting: Waiting = loop.create_future()
        self._waiting[waiting] = None
        patience_s = self.hub.storage_timeout_s if timeout_s is None else timeout_s
        timer = loop.call_later(patience_s, _fail, waiting, TimeoutError())

        def at_server() -> None:
            if self.link not in (ServerLink.UP, ServerLink.CUT):
                return
            if passing is not None:
                passing()
            if not storage:
                respond(self.arrive, _outcome(action))
            else:
                self.hub.to_or_from_leader(self, at_leader, no_leader)

        def at_leader() -> None:
            respond(self.from_leader, _outcome(action))

        def no_leader() -> None:
            respond(self.arrive, (None, StorageUnavailable("JetStream has no leader on this side: try again")))

        def respond(
            back: Callable[[Callable[[Any], None], object], None], answer: tuple[Any, Exception | None]
        ) -> None:
            if fate.answer_s is not None:
                self.hub.later(fate.answer_s, lambda: back(settle, answer))

        def settle(answer: tuple[Any, Exception | None]) -> None:
            loop.call_soon(_settle, waiting, *answer, context=self.hub.context)

        if fate.request_s is not None:
            request_s = fate.request_s
            self.depart(lambda: self.hub.later(request_s, at_server))
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting.pop(waiting, None)

    def fail_waiting(self) -> None:
        """The connection is lost: whoever waits for an answer hears of it."""
        for waiting in list(self._waiting):
            _fail(waiting, Disconnected("the connection was lost while waiting; the request may have arrived"))

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

    def tell(self, event: ConnectionEvent) -> None:
        """Let the listeners know, on the loop's next turn."""
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
        for waiting in list(self._waiting):
            _fail(waiting, ClosedError("this bus was closed while waiting"))
        self.tell(ConnectionEvent.CLOSED)
        await asyncio.sleep(0)


def _header_bytes(headers: Mapping[str, str] | None) -> int:
    if not headers:
        return 0
    return len("NATS/1.0\r\n\r\n") + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())


def _is_503(answer: Message) -> bool:
    return bool(answer.headers and answer.headers.get("Status") == "503" and not answer.data)


def _outcome(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return action(), None
    except Exception as error:
        return None, error


def _settle(waiting: Waiting, value: object, error: Exception | None) -> None:
    if not waiting.done():
        if error is None:
            waiting.set_result(value)
        else:
            waiting.set_exception(error)


def _fail(waiting: Waiting, error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
