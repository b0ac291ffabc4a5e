"""Schedules that tasks declare with `cron=`: stored, changed and removed as the registrations of their workers say.

Laws:

1. A pool's declarations are those of its newest registration (by `started_at`), so that a roll-out has one answer while
   both versions serve. A pool without registrations keeps its schedules: its workers may be back soon.
2. Only the dispatcher that has the queue of the pool's name writes: after it has taken the queue, at each change of the
   declarations, and whenever what is stored is not what is declared, because the server lost it or somebody removed it.
   Every write says the same, so that writing it twice does no harm.
3. Nobody else's schedule is touched: the id of a declared schedule is derived from the task's name. One that an
   operator has paused stays paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ....bus.port.bus import KvEntry, PublishRefused, Stream
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, InvalidSchedule
from ....schemas.records.workers import Registration
from ....schemas.schedules import check_schedule
from ....schemas.wire import headers
from ...jobs.schedules import put_schedule
from ...jobs.stored import DUE_KEPT, recurring
from ...jobs.submitter import job_of_declared
from ..workers.context import DispatcherContext

Cron = tuple[str, str]
"""The schedule and its time zone; empty: UTC."""
_COMPARE_S: Final = 2.0
"""How often what is stored is compared with what is declared."""
_COMPARED_PER_S: Final = 50
"""Stored schedules of one pool that are read per second, at most, on average."""
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class _Declared:
    """What one worker declares."""

    revision: int
    started_at: float
    crons: Mapping[str, Cron]
    """By method."""


@dataclass(slots=True)
class _Stored:
    """What was stored for one pool."""

    owned: object
    """Our ownership of its queue: each taking is another one."""
    crons: Mapping[str, Cron]
    compare_at: float
    """When it is to be compared with what is declared, on the loop's clock."""


