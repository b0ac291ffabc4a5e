"""All streams of an in-memory hub, and who reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ..jetstream.wire import check_stream, stream_configuration
from ..port.bus import Message, PublishRefused, Storage, StreamMessage, StreamSettings
from .stream_store import StreamStore

if TYPE_CHECKING:
    from .connection import MemoryBus
    from .server import MemoryServer
    from .stream_client import MemoryOrderedConsumer

_MOST_KNOWN: Final = 4096


class StreamRegistry:
    """The hub's streams by name."""

    def __init__(self, hub: MemoryServer) -> None:
        self._hub = hub
        self._stores: dict[str, StreamStore] = {}
        self._readings: dict[MemoryOrderedConsumer, None] = {}
        self._takers: dict[str, StreamStore | None] = {}
        """Which stream takes a subject, as far as it was asked. Bounded."""

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
            check_stream(name, settings, stream_configuration(name, found.settings))
            return found
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

    def resume(self) -> None:
        """Storage works again."""
        for store in self._stores.values():
            store.resume()

    # -- readers --------------------------------------------------------------------------------------------------

    def add_reading(self, reading: MemoryOrderedConsumer) -> None:
        self._readings[reading] = None

    def drop_reading(self, reading: MemoryOrderedConsumer) -> None:
        self._readings.pop(reading, None)

    def resync(self, bus: MemoryBus) -> None:
        """A connection is back."""
        for reading in [one for one in self._readings if one.bus is bus]:
            reading.again(self._stores.get(reading.stream))

    def forget(self, bus: MemoryBus) -> None:
        """A connection is gone for good."""
        for reading in [one for one in self._readings if one.bus is bus]:
            del self._readings[reading]

    def _stored(self, store: StreamStore, message: StreamMessage) -> None:
        for tap in self._hub.stored_taps:
            tap(store.name, message)
        for reading in list(self._readings):
            if reading.stream == store.name:
                reading.resync(store)
