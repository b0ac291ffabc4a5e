"""A worker's presence: its registration, its heartbeat, and the events it broadcasts.

Two keys: `reg` says what the worker serves (changes rarely), `alive` that it is alive and how loaded it is (every
second). Both are written only while this process owns them, so two processes with one id detect each other: the second
one is refused at its start, and one that was frozen or cut off too long finds that its id is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from pydantic import BaseModel

from ...bus.port.bus import Bus, Conflict, KeyValue, KvEntry, NotPermitted
from ...runtime.clock import Environment
from ...runtime.tasks import TaskSet
from ...runtime.timers import IdLease, margin_s
from ...schemas.errors.base import ClosedError, GanglineError, MalformedMessage, Unavailable, WorkerIdTaken
from ...schemas.names import Names, WorkerId
from ...schemas.records.workers import Heartbeat, Registration
from ...schemas.wire import codec
from ...telemetry.logs import Log
from ..ledger.settings import WorkerSettings


class KeyLost(Exception):
    """Another process has the key; `instance` is that process."""

    def __init__(self, key: str, instance: str) -> None:
        super().__init__(f"{key} belongs to instance {instance}")
        self.instance = instance


class OwnedKey:
    """Writes one key whose JSON value names its owner in `instance`.

    Several writes may be in flight, since storage may be slow while heartbeats continue: a later one conflicts with an
    earlier one of the same process, notices that, and continues from it.
    """

    __slots__ = ("_instance", "_key", "_kv", "_revision", "_sure", "recreated")

    def __init__(self, kv: KeyValue, key: str, instance: str, sure: Callable[[], bool]) -> None:
        """
        Args:
            sure: whether nobody else can have written the key; see `Registrar.sure`.
        """
        self._kv = kv
        self._key = key
        self._instance = instance
        self._sure = sure
        self._revision = 0
        """Revision of our last write; 0 while the key does not exist."""
        self.recreated = 0
        """How often it was gone and had to be recreated: expired, or the bucket was lost."""

    @property
    def revision(self) -> int:
        """Revision of our last write; 0 while the key does not exist."""
        return self._revision

    async def read(self) -> KvEntry | None:
        """The current entry, whoever wrote it."""
        return await self._kv.get(self._key)

    def adopt(self, entry: KvEntry) -> None:
        """The next write may replace this entry, whoever wrote it."""
        self._revision = entry.revision

    async def write(self, value: Callable[[], bytes], ttl_s: float) -> None:
        """Write the key if it is ours or free.

        Args:
            value: makes the value, anew for each attempt: one that a later write has overtaken must not bring back
                what was true before.

        Raises:
            KeyLost: another process has it.
            Unavailable: the write failed or timed out; the next write shows whether it was made.
        """
        for _ in range(3):
            try:
                revision = await self._kv.put(self._key, value(), ttl_s=ttl_s, revision=self._revision)
            except Conflict:
                await self._follow()
            else:
                self._revision = max(self._revision, revision)
                return
        # Overtaken three times by our own other writes: the entry is as new as this.

    async def delete(self) -> None:
        """Delete the key if it is still ours.

        Raises:
            Unavailable: the delete failed; the key expires by itself.
        """
        # Read first: routers see the delete message, and each of them checks the ledger.
        self._revision = 0
        for _ in range(3):
            entry = await self.read()
            if entry is None or owner_of(entry) != self._instance:
                return
            try:
                await self._kv.delete(self._key, revision=entry.revision)
                return
            except Conflict:
                pass  # a write of our own was on its way when it was cancelled

    async def _follow(self) -> None:
        entry = await self.read()
        if entry is None:
            self._revision = 0
            self.recreated += 1
        elif (owner := owner_of(entry)) == self._instance or (not owner and self._sure()):
            self._revision = entry.revision
        else:
            # An entry without an instance counts too: another process may have taken the key before it was overwritten.
            raise KeyLost(self._key, owner)

    def __repr__(self) -> str:
        return f"OwnedKey({self._key!r}, revision={self._revision})"


def owner_of(entry: KvEntry) -> str:
    """The instance that wrote an entry; empty if that cannot be read."""
    value = _fields(entry)
    instance = value.get("instance")
    return instance if isinstance(instance, str) else ""


def epoch_of(entry: KvEntry) -> int:
    """The epoch that an entry names; 0 if that cannot be read."""
    epoch = _fields(entry).get("epoch")
    return epoch if type(epoch) is int and epoch >= 0 else 0


def _fields(entry: KvEntry) -> dict[object, object]:
    try:
        value = codec.from_json(entry.value)
    except MalformedMessage:
        return {}
    return value if isinstance(value, dict) else {}


REGISTRATION_TTL_S = 60.0
REWRITE_S = 20.0
"""How often the unchanged registration is rewritten, so that it neither expires nor stays lost."""
POLL_S = 0.25
"""How often a starting worker checks whether the id is free."""
IN_FLIGHT = 5
"""Maximum number of heartbeats in flight while storage is slow: routers see them even if storage refuses them."""


class WorkerEvent(StrEnum):
    """Broadcast on `<ns>.event.worker.<pool>.<worker>`."""

    JOINED = "joined"
    DRAINING = "draining"
    EPOCH = "epoch"
    LEFT = "left"


class Registrar:
    """Maintains `reg` and `alive` of one worker. `registration` and `heartbeat` return the values to write."""

    def __init__(
        self,
        bus: Bus,
        kv: KeyValue,
        names: Names,
        worker: WorkerId,
        *,
        instance: str,
        settings: WorkerSettings,
        ambient: Environment,
        registration: Callable[[], Registration],
        heartbeat: Callable[[], Heartbeat],
        on_lost: Callable[[str], None],
        on_confirmed: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            on_lost: called once with the other instance if it has our id. Nothing is written after that.
            on_confirmed: called when the id is confirmed as ours but other keys may be lost: time to compare them.
        """
        self._bus = bus
        self._names = names
        self._worker = worker
        self._instance = instance
        self._settings = settings
        self._ambient = ambient
        self._registration = registration
        self._heartbeat = heartbeat
        self._on_lost = on_lost
        self._on_confirmed = on_confirmed
        self._log = log
        self._alive = OwnedKey(kv, names.alive_key(worker), instance, self._is_sure)
        self._reg = OwnedKey(kv, names.registration_key(worker), instance, self._is_sure)
        self._writes = TaskSet("registration")
        """In flight, oldest first."""
        self._loop_task: asyncio.Task[None] | None = None
        self._published = False
        """Whether routers may find us. Before that only the id is held, and the registration is not written."""
        self._recreated = 0
        self._compare = False
        """Call `on_confirmed` after the next successful heartbeat."""
        self._confirm: Callable[[], None] | None = None
        """Called once after the next successful heartbeat that was started after this was set."""
        self.id_lease = IdLease()
        """Until then the last stored heartbeat cannot have expired."""
        self.on_sure: Callable[[], None] | None = None
        """Called when `id_lease` was extended."""
        self._stopped = False
        self.lost = False

    # -- start and end --------------------------------------------------------------------------------------------

    async def claim(self) -> int:
        """Take the id, and return the newest epoch that any process with this id had (0: none is known).

        Waits for the heartbeat of a dead predecessor to expire. From then on our own heartbeats hold the id, however
        long the start takes. An entry without an instance may hide the heartbeat of a living worker, which would write
        it again: it is overwritten if nobody has done so in that time.

        Raises:
            WorkerIdTaken: another process with this id is alive.
            Unavailable: storage did not answer within `start_timeout_s`.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._settings.start_timeout_s
        expired_at = float("inf")
        seen: int | None = None
        epoch = 0
        while True:
            last = loop.time() >= give_up_at  # see StartPatience
            try:
                entry = await self._alive.read()
                expired = loop.time() > expired_at
                if entry is not None and entry.revision == seen and expired and not owner_of(entry):
                    self._alive.adopt(entry)
                    entry = None
                if entry is None or owner_of(entry) == self._instance:
                    await self._write_alive()
                    previous = await self._reg.read()
                    self._loop_task = loop.create_task(self._run(), name="gangline heartbeat")
                    return max(epoch, epoch_of(previous)) if previous is not None else epoch
                epoch = max(epoch, epoch_of(entry))
                # A second revision is a second heartbeat: it is alive. Otherwise wait until its key must have expired.
                if (seen is not None and entry.revision != seen) or expired:
                    raise self._taken(owner_of(entry))
                if seen is None:
                    seen, expired_at = entry.revision, loop.time() + self._settings.heartbeat_ttl_s + 1.0
            except KeyLost:
                pass  # another process was faster: find out which
            except Unavailable as error:
                if last or isinstance(error, WorkerIdTaken | NotPermitted):
                    raise
            await asyncio.sleep(POLL_S)

    async def publish(self) -> None:
        """Write the registration for the first time; from now on routers send requests.

        Raises:
            WorkerIdTaken, Unavailable: as `claim`.
        """
        try:
            # The heartbeat first: if the id was lost during a freeze, the other process's registration must not be
            # touched.
            await self._write_alive()
            await self._take_over()
        except KeyLost as lost:
            self.lost = True
            raise self._taken(lost.instance) from lost
        self._published = True

    async def withdraw(self) -> None:
        """Delete both keys if they are ours. Idempotent. If storage does not answer, they expire."""
        await self.stop()
        if self.lost:
            return
        for key in (self._alive, self._reg):
            try:
                await key.delete()
            except (Unavailable, ClosedError) as error:
                self._log.debug("key left to expire: %s", error, extra={"action": "registration.left"})

    async def stop(self) -> None:
        """Stop writing; the keys expire. Idempotent."""
        self._stopped = True
        tasks = [*self._writes] if self._loop_task is None else [*self._writes, self._loop_task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- while it lives -------------------------------------------------------------------------------------------

    def rewrite(self) -> None:
        """The registration has changed or may be lost: write both keys now. No-op before `publish`."""
        if not self._published:
            return
        self._compare = True
        self._spawn(self._write_registration)
        self.beat()

    @property
    def revision(self) -> int:
        """Known revision of our registration: anything conditioned on an earlier one is void."""
        return self._reg.revision

    async def fence(self) -> None:
        """Rewrite the registration: from now on nothing conditioned on an earlier revision can be committed.

        Raises:
            Unavailable: it may not have been written.
            ClosedError: the registration is or is being withdrawn.
        """
        if self._stopped:
            raise ClosedError(f"worker {self._worker} no longer writes its registration")
        try:
            await self._write_registration()
        except KeyLost as lost:
            self._fence_ourselves(lost)
            raise self._taken(lost.instance) from lost

    def sure(self, now: float) -> bool:
        """Whether nobody else can have our id, provided that storage loses nothing: our last heartbeat has not expired
        (counted from before the write, less a margin), and the connection has not been lost since."""
        return now < self.id_lease.until

    def _is_sure(self) -> bool:
        return self.sure(asyncio.get_running_loop().time())

    def unsure(self) -> None:
        """The server was away and may have lost our heartbeat: only the next one makes it certain."""
        self.id_lease.lapse()

    def confirm(self, then: Callable[[], None]) -> None:
        """Call `then` when storage has confirmed that the id is ours now; never if it is not."""
        self._confirm = then
        self._spawn(self._write_heartbeat)

    def beat(self) -> None:
        """Write a heartbeat now."""
        if len(self._writes) < IN_FLIGHT:
            self._spawn(self._write_heartbeat)

    def announce(self, event: WorkerEvent, **facts: object) -> None:
        """Broadcast an event. It may be lost; nothing depends on it."""
        if self.lost:
            return
        body = {
            "event": event,
            "pool": self._worker.pool,
            "worker": self._worker.worker,
            "instance": self._instance,
            "epoch": self._registration().epoch,
            "at": self._ambient.wall(),
            **facts,
        }
        try:
            self._bus.publish(self._names.worker_event(self._worker), codec.to_json(body))
        except GanglineError as error:
            self._log.debug("event %s not sent: %s", event, error, extra={"action": "event.lost"})

    def __repr__(self) -> str:
        return f"Registrar({self._worker}, instance={self._instance!r}{', lost' if self.lost else ''})"

    async def _run(self) -> None:
        beats = 0
        every = max(1, round(REWRITE_S / self._settings.heartbeat_s))
        while not self.lost:
            await asyncio.sleep(self._settings.heartbeat_s)
            beats += 1
            if self._published and beats % every == 0:
                self.rewrite()
            else:
                self.beat()

    def _spawn(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.lost or self._loop_task is None:
            return  # not claimed yet: the registration may still be a dead predecessor's
        self._writes.start(self._guarded(write))

    async def _guarded(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except KeyLost as lost:
            self._fence_ourselves(lost)
        except (Unavailable, ClosedError) as error:
            # Routers go by the heartbeats they see and their own timeouts; the next heartbeat tries again.
            self._log.debug("not written: %s", error, extra={"action": "registration.retry"})

    def _fence_ourselves(self, lost: KeyLost) -> None:
        if not self.lost:
            self.lost = True
            self._on_lost(lost.instance)

    async def _write_heartbeat(self) -> None:
        confirm = self._confirm
        await self._write_alive()
        if confirm is not None and confirm is self._confirm:
            self._confirm = None
            confirm()
        if self._alive.recreated > self._recreated:
            self._recreated = self._alive.recreated
            if self._published:
                self._compare = True
                self._spawn(self._write_registration)
        if self._compare:
            self._compare = False
            self._on_confirmed()

    async def _write_alive(self) -> None:
        ttl_s = self._settings.heartbeat_ttl_s
        until = asyncio.get_running_loop().time() + ttl_s - margin_s(ttl_s)
        await self._alive.write(lambda: _body(self._heartbeat()), ttl_s)
        lease, now = self.id_lease, asyncio.get_running_loop().time()
        if lease.until > now:
            lease.until = max(lease.until, until)
        else:
            lease.extend(now, until)
        if self.on_sure is not None:
            self.on_sure()

    async def _write_registration(self) -> None:
        await self._reg.write(lambda: _body(self._registration()), REGISTRATION_TTL_S)

    async def _take_over(self) -> None:
        """Overwrite the registration of a dead predecessor: the owner of `alive` may do that."""
        entry = await self._reg.read()
        if entry is not None and owner_of(entry) != self._instance:
            self._reg.adopt(entry)
        await self._write_registration()

    def _taken(self, instance: str) -> WorkerIdTaken:
        return WorkerIdTaken(
            f"worker {self._worker} is alive elsewhere (instance {instance or 'unknown'}): "
            "give this one another id, or stop that one first",
            details={"worker": str(self._worker), "instance": instance},
        )


def _body(record: BaseModel) -> bytes:
    return record.model_dump_json(exclude_defaults=False).encode()
