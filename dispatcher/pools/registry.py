"""The pools of a router: opened on first use, kept up to date, and closed when no longer used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from ...bus.port.bus import BucketSettings, Bus, ConnectionEvent, KeyValue
from ...runtime.failure_detector import FreezeDetector
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import ClosedError, GanglineError, QueueFull
from ...schemas.names import Names, check_name
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..routing.policy import Draw, Policy
from ..routing.settings import RouterSettings
from ..transport.exchange import RequestExchange
from .pool import RoutedPool, WorkerDiscovery

_log = logger_for("dispatcher")

_TICK_S = 0.5


class PoolRegistry:
    """Opens, watches and closes pools, and runs the periodic checks: silent workers, stale loads, late answers."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        pools: dict[str, RoutedPool],
        exchange: RequestExchange,
        settings: RouterSettings,
        bucket: BucketSettings,
        policy: Callable[[str], Policy],
        metrics: RouterMetrics,
        draw: Draw,
        numbers: Iterator[int],
        strays: Callable[[str, str], bool],
        on_close: Callable[[str], None],
        on_tick: Callable[[], None],
    ) -> None:
        """
        Args:
            pools: open pools; shared with the exchange, which reports answers to them.
            numbers, strays: see RoutedPool.
            on_close: called with the name of a closed pool.
            on_tick: called a few times a second while connected.
        """
        self._bus = bus
        self._names = names
        self._pools = pools
        self._exchange = exchange
        self._settings = settings
        self._bucket = bucket
        self._policy = policy
        self._metrics = metrics
        self._draw = draw
        self._numbers = numbers
        self._strays = strays
        self._on_close = on_close
        self._on_tick = on_tick
        self._opening: dict[str, RoutedPool] = {}
        self._room = settings.max_empty_pools
        """From this number of pools on, those without workers are counted."""
        self._leaving = TaskSet("pools that nobody uses")
        self._ledger: KeyValue | None = None
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._refused: GanglineError | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching the connection and the clock."""
        self._unlisten = self._bus.on_connection(self._on_connection)
        self._task = asyncio.get_running_loop().create_task(self._tick_on(), name="gangline-router-tick")

    def refuse(self, error: GanglineError) -> None:
        """Refuse requests that wait for a pool or a worker, and open no more pools."""
        self._refused = error
        if self._task is not None:
            self._task.cancel()
        for pool in [*self._pools.values(), *self._opening.values()]:
            pool.close(error)
            if pool.discovery is not None:
                pool.discovery.informer.close()

    async def stop(self) -> None:
        """Stop watching. Call it after `refuse`; idempotent, and safe before `start`."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        for pool in [*self._pools.values(), *self._opening.values()]:
            await _leave(pool)
        await self._leaving.rest()

    # -- pools ----------------------------------------------------------------------------------------------------

    async def get(self, name: str, deadline: float | None) -> RoutedPool:
        """The pool of that name, with its workers loaded.

        Args:
            deadline: loop time by which it must be loaded; at most `saturated_wait_s` from now.

        Raises:
            Disconnected, Unavailable: the ledger could not be read in time.
            QueueFull: very many callers wait for pools without workers.
            ClosedError: the router was stopped meanwhile.
        """
        pool = self._pools.get(name)
        if pool is not None:
            pool.used_at = self._exchange.loop.time()
            return pool
        pool = self._open(name)
        assert pool.discovery is not None
        await pool.discovery.informer.ready(deadline)
        return pool

    def open_soon(self, name: str) -> None:
        """Open a pool in the background, so that requests need not wait for it. No-op if it is open."""
        if name not in self._pools:
            self._open(name)

    async def ledger(self, *, make: bool = True) -> KeyValue:
        """The ledger's bucket; see Router.ledger."""
        if self._ledger is None:
            opened = await self._bus.bucket(self._names.ledger_bucket, self._bucket, make=make)
            if not make:
                return opened
            self._ledger = opened
        return self._ledger

    def _open(self, name: str) -> RoutedPool:
        pool = self._opening.get(name)
        if pool is not None:
            return pool
        if self._refused is not None:
            raise self._refused
        check_name(name, "pool")
        self._make_room()
        pool = RoutedPool(
            name,
            exchange=self._exchange,
            settings=self._settings,
            policy=self._policy(name),
            metrics=self._metrics,
            draw=self._draw,
            numbers=self._numbers,
            strays=self._strays,
        )
        settings = self._settings
        pool.discovery = WorkerDiscovery(
            self._bus,
            self.ledger,
            self._names,
            name,
            pool,
            resync_s=settings.reconcile_s,
            patience_s=settings.saturated_wait_s,
        )
        self._opening[name] = pool
        pool.discovery.informer.start().add_done_callback(lambda first: self._opened(pool, first))
        return pool

    def _opened(self, pool: RoutedPool, first: asyncio.Future[None]) -> None:
        error = first.exception()
        if isinstance(error, ClosedError):
            return
        del self._opening[pool.name]
        if error is None:
            self._pools[pool.name] = pool
        else:
            # Waiting callers, if any, get the error too.
            extra = {"action": "pool.open_failed", "pool": pool.name}
            _log.info("cannot open pool %s: %s", pool.name, error, extra=extra)

    def _make_room(self) -> None:
        """Close the older half of the pools without workers and requests, if there are very many without workers.

        Raises:
            QueueFull: all of these have requests.
        """
        if len(self._pools) + len(self._opening) < self._room:
            return
        empty = [pool for pool in self._pools.values() if not pool.core.view.workers]
        idle = sorted((pool for pool in empty if pool.unused), key=lambda pool: pool.used_at)
        closed = idle[: (len(idle) + 1) // 2]
        for pool in closed:
            self._close(pool.name, pool)
        self._metrics.forget({pool.name for pool in closed})
        self._room = len(self._pools) - (len(empty) - len(closed)) + self._settings.max_empty_pools
        if len(self._pools) + len(self._opening) >= self._room:
            raise QueueFull(f"callers wait for {self._room} pools, most of them without workers: try again later")

    def _close(self, name: str, pool: RoutedPool) -> None:
        """Close a pool that has no requests and no workers."""
        del self._pools[name]
        self._on_close(name)
        pool.close(ClosedError(f"pool {name!r} is no longer followed"))
        self._leaving.start(_leave(pool))

    # -- loops ----------------------------------------------------------------------------------------------------

    async def _tick_on(self) -> None:
        loop = self._exchange.loop
        freeze = FreezeDetector(2 * _TICK_S, loop.time())
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            was_frozen = freeze.tick(now)
            await _guarded(self._tick(now, freeze.gap_s, was_frozen))

    async def _tick(self, now: float, gap_s: float, was_frozen: bool) -> None:
        if was_frozen or not self._bus.connected:
            # Silence means nothing: this process was not running.
            for pool in self._pools.values():
                pool.core.view.forgive(gap_s)
            return
        left = set()
        for name, pool in list(self._pools.items()):
            pool.tick(now)
            if pool.idle(now):
                self._close(name, pool)
                left.add(name)
        if left:
            self._metrics.forget(left)
        self._exchange.check_due(now)
        self._on_tick()

    def _on_connection(self, event: ConnectionEvent) -> None:
        connected = event is ConnectionEvent.RECONNECTED
        for pool in self._pools.values():
            pool.connection(connected)


async def _leave(pool: RoutedPool) -> None:
    if pool.discovery is not None:
        await pool.discovery.informer.stop()


async def _guarded(step: Awaitable[None]) -> None:
    """A bug in one step must not end the loop for all pools."""
    try:
        await step
    except Exception:
        _log.exception("a step of the router failed", extra={"action": "router.bug"})
