"""The known workers. Every coordinator follows them, leading or not, so a new leader knows which workers are alive even
if storage has just lost all heartbeat keys.

Laws:

1. A worker is alive from the first heartbeat of its registered instance, received live or read.
2. It is gone when it deleted its heartbeat key, or was silent for `silence_s` while the feed and storage were up all
   the time, and the failure detector finds the key missing in the ledger. An answer counts as a heartbeat. A feed
   outage, unavailable storage or a failed read never ends a worker.
3. Facts come from registrations in the ledger, with their revisions; never from the live feed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Set
from typing import Final, Protocol

from ...bus.port.bus import ConnectionEvent, KeyValue, KvEntry, KvOperation
from ...bus.port.subjects import Subscription
from ...runtime.failure_detector import FreezeDetector, SuspectProber
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError, InvalidName
from ...schemas.names import Names, WorkerId
from ...schemas.records.workers import Heartbeat, Registration
from ...schemas.wire.frames import Load, LoadFlag
from ...telemetry.logs import Log
from ..scheduling.inventory import WorkerFacts
from ..settings.settings import ServiceSettings
from ..sharding.shards import WHOLE, Shard
from .storage import parse, read_workers

_TICK_S: Final = 0.25
_STALL_S: Final = 1.0
"""If the check for silent workers runs this late, we were frozen, not they."""
_NEVER: Final = float("-inf")


LEFT: Final = "left"
"""Why a worker is gone that has deleted its heartbeat itself."""


class RegistryListener(Protocol):
    """Receives the changes: the leader's term."""

    def worker_seen(self, facts: WorkerFacts) -> None: ...

    def load_seen(self, worker: WorkerId, epoch: int, load: Load) -> None: ...

    def worker_gone(self, worker: WorkerId, reason: str) -> None: ...


class RegisteredWorker:
    """One registered worker."""

    __slots__ = ("beat", "doubted", "heard_at", "lives", "registration", "revision")

    def __init__(self, registration: Registration, revision: int) -> None:
        self.registration = registration
        self.revision = revision
        self.beat: Heartbeat | None = None
        """The last heartbeat of this instance."""
        self.heard_at = _NEVER
        self.lives = False
        """Whether it is alive, as the listener was told or would have been."""
        self.doubted = False
        """The listener may believe that it is gone: its next heartbeat announces it again."""

    def facts(self) -> WorkerFacts:
        record, beat = self.registration, self.beat
        return WorkerFacts(
            id=WorkerId(record.pool, record.worker),
            epoch=record.epoch,
            revision=self.revision,
            total=record.slots,
            load=load_of(beat) if beat is not None and beat.epoch == record.epoch else None,
            node=record.node,
            zone=record.zone,
            address=record.address,
            labels=record.labels,
            draining=record.state == "draining" or (beat is not None and beat.draining),
            drain_grace_s=record.drain_grace_s,
        )


