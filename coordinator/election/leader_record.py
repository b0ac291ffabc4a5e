"""The `leader` record of the current leader: its revision fences everything that the leader writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from ...bus.port.bus import Conflict, KeyValue, KvEntry
from ...schemas.names import Names
from ...schemas.records.gangs import LeaderRecord


class LeaderLost(Exception):
    """The record belongs to another process."""


class LedgerLost(Exception):
    """There is no record: the bucket was lost."""


class LeaderKey:
    """Writes `leader` (or that of a shard) by compare-and-set only. One write at a time."""

    def __init__(self, kv: KeyValue, key: str = Names.leader_key) -> None:
        self._kv = kv
        self.key = key
        self._lock = asyncio.Lock()
        self._record: LeaderRecord | None = None
        self.fence = 0
        """Revision of our record."""
        self.on_restored: Callable[[int], Awaitable[None]] | None = None
        """Called with the new fence when the record had to be created again; restores the rest of what was lost."""

    def __repr__(self) -> str:
        return f"<LeaderKey {self._record} at {self.fence}>"

    async def claim(self, record: LeaderRecord, revision: int) -> int:
        """Replace the record at `revision` with `record`; returns the fence.

        Raises:
            Conflict: another process was faster.
            Unavailable: it may have been written.
        """
        return await self._kv.put(self.key, _body(record), revision=revision)

    def take(self, record: LeaderRecord, fence: int) -> None:
        """The record is written, and ours."""
        self._record, self.fence = record, fence

    async def rewrite(self) -> int:
        """Write it again, which voids every batch that is conditioned on an earlier fence. Returns the new one.

        Raises:
            LeaderLost, LedgerLost: it is no longer ours, or no longer there.
            Unavailable: it may have been written.
        """
        async with self._lock:
            assert self._record is not None
            while True:
                try:
                    self.fence = await self._kv.put(self.key, _body(self._record), revision=self.fence)
                except Conflict:
                    # Perhaps an earlier rewrite of our own whose answer was lost.
                    self.fence = (await self._ours()).revision
                else:
                    return self.fence

    async def restore(self) -> None:
        """Create it again if the bucket vanished. Returns when `on_restored` has.

        Raises:
            LeaderLost: another process leads.
            Unavailable: storage did not accept it.
        """
        async with self._lock:
            assert self._record is not None
            try:
                self.fence = (await self._ours()).revision
                return
            except LedgerLost:
                pass
            try:
                self.fence = await self._kv.put(self.key, _body(self._record), revision=0)
            except Conflict:
                self.fence = (await self._ours()).revision
            if self.on_restored is not None:
                await self.on_restored(self.fence)

    async def _ours(self) -> KvEntry:
        entry = await self._kv.get(self.key)
        if entry is None:
            raise LedgerLost
        found = leader_of(entry)
        mine = self._record
        if mine is None or found is None or (found.instance, found.term) != (mine.instance, mine.term):
            raise LeaderLost
        return entry


def leader_of(entry: KvEntry | None) -> LeaderRecord | None:
    """The record, if it can be read."""
    if entry is None:
        return None
    try:
        return LeaderRecord.read(entry.value)
    except ValidationError:
        return None


def _body(record: LeaderRecord) -> bytes:
    return record.model_dump_json().encode()
