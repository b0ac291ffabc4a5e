"""Reads the history: what processes decided, and what operators did, in the order of time.

It reads message by message, so that users who may not create consumers can, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from ...bus.port.bus import Bus, Stream, StreamMessage
from ...schemas.names import Names
from ...schemas.records.audit import AuditRecord, AuditStage
from ...schemas.records.history import FOUND, HistoryBatch, HistoryKind, HistoryRecord
from ...telemetry.logs import logger_for
from ..jobs.storage import TaskStreams

_log = logger_for("history")
_CHUNK: Final = 64
"""Messages that are read at once."""
_LATE_S: Final = 120.0
"""How long after it happened something may have been stored, while storage was away."""
MOST_RECORDS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFilter:
    """Which records to show; an empty field shows all."""

    since: float | None = None
    """Unix time."""
    until: float | None = None
    pool: str = ""
    worker: str = ""
    """`POOL.WORKER`."""
    gang: str = ""
    job: str = ""
    endpoint: str = ""
    kinds: frozenset[HistoryKind] = frozenset()

    def takes(self, record: HistoryRecord) -> bool:
        """Whether it is shown."""
        if self.since is not None and record.at < self.since:
            return False
        if self.until is not None and record.at > self.until:
            return False
        if self.kinds and record.kind not in self.kinds:
            return False
        targets = str(record.details.get("target", "")).split() if record.kind is HistoryKind.ACTION else []
        first = [target.partition(".")[0] for target in targets]
        pools = {record.pool, *(worker.partition(".")[0] for worker in record.workers), *first}
        workers = {f"{record.pool}.{record.worker}", *record.workers, *targets}
        return (
            (not self.pool or self.pool in pools)
            and (not self.worker or self.worker in workers)
            and (not self.gang or self.gang in (record.gang, *targets))
            and (not self.job or self.job in (record.job, *targets))
            and (not self.endpoint or self.endpoint in (record.endpoint, *targets, *first))
        )


class HistoryReader:
    """Reads the streams of the history and of the audit trail."""

    def __init__(self, bus: Bus, names: Names, streams: TaskStreams | None = None) -> None:
        self._names = names
        self._streams = streams or TaskStreams(bus, names)

    async def records(self, wanted: HistoryFilter | None = None, *, limit: int = 1000) -> list[HistoryRecord]:
        """The newest records, oldest first.

        Raises:
            NotPermitted: this user may not read it.
            Disconnected, StorageUnavailable: it could not be read.
        """
        wanted, found = wanted or HistoryFilter(), list[HistoryRecord]()
        async for message in _backwards(await self._streams.history(), wanted):
            found += [record for record in records_of(message, self._names) if wanted.takes(record)]
            if len(found) >= limit:
                break
        if not wanted.kinds or HistoryKind.ACTION in wanted.kinds:
            actions = 0
            async for message in _backwards(await self._streams.audit(), wanted):
                action = _action(message)
                if action is not None and wanted.takes(action):
                    found.append(action)
                    actions += 1
                    if actions >= limit:
                        break
        found.sort(key=lambda record: record.at)
        return _told_once(found)[-limit:]

    async def held_at(self, at: float) -> list[HistoryRecord]:
        """Who held slots at that time: LEASE_GRANTED of leases, GANG_FORMED of gangs, or GANG_RECOVERED if the leader
        that formed one died before it was recorded. Reads all that is kept, up to some minutes after that time.

        Raises: as `records`.
        """
        wanted = HistoryFilter(until=at)
        return holdings(await self.records(wanted, limit=MOST_RECORDS), at)

    def __repr__(self) -> str:
        return f"HistoryReader({self._streams!r})"


def holdings(records: Iterable[HistoryRecord], at: float) -> list[HistoryRecord]:
    """Who held slots at that time, by the records until then, oldest first. A worker that left, was lost, or took a new
    epoch, holds nothing any more."""
    held: dict[tuple[str, str], HistoryRecord] = {}
    for record in records:
        if record.at > at:
            break
        match record.kind:
            case HistoryKind.LEASE_GRANTED if not record.gang:
                held["lease", record.lease] = record
            case HistoryKind.LEASE_ENDED:
                held.pop(("lease", record.lease), None)
            case HistoryKind.GANG_FORMED:
                held["gang", record.gang] = record
            case HistoryKind.GANG_RECOVERED if record.workers:  # earlier versions do not say where
                held.setdefault(("gang", record.gang), record)
            case HistoryKind.GANG_TORN_DOWN | HistoryKind.GANG_RESTARTING | HistoryKind.GANG_ENDED:
                held.pop(("gang", record.gang), None)
            case (
                HistoryKind.WORKER_LEFT | HistoryKind.WORKER_LOST | HistoryKind.WORKER_EPOCH | HistoryKind.WORKER_JOINED
            ):
                for key, other in list(held.items()):
                    if key[0] == "lease" and (other.pool, other.worker) == (record.pool, record.worker):
                        del held[key]
            case _:
                pass
    return list(held.values())


def _told_once(records: list[HistoryRecord]) -> list[HistoryRecord]:
    """Without what a new leader found in the ledger and somebody has recorded when it happened, or found before."""
    known = {(record.kind, record.gang, record.generation) for record in records if FOUND not in record.details}
    told = list[HistoryRecord]()
    for record in records:
        if FOUND in record.details:
            key = record.kind, record.gang, record.generation
            if key in known:
                continue
            known.add(key)
        told.append(record)
    return told


def records_of(message: StreamMessage, names: Names) -> list[HistoryRecord]:
    """The records of one message. What cannot be read is left out, with a log line."""
    try:
        batch = HistoryBatch.read(message.data)
    except ValidationError as error:
        _log.warning("unreadable history: %s", error, extra={"action": "history.unreadable", "seq": message.sequence})
        return []
    by, found = message.subject.removeprefix(names.history("")), list[HistoryRecord]()
    for given in batch.records:
        try:
            found.append(HistoryRecord.model_validate({**given, "by": by}))
        except ValidationError as error:  # of a newer version
            _log.debug("unknown record: %s", error, extra={"action": "history.unknown", "seq": message.sequence})
    return found


def _action(message: StreamMessage) -> HistoryRecord | None:
    try:
        record = AuditRecord.read(message.data)
    except ValidationError:
        return None
    if record.stage is AuditStage.BEGUN:
        return None  # its end says all; one without an end is in `gangline audit`
    details = {"action": record.action, "target": record.target, "stage": record.stage.value}
    if record.error:
        details["error"] = record.error
    user = message.subject.rpartition(".")[2]
    return HistoryRecord(kind=HistoryKind.ACTION, at=message.at, reason=record.reason, details=details, by=user)


async def _backwards(stream: Stream, wanted: HistoryFilter) -> AsyncIterator[StreamMessage]:
    """All messages that may have wanted records, newest first."""
    state = await stream.state()
    first, last = max(1, state.first_sequence), state.last_sequence
    if wanted.until is not None:
        last = await _last_before(stream, first, last, wanted.until + _LATE_S)
    for end in range(last, first - 1, -_CHUNK):
        sequences = range(end, max(first - 1, end - _CHUNK), -1)
        for message in await asyncio.gather(*(stream.get(sequence) for sequence in sequences)):
            if message is None:
                continue
            if wanted.since is not None and message.at < wanted.since:
                return
            yield message


async def _last_before(stream: Stream, first: int, last: int, at: float) -> int:
    """The last sequence that was stored by then; below `first` if there is none."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        message, sequence = await stream.get(middle), middle
        while message is None and sequence < high:
            sequence += 1
            message = await stream.get(sequence)
        if message is None or message.at > at:
            high = middle - 1
        else:
            low = sequence
    return low
