"""The server's side of an in-memory KV bucket: revisions, conditions, expiry, atomic batches, watchers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context

from ..port.bus import BucketSettings, Conflict, KvEntry, KvOperation, KvWrite
from ..port.subjects import SubjectPattern

MAX_BATCH = 1000
"""Most writes of one atomic batch, the server's own bound."""


class _Stored:
    """A key's newest revision; `value` is None for the marker of a deletion or an expiry."""

    __slots__ = ("expiry", "revision", "value")

    def __init__(self, value: bytes | None, revision: int, expiry: asyncio.TimerHandle | None) -> None:
        self.value = value
        self.revision = revision
        self.expiry = expiry


class BucketStore:
    """One bucket.

    Args:
        name: of the bucket.
        settings: `storage` decides whether it outlives a restart of the server; the rest means nothing in memory.
        context: in which expiry timers run (the server's own, so that they belong to no client).
        on_change: told of each new revision, deletions and expiries included, in order.
        first: revision of the first write.
    """

    def __init__(
        self,
        name: str,
        settings: BucketSettings,
        context: Context,
        on_change: Callable[[BucketStore, KvEntry], None],
        *,
        first: int = 1,
    ) -> None:
        self.name = name
        self.settings = settings
        self.revision = first - 1
        self._context = context
        self._on_change = on_change
        self._keys: dict[str, _Stored] = {}
        self._paused = False
        self._overdue: list[tuple[str, int]] = []
        """What has expired while the store stood still."""

    def __repr__(self) -> str:
        return f"<BucketStore {self.name} keys={sum(1 for _ in self.living())} revision={self.revision}>"

    def get(self, key: str) -> KvEntry | None:
        stored = self._keys.get(key)
        if stored is None or stored.value is None:
            return None
        return KvEntry(key=key, value=stored.value, revision=stored.revision)

    def living(self, pattern: SubjectPattern | None = None) -> Iterator[KvEntry]:
        """Living keys in the order of their revisions, as a stream replays them."""
        for key, stored in sorted(self._keys.items(), key=lambda item: item[1].revision):
            if stored.value is not None and (pattern is None or pattern.matches(key)):
                yield KvEntry(key=key, value=stored.value, revision=stored.revision)

    def apply(self, write: KvWrite) -> int:
        """One write on its own.

        Raises:
            Conflict: the key is not at `write.revision`.
        """
        self._require(write.key, write.revision)
        return self._store(write)

    def commit(self, writes: Sequence[KvWrite]) -> int:
        """All or none.

        Raises:
            Conflict: a condition is not met.
        """
        for write in writes:
            self._require(write.condition_key or write.key, write.revision)
        for write in writes:
            self._store(write)
        return self.revision

    def discard(self) -> None:
        """The stream is gone: no expiry comes any more."""
        for stored in self._keys.values():
            if stored.expiry is not None:
                stored.expiry.cancel()
        self._keys.clear()

    def pause(self) -> None:
        """Stand still: nothing expires before `go_on`, and then at once."""
        self._paused = True

    def go_on(self) -> None:
        self._paused = False
        overdue, self._overdue = self._overdue, []
        for key, revision in overdue:
            self._expire(key, revision)

    def _require(self, key: str, revision: int | None) -> None:
        if revision is None:
            return
        stored = self._keys.get(key)
        if stored is None:
            at, met = 0, revision == 0
        elif stored.value is None:
            at, met = 0, revision in (0, stored.revision)
        else:
            at, met = stored.revision, revision == stored.revision
        if not met:
            raise Conflict(
                f"key {key!r} of bucket {self.name} is at revision {at}, not at {revision}: read it and decide again",
                details={"key": key, "revision": at, "expected": revision},
            )

    def _store(self, write: KvWrite) -> int:
        old = self._keys.get(write.key)
        if old is not None and old.expiry is not None:
            old.expiry.cancel()
        self.revision += 1
        expiry = None
        if write.value is not None and write.ttl_s is not None:
            after = max(1, math.ceil(write.ttl_s))
            loop = asyncio.get_running_loop()
            expiry = loop.call_later(after, self._expire, write.key, self.revision, context=self._context)
        self._keys[write.key] = _Stored(write.value, self.revision, expiry)
        self._tell(write.key, write.value)
        return self.revision

    def _expire(self, key: str, revision: int) -> None:
        if self._paused:
            self._overdue.append((key, revision))
            return
        stored = self._keys.get(key)
        if stored is not None and stored.revision == revision:
            self.revision += 1
            self._keys[key] = _Stored(None, self.revision, None)
            self._tell(key, None)

    def _tell(self, key: str, value: bytes | None) -> None:
        operation = KvOperation.DELETE if value is None else KvOperation.PUT
        self._on_change(self, KvEntry(key=key, value=value or b"", revision=self.revision, operation=operation))
