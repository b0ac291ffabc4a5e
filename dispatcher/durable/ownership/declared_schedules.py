"""Schedules that tasks declare with `cron=`: stored, changed and removed as the registrations of their workers say.

Laws:

1. A pool's declarations are those of its newest registration (by `started_at`), so that a roll-out has one answer while
   both versions serve. A pool without registrations keeps its schedules: its workers may be back soon.
2. Only the dispatcher that has the queue of the pool's name writes, once for each change of the declarations, and once
   after it has taken the queue. Every write says the same, so that writing it twice does no harm.
3. Nobody else's schedule is touched: the id of a declared schedule is derived from the task's name. One that an
   operator has paused stays paused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Declared:
    """What one worker declares."""

    revision: int
    started_at: float
    crons: Mapping[str, Cron]
    """By method."""


class DeclaredSchedules:
    """Follows the registrations for one dispatcher."""

    def __init__(self, context: DispatcherContext) -> None:
        self._context = context
        self._names = context.names
        self._log = context.log
        self._known: dict[str, _Declared] = {}
        """By key of the registration."""
        self._written: dict[str, Mapping[str, Cron]] = {}
        """By pool: what was last written, since its queue is ours."""
        self._work = TaskSet("declared schedules", context.log)
        self._busy: set[str] = set()
        """Pools whose schedules are being written."""

    async def stop(self) -> None:
        """Idempotent."""
        await self._work.stop()

    def seen(self, registrations: Iterable[KvEntry], owned: Collection[str]) -> None:
        """All registrations now; `owned`: endpoints whose queues this dispatcher has."""
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
        for pool in self._written.keys() - set(owned):
            del self._written[pool]
        for pool, declared in newest.items():
            if self._written.get(pool) != declared.crons and pool not in self._busy:
                self._busy.add(pool)
                self._work.start(self._write(pool, declared.crons))

    async def _write(self, pool: str, crons: Mapping[str, Cron]) -> None:
        try:
            await self._store(pool, crons)
            self._written[pool] = crons
        except GanglineError as error:  # it is tried again at the next search
            self._log.warning(
                "cannot store the schedules that tasks of pool %s declare: %s",
                pool,
                error,
                extra={"action": "schedules.failed", "pool": pool},
            )
        finally:
            self._busy.discard(pool)

    async def _store(self, pool: str, crons: Mapping[str, Cron]) -> None:
        stream = await self._context.streams.schedules()
        stored = await self._stored(stream, pool)
        for method, (cron, zone) in crons.items():
            facts = {"pool": pool, "method": method}
            try:
                cron = check_schedule(cron, zone)
                if stored.get(method) == (cron, zone):
                    continue
                await self._put(stream, pool, method, cron, zone)
            except (InvalidSchedule, PublishRefused) as error:
                self._log.error(
                    "%s.%s declares a schedule that cannot be stored: %s",
                    pool,
                    method,
                    error.message,
                    extra={"action": "schedules.refused", **facts},
                )
            else:
                self._log.info(
                    "%s.%s declares the schedule %s",
                    pool,
                    method,
                    f"{cron} {zone}".strip(),
                    extra={"action": "schedules.declared", **facts},
                )
        for method in sorted(stored.keys() - crons.keys()):
            await stream.purge(self._names.schedule(job_of_declared(pool, method)))
            self._log.info(
                "%s.%s no longer declares a schedule: removed it",
                pool,
                method,
                extra={"action": "schedules.removed", "pool": pool, "method": method},
            )

    async def _stored(self, stream: Stream, pool: str) -> dict[str, Cron]:
        """Declared schedules of the pool, paused or not, by method."""
        found: dict[str, Cron] = {}
        prefix = self._names.schedule(f"{pool}.x")[:-1]
        for subject in (await stream.state(f"{prefix}>")).subjects:
            message = await stream.last(subject)
            schedule = None if message is None else recurring(self._names, message, wall=self._context.ambient.wall())
            if schedule is not None and schedule.endpoint == pool and schedule.in_code:
                found[schedule.method] = (schedule.cron, schedule.time_zone)
        return found

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
