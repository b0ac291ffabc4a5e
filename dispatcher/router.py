"""The router: finds workers, sends them tasks, and holds their slots. One per connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

from ..bus.ambient import Ambient
from ..bus.port import BucketSettings, Bus, ConnectionEvent, KeyValue
from ..schemas.deadline import current_deadline
from ..schemas.errors import ClosedError, Disconnected, GanglineError, InvalidSettings, ServerUnsupported, Unavailable
from ..schemas.frames import ReserveFlag
from ..schemas.limits import MAX_SLOTS, MAX_TTL_S, MIN_TTL_S
from ..schemas.names import Names, check_name, split_target
from ..telemetry.logs import logger_for
from ..telemetry.metrics import RouterMetrics
from ..telemetry.tracing import NO_SPAN, Span, tracer
from .caller import Caller
from .core import Ticket
from .discovery import Discovery
from .exchange import Exchange
from .hold import Hold, Reserver
from .leases import Lease, Leasing
from .order import CallOptions, Order
from .policy import Policy, Sticky
from .pool import RoutedPool
from .selection import Choosing, Dispatcher, Selection
from .settings import RouterSettings
from .stream import Streamer

_log = logger_for("dispatcher")

_TICK_S = 0.5
_DEFAULTS = CallOptions()


class Router:
    """Routes tasks to the workers of all pools."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        settings: RouterSettings | None = None,
        ambient: Ambient | None = None,
        bucket: BucketSettings | None = None,
        policy: Callable[[str], Policy] | None = None,
        metrics: RouterMetrics | None = None,
        name: str = "",
    ) -> None:
        """
        Args:
            bus: a connection; it stays the caller's to close.
            bucket: how the ledger's bucket is made if it does not exist yet.
            policy: makes the policy of a pool from its name; by default Sticky.
            name: shown in the ledger as the owner of leases.
        """
        self.bus = bus
        self.names = names
        self.settings = settings or RouterSettings()
        self.metrics = metrics or RouterMetrics()
        self._ambient = ambient or Ambient()
        self._bucket = bucket or BucketSettings()
        self._policy = policy or (lambda _pool: Sticky())
        # A generator of its own: the system's is a system call for every draw.
        self._draw = random.Random(self._ambient.random.getrandbits(64)).random
        self._pools: dict[str, RoutedPool] = {}
        self._opening: dict[str, asyncio.Task[RoutedPool]] = {}
        self._ledger: KeyValue | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reconcile_now = asyncio.Event()
        self._unlisten: Callable[[], None] | None = None
        self._state = "new"
        self._holds: dict[Hold, None] = {}  # not a set: the order of releases must not depend on addresses
        self.exchange = Exchange(bus, names, self._ambient, self.settings, self._pools.get)
        self.caller = Caller(self.exchange, self.settings)
        self._dispatcher = Dispatcher(self.caller, self.settings.max_attempts)
        self._streamer = Streamer(self.caller, self.settings.stream_window)
        self._reserver = Reserver(self.exchange, self.settings, self.metrics, name or bus.name)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Idempotent; no storage is touched before the first request."""
        if self._state == "stopped":
            raise ClosedError("this router was stopped: make a new one")
        if self._state == "running":
            return
        self._state = "running"
        self._unlisten = self.bus.on_connection(self._on_connection)
        await self.exchange.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._tick_loop(), name="gangline-router-tick"),
            loop.create_task(self._reconcile_loop(), name="gangline-router-reconcile"),
        ]

    async def stop(self) -> None:
        """Refuse new requests with ClosedError, end those that wait or run with it (their tasks are told to stop), and
        give back all slots. Idempotent; safe before `start`."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        for task in [*self._tasks, *self._opening.values()]:
            task.cancel()
        closed = ClosedError("this router was stopped")
        for pool in self._pools.values():
            pool.close(closed)
        for hold in list(self._holds):
            hold.release()
        await self.exchange.stop()
        for pool in self._pools.values():
            if pool.discovery is not None:
                with contextlib.suppress(GanglineError):
                    await pool.discovery.stop()
        if self._unlisten is not None:
            self._unlisten()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- requests -------------------------------------------------------------------------------------------------

    async def call(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = _DEFAULTS,
        parent: str | None = None,
        flags: int = 0,
    ) -> Any:
        """Run `ENDPOINT.METHOD` on some worker and return its result; see Client.call for errors."""
        order = self.order(target, args, kwargs or {}, options, flags=flags, parent=parent)
        with self._observed(order) as (ticket, span):
            pool = await self.pool(order.pool, order.deadline)
            return await self.caller.run(pool, order, ticket, span)

    async def execute(self, order: Order) -> tuple[Any, str]:
        """Like `call`, for an order that is made already; also tells which worker answered (`<pool>.<worker>`)."""
        with self._observed(order) as (ticket, span):
            pool = await self.pool(order.pool, order.deadline)
            result = await self.caller.run(pool, order, ticket, span)
            return result, str(ticket.last or "")

    async def stream(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = _DEFAULTS,
        parent: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Run `ENDPOINT.METHOD` on some worker and yield its items; see Client.stream."""
        order = self.order(target, args, kwargs or {}, options, parent=parent)
        with self._observed(order) as (ticket, span):
            pool = await self.pool(order.pool, order.deadline)
            items = self._streamer.run(pool, order, ticket, span)
            async with contextlib.aclosing(items):
                async for item in items:
                    yield item

    def choose_worker(self, target: str, *, slots: int | None = None, options: CallOptions = _DEFAULTS) -> Choosing:
        """Choose a worker and hold a slot of it; see Client.choose_worker."""
        pool, method = self._split_pool(target, options)
        _check_slots(slots)
        return Choosing(
            lambda: self._reserve(
                pool,
                method,
                slots if slots is not None or method else 1,
                max(MIN_TTL_S, self.settings.claim_s),
                ReserveFlag.SINGLE_USE,
                options,
            )
        )

    async def dispatch(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = _DEFAULTS,
    ) -> Any:
        """Run a task on the worker that was chosen; see Client.dispatch."""
        self._check_open()
        endpoint, dot, name = method.rpartition(".")
        order = self.order(f"{endpoint if dot else selection.pool}.{name}", args, kwargs or {}, options)
        selection.check_usable(order.pool)
        with self._observed(order) as (_, span):
            return await self._dispatcher.dispatch(selection, order, span)

    def lease(
        self,
        target: str,
        *,
        slots: int = 1,
        ttl_s: float = 15.0,
        ledger: str = "behind",
        wait: bool = True,
        options: CallOptions = _DEFAULTS,
    ) -> Leasing:
        """Hold slots of one worker for many tasks; see Client.lease."""
        pool, method = self._split_pool(target, options)
        _check_slots(slots)
        if not MIN_TTL_S <= ttl_s <= MAX_TTL_S:
            raise InvalidSettings(f"ttl_s is {ttl_s!r}, it must be between {MIN_TTL_S:g} and {MAX_TTL_S:g}")
        if ledger not in ("behind", "sync"):
            raise InvalidSettings(f"ledger is {ledger!r}, it must be 'behind' or 'sync'")
        flags = ReserveFlag.SYNC if ledger == "sync" else ReserveFlag(0)

        async def make() -> Lease:
            hold = await self._reserve(pool, method, slots, ttl_s, flags, options)
            return Lease(
                hold, caller=self.caller, streamer=self._streamer, make=self._lease_order, options=options, wait=wait
            )

        return Leasing(make)

    # -- for clients and gateways ---------------------------------------------------------------------------------

    def order(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        flags: int = 0,
        parent: str | None = None,
    ) -> Order:
        """What is to be done, with its deadline: the earlier of the caller's own and the surrounding task's."""
        endpoint, method = split_target(target)
        return Order(
            endpoint=endpoint,
            method=method,
            args=args,
            kwargs=kwargs,
            options=options,
            deadline=self.deadline(options),
            flags=flags,
            span_parent=parent,
        )

    def deadline(self, options: CallOptions) -> float | None:
        """Loop time by which a request made now must be done."""
        timeout_s = options.timeout_s if options.timeout_s is not None else self.settings.default_timeout_s
        inherited = current_deadline()
        if timeout_s is None:
            return inherited
        own = asyncio.get_running_loop().time() + timeout_s
        return own if inherited is None else min(own, inherited)

    async def pool(self, name: str, deadline: float | None = None) -> RoutedPool:
        """The pool of that name, its workers pulled.

        Raises:
            ClosedError: the router does not run.
            Unavailable: the ledger could not be read by the deadline, or within `saturated_wait_s`.
        """
        pool = self._pools.get(name)
        if pool is not None:
            if self._state != "running":
                raise ClosedError("this router was stopped: make a new one")
            pool.used_at = self.exchange.loop.time()
            return pool
        self._check_open()
        task = self._opening.get(name)
        if task is None:
            check_name(name, "pool")
            task = self.exchange.loop.create_task(self._open(name), name=f"gangline-open-{name}")
            self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        limit = self.exchange.loop.time() + self.settings.saturated_wait_s
        try:
            async with asyncio.timeout_at(limit if deadline is None else min(limit, deadline)):
                return await asyncio.shield(task)
        except TimeoutError as error:
            if not self.bus.connected:
                raise Disconnected("no connection to the server; nothing was sent") from error
            raise Unavailable(f"who serves pool {name!r} could not be read in time; nothing was sent") from error
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClosedError("this router was stopped") from None
            raise

    @property
    def running(self) -> bool:
        return self._state == "running"

    @property
    def pools(self) -> Mapping[str, RoutedPool]:
        """Pools in use."""
        return self._pools

    async def ledger(self) -> KeyValue:
        """The ledger's bucket."""
        if self._ledger is None:
            self._ledger = await self.bus.bucket(self.names.ledger_bucket, self._bucket)
        return self._ledger

    def statistics(self) -> dict[str, Any]:
        """Pools with their workers and queues, flights, holds."""
        return {
            "state": self._state,
            "holds": len(self._holds),
            **self.exchange.statistics(),
            "pools": {name: pool.statistics() for name, pool in self._pools.items()},
        }

    def __repr__(self) -> str:
        return f"Router({self._state}, pools={sorted(self._pools)}, {self.exchange!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _observed(self, order: Order) -> Iterator[tuple[Ticket, Span]]:
        """Count and trace one request."""
        self._check_open()
        ticket = order.ticket(self.settings.max_attempts)
        loop, metrics = self.exchange.loop, self.metrics
        began_at = loop.time()
        span = NO_SPAN
        if tracer.enabled:
            span = tracer.start(
                f"gangline.call {order.target}",
                kind="client",
                parent=order.span_parent,
                attributes={"gangline.pool": order.pool, "gangline.endpoint": order.endpoint},
            )
        metrics.request(order.endpoint, order.pool)
        code: str | None = "cancelled"
        try:
            yield ticket, span
            code = None
        except BaseException as error:
            code = error.code if isinstance(error, GanglineError) else _code_of(error)
            span.end(error)
            raise
        finally:
            metrics.finished(order.endpoint, order.pool, loop.time() - began_at, max(1, ticket.attempts), code)
            span.end()

    async def _reserve(
        self,
        pool_name: str,
        method: str | None,
        slots: int | None,
        ttl_s: float,
        flags: ReserveFlag,
        options: CallOptions,
    ) -> Hold:
        self._check_open()
        deadline = self.deadline(options)
        ticket = Ticket(
            method=method,
            slots=slots,
            key=options.key,
            model=options.model,
            labels=options.labels,
            patient=deadline is not None,
            max_attempts=options.max_attempts or self.settings.max_attempts,
        )
        with tracer.span("gangline.reserve", kind="client", attributes={"gangline.pool": pool_name}) as span:
            pool = await self.pool(pool_name, deadline)
            hold = await self._reserver.reserve(pool, ticket, ttl_s=ttl_s, flags=flags, deadline=deadline)
            span.set(gangline__worker=str(hold.worker.id))
        if self._state != "running":
            hold.release()
            self._check_open()
        self._holds[hold] = None
        hold.on_end = self._holds.pop
        return hold

    def _lease_order(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions) -> Order:
        self._check_open()
        return self.order(target, args, kwargs, options)

    def _split_pool(self, target: str, options: CallOptions) -> tuple[str, str | None]:
        endpoint, dot, method = target.partition(".")
        if dot:
            endpoint, method = split_target(target)
        return options.pool or check_name(endpoint, "pool"), method or None

    def _check_open(self) -> None:
        if self._state != "running":
            why = "was not started" if self._state == "new" else "was stopped"
            raise ClosedError(f"this router {why}")

    async def _open(self, name: str) -> RoutedPool:
        pool = RoutedPool(
            name,
            exchange=self.exchange,
            settings=self.settings,
            policy=self._policy(name),
            metrics=self.metrics,
            draw=self._draw,
        )
        delay_s = 0.05
        while True:
            try:
                ledger = await self.ledger()
                if pool.discovery is None:
                    discovery = Discovery(name, ledger, self.names, pool)
                    await discovery.start()
                    pool.discovery = discovery
                await pool.discovery.pull()
                break
            except ServerUnsupported:
                raise
            except Unavailable as error:
                _log.warning(
                    "cannot read who serves %s: %s", name, error, extra={"action": "pool.pull_failed", "pool": name}
                )
                await asyncio.sleep(delay_s)
                delay_s = min(1.0, 2 * delay_s)
        self._pools[name] = pool
        return pool

    async def _tick_loop(self) -> None:
        """Silence, stale loads and answers that are long in coming."""
        loop = self.exchange.loop
        last = loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            stalled_s = now - last - _TICK_S
            last = now
            if stalled_s > _TICK_S or not self.bus.connected:
                # We heard nobody because we were not listening.
                for pool in self._pools.values():
                    pool.core.view.forgive(stalled_s + _TICK_S)
                continue
            for name, pool in list(self._pools.items()):
                pool.tick(now)
                if pool.idle(now):
                    await self._close_pool(name, pool)
            self.exchange.check_due(now)

    async def _close_pool(self, name: str, pool: RoutedPool) -> None:
        """Nobody asks for it and nobody serves it: stop following it."""
        del self._pools[name]
        pool.close(ClosedError(f"pool {name!r} is no longer followed"))
        if pool.discovery is not None:
            with contextlib.suppress(GanglineError):
                await pool.discovery.stop()

    async def _reconcile_loop(self) -> None:
        """Pull all pools now and then, and at once after a reconnection."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.reconcile_s):
                    await self._reconcile_now.wait()
            self._reconcile_now.clear()
            for name, pool in list(self._pools.items()):
                try:
                    if pool.discovery is not None:
                        await pool.discovery.pull()
                except Unavailable as error:
                    # A query that fails removes nothing.
                    _log.info(
                        "cannot pull pool %s: %s", name, error, extra={"action": "pool.pull_failed", "pool": name}
                    )

    def _on_connection(self, event: ConnectionEvent) -> None:
        connected = event is ConnectionEvent.RECONNECTED
        now = self.exchange.loop.time()
        for pool in self._pools.values():
            pool.core.connected = connected
            if connected:
                # Nobody could be heard meanwhile; everybody gets the full time again.
                for worker in pool.core.view.workers.values():
                    worker.heard_at = now
                pool.pump()
        if connected:
            self._reconcile_now.set()


def _code_of(error: BaseException) -> str:
    return "cancelled" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else "internal"


def _check_slots(slots: int | None) -> None:
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise InvalidSettings(f"slots is {slots!r}, it must be between 1 and {MAX_SLOTS}")
