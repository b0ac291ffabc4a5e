"""Keeps a worker's shares of the limits that hold over all workers of its pool: does what the share cores decide.

A pool without such limits costs nothing: nothing is subscribed to and nothing runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from ...bus.key_value.records import read_record
from ...bus.port.bus import Conflict, KeyValue, KvEntry, KvOperation, KvWrite, NotPermitted
from ...bus.port.subjects import Subscription
from ...runtime.clock import Environment
from ...runtime.tasks import TaskSet, set_within
from ...runtime.timers import IdLease
from ...schemas.errors.base import ClosedError, GanglineError, Unavailable
from ...schemas.messages.operations import LimitShare
from ...schemas.names import Names, WorkerId
from ...schemas.records.workers import LimitRecord
from ...telemetry.logs import Log
from ..slots.method_limits import DividedLimit, MethodLimit
from ..slots.share_core import ShareCore
from .registrar import owner_of

_RETRY_S: Final = 0.25
"""Pause after storage did not answer."""
_NOT_PERMITTED_S: Final = 5.0
"""Pause after the server did not permit it."""
_STORED_S: Final = 0.05
"""Pause before the record is read again if a write that was seen was not stored yet."""
_REREADS: Final = 4
"""How often, at most: storage may have refused it."""
START_S: Final = 2.0
"""How long a starting worker waits for its first shares; afterwards it serves without."""


@dataclass(slots=True)
class _Kept:
    """One limit."""

    method: str
    key: str
    limit: MethodLimit
    part: DividedLimit
    core: ShareCore
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it first has nothing more to do."""
    hinted: int = 0
    """How often to read again until a write that was seen has been stored."""


