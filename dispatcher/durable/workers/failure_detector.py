"""What may be out of date of what a dispatcher believes: that a queue is its own, and that a worker lives.

DoubtMonitor notices that we stood still, that the connection was lost, or that somebody was not heard of for a while.
Whoever has a queue must then ask the server whether it still has it, before anything is started or written. After a
freeze asyncio runs the sockets before the timers, so the gap is looked for on entry of every event, not by the timer
alone.

WorkerFailureDetector notices within a second or so that a worker that runs durable tasks is no more. Each is asked
something cheap twice a second. Nobody there (the server knows at once when a process died) several times in a row,
while we are well connected, means that the router looks it up in the ledger at once, rather than when it misses its
heartbeats. It is lost when its heartbeat has expired: servers that do not hear each other say of each other's workers,
too, that nobody is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....bus.port.bus import Bus, ConnectionEvent, NoResponders
from ....runtime.failure_detector import TICK_S, FreezeDetector
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError
from ....schemas.messages.jobs import JobsRequest
from ....schemas.names import Names, Operation
from ....telemetry.logs import Log
from ...router.router import Router
from ...routing.worker_table import WorkerEntry

_ONCE_IN_S: Final = 1.5
"""Silence makes us doubt so often at most. Who was sure after the last doubt and was cut off since then was so for less
than this, and nobody takes a queue from a dispatcher that soon: see transport.exchange.GAP_S."""


class DoubtMonitor:
    """Counts the times at which belief ended. Used on one loop; `start` and `stop` are idempotent."""

    def __init__(self, bus: Bus, freeze_after_s: float) -> None:
        """
        Args:
            freeze_after_s: a gap of so long in which nothing ran here is a freeze.
        """
        self._bus = bus
        self._loop: asyncio.AbstractEventLoop | None = None
        self._freeze = FreezeDetector(freeze_after_s, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._listeners: list[Callable[[float], None]] = []
        self.term = 0
        """Grows with every freeze and every reconnection: what was verified in an older term is doubtful."""
        self.freezes = 0
        self._cut_off_at = float("-inf")
        self.connected_at = 0.0
        """Since when we are connected, as far as we know, by the loop's clock."""
        self.reconnected_at = float("-inf")
        """When the connection was last regained."""

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._freeze.last_at = self.connected_at = self._loop.time()
            self._unlisten = self._bus.on_connection(self._on_connection)
            self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def on_doubt(self, listener: Callable[[float], None]) -> Callable[[], None]:
        """Call `listener` whenever a new term begins, with the seconds that we stood still (0: a reconnection).
        Returns a function that stops that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def cut_off(self) -> None:
        """Somebody was not heard of for a while. It may have been we who were cut off, or our server that stood still:
        then our queues may be others' by now."""
        if self._loop is not None and self._loop.time() - self._cut_off_at > _ONCE_IN_S:
            self._cut_off_at = self._loop.time()
            self._doubt(0.0)

    def look(self) -> int:
        """On entry of everything that comes from outside: the term as of now."""
        assert self._loop is not None, "started first"
        if self._freeze.tick(self._loop.time()):
            self.freezes += 1
            self._doubt(self._freeze.gap_s)
        return self.term

    def _tick(self) -> None:
        assert self._loop is not None
        self.look()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self.look()
            assert self._loop is not None
            self.connected_at = self.reconnected_at = self._loop.time()
            self._doubt(0.0)

    def _doubt(self, gap_s: float) -> None:
        self.term += 1
        for listener in list(self._listeners):
            listener(gap_s)

    def __repr__(self) -> str:
        return f"DoubtMonitor(term={self.term}, freezes={self.freezes})"


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
