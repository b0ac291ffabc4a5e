"""Watches over workers that run durable tasks: notices within a second or so that one is no more.

Each is asked something cheap twice a second. Nobody there (the server knows at once when a process died) several times
in a row, while we are well connected, means that the router looks it up in the ledger at once, rather than when it
misses its heartbeats. It is lost when its heartbeat has expired: servers that do not hear each other say of each
other's workers, too, that nobody is there.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ....bus.port.bus import Bus, NoResponders
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError
from ....schemas.messages.jobs import JobsRequest
from ....schemas.names import Names, Operation
from ....telemetry.logs import Log
from ...router.router import Router
from ...routing.worker_table import WorkerEntry
from ..freeze_guard import DoubtMonitor

_NOBODY: Final = JobsRequest(endpoint="-").model_dump_json().encode()
"""Of an endpoint that no task has: the shortest answer there is."""
_SETTLED_S: Final = 3.0
"""After a reconnection workers may be so much later than we are."""


class _Watched:
    __slots__ = ("absent_since", "count", "suspected", "worker")

    def __init__(self, worker: WorkerEntry) -> None:
        self.worker = worker
        self.count = 0
        self.absent_since: float | None = None
        self.suspected = False


class WorkerFailureDetector:
    """One of each dispatcher. `watch` and `unwatch` are paired, one pair for each flight."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        router: Router,
        guard: DoubtMonitor,
        ping_s: float,
        gone_after_s: float,
        log: Log,
    ) -> None:
        self._bus = bus
        self._names = names
        self._router = router
        self._guard = guard
        self._ping_s = ping_s
        self._gone_after_s = gone_after_s
        self._log = log
        self._watched: dict[WorkerEntry, _Watched] = {}
        self._pings = TaskSet("pings of workers")
        self.lost = 0

    def start(self) -> None:
        """Idempotent."""
        if not self._pings:
            self._pings.start(self._go_on())

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        await self._pings.stop()

    def watch(self, worker: WorkerEntry) -> None:
        """Something of ours runs there."""
        watched = self._watched.get(worker)
        if watched is None:
            watched = self._watched[worker] = _Watched(worker)
        watched.count += 1

    def unwatch(self, worker: WorkerEntry) -> None:
        """... and has ended."""
        watched = self._watched.get(worker)
        if watched is not None:
            watched.count -= 1
            if not watched.count:
                del self._watched[worker]
                self.lost += watched.suspected and not worker.known

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            if not self._bus.connected:
                continue
            for watched in list(self._watched.values()):
                self._pings.start(self._ping(watched))

    async def _ping(self, watched: _Watched) -> None:
        worker, loop = watched.worker, asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            await self._bus.request(
                self._names.worker(worker.id, Operation.JOBS, worker.channel),
                _NOBODY,
                timeout_s=max(1.0, 2 * self._ping_s),
            )
        except NoResponders:
            self._guard.look()
            if sent_at - self._guard.reconnected_at < _SETTLED_S:
                return
            if watched.absent_since is None:
                watched.absent_since = sent_at
            elif sent_at - watched.absent_since >= self._gone_after_s and self._watched.get(worker) is watched:
                self._suspect(watched)
        except GanglineError:
            pass
        else:
            watched.absent_since = None
            watched.suspected = False

    def _suspect(self, watched: _Watched) -> None:
        watched.suspected = True
        pool = self._router.pools.get(watched.worker.id.pool)
        if pool is not None:
            pool.suspect(watched.worker, f"nobody has listened there for {self._gone_after_s:g} s")

    def __repr__(self) -> str:
        return f"WorkerFailureDetector(watched={len(self._watched)}, lost={self.lost})"
