"""Who serves one pool: registrations and heartbeats, pulled at first and after each reconnection, followed live.

Only what stands in the ledger makes or replaces a worker: the live feed shows writes before storage has judged them, so
it refreshes what is known and says what to look up. A pull that fails, or shows less than is known, removes nothing: a
worker goes when its registration is seen deleted, when another instance took its name, or when it has fallen silent and
its heartbeat has expired.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from pydantic import ValidationError

from ...bus.port.bus import KeyValue, KvEntry, KvOperation
from ...bus.port.types import Subscription
from ...schemas.errors.base import GanglineError, InvalidName
from ...schemas.names import Names
from ...schemas.records.workers import Heartbeat, Registration
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")


class Census(Protocol):
    """Who is told: a pool."""

    def registered(self, record: Registration, revision: int) -> None:
        """The registration stands in the ledger."""

    def left(self, worker: str) -> None:
        """The worker took its registration back."""

    def beat(self, worker: str, beat: Heartbeat) -> bool:
        """A heartbeat passed; False when its worker, or that instance of it, is not known."""

    def knows(self, worker: str, instance: str) -> bool:
        """Whether that instance is the one known by that name."""


class Discovery:
    """Follows one pool's workers."""

    def __init__(self, pool: str, ledger: KeyValue, names: Names, census: Census) -> None:
        self._pool = pool
        self._ledger = ledger
        self._names = names
        self._census = census
        self._subscriptions: list[Subscription] = []
        self._lookups: dict[str, None] = {}
        self._lookup_task: asyncio.Task[None] | None = None
        self.pulled = False
        """Whether a pull has ever succeeded."""
        self.pulls = 0

    async def start(self) -> None:
        """Follow the live feed; `pull` does the rest."""
        observe = self._ledger.observe
        self._subscriptions.append(await observe(self._names.registrations_of(self._pool), self._on_registration))
        self._subscriptions.append(await observe(self._names.alive_of(self._pool), self._on_heartbeat))

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        if self._lookup_task is not None:
            self._lookup_task.cancel()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    async def pull(self) -> None:
        """Read all registrations of living workers.

        Raises:
            Disconnected, StorageUnavailable: nothing was learnt.
        """
        beats = {entry.key: entry for entry in await self._ledger.entries(self._names.alive_of(self._pool))}
        registrations = await self._ledger.entries(self._names.registrations_of(self._pool))
        for entry in registrations:
            record = self._record(entry)
            if record is None:
                continue
            beat = beats.get(f"alive.{record.pool}.{record.worker}")
            # A registration outlives its worker by up to a minute; the heartbeat key is what expires promptly.
            if beat is not None and (heartbeat := self._heartbeat(beat)) and heartbeat.instance == record.instance:
                known = self._census.knows(record.worker, record.instance)
                self._census.registered(record, entry.revision)
                if not known:
                    # Of one that is known it is no news: it was heard when it was written, up to three seconds ago.
                    self._census.beat(record.worker, heartbeat)
        self.pulled = True
        self.pulls += 1

    async def beats(self, worker: str, instance: str) -> bool:
        """Whether the ledger has a heartbeat of that instance, as the ledger's leader says.

        Raises:
            Disconnected, StorageUnavailable: nothing was learnt.
        """
        entry = await self._ledger.get(f"alive.{self._pool}.{worker}")
        if entry is None:
            return False
        beat = self._heartbeat(entry)
        return beat is None or beat.instance == instance

    # -- the live feed --------------------------------------------------------------------------------------------

    def _on_registration(self, entry: KvEntry) -> None:
        worker = entry.key.rpartition(".")[2]
        if entry.operation is KvOperation.DELETE:
            self._census.left(worker)
            return
        record = self._record(entry)
        if record is None:
            return
        if self._census.knows(worker, record.instance):
            self._census.registered(record, entry.revision)
        else:
            self._look_up(worker)

    def _on_heartbeat(self, entry: KvEntry) -> None:
        if entry.operation is KvOperation.DELETE:
            return
        worker = entry.key.rpartition(".")[2]
        beat = self._heartbeat(entry)
        if beat is not None and not self._census.beat(worker, beat):
            self._look_up(worker)

    def _look_up(self, worker: str) -> None:
        """Read a worker's registration, whose feed says something new."""
        self._lookups[worker] = None
        if self._lookup_task is None or self._lookup_task.done():
            self._lookup_task = asyncio.get_running_loop().create_task(self._look_all_up(), name="gangline-look-up")

    async def _look_all_up(self) -> None:
        while self._lookups:
            worker, _ = self._lookups.popitem()
            try:
                alive = await self._ledger.get(f"alive.{self._pool}.{worker}")
                entry = await self._ledger.get(f"reg.{self._pool}.{worker}")
            except GanglineError as error:
                # The next heartbeat, a second later, asks again.
                _log.info(
                    "cannot look up worker %s: %s", worker, error, extra={"action": "worker.look_up", "worker": worker}
                )
                continue
            record = None if entry is None else self._record(entry)
            beat = None if alive is None else self._heartbeat(alive)
            if entry is not None and record is not None and beat is not None and beat.instance == record.instance:
                self._census.registered(record, entry.revision)
                self._census.beat(worker, beat)

    # -- reading --------------------------------------------------------------------------------------------------

    def _record(self, entry: KvEntry) -> Registration | None:
        try:
            record = Registration.model_validate_json(entry.value)
            known = self._names.parse_worker_key(entry.key)
        except (ValidationError, InvalidName) as error:
            _unreadable(entry, error)
            return None
        if (known.pool, known.worker) != (record.pool, record.worker):
            _unreadable(entry, ValueError(f"it names {record.pool}.{record.worker}"))
            return None
        return record

    def _heartbeat(self, entry: KvEntry) -> Heartbeat | None:
        try:
            return Heartbeat.model_validate_json(entry.value)
        except ValidationError as error:
            _unreadable(entry, error)
            return None


def _unreadable(entry: KvEntry, error: Exception) -> None:
    first = str(error).splitlines()[0]
    _log.warning("unreadable record %s: %s", entry.key, first, extra={"action": "record.unreadable", "key": entry.key})
