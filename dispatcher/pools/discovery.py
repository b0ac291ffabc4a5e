"""Who serves one pool: registrations and heartbeats, listed at first and after each reconnection, followed live.

Only what stands in the ledger makes or replaces a worker: the live feed shows writes before storage has judged them, so
it refreshes what is known and says what to look up. A list that fails, or shows less than is known, removes nobody: a
worker goes when its registration is seen deleted, when another instance took its name, or when it has fallen silent and
its heartbeat has expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ...bus.key_value.informer import Absent, BucketInformer
from ...bus.port.bus import Bus, KeyValue, KvEntry, KvOperation
from ...schemas.names import Names
from ...schemas.records.workers import Heartbeat, Registration
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")


class WorkerListener(Protocol):
    """Who is told: a pool."""

    def registered(self, record: Registration, revision: int) -> None:
        """The registration stands in the ledger."""

    def left(self, worker: str) -> None:
        """The worker took its registration back."""

    def beat(self, worker: str, beat: Heartbeat) -> bool:
        """A heartbeat passed; False when its worker, or that instance of it, is not known."""

    def knows(self, worker: str, instance: str) -> bool:
        """Whether that instance is the one known by that name."""


class WorkerDiscovery:
    """Follows one pool's workers. What the pool knows of them is not kept here a second time."""

    def __init__(
        self,
        bus: Bus,
        ledger: Callable[[], Awaitable[KeyValue]],
        names: Names,
        pool: str,
        listener: WorkerListener,
        *,
        resync_s: float,
        patience_s: float | None = None,
    ) -> None:
        """For the last two see BucketInformer."""
        self._pool = pool
        self._ledger = ledger
        self._names = names
        self._listener = listener
        self._unclaimed: dict[str, Heartbeat] = {}
        """By worker: read, and of an instance that the listener does not know. Its registration may be read next."""
        self.informer = BucketInformer[Registration | Heartbeat](
            bus,
            ledger,
            observed=(names.registrations_of(pool), names.alive_of(pool)),
            # In two steps, so that what was just sent to a worker whose name another process has taken is refused by
            # that process, and tried again, before its registration tells that the worker is lost.
            listed=lambda: (names.alive_of(pool), names.registrations_of(pool)),
            parse=self._parse,
            on_change=self._changed,
            on_passing=self._passing,
            absent=Absent.GONE,
            keep=False,
            resync_s=resync_s,
            patience_s=patience_s,
            kind="pool",
            what=f"who serves pool {pool!r}",
            log=_log.bind(pool=pool),
        )

    async def pull(self) -> None:
        """List all workers now.

        Raises:
            Disconnected, StorageUnavailable: nothing was learnt.
        """
        await self.informer.refresh()

    async def beats(self, worker: str, instance: str) -> bool:
        """Whether the ledger has a heartbeat of that instance, as the ledger's leader says.

        Raises:
            Disconnected, StorageUnavailable: nothing was learnt.
        """
        entry = await (await self._ledger()).get(f"alive.{self._pool}.{worker}")
        if entry is None:
            return False
        try:
            return Heartbeat.model_validate_json(entry.value).instance == instance
        except ValueError:
            return True  # somebody is there

    def _parse(self, entry: KvEntry) -> Registration | Heartbeat:
        if entry.key.startswith("alive."):
            return Heartbeat.model_validate_json(entry.value)
        record = Registration.model_validate_json(entry.value)
        if entry.key != f"reg.{record.pool}.{record.worker}":
            raise ValueError(f"it names {record.pool}.{record.worker}")
        return record

    def _passing(self, entry: KvEntry) -> bool:
        folder, _, worker = entry.key.split(".")
        if entry.operation is KvOperation.DELETE:
            if folder == "reg":
                self._listener.left(worker)
            return True
        try:
            heard = self._parse(entry)
        except ValueError:
            return False
        if isinstance(heard, Heartbeat):
            known = self._listener.beat(worker, heard)
        elif known := self._listener.knows(worker, heard.instance):
            self._listener.registered(heard, entry.revision)
        if not known:
            # Should storage not have it yet: the next heartbeat, a second later, asks again.
            self.informer.look_up(f"alive.{self._pool}.{worker}", f"reg.{self._pool}.{worker}")
        return True

    def _changed(self, key: str, _old: object, new: Registration | Heartbeat | None) -> None:
        folder, _, worker = key.split(".")
        if new is None:  # what is no longer there removes nobody
            if folder == "alive":
                self._unclaimed.pop(worker, None)
        elif isinstance(new, Heartbeat):
            # Of one that is known it is no news: it was heard when it was written, up to three seconds ago.
            if self._listener.knows(worker, new.instance):
                self._unclaimed.pop(worker, None)
            else:
                self._unclaimed[worker] = new
        elif self._listener.knows(worker, new.instance):
            self._listener.registered(new, self.informer.revision(key))
        elif (beat := self._unclaimed.get(worker)) is not None and beat.instance == new.instance:
            # A registration outlives its worker by up to a minute; the heartbeat key is what expires promptly.
            del self._unclaimed[worker]
            self._listener.registered(new, self.informer.revision(key))
            self._listener.beat(worker, beat)
