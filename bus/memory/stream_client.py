"""All streams of an in-memory hub, and the client's side of them: a stream, its readers and its pull consumers."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from ...schemas.errors.base import InvalidName, InvalidRequest, PayloadTooLarge
from ..jetstream.wire import check_configuration, check_name, stream_configuration
from ..nats_client.protocol import encode_headers
from ..port.bus import (
    Consumer,
    ConsumerSettings,
    ConsumerState,
    Message,
    Published,
    PublishRefused,
    Retention,
    Storage,
    StorageUnavailable,
    StreamHandler,
    StreamMessage,
    StreamSettings,
    StreamState,
)
from ..port.subjects import SubjectPattern, check_subject
from ..port.types import Subscription
from ..streams.ack_batcher import Batch
from ..streams.pull_consumer import EXPIRES_S, HEARTBEAT_S, ConsumerStatus, PullConsumer
from .connection import Hub, MemoryConnection
from .consumer_store import ConsumerStore, PullRequest
from .faults import server_time
from .stream_store import StreamStore


class MemoryPullTransport:
    """Implements pull_consumer.PullTransport."""

    def __init__(
        self, bus: MemoryConnection, stream: MemoryStream, name: str, pattern: str, owner: PullConsumer
    ) -> None:
        self._bus = bus
        self._hub = bus.hub
        self._stream = stream
        self._name = name
        self._pattern = SubjectPattern(pattern)
        self.owner = owner
        self._made: ConsumerStore | None = None
        self._requester: _Requester | None = None
        self._stopped = False
        self._context = contextvars.copy_context()

    def open(self, made: ConsumerStore) -> None:
        """`made` tells our consumer from another of its name."""
        self._made = made

    def stop(self) -> None:
        self._stopped = True

    # -- to the server --------------------------------------------------------------------------------------------

    def ask(self, count: int, generation: int) -> None:
        requester = self._requester
        if requester is None or (requester.generation, requester.losses) != (generation, self._bus.losses):
            requester = self._requester = _Requester(self, self._bus, generation)

        def at_server(found: ConsumerStore | None) -> None:
            if found is None:
                requester.refused()
            else:
                ends_at = server_time() + EXPIRES_S
                found.ask(PullRequest(requester, count, ends_at), HEARTBEAT_S)

        self._send(at_server)

    def acknowledge(self, batch: Batch, number: int) -> None:
        def at_server(found: ConsumerStore | None) -> None:
            if found is None:
                self.say(self.owner.on_trouble)
                return
            for sequence in batch:
                found.acknowledge(sequence)
            self.say(lambda: self.owner.on_acknowledged(number))

        self._send(at_server)

    def refuse(self, sequence: int) -> None:
        self._send(lambda found: None if found is None else found.refuse(sequence))

    def _send(self, action: Callable[[ConsumerStore | None], None]) -> None:
        """A message to the consumer at the server, which may get lost."""
        self._bus.check_open()
        losses = self._bus.losses
        fate = self._hub.storage_fate(self._bus)
        request_s = fate.request_s
        if request_s is None:
            return

        def at_server() -> None:
            if self._bus.losses == losses and self._bus.connected:
                self._hub.to_or_from_leader(self._bus, lambda: action(self._find()))

        self._bus.depart(lambda: self._hub.later(request_s, at_server))

    def _find(self) -> ConsumerStore | None:
        store = self._stream.streams.find(self._stream.name) if self._hub.storage_up else None
        return None if store is None else store.consumers.get(self._name)

    # -- from the server ------------------------------------------------------------------------------------------

    def say(self, action: Callable[[], None]) -> None:
        """The server tells us something."""
        self._hub.say(self._bus, self._stream.name, self._take, action)

    def _take(self, action: Any) -> None:
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self._run, action, context=self._context)

    def _run(self, action: Callable[[], None]) -> None:
        if not self._stopped:
            action()

    # -- asking about it ------------------------------------------------------------------------------------------

    async def look(self) -> ConsumerStatus | None:
        def at_server(store: StreamStore) -> ConsumerStatus | None:
            found = store.consumers.get(self._name)
            if found is None or found is not self._made:
                return None
            return ConsumerStatus(state=found.state(), delivered=found.delivered)

        return await self._stream.at_server(at_server)

    async def stored(self, first: int, last: int) -> list[int]:
        def at_server(store: StreamStore) -> list[int]:
            return [one.sequence for one in store.after(first, self._pattern) if one.sequence <= last]

        return await self._stream.at_server(at_server)

    async def remove(self) -> None:
        await self._stream.delete_consumer(self._name)


class _Requester:
    """Who asks, for one generation of one connection; implements consumer_store.Requester."""

    def __init__(self, link: MemoryPullTransport, bus: MemoryConnection, generation: int) -> None:
        self.generation = generation
        self.losses = bus.losses
        self._bus = bus
        self._link = link

    @property
    def gone(self) -> bool:
        return self._bus.losses != self.losses or not self._bus.connected or self._bus.hub.cuts_off(self._bus)

    def deliver(self, message: StreamMessage, ordinal: int) -> None:
        self._link.say(lambda: self._link.owner.on_message(message, ordinal))

    def heartbeat(self) -> None:
        self._if_current(self._link.owner.on_heartbeat)

    def ended(self, left: int) -> None:
        self._if_current(lambda: self._link.owner.on_request_ended(left))

    def refused(self) -> None:
        self._if_current(self._link.owner.on_trouble)

    def _if_current(self, action: Callable[[], None]) -> None:
        def told() -> None:
            if self._link.owner.generation == self.generation:
                action()

        self._link.say(told)


_log = logging.getLogger("gangline.bus.memory")

T = TypeVar("T")


class MemoryStream:
    """A stream seen through one connection; see port.Stream. Made by `MemoryBus.stream`."""

    def __init__(self, bus: MemoryConnection, streams: StreamRegistry, name: str, settings: StreamSettings) -> None:
        self.name = check_name(name, "stream")
        self._bus = bus
        self._hub = bus.hub
        self.streams = streams
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
            return action(self.streams.make(self.name, self._settings))

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
        reading = MemoryOrderedConsumer(self._bus, self.streams, self.name, SubjectPattern(pattern), handler, start)
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
        self,
        bus: MemoryConnection,
        streams: StreamRegistry,
        stream: str,
        pattern: SubjectPattern,
        handler: StreamHandler,
        start: int,
    ) -> None:
        self.bus = bus
        self._streams = streams
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
            self._streams.add_reading(self)
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
        self._streams.drop_reading(self)

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


_MOST_KNOWN: Final = 4096


class StreamRegistry:
    """The hub's streams by name."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._stores: dict[str, StreamStore] = {}
        self._readings: dict[MemoryOrderedConsumer, None] = {}
        self._takers: dict[str, StreamStore | None] = {}
        """Which stream takes a subject, as far as it was asked. Bounded."""
        self._held = 0
        """How many hold sources back, see `hold_sources`."""

    def __repr__(self) -> str:
        return f"<StreamRegistry {list(self._stores.values())!r}>"

    def find(self, name: str) -> StreamStore | None:
        return self._stores.get(name)

    def make(self, name: str, settings: StreamSettings) -> StreamStore:
        """The stream as it is, or a new one.

        Raises:
            InvalidSettings: it exists with other subjects, or another retention.
        """
        found = self._stores.get(name)
        if found is not None:
            wanted, there = stream_configuration(name, settings), stream_configuration(name, found.settings)
            check_configuration(f"the stream {name}", wanted, there)
            return found
        for source in settings.sources:
            self.make(source.name, source.settings)
        made = StreamStore(
            name,
            settings,
            context=self._hub.context,
            wall=self._hub.ambient.wall,
            on_stored=self._stored,
            running=self._running,
        )
        self._stores[name] = made
        self._takers.clear()
        return made

    def _running(self) -> bool:
        return self._hub.up and self._hub.storage_up and not self._hub.still

    def takes(self, subject: str) -> bool:
        """Whether some stream stores what is published there."""
        return self._taker(subject) is not None

    def capture(self, message: Message) -> bytes | None:
        """Store a message that was published without knowing of streams; the acknowledgement, if one takes it."""
        if not self._stores or not self._hub.storage_up:
            return None
        store = self._taker(message.subject)
        if store is None:
            return None
        try:
            published = store.publish(message.subject, message.data, message.headers)
        except PublishRefused as error:
            answer: dict[str, object] = {
                "error": {"code": 400, "err_code": error.details.get("err_code"), "description": error.message},
                "stream": store.name,
                "seq": 0,
            }
        else:
            answer = {"stream": store.name, "seq": published.sequence}
            if published.duplicate:
                answer["duplicate"] = True
        return json.dumps(answer).encode()

    def _taker(self, subject: str) -> StreamStore | None:
        if subject not in self._takers:
            if len(self._takers) >= _MOST_KNOWN:
                self._takers.clear()
            found = (store for store in self._stores.values() if store.takes(subject))
            self._takers[subject] = next(found, None)
        return self._takers[subject]

    # -- accidents ------------------------------------------------------------------------------------------------

    def lose_memory(self) -> None:
        """The server goes down, and with it what stands in memory."""
        for name, store in list(self._stores.items()):
            if store.settings.storage is Storage.MEMORY:
                del self._stores[name]
                store.discard()
        self._takers.clear()

    def forget_requests(self) -> None:
        """The leader goes: requests that stood there get no answer."""
        for store in self._stores.values():
            for consumer in store.consumers.values():
                consumer.drop_requests(lambda _: True)

    @property
    def sourcing(self) -> bool:
        """Whether a stream takes messages from another one."""
        return any(store.settings.sources for store in self._stores.values())

    def hold_sources(self) -> None:
        """Streams take nothing from others before `release_sources`; both may be nested. After the loss of a stream's
        leader the server looks for sources again only after a while."""
        self._held += 1

    def release_sources(self) -> None:
        """Streams go on with their sources where they find that they were. See `StreamStore.resume_source`."""
        self._held -= 1
        if self._held:
            return
        for store in self._stores.values():
            for source in store.settings.sources:
                if (origin := self._stores.get(source.name)) is not None:
                    store.resume_source(source, origin)

    def resume(self) -> None:
        """Storage works again."""
        for store in self._stores.values():
            store.resume()

    # -- readers --------------------------------------------------------------------------------------------------

    def add_reading(self, reading: MemoryOrderedConsumer) -> None:
        self._readings[reading] = None

    def drop_reading(self, reading: MemoryOrderedConsumer) -> None:
        self._readings.pop(reading, None)

    def resync(self, bus: MemoryConnection) -> None:
        """A connection is back."""
        for reading in [one for one in self._readings if one.bus is bus]:
            reading.again(self._stores.get(reading.stream))

    def forget(self, bus: MemoryConnection) -> None:
        """A connection is gone for good."""
        for reading in [one for one in self._readings if one.bus is bus]:
            del self._readings[reading]

    def _stored(self, store: StreamStore, message: StreamMessage) -> None:
        for tap in self._hub.stored_taps:
            tap(store.name, message)
        if not self._held:
            for other in list(self._stores.values()):
                other.take_from(store.name, message)
        for reading in list(self._readings):
            if reading.stream == store.name:
                reading.resync(store)
