"""A key-value bucket on JetStream."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import Unavailable
from ..jetstream.api import NO_MESSAGE, STREAM_NOT_FOUND, ApiError
from ..jetstream.stream_admin import StreamAdmin
from ..port.bus import BucketSettings, KvEntry, KvHandler, KvOperation, KvWrite, Message
from ..port.subjects import Subscription
from .atomic_batch import AtomicBatch
from .snapshot import newest, snapshot, written
from .watch import BucketWatch
from .wire import (
    StoredEntry,
    check_bucket,
    check_key,
    check_pattern,
    first_revision,
    is_marker,
    stored_from_api,
    stream_configuration,
)
from .writer import KvWriter

if TYPE_CHECKING:
    from ..jetstream.api import Transport

_MAX_UNSURE_BATCHES: Final = 256


class NatsKeyValue:
    """Implements port.KeyValue. Created by `NatsBus.bucket`."""

    def __init__(self, bus: Transport, name: str, settings: BucketSettings, *, only_read: bool = False) -> None:
        self.name = check_bucket(name)
        self.bus = bus
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        self.label = f"the bucket {name}"
        """Its name in messages."""
        self._upkeep = StreamAdmin(
            bus,
            self.stream,
            label=self.label,
            configuration=stream_configuration(name, settings),
            share=settings.share,
            first=lambda: first_revision(bus.ambient.wall(), self._seen),
            seen=lambda: self._seen,
        )
        self._upkeep.only_read = only_read
        self._seen = 0
        """The highest revision seen: a recreated bucket continues above it."""
        self._watches: dict[BucketWatch, None] = {}
        self._writer = KvWriter(self)
        self.unsure_batches: deque[str] = deque(maxlen=_MAX_UNSURE_BATCHES)
        """Ids of atomic batches whose outcome their callers never learnt."""

    def __repr__(self) -> str:
        return f"<NatsKeyValue {self.name!r}, {len(self._watches)} watches>"

    @property
    def made(self) -> bool:
        """Whether the stream has ever existed, or was created by us."""
        return self._upkeep.made

    @property
    def created(self) -> str:
        return self._upkeep.created

    @property
    def only_read(self) -> bool:
        """Whether nobody has asked us to create it, and nothing was written: watches do not create it either."""
        return self._upkeep.only_read

    # -- the stream -----------------------------------------------------------------------------------------------

    async def ensure(self, *, look: bool = False) -> bool:
        """Create the stream if it does not exist; see StreamAdmin.ensure."""
        return await self._upkeep.ensure(look=look)

    async def restore(self, timeout_s: float) -> bool:
        """Restore the stream if possible; see StreamAdmin.restore."""
        return await self._upkeep.restore(timeout_s)

    def _see(self, revision: int) -> int:
        self._seen = max(self._seen, revision)
        return revision

    async def inspect(self) -> None:
        """Find out whether the stream can be used; see StreamAdmin.inspect."""
        await self._upkeep.inspect()

    def check(self, found: Mapping[str, Any]) -> None:
        """Whether a stream like this can be used; see StreamAdmin.check."""
        self._upkeep.check(found)

    # -- reading --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KvEntry | None:
        stored = await self.stored(check_key(key))
        if stored is not None:
            self._see(stored.revision)
        return None if stored is None or stored.marker else stored.entry()

    async def stored(self, key: str) -> StoredEntry | None:
        """The newest message of a key, read from the stream's leader; also a marker."""
        return await self.read({"last_by_subj": self.prefix + key})

    async def read(self, query: Mapping[str, Any]) -> StoredEntry | None:
        """One message, read from the stream's leader; None: there is none."""
        try:
            answer = await self.bus.api.call(f"STREAM.MSG.GET.{self.stream}", query, what=f"read from {self.name}")
        except ApiError as error:
            if error.number in (NO_MESSAGE, STREAM_NOT_FOUND):
                return None
            raise
        return stored_from_api(self.prefix, answer["message"])

    async def entries(self, pattern: str, *more: str) -> list[KvEntry]:
        return await snapshot(self, tuple(check_pattern(text) for text in (pattern, *more)))

    async def newest(self, pattern: str, *, limit: int, before: int | None = None) -> list[KvEntry]:
        return await newest(self, check_pattern(pattern), limit, before)

    async def written(self, after: int, *, most: int) -> tuple[int, set[str] | None]:
        return await written(self, after, most)

    # -- writing --------------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None, revision: int | None = None) -> int:
        write = KvWrite(key=check_key(key), value=value, ttl_s=ttl_s, revision=revision)
        return await self._written(self._writer.store(write))

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        await self._written(self._writer.store(KvWrite(key=check_key(key), value=None, revision=revision)))

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        for write in writes:
            check_key(write.key)
        results = await self._writer.store_many(writes)
        for result in results:
            if isinstance(result, int):
                self._see(result)
        if any(isinstance(result, ApiError) and not result.temporary for result in results):
            with contextlib.suppress(Unavailable):  # logged; the next write says why
                await self.inspect()
        return results

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        for write in writes:
            check_key(write.key)
            if write.condition_key is not None:
                check_key(write.condition_key)
        return await self._written(AtomicBatch(self, writes).commit())

    async def _written(self, work: Coroutine[Any, Any, int]) -> int:
        """The revision. A refusal is explained if another stream has taken the place of ours."""
        try:
            return self._see(await work)
        except ApiError as error:
            if not error.temporary:
                await self.inspect()
            raise

    # -- following ------------------------------------------------------------------------------------------------

    async def watch(self, pattern: str, handler: KvHandler) -> Subscription:
        def heard(entry: KvEntry) -> None:
            self._see(entry.revision)
            handler(entry)

        watch = BucketWatch(self, check_pattern(pattern), heard, on_end=self._forget)
        self._watches[watch] = None
        try:
            await watch.start()
        except BaseException:
            self._forget(watch)
            raise
        return watch

    def _forget(self, watch: BucketWatch) -> None:
        self._watches.pop(watch, None)

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
        """The bus is closing: end the watches."""
        for watch in list(self._watches):
            watch.stop()
        self._upkeep.stop()
