"""The router: finds workers, sends them tasks, and holds their slots. One per connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from ..bus.ambient import Ambient
from ..bus.port import BucketSettings, Bus, KeyValue
from ..schemas.bounds import plain
from ..schemas.deadline import current_deadline
from ..schemas.errors import ClosedError, InvalidSettings
from ..schemas.frames import ReserveFlag
from ..schemas.limits import MAX_SLOTS, MAX_TTL_S, MIN_TTL_S
from ..schemas.names import Names, check_name, split_target
from ..telemetry.logs import logger_for
from ..telemetry.metrics import RouterMetrics
from ..telemetry.tracing import Span, tracer
from .caller import Caller
from .core import Ticket
from .exchange import Exchange
from .gang_members import LineMaker
from .gangs import Gangs
from .gangset import RoutedSet
from .gangsets import GangSets
from .hold import Hold, Reserver
from .leases import Lease, Leasing
from .observed import Observed
from .order import CallOptions, Order
from .policy import Policy, Sticky
from .pool import RoutedPool
from .pools import Pools
from .selection import Choosing, Dispatcher, Selection
from .settings import RouterSettings
from .stream import Streamer

_log = logger_for("dispatcher")

_DEFAULTS = CallOptions()
_MAX_TARGETS = 4096


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
        self._max_attempts = self.settings.max_attempts
        ambient = ambient or Ambient()
        self._pools: dict[str, RoutedPool] = {}
        self._targets: dict[str, tuple[str, str]] = {}
        """Targets that were taken apart and found right."""
        self._state = "new"
        self._holds: dict[Hold, None] = {}  # not a set: the order of releases must not depend on addresses
        self.exchange = Exchange(bus, names, ambient, self.settings, self._pools.get)
        policy = policy or (lambda _pool: Sticky())
        # A generator of its own: the system's is a system call for every draw.
        chance = random.Random(ambient.random.getrandbits(64))
        self._following = Pools(
            bus,
            names,
            pools=self._pools,
            exchange=self.exchange,
            settings=self.settings,
            bucket=bucket or BucketSettings(),
            policy=policy,
            metrics=self.metrics,
            draw=chance.random,
        )
        self.caller = Caller(self.exchange, self.settings)
        self._dispatcher = Dispatcher(self.caller, self.settings.max_attempts)
        self._streamer = Streamer(self.caller, self.settings.stream_window)
        self._reserver = Reserver(self.exchange, self.settings, self.metrics, name or bus.name)
        lines = LineMaker(caller=self.caller, streamer=self._streamer, pool=self.pool)
        self.gangs = self._owned(ambient, lines, name)
        self.sets = self._standing_sets(chance, lines, policy)

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin. Idempotent; no storage is touched before the first request."""
        if self._state == "stopped":
            raise ClosedError("this router was stopped: make a new one")
        if self._state == "running":
            return
        await self.exchange.start()
        self._following.start()
        self._state = "running"

    async def stop(self) -> None:
        """Refuse new requests with ClosedError, end those that wait or run with it (their tasks are told to stop), and
        give back all slots. Idempotent; safe before `start`."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        self._following.refuse(ClosedError("this router was stopped"))
        for hold in list(self._holds):
            hold.release()
        self.sets.refuse(ClosedError("this router was stopped"))
        await self.exchange.stop()
        await self.gangs.stop()
        await self.sets.stop()
        await self._following.stop()

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
            return await self._run(order, ticket, span)

    async def execute(self, order: Order) -> tuple[Any, str]:
        """Like `call`, for an order that is made already; also tells which worker answered (`<pool>.<worker>`)."""
        with self._observed(order) as (ticket, span):
            result = await self._run(order, ticket, span)
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
            standing = await self._standing(order)
            if standing is not None:
                items = standing.stream(order, ticket, span)
            else:
                items = self._streamer.run(await self.pool(order.pool, order.deadline), order, ticket, span)
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
            raise InvalidSettings(f"ttl_s is {ttl_s!r}, it must be between {plain(MIN_TTL_S)} and {plain(MAX_TTL_S)}")
        if ledger not in ("behind", "sync"):
            raise InvalidSettings(f"ledger is {ledger!r}, it must be 'behind' or 'sync'")
        flags = ReserveFlag.SYNC if ledger == "sync" else ReserveFlag(0)

        async def make() -> Lease:
            hold = await self._reserve(pool, method, slots, ttl_s, flags, options)
            return Lease(
                hold,
                caller=self.caller,
                streamer=self._streamer,
                make=self._lease_order,
                observe=self._observed,
                options=options,
                wait=wait,
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
        split = self._targets.get(target)
        if split is None:
            split = split_target(target)
            if len(self._targets) < _MAX_TARGETS:
                self._targets[target] = split
        endpoint, method = split
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
        """The pool of that name, its workers pulled; see Pools.get.

        Raises:
            ClosedError: the router does not run.
        """
        self._check_open()
        return await self._following.get(name, deadline)

    async def hold(self, pool: str, *, slots: int, ttl_s: float, method: str | None = None) -> Hold:
        """Slots of one worker of the pool, for whoever sends on them by itself; released by `Hold.release`, or by
        `stop`. Cancelling gives back what may have been granted. Errors as of `lease`.

        Args:
            method: only of a worker that has this task.
        """
        return await self._reserve(check_name(pool, "pool"), method, slots, ttl_s, ReserveFlag(0), _DEFAULTS)

    @property
    def running(self) -> bool:
        return self._state == "running"

    @property
    def pools(self) -> Mapping[str, RoutedPool]:
        """Pools in use."""
        return self._pools

    async def ledger(self) -> KeyValue:
        """The ledger's bucket."""
        return await self._following.ledger()

    def statistics(self) -> dict[str, Any]:
        """Pools with their workers and queues, flights, holds."""
        return {
            "state": self._state,
            "holds": len(self._holds),
            **self.gangs.statistics(),
            **self.exchange.statistics(),
            "gangsets": self.sets.statistics(),
            "pools": {name: pool.statistics() for name, pool in self._pools.items()},
        }

    def __repr__(self) -> str:
        return f"Router({self._state}, pools={sorted(self._pools)}, {self.exchange!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _owned(self, ambient: Ambient, lines: LineMaker, name: str) -> Gangs:
        return Gangs(
            self.bus,
            self.names,
            ambient,
            self.settings,
            lines=lines,
            deadline=self.deadline,
            observe=self._observed,
            owner=name or self.bus.name,
        )

    def _standing_sets(self, chance: random.Random, lines: LineMaker, policy: Callable[[str], Policy]) -> GangSets:
        return GangSets(
            self.bus,
            self.names,
            self.settings,
            exchange=self.exchange,
            lines=lines,
            policy=policy,
            metrics=self.metrics,
            random=chance,
            ledger=self.ledger,
        )

    async def _run(self, order: Order, ticket: Ticket, span: Span) -> Any:
        standing = None if self.sets.none else await self._standing(order)
        if standing is not None:
            return await standing.run(order, ticket, span)
        pool = await self.pool(order.pool, order.deadline)
        return await self.caller.run(pool, order, ticket, span)

    async def _standing(self, order: Order) -> RoutedSet | None:
        """The standing set that the endpoint names, if it does; who names a pool means the pool."""
        if order.options.pool is not None or self.sets.none:
            return None
        return await self.sets.find(order.endpoint, order.deadline)

    def _observed(self, order: Order) -> Observed:
        """Count and trace one request: `with ... as (ticket, span)`."""
        self._check_open()
        return Observed(order, order.ticket(self._max_attempts), self.metrics, self.exchange.loop)

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


def _check_slots(slots: int | None) -> None:
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise InvalidSettings(f"slots is {slots!r}, it must be between 1 and {MAX_SLOTS}")
