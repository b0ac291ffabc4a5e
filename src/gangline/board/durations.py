"""How long leases, gangs and tasks have lasted, from the history stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..dispatcher.client.history import HistoryFilter, HistoryReader
from ..schemas.errors.base import GanglineError
from ..schemas.records.history import HistoryKind, HistoryRecord
from ..telemetry.logs import logger_for
from .forecast_core import Durations
from .outlook import task_kind

if TYPE_CHECKING:
    from ..dispatcher.client.client import Client

_log = logger_for("board")
LOOK_BACK_S: Final = 86_400.0
MOST_RECORDS: Final = 5_000
FRESH_S: Final = 60.0
"""The history is read again after this time."""
_MOST_OF_SUMMARY: Final = 100
"""A summary counts for at most this many tasks, each of its mean duration."""
_KINDS: Final = frozenset(
    {
        HistoryKind.LEASE_ENDED,
        HistoryKind.GANG_FORMED,
        HistoryKind.GANG_TORN_DOWN,
        HistoryKind.ATTEMPT_ENDED,
        HistoryKind.ATTEMPTS,
    }
)


class DurationHistory:
    """Reads the history when durations are asked for, at most once a minute."""

    def __init__(self, client: Client) -> None:
        self._reader = HistoryReader(client.router.bus, client.router.names)
        self._reading: asyncio.Task[Durations] | None = None
        self._read_at = float("-inf")
        self.trouble = ""
        """Why it could not be read; empty: it was."""

    async def durations(self) -> Durations:
        """Those of the last day; none, if the history cannot be read. A caller that is cancelled stops no other."""
        now = time.monotonic()
        if self._reading is None or (self._reading.done() and self._read_at + FRESH_S < now):
            self._read_at = now
            self._reading = asyncio.create_task(self._read(), name="board durations")
        return await asyncio.shield(self._reading)

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._reading = None

    async def _read(self) -> Durations:
        wanted = HistoryFilter(since=time.time() - LOOK_BACK_S, kinds=_KINDS)
        try:
            records = await self._reader.records(wanted, limit=MOST_RECORDS)
        except GanglineError as error:
            self.trouble = error.message
            _log.debug("cannot read the history: %s", error, extra={"action": "board.no_history"})
            return Durations({})
        self.trouble = ""
        return durations_of(records)


def durations_of(records: Iterable[HistoryRecord]) -> Durations:
    """How long leases of each owner, gangs, and tasks of each method have lasted, by records in the order of time."""
    seen: dict[str, list[float]] = {}
    formed: dict[tuple[str, int], float] = {}
    for record in records:
        match record.kind:
            case HistoryKind.GANG_FORMED:
                formed[record.gang, record.generation] = record.at
            case HistoryKind.GANG_TORN_DOWN:
                began_at = formed.pop((record.gang, record.generation), None)
                if began_at is not None:
                    seen.setdefault("gang", []).append(record.at - began_at)
            case HistoryKind.LEASE_ENDED if record.since is not None and not record.gang:
                seen.setdefault(f"lease of {record.owner}", []).append(record.at - record.since)
            case HistoryKind.ATTEMPT_ENDED if record.since is not None and record.method:
                kind = task_kind(record.endpoint, record.method)
                seen.setdefault(kind, []).append(record.at - record.since)
            case HistoryKind.ATTEMPTS if record.count and record.method:
                kind = task_kind(record.endpoint, record.method)
                mean_s = record.seconds / record.count
                seen.setdefault(kind, []).extend([mean_s] * min(record.count, _MOST_OF_SUMMARY))
            case _:
                pass
    return Durations(seen)
