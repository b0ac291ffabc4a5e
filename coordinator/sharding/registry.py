"""Which shard has which pools: one record in the ledger, so that no pool can belong to two.

Laws:

1. The map is changed by compare-and-set, by coordinators that start. A pool is in at most one shard. A coordinator of
   all pools starts only if there is no shard, and a shard only if no coordinator of all pools leads.
2. While a conflicting shard is alive, the newcomer gets ShardConflict. A shard counts as dead when its `leader_alive`
   has been missing for `GONE_S`; then it is removed, and the same batch overwrites its `leader` record, so that the
   server refuses all writes of a frozen leader (L9).
3. A leader reads the map after its election. If its shard was removed meanwhile by others that are alive, it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from ...bus.port.bus import Conflict, KeyValue, KvEntry, KvOperation, KvWrite
from ...bus.port.subjects import Subscription
from ...runtime.clock import EventClock
from ...schemas.errors.base import GanglineError, ShardConflict
from ...schemas.names import Names
from ...schemas.records.gangs import LeaderRecord, ShardMap
from ...telemetry.logs import Log
from ..election.leader_record import leader_of
from .shards import Shard

GONE_S: Final = 4.0
"""Longer than any change of leader takes while a standby runs."""
_LOOK_S: Final = 0.25
_RETRY_S: Final = 0.2


class ShardRegistry:
    """One coordinator's view of the map, and its own entry in it."""

    def __init__(self, kv: KeyValue, shard: Shard, clock: EventClock, log: Log) -> None:
        self._kv = kv
        self._shard = shard
        self._clock = clock
        self._log = log
        self._subscription: Subscription | None = None
        self.shards: Mapping[str, tuple[str, ...]] = {}
        """Pools by shard, as last seen."""

    async def start(self) -> None:
        """Add our entry, and follow the map from now on.

        Raises:
            ShardConflict: a live shard keeps some of our pools.
            Unavailable: the ledger cannot be read or written.
        """
        await self._enter()
        if self._shard.pools is not None:
            self._subscription = await self._kv.watch(Names.shards_key, self._on_entry)

    async def stop(self) -> None:
        """Idempotent, and safe before `start`. The entry stays: standbys share it, and gangs continue."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def confirm(self) -> None:
        """We were elected, or the bucket was created again: our entry must be there. Entries written by hand do not
        stop us unless one of those shards is alive.

        Raises:
            ShardConflict: others keep our pools now.
            Unavailable: the ledger cannot be read or written.
        """
        await self._enter()

    async def _enter(self) -> None:
        missed: dict[str, float] = {}
        """Since when each conflicting shard has been silent."""
        while True:
            entry = await self._kv.get(Names.shards_key)
            known = _map_of(entry)
            rivals = await self._rivals(known)
            for rival in rivals:
                if await self._kv.get(Names.leader_alive_key_of(rival)) is not None:
                    raise self._conflict(rival, known)
                missed.setdefault(rival, self._clock.now)
            if all(self._clock.now - missed[rival] >= GONE_S for rival in rivals):
                if await self._write(known, entry.revision if entry is not None else 0, rivals):
                    return
            else:
                await asyncio.sleep(_LOOK_S)

    async def _rivals(self, known: ShardMap) -> list[str]:
        """Shards with some of our pools, our own shard with other pools, and coordinators of all pools ("")."""
        shard = self._shard
        if shard.pools is None:
            return sorted(known.shards)
        found = [
            name
            for name, pools in sorted(known.shards.items())
            if (set(pools) != shard.pools if name == shard.name else shard.pools & set(pools))
        ]
        if not known.shards:
            whole = leader_of(await self._kv.get(Names.leader_key))
            if whole is not None and whole.instance:
                found.append("")
        return found

    async def _write(self, known: ShardMap, revision: int, rivals: list[str]) -> bool:
        """Write the map with us and without rivals; False: another process was faster."""
        shard = self._shard
        shards = {name: pools for name, pools in known.shards.items() if name not in rivals}
        if shard.pools is not None:
            shards[shard.name] = tuple(sorted(shard.pools))
        self.shards = shards
        if shards == known.shards:
            return True
        writes = [await self._deposing(rival) for rival in rivals if rival != shard.name]
        body = ShardMap(shards=shards).model_dump_json().encode()
        try:
            await self._kv.commit([*writes, KvWrite(key=Names.shards_key, value=body, revision=revision)])
        except Conflict:
            return False
        self._log.info(
            "the shards are now %s", ", ".join(sorted(shards)) or "none",
            extra={"action": "shards.changed", "removed": rivals},
        )  # fmt: skip
        return True

    async def _deposing(self, rival: str) -> KvWrite:
        """Replaces the leader record of a dead shard with one of nobody."""
        entry = await self._kv.get(Names.leader_key_of(rival))
        before = leader_of(entry)
        record = LeaderRecord(term=before.term + 1 if before is not None else 1, instance="", since=self._clock.wall)
        return KvWrite(
            key=Names.leader_key_of(rival),
            value=record.model_dump_json().encode(),
            revision=entry.revision if entry is not None else 0,
        )

    def _conflict(self, rival: str, known: ShardMap) -> ShardConflict:
        if not rival:
            who = "a coordinator of all pools leads: stop all of those first"
        elif rival == self._shard.name:
            kept = ", ".join(known.shards[rival])
            who = f"this shard now keeps {kept}: give all its coordinators the same pools, or stop them first"
        else:
            kept = ", ".join(known.shards[rival])
            who = f"shard {rival} keeps {kept}: give each pool to one shard, or stop the coordinators of that one first"
        return ShardConflict(f"{self._shard} cannot be kept: {who}", details={"shard": rival})

    def _on_entry(self, entry: KvEntry) -> None:
        # A vanished bucket proves nothing: its leaders add their entries again.
        if entry.operation is KvOperation.PUT:
            self.shards = _map_of(entry).shards

    async def restored(self) -> ShardConflict | None:
        """The bucket was created again: add our entry again. Returns the conflict, if there is one."""
        while True:
            try:
                await self.confirm()
            except ShardConflict as conflict:
                return conflict
            except GanglineError as error:
                self._log.info("cannot add the shard: %s", error, extra={"action": "shards.retry"})
                await asyncio.sleep(_RETRY_S)
            else:
                return None


def _map_of(entry: KvEntry | None) -> ShardMap:
    if entry is None:
        return ShardMap()
    try:
        return ShardMap.read(entry.value)
    except ValidationError:
        # Written by hand and invalid: treat it as missing. It will be overwritten.
        return ShardMap()
