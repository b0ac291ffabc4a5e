"""Detects when a dispatcher's knowledge may be outdated: that it owns a queue, and that a worker is alive.

DoubtMonitor detects that this process was frozen, that the connection was lost, or that others were silent for a while.
Then each queue must ask the server whether it is still ours, before anything starts or is written. After a freeze
asyncio runs the sockets before the timers, so every event checks for the gap, not only a timer.

WorkerFailureDetector also detects that a worker has appeared, or come back after a freeze: it may still run what was
started elsewhere meanwhile, so it is asked what it runs.

It detects within about a second that a worker with durable tasks is gone. It sends each worker a
cheap request twice a second. After several NoResponders in a row while we are well connected (the server knows at once
when a process has died), the router looks the worker up in the ledger immediately, instead of after missed heartbeats.
The worker is lost when its heartbeat has expired: servers that are cut off from each other also report no responders
for each other's workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ....bus.port.bus import Bus, ConnectionEvent, NoResponders
from ....runtime.failure_detector import TICK_S, FreezeDetector
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError
from ....schemas.messages.jobs import JobsRequest
from ....schemas.names import Names, Operation
from ...router.router import Router
from ...routing.worker_table import WorkerEntry

_ONCE_IN_S: Final = 1.5
"""Minimum time between two doubts after silence. A dispatcher that was certain after the last doubt has been cut off
for less than this since, and nobody takes its queues that soon: see transport.exchange.GAP_S."""


class DoubtMonitor:
    """See the module's docstring. Used on one loop; `start` and `stop` are idempotent."""

    def __init__(self, bus: Bus, freeze_after_s: float) -> None:
        """`freeze_after_s`: a gap of this length without any activity is a freeze."""
        self._bus = bus
        self._loop: asyncio.AbstractEventLoop | None = None
        self._freeze = FreezeDetector(freeze_after_s, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._listeners: list[Callable[[float], None]] = []
        self.term = 0
        """Grows with every doubt: anything verified in an older term is uncertain."""
        self.freezes = 0
        self.unheard_s = 0.0
        """How long in all this process was frozen or disconnected, and heard nothing."""
        self._disconnected_at: float | None = None
        self._cut_off_at = float("-inf")
        self.connected_at = 0.0
        """Loop time of the last connection, as far as known."""
        self.reconnected_at = float("-inf")

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
        """Call `listener` at each doubt, with the length of a freeze in seconds, or 0. Returns a function that removes
        it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def cut_off(self) -> None:
        """Others were silent for a while. Perhaps we were cut off, or our server was frozen: then other dispatchers may
        have our queues."""
        if self._loop is not None and self._loop.time() - self._cut_off_at > _ONCE_IN_S:
            self._cut_off_at = self._loop.time()
            self._doubt(0.0)

    def look(self) -> int:
        """The current term. Call this first for everything that arrives from outside."""
        assert self._loop is not None, "started first"
        if self._freeze.tick(self._loop.time()):
            self.freezes += 1
            self.unheard_s += self._freeze.gap_s
            self._doubt(self._freeze.gap_s)
        return self.term

    def _tick(self) -> None:
        assert self._loop is not None
        self.look()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _on_connection(self, event: ConnectionEvent) -> None:
        assert self._loop is not None
        if event is ConnectionEvent.DISCONNECTED:
            self._disconnected_at = self._loop.time()
        if event is ConnectionEvent.RECONNECTED:
            self.look()
            if self._disconnected_at is not None:
                self.unheard_s += self._loop.time() - self._disconnected_at
                self._disconnected_at = None
            self.connected_at = self.reconnected_at = self._loop.time()
            self._doubt(0.0)

    def _doubt(self, gap_s: float) -> None:
        self.term += 1
        for listener in list(self._listeners):
            listener(gap_s)

    def __repr__(self) -> str:
        return f"DoubtMonitor(term={self.term}, freezes={self.freezes})"


_NOBODY: Final = JobsRequest(endpoint="-").model_dump_json().encode()
"""A request about an endpoint without tasks, which has the shortest answer."""
_SETTLED_S: Final = 3.0
"""After a reconnection, workers may come back this much later than we do."""


class _Watched:
    __slots__ = ("absent_since", "count", "suspected", "worker")

    def __init__(self, worker: WorkerEntry) -> None:
        self.worker = worker
        self.count = 0
        self.absent_since: float | None = None
        self.suspected = False


class WorkerFailureDetector:
    """Watches the workers of one dispatcher. `watch` and `unwatch` are paired, one pair per attempt."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        router: Router,
        guard: DoubtMonitor,
        ping_s: float,
        gone_after_s: float,
    ) -> None:
        self._bus = bus
        self._names = names
        self._router = router
        self._guard = guard
        self._ping_s = ping_s
        self._gone_after_s = gone_after_s
        self._watched: dict[WorkerEntry, _Watched] = {}
        self._asked: dict[WorkerEntry, int] = {}
        """The epoch in which each worker was asked what it runs."""
        self.on_returned: Callable[[WorkerEntry], Awaitable[bool]] | None = None
        """Called when a worker has appeared or has a new epoch; again later if it returns False."""
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
        """One of our attempts runs on this worker."""
        watched = self._watched.get(worker)
        if watched is None:
            watched = self._watched[worker] = _Watched(worker)
        watched.count += 1

    def unwatch(self, worker: WorkerEntry) -> None:
        """That attempt has ended."""
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
            if self.on_returned is not None:
                self._find_returned(self.on_returned)
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

    def _find_returned(self, on_returned: Callable[[WorkerEntry], Awaitable[bool]]) -> None:
        before, self._asked = self._asked, {}
        for pool in self._router.pools.values():
            for worker in pool.core.view.workers.values():
                self._asked[worker] = worker.confirmed
                if before.get(worker) != worker.confirmed:
                    self._pings.start(self._ask(worker, on_returned))

    async def _ask(self, worker: WorkerEntry, on_returned: Callable[[WorkerEntry], Awaitable[bool]]) -> None:
        if not await on_returned(worker):
            self._asked.pop(worker, None)

    def _suspect(self, watched: _Watched) -> None:
        watched.suspected = True
        pool = self._router.pools.get(watched.worker.id.pool)
        if pool is not None:
            pool.suspect(watched.worker, f"nobody has listened there for {self._gone_after_s:g} s")

    def __repr__(self) -> str:
        return f"WorkerFailureDetector(watched={len(self._watched)}, lost={self.lost})"
