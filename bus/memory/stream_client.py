"""The client's side of an in-memory stream."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from ...schemas.errors.base import InvalidName, InvalidRequest, PayloadTooLarge
from ..jetstream.wire import check_name
from ..nats_client.protocol import encode_headers
from ..port.bus import (
    Consumer,
    ConsumerSettings,
    ConsumerState,
    Message,
    Published,
    Retention,
    StorageUnavailable,
    StreamHandler,
    StreamMessage,
    StreamSettings,
    StreamState,
)
from ..port.subjects import SubjectPattern, check_subject
from ..port.types import Subscription
from ..streams.pull_consumer import PullConsumer
from .consumer_client import MemoryPullTransport
from .stream_store import StreamStore

if TYPE_CHECKING:
    from .connection import MemoryBus

_log = logging.getLogger("gangline.bus.memory")

T = TypeVar("T")


class MemoryStream:
    """A stream seen through one connection; see port.Stream. Made by `MemoryBus.stream`."""

    def __init__(self, bus: MemoryBus, name: str, settings: StreamSettings) -> None:
        self.name = check_name(name, "stream")
        self._bus = bus
        self._hub = bus.hub
        self._settings = settings
        self._patterns = [SubjectPattern(text) for text in settings.subjects]

    def __repr__(self) -> str:
        return f"<MemoryStream {self.name} of {self._bus.name}>"

    async def create(self) -> None:
        """Make the stream if it does not exist."""
        await self.at_server(lambda store: None)

    async def at_server(self, action: Callable[[StreamStore], T], *, timeout_s: float | None = None) -> T:
        """Do something with the stream, made again if it vanished.

        Raises:
            StorageUnavailable, Disconnected, and what `action` raises.
        """

        def act() -> T:
            if not self._hub.storage_up:
                raise StorageUnavailable(f"stream {self.name!r} has no leader: try again", may_have_started=False)
            return action(self._hub.streams.make(self.name, self._settings))

        try:
            return cast("T", await self._bus.operate(act, timeout_s=timeout_s))
        except TimeoutError as error:
            raise StorageUnavailable(f"JetStream did not answer for stream {self.name!r} in time") from error

    # -- messages -------------------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Published:
        check_subject(subject)
        if not any(pattern.matches(subject) for pattern in self._patterns):
            raise InvalidName(f"stream {self.name!r} does not take {subject!r}: see its subjects")
        size = len(data) + (len(encode_headers(headers)) if headers else 0)
        if size > self._hub.max_payload:
            raise PayloadTooLarge(
                f"a message of {size} bytes to {subject} is over the server's limit of {self._hub.max_payload}",
                details={"size": size, "limit": self._hub.max_payload},
            )
        message = Message(subject, bytes(data), headers=dict(headers) if headers else None)

        def store(stored: StreamStore) -> Published:
            self._hub.show(self._bus, message)
            return stored.publish(subject, message.data, message.headers)

        return await self.at_server(store, timeout_s=timeout_s)

    async def state(self, pattern: str | None = None) -> StreamState:
        wanted = None if pattern is None else SubjectPattern(pattern)

        def look(store: StreamStore) -> StreamState:
            return StreamState(
                messages=len(store.messages),
                bytes=store.bytes,
                first_sequence=store.first_sequence if store.last_sequence else 0,
                last_sequence=store.last_sequence,
                subjects={} if wanted is None else store.counts(wanted),
            )

        return await self.at_server(look)

    async def get(self, sequence: int) -> StreamMessage | None:
        return await self.at_server(lambda store: store.messages.get(sequence))

    async def next(self, pattern: str, sequence: int = 1) -> StreamMessage | None:
        wanted = SubjectPattern(pattern)
        return await self.at_server(lambda store: next(store.after(sequence, wanted), None))

    async def last(self, subject: str) -> StreamMessage | None:
        return await self.at_server(lambda store: store.last(subject))

    async def delete(self, sequence: int) -> bool:
        return await self.at_server(lambda store: store.remove(sequence))

    async def purge(self, pattern: str, *, before: int | None = None) -> int:
        wanted = SubjectPattern(pattern)
        return await self.at_server(lambda store: store.purge(wanted, before))

    # -- following ------------------------------------------------------------------------------------------------

    async def read(self, pattern: str, handler: StreamHandler, *, start: int = 1) -> Subscription:
        if self._settings.retention is Retention.WORK_QUEUE:
            raise InvalidRequest(f"stream {self.name!r} is a work queue: consume it, its messages cannot be read")
        reading = MemoryOrderedConsumer(self._bus, self.name, SubjectPattern(pattern), handler, start)
        await self.at_server(reading.open)
        return reading

    async def consume(
        self,
        name: str,
        settings: ConsumerSettings,
        handler: StreamHandler,
        *,
        on_lost: Callable[[], None] | None = None,
        on_acknowledged: Callable[[list[int]], None] | None = None,
    ) -> Consumer:
        check_name(name, "consumer")
        SubjectPattern(settings.filter)
        consumer = PullConsumer(
            self._bus,
            name,
            handler,
            on_lost=on_lost,
            on_acknowledged=on_acknowledged,
            remembered=2 * settings.max_pending,
            on_end=_ignore,
        )
        link = MemoryPullTransport(self._bus, self, name, settings.filter, consumer)
        consumer.attach(link)
        try:
            made = await self.at_server(lambda store: store.consume(name, settings))
        except BaseException:
            consumer.abandon()
            raise
        link.open(made)
        consumer.open(made.delivered)
        return consumer

    async def consumers(self) -> list[ConsumerState]:
        return await self.at_server(lambda store: [one.state() for one in store.consumers.values()])

    async def delete_consumer(self, name: str) -> bool:
        return await self.at_server(lambda store: store.drop_consumer(name))


def _ignore(_: object) -> None:
    """Nobody keeps a list."""


class MemoryOrderedConsumer:
    """A standing reader. The server keeps it in order; after a reconnect it sends what came meanwhile."""

    def __init__(
        self, bus: MemoryBus, stream: str, pattern: SubjectPattern, handler: StreamHandler, start: int
    ) -> None:
        self.bus = bus
        self.stream = stream
        self._pattern = pattern
        self._handler: StreamHandler | None = handler
        self._context = contextvars.copy_context()
        self._next = start
        """What the server sends next."""
        self._came = start - 1
        """What the client has received last."""
        self._store: StreamStore | None = None

    def __repr__(self) -> str:
        return f"<MemoryOrderedConsumer {self._pattern.text!r} of {self.stream} for {self.bus.name}>"

    def open(self, store: StreamStore) -> None:
        """At the server: send what is there, then what comes."""
        if self._handler is not None:
            self.bus.hub.streams.add_reading(self)
            self.resync(store)

    def again(self, store: StreamStore | None) -> None:
        """After a reconnect: what was sent, and held back when the connection broke, is sent again."""
        self._next = self._came + 1
        self.resync(store)

    def resync(self, store: StreamStore | None) -> None:
        """Send what was not sent yet."""
        if store is None or not self.bus.connected:
            return
        if self._store is not None and store is not self._store:
            self._next, self._came = 1, 0  # made anew: its sequences begin again
        self._store = store
        for message in store.after(self._next, self._pattern):
            self.bus.from_leader(self._deliver, message)
        self._next = max(self._next, store.last_sequence + 1)

    async def unsubscribe(self) -> None:
        self._handler = None
        self.bus.hub.streams.drop_reading(self)

    def _deliver(self, message: StreamMessage) -> None:
        self._came = message.sequence
        asyncio.get_running_loop().call_soon(self._handle, message, context=self._context)

    def _handle(self, message: StreamMessage) -> None:
        if self._handler is None:
            return
        try:
            self._handler(message)
        except Exception:
            _log.exception(
                "the handler of a stream's reader failed on %s",
                message.subject,
                extra={"action": "bus.handler_failed", "subject": message.subject, "bus": self.bus.name},
            )
