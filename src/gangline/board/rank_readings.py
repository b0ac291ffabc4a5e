"""Asks the workers of a gang, or the history, what its ranks have spent their time on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from ..dispatcher.client.history import HistoryFilter, HistoryReader
from ..schemas.errors.base import GanglineError
from ..schemas.messages.operations import RankTimes
from ..schemas.records.history import HistoryKind
from .rank_times import rank_report, times_in, times_of
from .rows import Row

if TYPE_CHECKING:
    from ..dispatcher.client.client import Client

MOST_AT_ONCE: Final = 64
"""Number of workers that are asked at the same time."""
ANSWER_S: Final = 2.0


async def gang_times(
    client: Client, gang: str, generation: int, workers: Collection[str], *, since: float | None = None
) -> Row:
    """See rank_report; `generation`: the one that it is of.

    Args:
        workers: those of the generation (`POOL.WORKER`), which are asked. If they have run nothing yet, or there are
            none, it is of the last generation that ended, from the history.
        since: Unix time at which the gang was requested.
    """
    times, silent = await _ask(client, gang, generation, workers)
    if not times and (generation > 1 or not workers):
        generation, times = await _last(client, gang, since)
    report = {"generation": generation, **rank_report(times)}
    if silent:
        more = f"no times from {', '.join(silent[:3])}{' and others' if len(silent) > 3 else ''}: no answer"
        report["told"] = [*_told(report), more]
    return report


def _told(report: Row) -> list[str]:
    told = report["told"]
    return told if isinstance(told, list) else []


async def _last(client: Client, gang: str, since: float | None) -> tuple[int, list[tuple[str, RankTimes]]]:
    reader = HistoryReader(client.router.bus, client.router.names)
    kinds = frozenset({HistoryKind.GANG_RESTARTING, HistoryKind.GANG_ENDED})
    try:
        async with asyncio.timeout(ANSWER_S):
            records = await reader.records(HistoryFilter(gang=gang, kinds=kinds, since=since))
    except (GanglineError, TimeoutError):
        return 0, []
    for record in reversed(records):
        if times := times_in(record.details):
            return record.generation - (record.kind is HistoryKind.GANG_RESTARTING), times
    return 0, []


async def _ask(
    client: Client, gang: str, generation: int, workers: Collection[str]
) -> tuple[list[tuple[str, RankTimes]], Sequence[str]]:
    """The times, and the workers that did not answer."""
    silent: list[str] = []
    limit = asyncio.Semaphore(MOST_AT_ONCE)

    async def ask(worker: str) -> list[tuple[str, RankTimes]]:
        async with limit:
            try:
                async with asyncio.timeout(ANSWER_S):
                    return times_of(gang, generation, worker, await client.stats(worker))
            except (GanglineError, TimeoutError):
                silent.append(worker)
                return []

    found = await asyncio.gather(*map(ask, workers))
    return [each for some in found for each in some], sorted(silent)