class WorkerRegistry:
    """Follows all workers of a namespace, or of one shard's pools."""

    def __init__(
        self, kv: KeyValue, names: Names, settings: ServiceSettings, log: Log, *, shard: Shard = WHOLE
    ) -> None:
        self._kv = kv
        self._pools = ["*"] if shard.pools is None else sorted(shard.pools)
        self._names = names
        self._settings = settings
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._entries: dict[WorkerId, RegisteredWorker] = {}
        self._tasks = TaskSet("worker registry", log)
        self._silent: SuspectProber[WorkerId] = SuspectProber(
            self._tasks,
            ask=self._beats,
            on_lost=self._silenced,
            on_failed=self._not_asked,
            unconfirmed_after_s=math.inf,
        )
        self._leaving: set[WorkerId] = set()
        """Workers whose heartbeat key was seen to be deleted."""
        self._subscriptions: list[Subscription] = []
        self._up_since = self._loop.time()
        """Start of the time in which the live feed has missed nothing."""
        self._connected = True
        self._connected_at = _NEVER
        """When the connection came back."""
        self._freeze = FreezeDetector(_TICK_S + _STALL_S, self._loop.time())
        self._pulling = asyncio.Lock()
        self._pulled_at = _NEVER
        """When the last successful read began."""
        self.listener: RegistryListener | None = None

    def __len__(self) -> int:
        return sum(entry.lives for entry in self._entries.values())

    def __repr__(self) -> str:
        return f"<WorkerRegistry {len(self)} of {len(self._entries)} workers live>"

    async def start(self) -> None:
        """Follow.

        Raises:
            Unavailable: the ledger cannot be followed. Nothing is left of the attempt, so it may be repeated.
        """
        self._up_since = self._freeze.last_at = self._loop.time()
        try:
            for pool in self._pools:
                alive, registrations = self._names.alive_of(pool), self._names.registrations_of(pool)
                self._subscriptions.append(await self._kv.observe(alive, self._on_heartbeat))
                self._subscriptions.append(await self._kv.watch(registrations, self._on_registration))
        except BaseException:
            await self._unsubscribe()
            raise
        self._tasks.start(self._look_for_silence())
        self._tasks.start(self._reconcile())

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        self._tasks.cancel()
        await self._unsubscribe()
        await self._tasks.rest()

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    def on_connection(self, event: ConnectionEvent) -> None:
        """Without a connection no worker can be heard, and that is not the workers' fault."""
        self._connected = event is ConnectionEvent.RECONNECTED
        self._up_since = self._connected_at = self._loop.time()
        self._leaving.clear()  # a server that was away may have lost the keys
        self._silent.clear_all()

    # -- what a term asks --------------------------------------------------------------------------------------------

    async def pull(self, asked_at: float) -> None:
        """Read all registrations and heartbeats from the ledger, unless that was done since `asked_at` (monotonic).

        Raises:
            Unavailable: nothing was learnt.
        """
        async with self._pulling:
            if self._pulled_at >= asked_at:
                return
            began_at = self._loop.time()
            names = self._names
            patterns = [key for pool in self._pools for key in (names.alive_of(pool), names.registrations_of(pool))]
            entries = await self._kv.entries(*patterns)
            reading = read_workers(entries, self._names, self._log)
            self.merge(reading.registrations, reading.beats)
            self._pulled_at = began_at
            known = {WorkerId(record.pool, record.worker) for record, _ in reading.registrations}
            for worker in [w for w, entry in self._entries.items() if not entry.lives and w not in known]:
                del self._entries[worker]
                self._silent.clear(worker)

    def merge(
        self, registrations: Iterable[tuple[Registration, int]], beats: Iterable[tuple[WorkerId, Heartbeat]]
    ) -> None:
        """Merge a reading of the ledger, which may be a little older than what was seen live: it only adds. A heartbeat
        key outlives its worker, so it proves nothing about a worker that is believed alive, nor about one that does not
        answer."""
        for record, revision in registrations:
            known = self._entries.get(WorkerId(record.pool, record.worker))
            if known is None or revision > known.revision:
                self._register(record, revision)
        for worker, beat in beats:
            known = self._entries.get(worker)
            if known is not None and not known.lives and not known.doubted:
                self._beat(worker, beat)

    def living(self, presumed: Set[WorkerId]) -> tuple[WorkerFacts, ...]:
        """Workers that are alive. Includes those in `presumed` (they have members) that we have not listened to for
        long enough: storage may have lost every heartbeat key in an outage that the workers survived."""
        fresh = self._loop.time() - self._up_since < self._settings.silence_s
        found = []
        for worker, entry in self._entries.items():
            if not entry.lives and fresh and worker in presumed:
                entry.lives, entry.heard_at = True, self._up_since
            if entry.lives:
                found.append(entry.facts())
        return tuple(found)

    def channel(self, worker: WorkerId) -> str:
        """Where to send it requests; see Registration.channel."""
        entry = self._entries.get(worker)
        return "" if entry is None else entry.registration.channel

    def heard(self, worker: WorkerId) -> None:
        """It answered a request."""
        entry = self._entries.get(worker)
        if entry is not None:
            entry.heard_at = self._loop.time()
            self._silent.clear(worker)

    @property
    def reconnecting(self) -> bool:
        """Whether workers may still be on their way back: we have just reconnected, so it is no proof that nobody
        subscribes there."""
        return self._loop.time() - self._connected_at < self._settings.silence_s

    def outage(self) -> None:
        """Storage did not answer: workers may have been unable to write or to send heartbeats, too."""
        self._up_since = self._loop.time()
        self._silent.clear_all()

    def doubt(self, worker: WorkerId) -> None:
        """The listener was told that nobody subscribes there."""
        entry = self._entries.get(worker)
        if entry is not None:
            entry.doubted = True

    # -- what is heard -----------------------------------------------------------------------------------------------

    def _on_registration(self, entry: KvEntry) -> None:
        worker = self._worker_of(entry)
        if worker is None:
            return
        if entry.operation is KvOperation.DELETE:
            return  # expired, or the bucket vanished: proves nothing while its heartbeats arrive
        record = parse(Registration, entry, self._log)
        if record is None or (record.pool, record.worker) != (worker.pool, worker.worker):
            return
        self._register(record, entry.revision)
        if not self._entries[worker].lives:
            self._silent.look_up(worker)  # nothing is known about it yet

    def _on_heartbeat(self, entry: KvEntry) -> None:
        worker = self._worker_of(entry)
        if worker is None:
            return
        if entry.operation is KvOperation.DELETE:
            if worker in self._entries:
                # Seen before storage has accepted it: it may be another process's attempt, which fails.
                self._leaving.add(worker)
                self._silent.look_up(worker)
            return
        beat = parse(Heartbeat, entry, self._log)
        if beat is not None:
            self._beat(worker, beat)

    def _register(self, record: Registration, revision: int) -> None:
        worker = WorkerId(record.pool, record.worker)
        entry = self._entries.get(worker)
        if entry is None:
            self._entries[worker] = RegisteredWorker(record, revision)
            return
        if entry.registration.instance != record.instance:
            entry.beat = None
        entry.registration, entry.revision = record, revision
        if entry.lives and self.listener is not None:
            self.listener.worker_seen(entry.facts())

    def _beat(self, worker: WorkerId, beat: Heartbeat) -> None:
        entry = self._entries.get(worker)
        if entry is None or entry.registration.instance != beat.instance:
            return  # its registration will follow
        entry.beat = beat
        entry.heard_at = self._loop.time()
        self._leaving.discard(worker)
        self._silent.clear(worker)
        known, entry.lives = entry.lives and not entry.doubted, True
        entry.doubted = False
        if self.listener is None:
            return
        if known:
            self.listener.load_seen(worker, beat.epoch, load_of(beat))
        else:
            self.listener.worker_seen(entry.facts())

    # -- who is not heard --------------------------------------------------------------------------------------------

    async def _look_for_silence(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._loop.time()
            if self._freeze.tick(now):
                self._up_since = now
                self._silent.clear_all()
            silent_since = now - self._settings.silence_s
            if not self._connected or self._up_since > silent_since:
                continue
            for worker, entry in self._entries.items():
                if entry.lives and entry.heard_at <= silent_since:
                    self._silent.suspect(worker, "")

    async def _beats(self, worker: WorkerId) -> bool:
        """Ask the stream's leader for the heartbeat key."""
        found = await self._kv.get(self._names.alive_key(worker))
        entry = self._entries.get(worker)
        left = worker in self._leaving
        self._leaving.discard(worker)
        if entry is None:
            return False
        beat = parse(Heartbeat, found, self._log) if found is not None else None
        if beat is None and left:
            self._gone(worker, LEFT)
        elif beat is not None and beat.instance == entry.registration.instance and not entry.lives:
            self._beat(worker, beat)
        return beat is not None

    def _not_asked(self, worker: WorkerId, error: GanglineError) -> None:
        self._leaving.discard(worker)
        self.outage()  # if it stays silent, it is suspected again soon
        self._log.debug("cannot look up %s: %s", worker, error, extra={"action": "workers.look_up"})

    def _silenced(self, worker: WorkerId, _why: str) -> None:
        self._gone(worker, f"no heartbeat for {self._settings.silence_s:g} s")

    def _gone(self, worker: WorkerId, why: str) -> None:
        entry = self._entries.get(worker)
        if entry is None or not entry.lives:
            return
        entry.lives = False
        self._silent.clear(worker)
        self._log.info("%s is gone: %s", worker, why, extra={"action": "worker.gone", "worker": str(worker)})
        if self.listener is not None:
            self.listener.worker_gone(worker, why)

    async def _reconcile(self) -> None:
        """Find what the live feed missed: read everything, and forget registrations that are gone."""
        while True:
            await asyncio.sleep(self._settings.reconcile_s)
            try:
                await self.pull(self._loop.time())
            except GanglineError as error:
                self.outage()
                self._log.debug("cannot read the workers: %s", error, extra={"action": "workers.reconcile"})

    def _worker_of(self, entry: KvEntry) -> WorkerId | None:
        try:
            return self._names.parse_worker_key(entry.key)
        except InvalidName:
            return None


def load_of(beat: Heartbeat) -> Load:
    return Load(beat.running, beat.reserved, beat.total, int(LoadFlag.DRAINING) if beat.draining else 0)
