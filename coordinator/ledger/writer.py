"""Writes to the ledger, as the core orders them: one batch at a time, each conditioned on our leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ...bus.port.bus import Conflict, KeyValue, KvWrite
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord
from ...telemetry.logs import Log
from ..election.leader_record import LeaderKey, LeaderLost, LedgerLost
from ..model import effects as do
from ..model import events as on
from .reader import parse

_RETRY_S: Final = 0.1


class GangLedgerWriter:
    """Carries out Commit and Refence."""

    def __init__(
        self,
        kv: KeyValue,
        leader: LeaderKey,
        clock: EventClock,
        tasks: TaskSet,
        *,
        feed: Callable[[on.Happening], None],
        deposed: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            deposed: told when a write shows that somebody else leads.
        """
        self._kv = kv
        self._leader = leader
        self._clock = clock
        self._tasks = tasks
        self._feed = feed
        self._deposed = deposed
        self._log = log

    def commit(self, effect: do.Commit) -> None:
        self._tasks.start(self._commit(effect))

    def refence(self, effect: do.WriteFence) -> None:
        self._tasks.start(self._refence(effect))

    async def _commit(self, effect: do.Commit) -> None:
        ids = {"gang": effect.gang, "what": effect.what}
        try:
            revision = await self._kv.commit([_write(write) for write in effect.writes])
        except Conflict as error:
            extra = {"action": "gang.commit_refused", **ids}
            self._log.info("a commit was refused: %s", error, extra=extra)
            self._feed(on.CommitRefused(**self._clock.moment(), number=effect.number))
        except GanglineError as error:
            extra = {"action": "gang.commit_unknown", **ids}
            self._log.warning("a commit was not answered: %s", error, extra=extra)
            self._feed(on.CommitUnknown(**self._clock.moment(), number=effect.number))
        else:
            self._feed(on.Committed(**self._clock.moment(), number=effect.number, revision=revision))

    async def _refence(self, effect: do.WriteFence) -> None:
        """Until it succeeds, or the term ends."""
        while True:
            try:
                fence = await self._rewritten()
                record, revision = await self._read(effect.gang)
            except LeaderLost:
                self._deposed()
                return
            except GanglineError as error:
                self._log.info("the fence was not renewed: %s", error, extra={"action": "leader.refence_failed"})
                await asyncio.sleep(_RETRY_S)
            else:
                self._feed(
                    on.Refenced(
                        **self._clock.moment(), number=effect.number, fence=fence, record=record, revision=revision
                    )
                )
                return

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
