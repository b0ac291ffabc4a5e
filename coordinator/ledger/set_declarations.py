"""The declared standing sets: followed in the ledger, and restored there if the bucket was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ...bus.port.bus import Conflict, KeyValue, KvEntry, KvOperation, KvWrite
from ...bus.port.subjects import Subscription
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.names import Names
from ...schemas.records.gangs import GangSetRecord
from ...schemas.text import count_of
from ...telemetry.logs import Log
from ..election.leader_record import LeaderKey, LeaderLost
from ..model import events as on
from ..sharding.shards import Shard
from .storage import parse

_RETRY_S: Final = 0.2


class SetDeclarations:
    """Passes declarations to the core. An unreadable one changes nothing: the previous one stays in force."""

    def __init__(
        self,
        kv: KeyValue,
        leader: LeaderKey,
        shard: Shard,
        clock: EventClock,
        tasks: TaskSet,
        *,
        feed: Callable[[on.Happening], None],
        usable: Callable[[str, str, GangSetRecord], bool],
        deposed: Callable[[], None],
        log: Log,
    ) -> None:
        """`usable` is called with key and name, says whether the core can be given a record, and logs it if not."""
        self._kv = kv
        self._leader = leader
        self._shard = shard
        self._clock = clock
        self._tasks = tasks
        self._feed = feed
        self._usable = usable
        self._deposed = deposed
        self._log = log
        self._standing: dict[str, bytes] = {}
        """By key, as last seen."""
        self._revisions: dict[str, int] = {}
        """By key, as last seen: a declaration that is written again is taken over again, also if it is the same."""
        self._lost: set[str] = set()
        """Keys of these that the watch has reported as deleted."""
        self._subscription: Subscription | None = None
        self._ended = False

    @property
    def names(self) -> list[str]:
        """Of the sets that are declared, as far as we know."""
        return [key.partition(".")[2] for key in self._standing]

    async def start(self, standing: dict[str, bytes]) -> None:
        """Follow, starting from what was read.

        Raises:
            Unavailable: the ledger cannot be followed.
        """
        self._standing = standing
        seen: set[str] = set()

        def on_entry(entry: KvEntry) -> None:
            seen.add(entry.key)
            self._on_entry(entry)

        self._subscription = await self._kv.watch(Names.gangset_key(), on_entry)
        # The watch does not report what was deleted since the read.
        for key in [key for key in standing if key not in seen]:
            self._tasks.start(self._gone(key))

    def end(self) -> None:
        """The term is over: what is declared now is another leader's to know, so restore nothing from memory."""
        self._ended = True

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    async def restore(self) -> None:
        """The bucket is new and empty: declare everything again. What has been declared or deleted in it since stays
        so."""
        while not self._ended:
            writes = [KvWrite(key=key, value=value, revision=0, revives=False) for key, value in self._standing.items()]
            if not writes:
                return
            results = await self._kv.write(writes)
            if all(isinstance(result, (int, Conflict)) for result in results):
                return
            await asyncio.sleep(_RETRY_S)

    def _on_entry(self, entry: KvEntry) -> None:
        if entry.operation is KvOperation.DELETE:
            if entry.key in self._standing:
                self._tasks.start(self._gone(entry.key))
            return
        known, self._revisions[entry.key] = self._revisions.get(entry.key), entry.revision
        repeated = known in (None, entry.revision) or entry.key in self._lost
        self._lost.discard(entry.key)
        if repeated and self._standing.get(entry.key) == entry.value:
            return  # the watch began, or the bucket was created again
        record = parse(GangSetRecord, entry, self._log)
        if record is not None and self._usable(entry.key, entry.key.partition(".")[2], record):
            self._standing[entry.key] = entry.value
            self._tell(entry.key, record)

    async def _gone(self, key: str) -> None:
        """A declaration is gone: deleted, or lost with the whole bucket. One that was restored is read again until the
        watch reports it: what is deleted before that, the watch has already reported as deleted."""
        if key in self._lost:
            return
        self._lost.add(key)
        while key in self._lost:
            try:
                await self._leader.restore()
                if await self._kv.get(key) is None and key in self._lost:
                    self._lost.discard(key)
                    self._standing.pop(key, None)
                    self._tell(key, None)
                    return
            except LeaderLost:
                self._deposed()
                return
            except GanglineError as error:
                self._log.info("cannot read %s: %s", key, error, extra={"action": "gangset.read_failed"})
            await asyncio.sleep(_RETRY_S)

    def _tell(self, key: str, record: GangSetRecord | None) -> None:
        name = key.partition(".")[2]
        if record is not None and not self._shard.keeps_all(record.template):
            if self._shard.owns(record.template):
                text = "its pools belong to different shards of the coordinators: it is not maintained"
                self._log.warning(text, extra={"action": "gangset.straddles", "gangset": name})
            record = None  # perhaps it belongs to another shard now
        self._log.info(
            "%s", "removed" if record is None else count_of(record.gangs, "gang"),
            extra={"action": "gangset.declared", "gangset": name},
        )  # fmt: skip
        self._feed(on.SetSeen(**self._clock.moment(), name=name, record=record))
