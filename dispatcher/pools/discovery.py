"""Discovery of one pool's workers: registrations and heartbeats, listed initially and after each reconnect, then
watched.

Only ledger entries add or replace a worker: the live feed shows writes before storage has accepted them, so it only
refreshes known workers and says what to look up. A list that fails or is incomplete removes no worker: a worker is
removed when its registration is deleted and its heartbeat is no longer in the ledger, when another instance took its
name, or when it is silent and its heartbeat has expired.
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
    """Receives changes of workers: a pool."""

    def registered(self, record: Registration, revision: int) -> None:
        """The registration is in the ledger."""

    def leaving(self, worker: str) -> None:
        """A deletion of the worker's registration was seen; storage may have refused it."""

    def beat(self, worker: str, beat: Heartbeat) -> bool:
        """A heartbeat was received; False if its worker, or that instance of it, is not known."""

    def knows(self, worker: str, instance: str) -> bool:
        """Whether that instance is the known one of that name."""


class WorkerDiscovery:
    """Watches the workers of one pool. The pool keeps their state; there is no second copy here."""

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
        """For the last two arguments see BucketInformer."""
        self._pool = pool
        self._ledger = ledger
        self._names = names
        self._listener = listener
        self._unclaimed: dict[str, Heartbeat] = {}
        """By worker: heartbeats of instances that the listener does not know yet; the registration may be read next."""
        self.informer = BucketInformer[Registration | Heartbeat](
            bus,
            ledger,
            observed=(names.registrations_of(pool), names.alive_of(pool)),
            # In two steps: when another process has taken a worker's name, it rejects what was just sent to the old
            # one, which is then retried, before its registration reports the old one as lost.
            listed=lambda: (names.alive_of(pool), names.registrations_of(pool)),
            parse=self._parse,
            on_change=self._changed,
            on_passing=self._passing,
            absent=Absent.GONE,
            keep=False,
            resync_s=resync_s,
            patience_s=patience_s,
            kind="pool",
            what=f"the workers of pool {pool!r}",
            log=_log.bind(pool=pool),
        )

    async def pull(self) -> None:
        """List all workers now.

        Raises:
            Disconnected, StorageUnavailable: nothing was read.
        """
        await self.informer.refresh()

    async def beats(self, worker: str, instance: str) -> bool:
        """Whether the ledger has a heartbeat of that instance, according to the ledger's leader.

        Raises:
            Disconnected, StorageUnavailable: nothing was read.
        """
        entry = await (await self._ledger()).get(f"alive.{self._pool}.{worker}")
        if entry is None:
            return False
        try:
            return Heartbeat.read(entry.value).instance == instance
        except ValueError:
            return True  # some process is there

    def _parse(self, entry: KvEntry) -> Registration | Heartbeat:
        if entry.key.startswith("alive."):
            return Heartbeat.read(entry.value)
        record = Registration.read(entry.value)
        if entry.key != f"reg.{record.pool}.{record.worker}":
            raise ValueError(f"it names {record.pool}.{record.worker}")
        return record

    def _passing(self, entry: KvEntry) -> bool:
        folder, _, worker = entry.key.split(".")
        if entry.operation is KvOperation.DELETE:
            if folder == "reg":
                self._listener.leaving(worker)
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
            # If storage does not have it yet, the next heartbeat, a second later, triggers another look-up.
            self.informer.look_up(f"alive.{self._pool}.{worker}", f"reg.{self._pool}.{worker}")
        return True

    def _changed(self, key: str, _old: object, new: Registration | Heartbeat | None) -> None:
        folder, _, worker = key.split(".")
        if new is None:  # a missing entry removes no worker
            if folder == "alive":
                self._unclaimed.pop(worker, None)
        elif isinstance(new, Heartbeat):
            # For a known worker this is not news: it was received when it was written, up to three seconds ago.
            if self._listener.knows(worker, new.instance):
                self._unclaimed.pop(worker, None)
            else:
                self._unclaimed[worker] = new
        elif self._listener.knows(worker, new.instance):
            self._listener.registered(new, self.informer.revision(key))
        elif (beat := self._unclaimed.get(worker)) is not None and beat.instance == new.instance:
            # A registration outlives its worker by up to a minute; only the heartbeat key expires promptly.
            del self._unclaimed[worker]
            self._listener.registered(new, self.informer.revision(key))
            self._listener.beat(worker, beat)
