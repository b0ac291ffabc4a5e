"""The client's side of an in-memory KV bucket."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from ...schemas.errors.base import InvalidRequest, PayloadTooLarge, Unavailable
from ..port.bus import BucketSettings, KvEntry, KvHandler, KvOperation, KvWrite, Message, StorageUnavailable
from ..port.subjects import SubjectPattern, check_subject
from ..port.types import Subscription
from .connection import Hub, MemoryConnection
from .kv_store import MAX_BATCH, BucketStore

_log = logging.getLogger("gangline.bus.memory")

_OPERATION = "KV-Operation"


class BucketHub(Hub, Protocol):
    """What a bucket needs of the server."""

    def store(self, name: str) -> BucketStore | None: ...

    def make_store(self, name: str, settings: BucketSettings) -> BucketStore: ...

    def taken(self, writer: str, bucket: str, writes: Sequence[KvWrite]) -> None: ...

    def add_watch(self, watch: MemoryWatch) -> None: ...

    def drop_watch(self, watch: MemoryWatch) -> None: ...


class MemoryKeyValue:
    """A bucket seen through one connection; see port.KeyValue. Made by `MemoryBus.bucket`."""

    def __init__(self, bus: MemoryConnection, hub: BucketHub, name: str, settings: BucketSettings) -> None:
        self.name = name
        self._bus = bus
        self._hub = hub
        self._settings = settings

    def __repr__(self) -> str:
        return f"<MemoryKeyValue {self.name} of {self._bus.name}>"

    async def create(self) -> None:
        """Make the bucket if it does not exist."""
        await self._operate(lambda: self._store() and None)

    async def get(self, key: str) -> KvEntry | None:
        check_subject(key)
        found = await self._operate(lambda: self._read(lambda store: store.get(key), None))
        return cast("KvEntry | None", found)

    async def entries(self, pattern: str, *more: str) -> list[KvEntry]:
        wanted = [SubjectPattern(text) for text in (pattern, *more)]

        def read(store: BucketStore) -> list[KvEntry]:
            return [entry for entry in store.living() if any(one.matches(entry.key) for one in wanted)]

        return cast("list[KvEntry]", await self._operate(lambda: self._read(read, [])))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None, revision: int | None = None) -> int:
        write = KvWrite(key=key, value=value, ttl_s=ttl_s, revision=revision)
        self._check(write)
        try:
            return await self._write(write)
        except StorageUnavailable as error:
            # Like the real one: after a time-out a conditional write reads back whether it was taken after all.
            if revision is None or not isinstance(error.__cause__, TimeoutError):
                raise
            newest = await self.get(key)
            if newest is None or newest.value != value or newest.revision <= revision:
                raise
            return newest.revision

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        write = KvWrite(key=key, value=None, revision=revision)
        self._check(write)
        await self._write(write)

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        for write in writes:
            self._check(write)
        self._bus.check_open()
        results = await asyncio.gather(*(self._write_one(write) for write in writes))
        return list(results)

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        if not 0 < len(writes) <= MAX_BATCH:
            raise InvalidRequest(f"an atomic batch has 1 to {MAX_BATCH} writes, not {len(writes)}")
        for write in writes:
            self._check(write)
        return cast("int", await self._operate(lambda: self._commit(writes), *writes))

    async def watch(self, pattern: str, handler: KvHandler) -> Subscription:
        watch = MemoryWatch(self._bus, self._hub, self.name, SubjectPattern(pattern), handler)
        await self._operate(lambda: watch.open(self._hub.store(self.name)))
        await watch.handled()
        return watch

    async def observe(self, pattern: str, handler: KvHandler) -> Subscription:
        SubjectPattern(pattern)
        prefix = f"$KV.{self.name}."

        def on_write(message: Message) -> None:
            deleted = bool(message.headers and message.headers.get(_OPERATION))
            operation = KvOperation.DELETE if deleted else KvOperation.PUT
            key = message.subject[len(prefix) :]
            handler(KvEntry(key=key, value=message.data, revision=0, operation=operation))

        return await self._bus.subscribe(prefix + pattern, on_write)

    # -- at the server --------------------------------------------------------------------------------------------

    def _store(self) -> BucketStore:
        self._available()
        return self._hub.make_store(self.name, self._settings)

    def _read(self, look: Callable[[BucketStore], Any], nothing: object) -> Any:
        self._available()
        store = self._hub.store(self.name)
        return nothing if store is None else look(store)

    def _apply(self, write: KvWrite) -> int:
        revision = self._store().apply(write)
        self._hub.taken(self._bus.name, self.name, (write,))
        return revision

    def _commit(self, writes: Sequence[KvWrite]) -> int:
        revision = self._store().commit(writes)
        self._hub.taken(self._bus.name, self.name, writes)
        return revision

    def _show(self, write: KvWrite) -> None:
        """Observers see a write as it passes, whatever storage makes of it."""
        headers = {_OPERATION: "DEL"} if write.value is None else None
        self._hub.route(self._bus, Message(f"$KV.{self.name}.{write.key}", write.value or b"", headers=headers))

    def _available(self) -> None:
        if not self._hub.storage_up:
            raise StorageUnavailable(
                f"JetStream has no leader for bucket {self.name}: try again", may_have_started=False
            )

    # -- on the way -----------------------------------------------------------------------------------------------

    async def _operate(self, action: Callable[[], Any], *writes: KvWrite) -> Any:
        def passing() -> None:
            for write in writes:
                self._show(write)

        try:
            return await self._bus.operate(action, passing=passing)
        except TimeoutError as error:
            timeout_s = self._hub.storage_timeout_s
            raise StorageUnavailable(f"JetStream did not answer for bucket {self.name} in {timeout_s:g} s") from error

    async def _write(self, write: KvWrite) -> int:
        return cast("int", await self._operate(lambda: self._apply(write), write))

    async def _write_one(self, write: KvWrite) -> int | Unavailable:
        try:
            return await self._write(write)
        except Unavailable as error:
            return error

    def _check(self, write: KvWrite) -> None:
        check_subject(write.key)
        size = len(write.value or b"")
        if size > self._hub.max_payload:
            raise PayloadTooLarge(
                f"a value of {size} bytes for key {write.key} is over the server's limit of {self._hub.max_payload}",
                details={"size": size, "limit": self._hub.max_payload},
            )


class MemoryWatch:
    """A standing watch. The server keeps it in order; after a reconnect it sends what changed meanwhile."""

    def __init__(
        self, bus: MemoryConnection, hub: BucketHub, bucket: str, pattern: SubjectPattern, handler: KvHandler
    ) -> None:
        self.bus = bus
        self._hub = hub
        self.bucket = bucket
        self._pattern = pattern
        self._handler: KvHandler | None = handler
        self._context = contextvars.copy_context()
        self._known: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<MemoryWatch {self._pattern.text!r} of {self.bucket} for {self.bus.name}>"

    def open(self, store: BucketStore | None) -> None:
        """At the server: send the snapshot, then every change."""
        if self._handler is None:
            return
        self._hub.add_watch(self)
        self.resync(store)

    def resync(self, store: BucketStore | None) -> None:
        """Send what the client does not know: newer revisions, and what is gone."""
        living = [] if store is None else list(store.living(self._pattern))
        revision = 0 if store is None else store.revision
        gone = self._known.keys() - {entry.key for entry in living}
        for key in sorted(gone):
            self.changed(KvEntry(key=key, value=b"", revision=revision, operation=KvOperation.DELETE))
        for entry in living:
            if self._known.get(entry.key) != entry.revision:
                self.changed(entry)

    def changed(self, entry: KvEntry) -> None:
        if not self.bus.connected or self._hub.cuts_off(self.bus) or not self._pattern.matches(entry.key):
            return
        if entry.operation is KvOperation.DELETE:
            self._known.pop(entry.key, None)
        else:
            self._known[entry.key] = entry.revision
        self.bus.from_leader(self._deliver, entry)

    def again(self, store: BucketStore | None) -> None:
        """Send all of it: what was sent last may have got lost."""
        self._known = dict.fromkeys(self._known, 0)
        self.resync(store)

    async def handled(self) -> None:
        """Wait until all that was sent so far has been handled."""
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(done.set_result, None, context=self._context)
        await done

    async def unsubscribe(self) -> None:
        self._handler = None
        self._hub.drop_watch(self)

    def _deliver(self, entry: KvEntry) -> None:
        asyncio.get_running_loop().call_soon(self._handle, entry, context=self._context)

    def _handle(self, entry: KvEntry) -> None:
        if self._handler is None:
            return
        try:
            self._handler(entry)
        except Exception:
            _log.exception(
                "watch handler failed on key %s",
                entry.key,
                extra={"action": "bus.handler_failed", "key": entry.key, "bus": self.bus.name},
            )