class DeclaredSchedules:
    """Follows the registrations for one dispatcher."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._names = context.names
        self._log = context.log
        self._known: dict[str, _Declared] = {}
        """By key of the registration."""
        self._written: dict[str, _Stored] = {}
        """By pool: what was last written."""
        self._failures: dict[str, str] = {}
        """Why the schedules of a pool, or one of a task, could not be stored: each reason is logged once."""
        self._work = TaskSet("declared schedules", context.log)
        self._busy: set[str] = set()
        """Pools whose schedules are being written."""

    async def stop(self) -> None:
        """Idempotent."""
        await self._work.stop()

    def seen(self, registrations: Iterable[KvEntry], owned: Mapping[str, object]) -> None:
        """All registrations now; `owned`: the queues that this dispatcher has, by endpoint. Each taking is another
        object."""
        before, self._known = self._known, {}
        newest: dict[str, _Declared] = {}
        for entry in registrations:
            try:
                pool = self._names.parse_worker_key(entry.key).pool
            except InvalidName:
                continue
            if pool not in owned:
                continue
            known = before.get(entry.key)
            if known is None or known.revision != entry.revision:
                known = _read(entry)
            self._known[entry.key] = known
            if pool not in newest or known.started_at > newest[pool].started_at:
                newest[pool] = known
        for pool in self._written.keys() - owned.keys():
            del self._written[pool]
        now = asyncio.get_running_loop().time()
        for pool, declared in newest.items():
            written = self._written.get(pool)
            changed = written is None or written.owned is not owned[pool] or written.crons != declared.crons
            due = written is not None and bool(written.crons) and written.compare_at <= now
            if (changed or due) and pool not in self._busy:
                self._busy.add(pool)
                self._work.start(self._write(pool, owned[pool], declared.crons, changed=changed))

    async def _write(self, pool: str, owned: object, crons: Mapping[str, Cron], *, changed: bool) -> None:
        try:
            await self._store(pool, crons, changed=changed)
        except GanglineError as error:  # it is tried again at the next search
            if self._is_new(pool, error.message):
                self._log.warning(
                    "cannot store the schedules that tasks of pool %s declare: %s; trying again",
                    pool,
                    error,
                    extra={"action": "schedules.failed", "pool": pool},
                )
        else:
            self._failures.pop(pool, None)
            pause_s = max(_COMPARE_S, len(crons) / _COMPARED_PER_S)
            self._written[pool] = _Stored(owned, crons, asyncio.get_running_loop().time() + pause_s)
        finally:
            self._busy.discard(pool)

    async def _store(self, pool: str, crons: Mapping[str, Cron], *, changed: bool) -> None:
        """Store what is not stored as declared; if the declarations have changed, or may have while another dispatcher
        had the queue, remove those that are no longer declared."""
        stream = await self._context.streams.schedules()
        subjects = [self._names.schedule(job_of_declared(pool, method)) for method in crons]
        if changed:
            prefix = self._names.schedule(f"{pool}.x")[:-1]
            subjects = sorted({*subjects, *(await stream.state(f"{prefix}>")).subjects})
        stored = await self._stored(stream, pool, subjects)
        for method, (cron, zone) in crons.items():
            target, facts = f"{pool}.{method}", {"pool": pool, "method": method}
            try:
                cron = check_schedule(cron, zone)
                if stored.get(method) == (cron, zone):
                    continue
                await self._put(stream, pool, method, cron, zone)
            except (InvalidSchedule, PublishRefused) as error:
                if self._is_new(target, error.message):
                    self._log.error(
                        "%s declares a schedule that cannot be stored: %s",
                        target,
                        error.message,
                        extra={"action": "schedules.refused", **facts},
                    )
                continue
            refused = self._failures.pop(target, None) is not None
            pattern = f"{cron} {zone}".strip()
            if changed or refused:
                extra = {"action": "schedules.declared", **facts}
                self._log.info("%s declares the schedule %s", target, pattern, extra=extra)
            else:
                self._log.warning(
                    "the schedule %s, which %s declares, was not stored any more: stored it again. Runs that were due "
                    "meanwhile did not happen",
                    pattern,
                    target,
                    extra={"action": "schedules.restored", **facts},
                )
        for method in sorted(stored.keys() - crons.keys()):
            await stream.purge(self._names.schedule(job_of_declared(pool, method)))
            self._log.info(
                "%s.%s no longer declares a schedule: removed it",
                pool,
                method,
                extra={"action": "schedules.removed", "pool": pool, "method": method},
            )

    async def _stored(self, stream: Stream, pool: str, subjects: Sequence[str]) -> dict[str, Cron]:
        """Declared schedules of the pool, paused or not, by method."""
        found: dict[str, Cron] = {}
        wall = self._context.ambient.wall()
        for start in range(0, len(subjects), _AT_ONCE):
            for message in await asyncio.gather(*map(stream.last, subjects[start : start + _AT_ONCE])):
                schedule = None if message is None else recurring(self._names, message, wall=wall)
                if schedule is not None and schedule.endpoint == pool and schedule.in_code:
                    found[schedule.method] = (schedule.cron, schedule.time_zone)
        return found

    def _is_new(self, what: str, reason: str) -> bool:
        """Whether it did not fail for this reason the last time."""
        known, self._failures[what] = self._failures.get(what), reason
        return known != reason

    async def _put(self, stream: Stream, pool: str, method: str, cron: str, zone: str) -> None:
        job = job_of_declared(pool, method)
        fields = {
            headers.SCHEDULE: cron,
            headers.SCHEDULE_TARGET: self._names.due_of(self._names.task(pool, method)),
            headers.SCHEDULE_TTL: DUE_KEPT,
            headers.SCHEDULE_JOB: job,
            headers.SCHEDULE_NAME: method,
        }
        if zone:
            fields[headers.SCHEDULE_TIME_ZONE] = zone
        await put_schedule(stream, self._names, self._names.schedule(job), b"", fields)

    def __repr__(self) -> str:
        return f"DeclaredSchedules({sorted(self._written)})"


def _read(entry: KvEntry) -> _Declared:
    try:
        record = Registration.read(entry.value)
    except ValueError:
        return _Declared(entry.revision, 0.0, {})
    crons = {
        name: (info.policy.cron, info.policy.time_zone or "")
        for name, info in sorted(record.methods.items())
        if info.policy is not None and info.policy.cron
    }
    return _Declared(entry.revision, record.started_at, crons)
