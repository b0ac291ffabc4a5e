"""The pools of a router: opened when first asked for, kept up to date, and left when nobody needs them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

from ...bus.port.bus import BucketSettings, Bus, ConnectionEvent, KeyValue, NotPermitted
from ...runtime.freeze import FreezeDetector
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, ServerUnsupported, Unavailable
from ...schemas.names import Names, check_name
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..routing.candidates import Draw
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from ..transport.exchange import Exchange
from .discovery import Discovery
from .pool import RoutedPool

_log = logger_for("dispatcher")

_TICK_S = 0.5
_OPEN_AGAIN_S = 1.0
"""Longest pause between two tries to read who serves a pool."""


class Pools:
    """Opens, follows and closes pools. Two loops: one for time (silence, stale loads, late answers), one for pulls."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        pools: dict[str, RoutedPool],
        exchange: Exchange,
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
            pools: where open pools stand; shared with the exchange, which tells them of answers.
            numbers, strays: see RoutedPool.
            on_close: called with the name of a pool that is no longer followed.
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
        self._opening: dict[str, asyncio.Task[RoutedPool]] = {}
        self._ledger: KeyValue | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reconcile_now = asyncio.Event()
        self._unlisten: Callable[[], None] | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the connection and the time."""
        loop = asyncio.get_running_loop()
        self._unlisten = self._bus.on_connection(self._on_connection)
        self._tasks = [
            loop.create_task(self._tick_on(), name="gangline-router-tick"),
            loop.create_task(self._reconcile_on(), name="gangline-router-reconcile"),
        ]

    def refuse(self, error: GanglineError) -> None:
        """Tell whoever waits for a pool or for a worker, and open nothing more."""
        for task in [*self._tasks, *self._opening.values()]:
            task.cancel()
        for pool in self._pools.values():
            pool.close(error)

    async def stop(self) -> None:
        """Follow nothing any more. After `refuse`; idempotent, and safe before `start`."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        await asyncio.gather(*self._tasks, *self._opening.values(), return_exceptions=True)
        for pool in self._pools.values():
            await _leave(pool)

    # -- pools ----------------------------------------------------------------------------------------------------

    async def get(self, name: str, deadline: float | None) -> RoutedPool:
        """The pool of that name, its workers pulled.

        Args:
            deadline: loop time by which it must be there; at most `saturated_wait_s` from now.

        Raises:
            Disconnected, Unavailable: the ledger could not be read in time.
            ClosedError: the router was stopped meanwhile.
        """
        loop = self._exchange.loop
        pool = self._pools.get(name)
        if pool is not None:
            pool.used_at = loop.time()
            return pool
        task = self._opening_of(name)
        limit = loop.time() + self._settings.saturated_wait_s
        try:
            async with asyncio.timeout_at(limit if deadline is None else min(limit, deadline)):
                return await asyncio.shield(task)
        except TimeoutError as error:
            if not self._bus.connected:
                raise Disconnected("no connection to the server; nothing was sent") from error
            raise Unavailable(f"who serves pool {name!r} could not be read in time; nothing was sent") from error
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClosedError("this router was stopped") from None
            raise

    def open_soon(self, name: str) -> None:
        """Open a pool in the background, so that nobody has to wait for that. No-op for one that is open."""
        if name not in self._pools:
            self._opening_of(name)

    def _opening_of(self, name: str) -> asyncio.Task[RoutedPool]:
        task = self._opening.get(name)
        if task is None:
            check_name(name, "pool")
            task = self._exchange.loop.create_task(self._open(name), name=f"gangline-open-{name}")
            self._opening[name] = task
            task.add_done_callback(lambda done: self._opened(name, done))
        return task

    def _opened(self, name: str, task: asyncio.Task[RoutedPool]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waits for it has the error, too; nobody may.
            _log.info("cannot open pool %s: %s", name, error, extra={"action": "pool.open_failed", "pool": name})

    async def ledger(self) -> KeyValue:
        """The ledger's bucket."""
        if self._ledger is None:
            self._ledger = await self._bus.bucket(self._names.ledger_bucket, self._bucket)
        return self._ledger

    async def _open(self, name: str) -> RoutedPool:
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
        delay_s = 0.05
        try:
            while True:
                try:
                    if pool.discovery is None:
                        discovery = Discovery(name, await self.ledger(), self._names, pool)
                        await discovery.start()
                        pool.discovery = discovery
                    await pool.discovery.pull()
                    break
                except (ServerUnsupported, NotPermitted):
                    raise
                except Unavailable as error:
                    self._pull_failed(name, error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(_OPEN_AGAIN_S, 2 * delay_s)
        except BaseException:
            await _leave(pool)
            raise
        self._pools[name] = pool
        return pool

    async def _close(self, name: str, pool: RoutedPool) -> None:
        """Nobody asks for it and nobody serves it."""
        del self._pools[name]
        self._on_close(name)
        pool.close(ClosedError(f"pool {name!r} is no longer followed"))
        await _leave(pool)

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
            # We heard nobody because we were not listening.
            for pool in self._pools.values():
                pool.core.view.forgive(gap_s)
            return
        left = set()
        for name, pool in list(self._pools.items()):
            pool.tick(now)
            if pool.idle(now):
                await self._close(name, pool)
                left.add(name)
        if left:
            self._metrics.forget(left)
        self._exchange.check_due(now)
        self._on_tick()

    async def _reconcile_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.reconcile_s):
                    await self._reconcile_now.wait()
            self._reconcile_now.clear()
            for pool in list(self._pools.values()):
                await _guarded(self._pull(pool))

    async def _pull(self, pool: RoutedPool) -> None:
        try:
            if pool.discovery is not None:
                await pool.discovery.pull()
        except Unavailable as error:
            self._pull_failed(pool.name, error)  # a query that fails removes nothing

    def _pull_failed(self, pool: str, error: Unavailable) -> None:
        # That the connection is lost was said already, once; storage that does not answer is news.
        known = isinstance(error, Disconnected) or not self._bus.connected
        _log.log(
            logging.DEBUG if known else logging.WARNING,
            "cannot read who serves %s: %s",
            pool,
            error,
            extra={"action": "pool.pull_failed", "pool": pool},
        )

    def _on_connection(self, event: ConnectionEvent) -> None:
        connected = event is ConnectionEvent.RECONNECTED
        for pool in self._pools.values():
            pool.connection(connected)
        if connected:
            self._reconcile_now.set()


async def _leave(pool: RoutedPool) -> None:
    if pool.discovery is not None:
        with contextlib.suppress(GanglineError):
            await pool.discovery.stop()


async def _guarded(step: Awaitable[None]) -> None:
    """A bug in one step must not end the loop for all pools."""
    try:
        await step
    except Exception:
        _log.exception("a step of the router failed", extra={"action": "router.bug"})
