"""The buckets, streams and object stores that one connection has opened; object stores on streams."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..runtime.clock import Environment
from ..schemas.errors.base import InvalidName, Unavailable
from .jetstream.stream import NatsStream
from .jetstream.wire import check_configuration, check_name, stream_configuration
from .key_value.bucket import NatsKeyValue
from .key_value.wire import ttl_header
from .port.bus import BucketSettings, ObjectStore, StorageUnavailable, Stream, StreamMessage, StreamSettings

if TYPE_CHECKING:
    from .jetstream.api import Transport


_CHUNK_BYTES: Final = 128 * 1024
_HEADERS_BYTES: Final = 1024
"""Room for headers in a message of maximum size."""
_MOST_NAME_CHARS: Final = 512
_TRIES: Final = 3
"""How often to read a version that seems incomplete: its description may come from a lagging server."""


def object_stream(name: str, settings: BucketSettings) -> tuple[str, StreamSettings]:
    """Name and settings of a bucket's stream."""
    check_name(name, "object store")
    return f"OBJ_{name}", StreamSettings(
        subjects=(f"$O.{name}.C.>", f"$O.{name}.M.>"),
        storage=settings.storage,
        replicas=settings.replicas,
        max_bytes=settings.max_bytes,
        share=settings.share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    nuid: str
    size: int
    chunks: int
    digest: str

    def to_json(self, bucket: str, name: str) -> bytes:
        body: dict[str, Any] = {
            "name": name,
            "options": {"max_chunk_size": _CHUNK_BYTES},
            "bucket": bucket,
            "nuid": self.nuid,
            "size": self.size,
            "mtime": "0001-01-01T00:00:00Z",
            "chunks": self.chunks,
        }
        if self.digest:
            body["digest"] = self.digest
        else:
            body["deleted"] = True
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_message(cls, message: StreamMessage | None) -> _Description | None:
        """None: there is no value of this name."""
        if message is None:
            return None
        try:
            body = json.loads(message.data)
            if body.get("deleted"):
                return None
            return cls(
                nuid=str(body["nuid"]),
                size=int(body.get("size", 0)),
                chunks=int(body.get("chunks", 0)),
                digest=str(body.get("digest", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StorageUnavailable(
                f"{message.subject} does not describe an object: something else wrote there", may_have_started=False
            ) from None


class StreamObjectStore:
    """Implements port.ObjectStore on a stream of any bus: large values in chunks, as the `nats` CLI and NATS clients
    store them.

    Bucket `B` is the stream `OBJ_B`. The chunks of a value have the subject `$O.B.C.<nuid>`, a new one for each
    version; the newest message of `$O.B.M.<base64 of the name>` describes it. A version is written completely before
    its description, and the chunks of the previous one are removed afterwards: a reader finds one or the other, or
    neither completely, and then reads again.
    """

    def __init__(self, bucket: str, stream: Stream, *, ambient: Environment, max_payload: int) -> None:
        self.name = bucket
        self.stream = stream
        self._ambient = ambient
        self._chunk_bytes = max(min(_CHUNK_BYTES, max_payload - _HEADERS_BYTES), 1)

    def __repr__(self) -> str:
        return f"<StreamObjectStore {self.name!r}>"

    async def put(self, name: str, data: bytes, *, ttl_s: float | None = None) -> None:
        subject = self._described_at(name)
        before = await self.stream.last(subject)
        nuid = self._ambient.token()
        headers = {} if ttl_s is None else {"Nats-TTL": ttl_header(ttl_s)}
        # The chunks outlive their description: readers that have it can still read them.
        longer = {} if ttl_s is None else {"Nats-TTL": ttl_header(ttl_s + 5)}
        pieces = [data[start : start + self._chunk_bytes] for start in range(0, len(data), self._chunk_bytes)]
        description = _Description(nuid=nuid, size=len(data), chunks=len(pieces), digest=_digest(data))
        try:
            for piece in pieces:
                await self.stream.publish(self._pieces_at(nuid), piece, headers=longer)
            written = await self.stream.publish(subject, description.to_json(self.name, name), headers=headers)
        except BaseException:
            await self._clean_up(nuid)
            raise
        await self.stream.purge(subject, before=written.sequence)
        await self._remove_pieces(before)

    async def get(self, name: str) -> bytes | None:
        subject = self._described_at(name)
        before: _Description | None = None
        tries = 0
        while True:
            description = _Description.from_message(await self.stream.last(subject))
            if description is None:
                return None
            # A version replaced while we read it does not count, however often its writer is faster than we are.
            tries = tries + 1 if description == before else 1
            before = description
            try:
                return await self._whole(name, description)
            except StorageUnavailable:
                if tries == _TRIES:
                    raise

    async def delete(self, name: str) -> None:
        subject = self._described_at(name)
        before = await self.stream.last(subject)
        if _Description.from_message(before) is None:
            return
        gone = _Description(nuid="", size=0, chunks=0, digest="")
        written = await self.stream.publish(subject, gone.to_json(self.name, name))
        await self.stream.purge(subject, before=written.sequence)
        await self._remove_pieces(before)

    async def _whole(self, name: str, description: _Description) -> bytes:
        pieces: list[bytes] = []
        sequence = 1
        for _ in range(description.chunks):
            message = await self.stream.next(self._pieces_at(description.nuid), sequence)
            if message is None:
                break
            pieces.append(message.data)
            sequence = message.sequence + 1
        data = b"".join(pieces)
        if len(data) != description.size or (description.digest and _digest(data) != description.digest):
            raise StorageUnavailable(
                f"object {name!r} of {self.name!r} cannot be read whole: {len(data)} of {description.size} bytes in "
                f"{len(pieces)} of {description.chunks} pieces, or another digest; write it again",
                may_have_started=False,
            )
        return data

    async def _remove_pieces(self, described: StreamMessage | None) -> None:
        try:
            before = _Description.from_message(described)
        except StorageUnavailable:
            return
        if before is not None:
            await self.stream.purge(self._pieces_at(before.nuid))

    async def _clean_up(self, nuid: str) -> None:
        try:
            await self.stream.purge(self._pieces_at(nuid))
        except Unavailable:
            pass  # chunks without a description stay; they only waste space

    def _pieces_at(self, nuid: str) -> str:
        return f"$O.{self.name}.C.{nuid}"

    def _described_at(self, name: str) -> str:
        if not 0 < len(name) <= _MOST_NAME_CHARS:
            raise InvalidName(f"object {name[:40]!r}...: a name has 1 to {_MOST_NAME_CHARS} characters")
        return f"$O.{self.name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def _digest(data: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()


class OpenedStorage:
    """See port.Bus: its methods for storage. Each bucket and stream is opened once."""

    def __init__(self, bus: Transport) -> None:
        self._bus = bus
        self._buckets: dict[str, NatsKeyValue] = {}
        self._streams: dict[str, NatsStream] = {}

    def __repr__(self) -> str:
        return f"<OpenedStorage: {', '.join((*self._buckets, *self._streams))}>"

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> NatsKeyValue:
        found = self._buckets.get(name)
        if found is None:
            opened = NatsKeyValue(self._bus, name, settings, only_read=not make)
            if make:
                try:
                    await opened.ensure()
                except BaseException:
                    opened.stop()
                    raise
            found = self._buckets.setdefault(name, opened)
            if found is not opened:
                opened.stop()
        elif make and found.only_read:
            await found.ensure()
        return found

    async def stream(self, name: str, settings: StreamSettings, *, make: bool = True) -> NatsStream:
        found = self._streams.get(name)
        if found is not None:
            if found.settings != settings:  # opened with other settings: the existing ones decide
                ours, theirs = stream_configuration(name, settings), stream_configuration(name, found.settings)
                check_configuration(f"the stream {name}", ours, theirs)
            if make and found.upkeep.only_read:
                await found.upkeep.ensure()
            return found
        for source in settings.sources:
            await self.stream(source.name, source.settings, make=make)
        sources = [self._streams[source.name].upkeep for source in settings.sources]
        return await self._keep(NatsStream(self._bus, name, settings, sources=sources), make=make)

    async def _keep(self, opened: NatsStream, *, make: bool = True) -> NatsStream:
        opened.upkeep.only_read = not make
        try:
            if make:
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
        self._bus.api.shortage.stop()
        for bucket in self._buckets.values():
            bucket.stop()
        for stream in self._streams.values():
            stream.stop()
