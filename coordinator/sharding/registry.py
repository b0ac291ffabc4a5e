"""Which shard has which pools: one record of the ledger, so that no pool can belong to two.

Laws:

1. The map is changed by compare-and-set, by coordinators that start. A pool is in one shard at most; a coordinator of
   all pools starts only where there is no shard, and a shard only where none of those leads.
2. While somebody in the way lives, the newcomer gets ShardConflict. It counts as dead when its `leader_alive` was away
   for `GONE_S`; then it is taken out, and in the same batch its `leader` record is written over, so that whatever a
   frozen leader of it still sends is refused by the server (L9).
3. A leader looks at the map after it was elected. One that was taken out meanwhile, by others who live, stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from ...bus.port.bus import Conflict, KeyValue, KvEntry, KvOperation, KvWrite
from ...bus.port.types import Subscription
from ...runtime.clock import EventClock
from ...schemas.errors.base import GanglineError, ShardConflict
from ...schemas.names import Names
from ...schemas.records.gangs import LeaderRecord, ShardMap
from ...telemetry.logs import Log
from ..election.leader_record import leader_of
from .shards import Shard

GONE_S: Final = 4.0
"""Longer than any change of leaders takes while a standby runs."""
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
        """Enter ourselves, and follow the map from now on.

        Raises:
            ShardConflict: somebody who lives keeps some of our pools.
            Unavailable: the ledger cannot be read or written.
        """
        await self._enter()
        if self._shard.pools is not None:
            self._subscription = await self._kv.watch(Names.shards_key, self._on_entry)

    async def stop(self) -> None:
        """Idempotent, and safe before `start`. The entry stays: standbys have it too, and gangs live on."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def confirm(self) -> None:
        """We were elected, or the bucket was made anew: our entry must stand. What a map says that
        somebody wrote by hand does not end us if nobody of it lives.

        Raises:
            ShardConflict: others keep our pools by now.
            Unavailable: the ledger cannot be read or written.
        """
        await self._enter()

    async def _enter(self) -> None:
        missed: dict[str, float] = {}
        """Since when each of those in our way has not been heard of."""
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
        """Shards with pools of ours, ourselves with other pools, and whoever keeps all ("")."""
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
        """The map with us and without rivals; False: somebody was faster."""
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
            "the shards are %s now", ", ".join(sorted(shards)) or "none",
            extra={"action": "shards.changed", "removed": rivals},
        )  # fmt: skip
        return True

    async def _deposing(self, rival: str) -> KvWrite:
        """A leader record of nobody, over that of a shard which is gone."""
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
            who = f"this shard keeps {kept} by now: give all its coordinators the same pools, or stop them first"
        else:
            kept = ", ".join(known.shards[rival])
            who = f"shard {rival} keeps {kept}: give each pool to one shard, or stop the coordinators of that one first"
        return ShardConflict(f"{self._shard} cannot be kept: {who}", details={"shard": rival})

    def _on_entry(self, entry: KvEntry) -> None:
        # A bucket that vanished says nothing: its leaders enter themselves again.
        if entry.operation is KvOperation.PUT:
            self.shards = _map_of(entry).shards

    async def restored(self) -> ShardConflict | None:
        """The bucket was made anew: enter ourselves again. Returns what makes that impossible, if something does."""
        while True:
            try:
                await self.confirm()
            except ShardConflict as conflict:
                return conflict
            except GanglineError as error:
                self._log.info("cannot enter the shard: %s", error, extra={"action": "shards.retry"})
                await asyncio.sleep(_RETRY_S)
            else:
                return None


def _map_of(entry: KvEntry | None) -> ShardMap:
    if entry is None:
        return ShardMap()
    try:
        return ShardMap.read(entry.value)
    except ValidationError:
        # Written by hand and wrong: as if it were not there. It is written over.
        return ShardMap()
