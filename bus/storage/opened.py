"""The buckets, streams and object stores that one connection has opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..jetstream.stream import NatsStream
from ..jetstream.wire import check_configuration, stream_configuration
from ..key_value.bucket import NatsKeyValue
from ..port.bus import BucketSettings, ObjectStore, StreamSettings
from .object_store import StreamObjectStore, object_stream

if TYPE_CHECKING:
    from ..jetstream.transport import Transport


class OpenedStorage:
    """See port.Bus: its methods for storage. Each bucket and stream is opened once."""

    def __init__(self, bus: Transport) -> None:
        self._bus = bus
        self._buckets: dict[str, NatsKeyValue] = {}
        self._only_read: set[str] = set()
        """Those of `_buckets` that nobody asked us to create."""
        self._streams: dict[str, NatsStream] = {}

    def __repr__(self) -> str:
        return f"<OpenedStorage: {', '.join((*self._buckets, *self._streams))}>"

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> NatsKeyValue:
        found = self._buckets.get(name)
        if found is None:
            opened = NatsKeyValue(self._bus, name, settings)
            if make:
                try:
                    await opened.ensure()
                except BaseException:
                    opened.stop()
                    raise
            else:
                self._only_read.add(name)
            found = self._buckets.setdefault(name, opened)
            if found is not opened:
                opened.stop()
        elif make and name in self._only_read:
            await found.ensure()
            self._only_read.discard(name)
        return found

    async def stream(self, name: str, settings: StreamSettings) -> NatsStream:
        found = self._streams.get(name)
        if found is not None and found.settings == settings:
            return found
        if found is not None:  # opened with other settings: the existing ones decide
            check_configuration(
                f"the stream {name}", stream_configuration(name, settings), stream_configuration(name, found.settings)
            )
            return found
        for source in settings.sources:
            await self.stream(source.name, source.settings)
        sources = [self._streams[source.name].upkeep for source in settings.sources]
        return await self._keep(NatsStream(self._bus, name, settings, sources=sources))

    async def _keep(self, opened: NatsStream) -> NatsStream:
        try:
            await opened.upkeep.ensure()
        except BaseException:
            opened.stop()
            raise
        found = self._streams.setdefault(opened.name, opened)
        if found is not opened:
            opened.stop()
        return found

    async def object_store(self, name: str, settings: BucketSettings) -> ObjectStore:
        stream_name, stream_settings = object_stream(name, settings)
        found = self._streams.get(stream_name)
        if found is None:
            # As `nats object add` creates it, plus values that expire.
            more = {"allow_rollup_hdrs": True, "discard": "new"}
            found = await self._keep(NatsStream(self._bus, stream_name, stream_settings, more=more))
        return StreamObjectStore(name, found, ambient=self._bus.ambient, max_payload=self._bus.max_payload)

    def stop(self) -> None:
        """The connection is closing."""
        for bucket in self._buckets.values():
            bucket.stop()
        for stream in self._streams.values():
            stream.stop()