class LimitShares:
    """The shares of one worker."""

    def __init__(
        self,
        kv: KeyValue,
        names: Names,
        worker: WorkerId,
        limits: Mapping[str, MethodLimit],
        id_lease: IdLease,
        *,
        instance: str,
        ambient: Environment,
        invite: Callable[[list[str]], None],
        log: Log,
    ) -> None:
        """
        Args:
            limits: those of the core, by method.
            id_lease: until when the worker's id is its own; call `confirmed` when it was extended.
            instance: of the worker's registration.
            invite: called with the reply subjects of routers that may try again.
        """
        self._kv = kv
        self._names = names
        self._worker = worker
        self._ambient = ambient
        self._invite = invite
        self._log = log
        self._tasks = TaskSet("limit shares", log)
        self._subscription: Subscription | None = None
        self._id_lease = id_lease
        self._kept: dict[str, _Kept] = {}
        declared_at = ambient.wall()
        for method, limit in limits.items():
            for part in limit.divided:
                core = ShareCore(
                    worker.worker,
                    instance,
                    id_lease,
                    limit=part.units,
                    declared_at=declared_at,
                    interval_s=part.interval_s,
                )
                key = (names.rate_key if part.interval_s else names.limit_key)(worker.pool, method)
                kept = self._kept[key] = _Kept(method, key, limit, part, core)
                part.share, part.changed = core, kept.wake.set

    def __repr__(self) -> str:
        return f"LimitShares({', '.join(f'{kept.method}: {kept.core!r}' for kept in self._kept.values())})"

    async def start(self) -> None:
        """Take the first shares, or give up waiting for them after START_S. The id must have been claimed."""
        try:
            self._subscription = await self._kv.observe(self._names.limits_of(self._worker.pool), self._on_write)
        except GanglineError as error:  # the shares are read from time to time anyway
            self._log.debug("cannot follow the limits: %s", error, extra={"action": "limit.observe"})
        for kept in self._kept.values():
            self._tasks.start(self._maintain(kept))
        try:
            async with asyncio.timeout(START_S):
                for kept in list(self._kept.values()):
                    await kept.decided.wait()
        except TimeoutError:
            self._log.info("no share of the limits yet", extra={"action": "limit.late"})

    def confirmed(self) -> None:
        """The ledger has confirmed the worker's id: shares may have to be confirmed, too."""
        for kept in self._kept.values():
            if kept.core.unconfirmed:
                kept.wake.set()

    def drain(self) -> None:
        """Take nothing more, and give up what is not used."""
        for kept in self._kept.values():
            kept.core.leaving = True
            kept.wake.set()

    async def leave(self) -> None:
        """Give everything up that nothing runs on, and stop. What is left ends with the heartbeat."""
        await self.stop()
        now = asyncio.get_running_loop().time()
        for kept in self._kept.values():
            record = None if kept.limit.running else kept.core.leave(kept.part.in_use(now))
            if record is not None:
                try:
                    await self._write(kept, record)
                except (Unavailable, ClosedError) as error:
                    self._log.debug("share left to expire: %s", error, extra={"action": "limit.left"})

    async def stop(self) -> None:
        """Idempotent."""
        await self._tasks.stop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    def statistics(self, now: float) -> list[LimitShare]:
        """For operators."""
        return [
            LimitShare(
                method=kept.method,
                limit=kept.core.limit,
                share=kept.core.usable(now),
                running=kept.part.in_use(now),
                per_s=kept.core.limit / kept.core.interval_s if kept.core.interval_s else None,
                waiting=kept.core.waiting,
                by_worker={}
                if (record := kept.core.record) is None
                else {name: each.units for name, each in record.shares.items()},
            )
            for kept in self._kept.values()
        ]

    # -- one limit ----------------------------------------------------------------------------------------------------

    async def _maintain(self, kept: _Kept) -> None:
        loop = asyncio.get_running_loop()
        while True:
            kept.wake.clear()
            now = loop.time()
            try:
                again = await self._round(kept, now)
                if kept.part.share is None and kept.core.record is not None:
                    kept.part.share = kept.core  # it is permitted after all
                if again:
                    continue
                next_at = self._next_at(kept, loop.time())
                if kept.hinted:
                    next_at = min(loop.time() + _STORED_S, math.inf if next_at is None else next_at)
            except NotPermitted as error:
                if kept.core.record is None:
                    self._fall_back(kept, error)
                next_at = loop.time() + _NOT_PERMITTED_S
            except (Unavailable, ClosedError) as error:
                self._log.debug("limit not written: %s", error, extra={"action": "limit.retry"})
                next_at = loop.time() + _RETRY_S
            if next_at is None:
                kept.decided.set()
                await kept.wake.wait()
            elif not kept.wake.is_set():
                kept.decided.set()
                in_time = await set_within(kept.wake, max(0.0, next_at - loop.time()))
                if not in_time and (kept.hinted or kept.core.polls(loop.time())):
                    kept.core.stale = True

    async def _round(self, kept: _Kept, now: float) -> bool:
        """Read if needed, and write if needed. Whether to look again at once."""
        core, loop = kept.core, asyncio.get_running_loop()
        if not self._id_lease.holds(now):
            return False
        if core.stale:
            entry = await self._kv.get(kept.key)
            record = None if entry is None else self._parse(entry)
            before = core.revision
            self._gained(kept, core.seen(record, 0 if entry is None else entry.revision, loop.time()), loop.time())
            kept.hinted = 0 if core.revision != before else max(0, kept.hinted - 1)
        others = core.others(loop.time())
        if others:
            revision = core.revision
            gone = [each for each in others if not await self._lives(*each)]
            core.found_dead(revision, gone)
        now = loop.time()
        planned = core.plan(kept.part.in_use(now), now, pressed=kept.limit.pressed, fresh=self._ambient.token())
        if planned is None:
            return False
        await self._write(kept, planned)
        return True

    async def _write(self, kept: _Kept, record: LimitRecord) -> None:
        core = kept.core
        body = record.model_dump_json().encode()
        write = KvWrite(key=kept.key, value=body, revision=core.revision, resumes=False)
        try:
            (result,) = await self._kv.write((write,))
        except BaseException:
            core.unknown()
            raise
        if isinstance(result, int):
            now = asyncio.get_running_loop().time()
            self._gained(kept, core.written(result, now), now)
        elif isinstance(result, Conflict):
            core.conflict()
        else:
            core.unknown()
            raise result

    async def _lives(self, worker: str, instance: str) -> bool:
        entry = await self._kv.get(self._names.alive_key(WorkerId(self._worker.pool, worker)))
        return entry is not None and owner_of(entry) in (instance, "")

    def _gained(self, kept: _Kept, units: int, now: float) -> None:
        spent = kept.core.spent()
        kept.part.use(spent, now)
        if units > spent:
            self._invite(kept.limit.invited(units - spent))

    def _next_at(self, kept: _Kept, now: float) -> float | None:
        """When to decide again. Routers that wait for a rate are invited then."""
        idle_at = kept.part.idle_at()
        next_at = kept.core.next_at(now, idle_at)
        if kept.core.interval_s and kept.limit.pressed:
            self._invite(kept.limit.invited(max(0, kept.part.room(now))))
            if kept.limit.pressed and idle_at is not None:
                return min(idle_at, math.inf if next_at is None else next_at)
        return next_at

    def _parse(self, entry: KvEntry) -> LimitRecord | None:
        try:
            return LimitRecord.read(entry.value)
        except ValidationError as error:
            told = {"action": "limit.unreadable", "key": entry.key}
            self._log.warning("%s cannot be read and is written again: %s", entry.key, error, extra=told)
            return None

    def _on_write(self, entry: KvEntry) -> None:
        """Another worker, or this one, writes a record; storage may still refuse it."""
        kept = self._kept.get(entry.key)
        if kept is None:
            return
        if entry.operation is not KvOperation.DELETE:
            hint = read_record(LimitRecord, entry)
            if hint is None:
                return
            now = asyncio.get_running_loop().time()
            if hint == kept.core.record or not kept.core.concerns(hint, kept.part.in_use(now), now):
                return
        kept.hinted = _REREADS
        kept.core.stale = True
        kept.wake.set()

    def _fall_back(self, kept: _Kept, error: GanglineError) -> None:
        """The server's permissions are those of an earlier version, or are changed at the moment."""
        if kept.part.share is None:
            return
        if not any(each.part.share is None for each in self._kept.values()):
            self._log.warning(
                "limits hold on this worker alone, not over all workers of the pool, because the server "
                "does not permit it to use `limit.%s.*` of the ledger: generate the permissions again (%s)",
                self._worker.pool, error, extra={"action": "limit.not_permitted"},
            )  # fmt: skip
        kept.part.share = None
        self._invite(kept.limit.invited(kept.core.limit))
        kept.decided.set()
