"""The ledger: read as a whole by a new leader, and written one batch at a time, as the core decides. Each batch is
conditional on leadership. A mirror of it outlives the server that loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import ValidationError

from ...bus.port.bus import Conflict, KeyValue, KvEntry, KvOperation, KvWrite
from ...bus.port.subjects import Subscription
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError, InvalidName
from ...schemas.names import Names, WorkerId
from ...schemas.records.gangs import GangRecord, GangSetRecord, GangSetStatus, GangState, MemberRecord, Seat
from ...schemas.records.workers import Heartbeat, Record, Registration, complaint
from ...telemetry.logs import Log
from ..election.leader_record import LeaderKey, LeaderLost, LedgerLost
from ..model import effects as do
from ..model import events as on
from ..model.commits import member_of
from ..sharding.shards import WHOLE, Shard

_RETRY_S: Final = 0.1
_FORGET_S: Final = 1.0
"""How long deletions are collected before the mirror looks whether the ledger is complete."""
_MIRRORED: Final = (Names.gang_key(""), Names.gangset_key(""), Names.gangset_status_key(""))
R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class LedgerSnapshot:
    """The contents of the ledger at one moment."""

    gangs: list[tuple[GangRecord, int]] = field(default_factory=list)
    members: list[tuple[WorkerId, MemberRecord]] = field(default_factory=list)
    """Without those of gangs whose own record could not be read: nothing is known about them, so nothing is done."""
    sets: list[tuple[str, GangSetRecord]] = field(default_factory=list)
    statuses: list[tuple[str, GangSetStatus]] = field(default_factory=list)
    registrations: list[tuple[Registration, int]] = field(default_factory=list)
    beats: list[tuple[WorkerId, Heartbeat]] = field(default_factory=list)
    raw_sets: dict[str, bytes] = field(default_factory=dict)
    """Raw records by key."""


async def read_ledger(
    kv: KeyValue, names: Names, *, shard: Shard = WHOLE, fence: Callable[[], int], log: Log
) -> LedgerSnapshot:
    """Read until it succeeds. If a replica of the stream lags behind and does not have our own `leader` record at
    `fence` yet, read again: the result then contains everything that an earlier leader wrote. (The fence moves, even
    backwards, if the bucket is lost meanwhile.) Records of other shards are left out."""
    while True:
        try:
            entries = await kv.entries(
                shard.leader_key,
                Names.gang_key(),
                Names.gangset_key(),
                Names.gangset_status_key(),
                names.members_of(),
                names.registrations_of(),
                names.alive_of(),
            )
        except GanglineError as error:
            log.warning("cannot read the ledger: %s", error, extra={"action": "ledger.read_failed"})
        else:
            if any(entry.key == shard.leader_key and entry.revision >= fence() for entry in entries):
                return _of_shard(_sorted(entries, names, log), shard)
            log.info("a copy of the ledger lags behind; reading again", extra={"action": "ledger.stale"})
        await asyncio.sleep(_RETRY_S)


async def read_members(
    kv: KeyValue, names: Names, log: Log, shard: Shard = WHOLE
) -> tuple[tuple[WorkerId, MemberRecord], ...]:
    """All member records of the shard, except those of gangs whose record cannot be read.

    Raises:
        Unavailable: the read failed; that does not mean that there are none.
    """
    return tuple(_of_shard(_sorted(await kv.entries(names.members_of(), Names.gang_key()), names, log), shard).members)


def _of_shard(reading: LedgerSnapshot, shard: Shard) -> LedgerSnapshot:
    """Members are those of our gangs on any worker, and on our workers also those of no gang."""
    if shard.pools is None:
        return reading
    ours = {gang.id: shard.owns(gang.spec) for gang, _ in reading.gangs}
    reading.members = [(w, member) for w, member in reading.members if ours.get(member.gang, shard.keeps(w.pool))]
    reading.gangs = [(gang, revision) for gang, revision in reading.gangs if ours[gang.id]]
    reading.sets = [(name, gangset) for name, gangset in reading.sets if shard.keeps_all(gangset.template)]
    others = {key.partition(".")[2] for key in reading.raw_sets} - {name for name, _ in reading.sets}
    reading.statuses = [(name, status) for name, status in reading.statuses if name not in others]
    reading.registrations = [(record, at) for record, at in reading.registrations if shard.keeps(record.pool)]
    reading.beats = [(worker, beat) for worker, beat in reading.beats if shard.keeps(worker.pool)]
    return reading


def read_workers(entries: Iterable[KvEntry], names: Names, log: Log) -> LedgerSnapshot:
    """Registrations and heartbeats."""
    reading = LedgerSnapshot()
    for entry in entries:
        _of_worker(reading, entry.key.partition(".")[0], entry, names, log)
    return reading


def _sorted(entries: Iterable[KvEntry], names: Names, log: Log) -> LedgerSnapshot:
    reading = LedgerSnapshot()
    unreadable: set[str] = set()
    for entry in entries:
        folder, _, rest = entry.key.partition(".")
        match folder:
            case "gang":
                gang = parse(GangRecord, entry, log)
                if gang is None or gang.id != rest:
                    unreadable.add(rest)
                else:
                    reading.gangs.append((gang, entry.revision))
            case "gangset":
                reading.raw_sets[entry.key] = entry.value
                gangset = parse(GangSetRecord, entry, log)
                if gangset is not None:
                    reading.sets.append((rest, gangset))
            case "gangset_status":
                status = parse(GangSetStatus, entry, log)
                if status is not None:
                    reading.statuses.append((rest, status))
            case _:
                _of_worker(reading, folder, entry, names, log)
    reading.members = [(worker, member) for worker, member in reading.members if member.gang not in unreadable]
    return reading


def _of_worker(reading: LedgerSnapshot, folder: str, entry: KvEntry, names: Names, log: Log) -> None:
    try:
        worker = names.parse_worker_key(entry.key)
    except InvalidName:
        return
    match folder:
        case "member":
            member = parse(MemberRecord, entry, log)
            if member is not None and entry.key == names.member_key(worker, member.gang):
                reading.members.append((worker, member))
        case "reg":
            record = parse(Registration, entry, log)
            if record is not None and (record.pool, record.worker) == (worker.pool, worker.worker):
                reading.registrations.append((record, entry.revision))
        case "alive":
            beat = parse(Heartbeat, entry, log)
            if beat is not None:
                reading.beats.append((worker, beat))
        case _:
            pass


def parse(model: type[R], entry: KvEntry, log: Log) -> R | None:
    """A record; None, with a warning, if it is unreadable."""
    try:
        return model.read(entry.value)
    except ValidationError as error:
        log.warning(
            "%s is not a %s: %s",
            entry.key,
            model.__name__,
            complaint(error),
            extra={"action": "record.unreadable", "key": entry.key},
        )
        return None


class GangLedgerWriter:
    """Carries out Commit and Refence."""

    def __init__(
        self,
        kv: KeyValue,
        leader: LeaderKey,
        clock: EventClock,
        tasks: TaskSet,
        *,
        committed: Callable[[Sequence[KvWrite], int], None],
        feed: Callable[[on.Happening], None],
        deposed: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            committed: called with each batch that was written, and its last revision.
            feed: gives an event to the core.
            deposed: called when a write shows that another process leads.
        """
        self._kv = kv
        self._leader = leader
        self._clock = clock
        self._tasks = tasks
        self._committed = committed
        self._feed = feed
        self._deposed = deposed
        self._log = log

    def commit(self, effect: do.Commit) -> None:
        self._tasks.start(self._commit(effect))

    def refence(self, effect: do.WriteFence) -> None:
        self._tasks.start(self._refence(effect))

    async def _commit(self, effect: do.Commit) -> None:
        ids = {"gang": effect.gang, "what": effect.what}
        writes = [_write(write) for write in effect.writes]
        try:
            revision = await self._kv.commit(writes)
        except Conflict as error:
            extra = {"action": "gang.commit_refused", **ids}
            self._log.info("a commit was refused: %s", error, extra=extra)
            self._feed(on.CommitRefused(**self._clock.moment(), number=effect.number))
        except GanglineError as error:
            extra = {"action": "gang.commit_unknown", **ids}
            self._log.warning("a commit was not answered: %s", error, extra=extra)
            self._feed(on.CommitUnknown(**self._clock.moment(), number=effect.number))
        else:
            self._committed(writes, revision)
            self._feed(on.Committed(**self._clock.moment(), number=effect.number, revision=revision))

    async def _refence(self, effect: do.WriteFence) -> None:
        async def renewed() -> tuple[int, tuple[GangRecord | None, int]]:
            return await self._rewritten(), await self._read(effect.gang)

        found = await self._insist(renewed)
        if found is not None:
            fence, (record, revision) = found
            self._feed(
                on.Refenced(**self._clock.moment(), number=effect.number, fence=fence, record=record, revision=revision)
            )

    async def void(self) -> None:
        """Ensure that no batch that we have sent can be written later. Repeat until it succeeds or the term ends."""
        await self._insist(self._rewritten)

    async def _insist(self, renew: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat until it succeeds; None: the term has ended."""
        while True:
            try:
                return await renew()
            except LeaderLost:
                self._deposed()
                return None
            except GanglineError as error:
                self._log.info("the fence was not renewed: %s", error, extra={"action": "leader.refence_failed"})
                await asyncio.sleep(_RETRY_S)

    async def _rewritten(self) -> int:
        try:
            return await self._leader.rewrite()
        except LedgerLost:
            await self._leader.restore()
            return self._leader.fence

    async def _read(self, gang: str) -> tuple[GangRecord | None, int]:
        entry = await self._kv.get(Names.gang_key(gang)) if gang else None
        if entry is None:
            return None, 0
        return parse(GangRecord, entry, self._log), entry.revision


def _write(write: do.LedgerWrite) -> KvWrite:
    return KvWrite(
        key=write.key,
        value=None if write.record is None else write.record.model_dump_json().encode(),
        ttl_s=write.ttl_s,
        revision=write.revision,
        condition_key=write.condition_key,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLedger:
    """What is to be written back."""

    gangs: dict[str, list[KvWrite]]
    """By key: the batch that writes it, not yet conditional on leadership."""
    sets: list[KvWrite]
    """Their declarations and statuses."""


class LedgerMirror:
    """A copy of what the ledger last had of gangs and standing sets. Every coordinator keeps one, whether it leads or
    not, so that whoever leads next can write it back if the ledger was lost with its server. The records of members are
    not copied but made from that of their gang: two watches may be at different revisions, which would break L7.

    1. A key is forgotten only if its deletion was seen and the ledger was complete after that: a lost bucket looks like
       one in which everything was deleted, but nobody has marked it as complete yet.
    2. It is written back only to a ledger that is not complete, and never over what is there or was deleted there.
    """

    def __init__(self, kv: KeyValue, names: Names, shard: Shard, log: Log) -> None:
        self._kv = kv
        self._names = names
        self._shard = shard
        self._complete_key = shard.complete_key
        self._log = log
        self._entries: dict[str, KvEntry] = {}
        self._deleted: set[str] = set()
        """Keys of these that are gone from the bucket."""
        self._tasks = TaskSet("ledger mirror", log)
        self._forgetting = False
        self._subscriptions: list[Subscription] = []

    def __repr__(self) -> str:
        return f"<LedgerMirror {len(self._entries)} keys, {len(self._deleted)} of them deleted or lost>"

    async def start(self) -> None:
        """Follow.

        Raises:
            Unavailable: the ledger cannot be followed. Nothing is left of the attempt, so it may be repeated.
        """
        patterns = (Names.gang_key(), Names.gangset_key(), Names.gangset_status_key())
        try:
            for pattern in patterns:
                self._subscriptions.append(await self._kv.watch(pattern, self._on_entry))
        except BaseException:
            await self._unsubscribe()
            raise

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        await self._unsubscribe()
        self._tasks.cancel()
        await self._tasks.rest()

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    def committed(self, batch: Sequence[KvWrite], revision: int) -> None:
        """We wrote this batch, the last of it at this revision: its members may start before the watch reports it."""
        for at, write in enumerate(batch, revision - len(batch) + 1):
            if write.value is not None and write.key.startswith(_MIRRORED):
                self._on_entry(KvEntry(key=write.key, value=write.value, revision=at))

    def _on_entry(self, entry: KvEntry) -> None:
        known = self._entries.get(entry.key)
        if known is not None and entry.revision < known.revision:
            return  # older than what we wrote
        if entry.operation is KvOperation.PUT:
            self._entries[entry.key] = entry
            self._deleted.discard(entry.key)
        elif known is not None:
            self._deleted.add(entry.key)
            if not self._forgetting:
                self._forgetting = True
                self._tasks.start(self._forget())

    async def _forget(self) -> None:
        try:
            while self._deleted:
                await asyncio.sleep(_FORGET_S)
                deleted = set(self._deleted)
                try:
                    complete = await self._kv.get(self._complete_key) is not None
                except GanglineError as error:
                    self._log.debug("cannot read the ledger: %s", error, extra={"action": "mirror.read_failed"})
                    complete = False
                for key in deleted & self._deleted if complete else ():  # what was written again meanwhile stays
                    self._deleted.discard(key)
                    self._entries.pop(key, None)
        finally:
            self._forgetting = False

    def content(self) -> LostLedger:
        """The gangs and sets of our shard. What has ended is not among them."""
        reading = _of_shard(_sorted(self._entries.values(), self._names, self._log), self._shard)
        gangs = {
            Names.gang_key(gang.id): self._writes(gang, revision)
            for gang, revision in reading.gangs
            if gang.state is not GangState.ENDED
        }
        sets = [_raw(key, reading.raw_sets[key]) for key in (Names.gangset_key(name) for name, _ in reading.sets)]
        statuses = [_new(Names.gangset_status_key(name), status) for name, status in reading.statuses]
        return LostLedger(gangs=gangs, sets=[*sets, *statuses])

    def _writes(self, gang: GangRecord, revision: int) -> list[KvWrite]:
        seats: dict[WorkerId, list[Seat]] = {}
        for seat in gang.seats if gang.state in (GangState.FORMED, GangState.RETIRING) else ():
            seats.setdefault(WorkerId(seat.pool, seat.worker), []).append(seat)
        members = [
            KvWrite(key=self._names.member_key(worker, gang.id), value=_body(member_of(gang.id, gang.generation, here)))
            for worker, here in seats.items()
        ]
        # By default the fence is the revision, which the new record does not have.
        record = gang.model_copy(update={"fence": gang.fence_at(revision)}) if gang.seats else gang
        return [*members, KvWrite(key=Names.gang_key(gang.id), value=_body(record))]


def _new(key: str, record: Record) -> KvWrite:
    return _raw(key, _body(record))


def _body(record: Record) -> bytes:
    return record.model_dump_json().encode()


def _raw(key: str, value: bytes) -> KvWrite:
    return KvWrite(key=key, value=value, revision=0, revives=False)
