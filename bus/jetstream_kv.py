"""A key-value bucket on JetStream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..schemas.errors import Unavailable
from .batch import Batch
from .jetstream_api import NO_MESSAGE, STREAM_EXISTS, STREAM_NOT_FOUND, ApiError
from .kv_wire import (
    Stored,
    check_bucket,
    check_configuration,
    check_key,
    check_pattern,
    is_marker,
    stored_from_api,
    stream_configuration,
)
from .port import (
    BucketSettings,
    ConnectionEvent,
    KvEntry,
    KvHandler,
    KvOperation,
    KvWrite,
    Message,
    StorageUnavailable,
    Subscription,
)
from .snapshot import snapshot
from .watch import Watch
from .writes import Writer

if TYPE_CHECKING:
    from .jetstream import JetStreamBus

_RETRY_S: Final = 0.1
_MAX_UNSURE_BATCHES: Final = 256


class JetStreamKeyValue:
    """Implements port.KeyValue. Made by `JetStreamBus.bucket`."""

    def __init__(self, bus: JetStreamBus, name: str, settings: BucketSettings) -> None:
        self.name = check_bucket(name)
        self.bus = bus
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        self._settings = settings
        self._exists = False
        """Whether the stream was there when we last looked; False after every reconnect."""
        self._making: asyncio.Future[bool] | None = None
        self._watches: set[Watch] = set()
        self._writer = Writer(self)
        self.unsure_batches: deque[str] = deque(maxlen=_MAX_UNSURE_BATCHES)
        """Ids of atomic batches whose outcome their callers never learnt."""
        self._stop_listening = bus.on_connection(self._on_connection)

    def __repr__(self) -> str:
        return f"<JetStreamKeyValue {self.name!r}, {len(self._watches)} watches>"

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.CLOSED:
            self._exists = False

    # -- the stream -----------------------------------------------------------------------------------------------

    async def ensure(self, *, look: bool = False) -> bool:
        """Make the stream if it is not there; True if it was made now.

        Args:
            look: ask the server even if the stream was there before.

        Raises:
            StorageUnavailable, ServerUnsupported, Disconnected.
        """
        if self._exists and not look:
            return False
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._made)
        # Shielded: one caller's cancellation must not fail the others.
        return await asyncio.shield(self._making)

    async def restore(self, timeout_s: float) -> bool:
        """Look whether the stream is there and make it if it is not; True if it was made. No answer within
        `timeout_s` is no news, and no error."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.ensure(look=True)
        except (TimeoutError, StorageUnavailable):
            return False

    def _made(self, task: asyncio.Future[bool]) -> None:
        self._making = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may have

    async def _make(self) -> bool:
        await self.bus.api.require()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.bus.api.timeout_s
        while True:
            try:
                made = await self._look_or_create(max(deadline - loop.time(), 0.1))
            except StorageUnavailable as error:
                # A cluster that has just started or lost its leader: for a while nobody, or a refusal.
                lasting = isinstance(error, ApiError) and not error.temporary
                if lasting or loop.time() + _RETRY_S > deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
                continue
            self._exists = True
            return made

    async def _look_or_create(self, timeout_s: float) -> bool:
        api = self.bus.api
        try:
            found = await api.call(f"STREAM.INFO.{self.stream}", what=f"look at {self.name}", timeout_s=timeout_s)
        except ApiError as error:
            if error.number != STREAM_NOT_FOUND:
                raise
        else:
            check_configuration(self.name, found.get("config") or {})
            return False
        try:
            await api.call(
                f"STREAM.CREATE.{self.stream}",
                stream_configuration(self.name, self._settings),
                what=f"make the bucket {self.name}",
                timeout_s=timeout_s,
            )
        except ApiError as error:
            if error.number != STREAM_EXISTS:  # somebody else was faster
                raise
            return False
        return True

    async def vanished(self) -> bool:
        """Whether JetStream says that the stream is not there.

        Raises:
            StorageUnavailable: it does not say.
        """
        try:
            await self.bus.api.call(f"STREAM.INFO.{self.stream}", what=f"look at {self.name}")
        except ApiError as error:
            if error.number == STREAM_NOT_FOUND:
                self._exists = False
                return True
            raise
        return False

    # -- reading --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KvEntry | None:
        stored = await self.stored(check_key(key))
        return None if stored is None or stored.marker else stored.entry()

    async def stored(self, key: str) -> Stored | None:
        """The newest message of a key from the stream's leader, markers included."""
        try:
            answer = await self.bus.api.call(
                f"STREAM.MSG.GET.{self.stream}", {"last_by_subj": self.prefix + key}, what=f"read {key}"
            )
        except ApiError as error:
            if error.number in (NO_MESSAGE, STREAM_NOT_FOUND):
                return None
            raise
        return stored_from_api(self.prefix, answer["message"])

    async def entries(self, pattern: str, *more: str) -> list[KvEntry]:
        return await snapshot(self, tuple(check_pattern(text) for text in (pattern, *more)))

    # -- writing --------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None, revision: int | None = None) -> int:
        return await self._writer.store(KvWrite(key=check_key(key), value=value, ttl_s=ttl_s, revision=revision))

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        await self._writer.store(KvWrite(key=check_key(key), value=None, revision=revision))

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        for write in writes:
            check_key(write.key)
        return await self._writer.store_many(writes)

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        for write in writes:
            check_key(write.key)
            if write.condition_key is not None:
                check_key(write.condition_key)
        return await Batch(self, writes).commit()

    # -- following ------------------------------------------------------------------------------------------------

    async def watch(self, pattern: str, handler: KvHandler) -> Subscription:
        watch = Watch(self, check_pattern(pattern), handler)
        self._watches.add(watch)
        try:
            await watch.start()
        except BaseException:
            self._watches.discard(watch)
            raise
        return watch

    def forget(self, watch: Watch) -> None:
        """A watch ended."""
        self._watches.discard(watch)

    async def observe(self, pattern: str, handler: KvHandler) -> Subscription:
        skip = len(self.prefix)

        def passed(message: Message) -> None:
            gone = is_marker(message.headers)
            handler(
                KvEntry(
                    key=message.subject[skip:],
                    value=b"" if gone else message.data,
                    revision=0,
                    operation=KvOperation.DELETE if gone else KvOperation.PUT,
                )
            )

        return await self.bus.subscribe(self.prefix + check_pattern(pattern), passed)

    def stop(self) -> None:
        """The bus closes: end the watches."""
        self._stop_listening()
        for watch in list(self._watches):
            watch.stop()
        if self._making is not None:
            self._making.cancel()
