"""The whole ledger, read at once by a new leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pydantic import ValidationError

from ...bus.port.bus import KeyValue, KvEntry
from ...schemas.errors.base import GanglineError, InvalidName
from ...schemas.names import Names, WorkerId
from ...schemas.records.gangs import GangRecord, GangSetRecord, GangSetStatus, MemberRecord
from ...schemas.records.workers import Heartbeat, Record, Registration
from ...telemetry.logs import Log
from ..sharding.shards import WHOLE, Shard

_RETRY_S: Final = 0.1
R = TypeVar("R", bound=Record)


@dataclass(slots=True, kw_only=True)
class LedgerSnapshot:
    """What stood there, all at one moment."""

    gangs: list[tuple[GangRecord, int]] = field(default_factory=list)
    members: list[tuple[WorkerId, MemberRecord]] = field(default_factory=list)
    """Without those of gangs whose own record could not be read: nothing is known of them, so nothing is done."""
    sets: list[tuple[str, GangSetRecord]] = field(default_factory=list)
    statuses: list[tuple[str, GangSetStatus]] = field(default_factory=list)
    registrations: list[tuple[Registration, int]] = field(default_factory=list)
    beats: list[tuple[WorkerId, Heartbeat]] = field(default_factory=list)
    raw_sets: dict[str, bytes] = field(default_factory=dict)
    """By key, as they stand there."""


async def read_ledger(
    kv: KeyValue, names: Names, *, shard: Shard = WHOLE, fence: Callable[[], int], log: Log
) -> LedgerSnapshot:
    """Read until it succeeds. A copy of the stream that lags behind, and does not have our own `leader` record at
    `fence` yet, is read again: what an earlier leader wrote is then all in the reading. (The fence moves, and backwards
    too, when the bucket is lost meanwhile.) What belongs to other shards is left out."""
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
    """All member records of the shard, but those of gangs whose record cannot be read.

    Raises:
        Unavailable: it may not be concluded that there are none.
    """
    return tuple(_of_shard(_sorted(await kv.entries(names.members_of(), Names.gang_key()), names, log), shard).members)


def _of_shard(reading: LedgerSnapshot, shard: Shard) -> LedgerSnapshot:
    """Members are those of our gangs, wherever they are, and on our workers those of no gang at all."""
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
    """A record; None, with a warning, for what cannot be read."""
    try:
        return model.model_validate_json(entry.value)
    except ValidationError as error:
        first = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)[:3])
        log.warning(
            "%s is not a %s: %s",
            entry.key,
            model.__name__,
            first,
            extra={"action": "record.unreadable", "key": entry.key},
        )
        return None
