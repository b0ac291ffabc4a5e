"""The router: finds workers, sends them tasks, and holds slots. One per connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final

from ...bus.port.bus import BucketSettings, Bus, KeyValue
from ...runtime.clock import Environment
from ...runtime.hooks import check_hook
from ...runtime.tracebacks import FRAMES_HIDDEN, frames_hidden, hide_frames
from ...schemas.deadline import UNDER
from ...schemas.errors.base import ClosedError, GanglineError, InvalidSettings, WrongClient
from ...schemas.limits import MAX_SLOTS, MAX_TTL_S, MIN_TTL_S
from ...schemas.names import Names, check_name, split_target
from ...schemas.text import brief, plain
from ...schemas.wire.frames import AnswerOp, ReserveFlag
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Span
from ..calls.attempts import AttemptTarget, PoolTarget
from ..calls.call import DEFAULTS, Call, CallOptions, RequestTelemetry, fate_of
from ..calls.fast_path import PlainFlight
from ..gangs.standing_set import StandingSetRouter
from ..leases.held_slots import HeldSlots
from ..leases.lease import Lease, LeaseAcquisition
from ..leases.selection import Choice, SelectedTarget, Selection, WorkerChoice
from ..pools.pool import RouteChanged, RoutedPool
from ..routing.policy import Policy, Sticky
from ..routing.pool_core import RoutedRequest
from ..routing.settings import RouterSettings
from ..transport.channel import Outcome, OutcomeSink
from .traffic_director import EndpointTarget
from .wiring import RouterWiring

_OK: Final = int(AnswerOp.OK)
_MAX_TARGETS = 4096


class Router:
    """Routes tasks to the workers of all pools."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        settings: RouterSettings | None = None,
        ambient: Environment | None = None,
        bucket: BucketSettings | None = None,
        policy: Callable[[str], Policy] | None = None,
        metrics: RouterMetrics | None = None,
        name: str = "",
        routes_bucket: BucketSettings | None = None,
        makes_routes: bool = False,
    ) -> None:
        """
        Args:
            bus: an open connection; the caller closes it.
            bucket: settings of the ledger's bucket if it has to be created.
            policy: makes the policy of a pool from its name; default: Sticky.
            name: the owner of leases in the ledger.
            routes_bucket, makes_routes: see RouteTable.
        """
        if policy is not None and not isinstance(policy, type):
            check_hook(policy, "policy=", "pool")
        self.bus = bus
        self.names = names
        self.settings = settings or RouterSettings()
        self.metrics = metrics or RouterMetrics(names.namespace)
        self._max_attempts = self.settings.max_attempts
        self._state = "new"
        parts = RouterWiring(
            self,
            bus,
            names,
            settings=self.settings,
            ambient=ambient or Environment(),
            bucket=bucket or BucketSettings.from_environment(),
            policy=policy or (lambda _pool: Sticky()),
            metrics=self.metrics,
            owner=name or bus.name,
            routes_bucket=routes_bucket,
            makes_routes=makes_routes,
        )
        self.exchange = parts.exchange
        self.caller = parts.caller
        self.gangs = parts.gangs
        self.sets = parts.sets
        self.routes = parts.routes
        self._pools = parts.pools
        self._targets = parts.targets
        self._following = parts.following
        self._traffic = parts.traffic
        self._reserving = parts.reserving
        self._fast_path = parts.fast_path
        self._held_express = parts.held_express
        self._parts = parts

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the router. Idempotent; storage is not used before the first request."""
        if self._state == "stopped":
            raise ClosedError("this client was closed: make a new one")
        if self._state == "running":
            return
        await self.exchange.start()
        self._following.start()
        self._state = "running"

    async def stop(self) -> None:
        """Refuse new requests with ClosedError, end those that wait or run with it (their tasks are cancelled), and
        release all slots. Idempotent; safe before `start`."""
        if self._state == "stopped":
            return
        self._state = "stopped"
        self._following.refuse(ClosedError("this client was closed"))
        self._reserving.release_all()
        self.sets.refuse(ClosedError("this client was closed"))
        self._traffic.refuse(ClosedError("this client was closed"))
        await self.exchange.stop()
        await self.routes.stop()
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
        options: CallOptions = DEFAULTS,
    ) -> Any:
        """Run `ENDPOINT.METHOD` on some worker and return its result; see Client.call for errors."""
        try:
            plain = options.short and self._state == "running"
            flight = self._fast_path.launch(target, args, kwargs, options, 0) if plain else None
            if flight is None:
                order = self.order(target, args, kwargs or {}, options)
                if plain:
                    order.span_parent, order.drawn = self._fast_path.parent, self._fast_path.drawn
                with self._observed_routed(order) as (routed_request, span):
                    return await self._run(order, routed_request, span)
            try:
                outcome = await flight.future
            except BaseException as error:
                self._fast_path.failed(flight, error)
                raise
            if type(outcome) is not list or outcome[0] != _OK:
                order = self.order(target, args, kwargs or {}, options)
                return (await self._go_on(flight, outcome, order))[0]
            if self.exchange.measured or flight.span is not NO_SPAN:
                self._fast_path.answered(flight)
            return outcome[2]
        except GanglineError as error:
            hide_frames(error)
            raise

    def begin(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        sink: OutcomeSink,
        *,
        flags: int = 0,
        parent: str | None = None,
        tenant: str = "",
    ) -> PlainFlight | Call:
        """Send `ENDPOINT.METHOD` on the fast path; its outcome is passed to `sink`, whose owner then calls `answered`
        or `failed`, or continues with `execute`. If the fast path does not take it, nothing was sent: `execute` the
        returned call.

        Raises:
            ClosedError, InvalidName: nothing was sent.
        """
        fast_path = self._fast_path
        # Who has a quota of slots is counted, which the fast path does not do.
        plain = options.short and self._state == "running" and not (tenant and self.settings.quotas.limits_slots)
        if plain and (flight := fast_path.launch(target, args, kwargs, options, flags, parent, sink)) is not None:
            return flight
        order = self.order(target, args, kwargs, options, flags=flags, parent=parent)
        order.tenant = tenant
        if plain:
            order.span_parent, order.drawn = fast_path.parent, fast_path.drawn
        return order

    def answered(self, flight: PlainFlight) -> None:
        """The result of a call that was begun is here."""
        if self.exchange.measured or flight.span is not NO_SPAN:
            self._fast_path.answered(flight)

    def failed(self, flight: PlainFlight, error: BaseException) -> None:
        """A call that was begun has ended without an outcome."""
        self._fast_path.failed(flight, error)

    async def execute(self, order: Call, tried: tuple[PlainFlight, Outcome] | None = None) -> tuple[Any, str]:
        """Like `call`, for an existing order; also returns the worker that answered (`<pool>.<worker>`).

        Args:
            tried: a call that was begun, and its outcome, which is not a result.
        """
        if tried is not None:
            return await self._go_on(*tried, order)
        with self._observed_routed(order) as (routed_request, span):
            result = await self._run(order, routed_request, span)
            return result, str(routed_request.last or "")

    async def stream(
        self,
        target: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = DEFAULTS,
        parent: str | None = None,
        flags: int = 0,
        tenant: str = "",
    ) -> AsyncGenerator[Any, None]:
        """Run `ENDPOINT.METHOD` on some worker and yield its items; see Client.stream."""
        with FRAMES_HIDDEN:
            order = self.order(target, args, kwargs or {}, options, flags=flags, parent=parent)
            order.tenant = tenant
            with self._observed_routed(order) as (routed_request, span):
                to = self._endpoint(order, routed_request, span)
                try:
                    items = self.caller.stream(order, to, span)
                    async with contextlib.aclosing(items):
                        async for item in items:
                            yield item
                finally:
                    to.over()

    def choose_worker(
        self, target: str, *, slots: int | None = None, move: bool = True, options: CallOptions = DEFAULTS
    ) -> WorkerChoice:
        """Choose a worker and reserve a slot on it; see Client.choose_worker."""
        if slots is None and options.submit is None and target in self._traffic.plain:
            choosing = WorkerChoice(self._reserving.choose, target, options)
        else:
            pool, method = self._split_pool(target, options)
            _check_slots(slots)
            if slots is None and not method:
                slots = 1
            choosing = WorkerChoice(self._choose, pool, method, slots, options)
        if options.labels or options.key is not None or not move:
            choosing.choice = Choice(labels=options.labels, key=options.key, move=move)
        return choosing

    @frames_hidden
    async def _choose(
        self, choosing: WorkerChoice, pool: str, method: str | None, slots: int | None, options: CallOptions
    ) -> Selection:
        ttl_s = max(MIN_TTL_S, self.settings.claim_s)
        return choosing.chosen(await self._reserve(pool, method, slots, ttl_s, ReserveFlag.SINGLE_USE, options))

    async def dispatch(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = DEFAULTS,
    ) -> Any:
        """Run a task on the selected worker; see Client.dispatch."""
        try:
            self.check_open()
            if not selection.hold.is_of(self.exchange):
                raise _not_ours(selection)
            flight = self._held_express.dispatch(selection, method, args, kwargs, options)
            if flight is None:
                return await self._dispatch(selection, method, args, kwargs or {}, options)
            try:
                outcome = await flight.future
            except BaseException as error:
                self._fast_path.failed(flight, error)
                # If the task did not reach the worker, the token still holds the slot.
                selection.hold.give_back()
                raise
            if type(outcome) is not list or outcome[0] != _OK:
                order = self.order(f"{selection.endpoint}.{method}", args, kwargs or {}, options)
                order.pool, order.deadline = selection.pool, flight.deadline
                order.span_parent = flight.trace
                with self.observed(order, since=flight.sent_at) as (_, span):
                    target = self._selected(selection, order)
                    return await self.caller.run(target, span, tried=(target, outcome))
            if self.exchange.measured:
                self._fast_path.answered(flight)
            return outcome[2]
        except GanglineError as error:
            hide_frames(error)
            raise

    async def _dispatch(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> Any:
        order = self._order_on(selection, method, args, kwargs, options)
        order.span_parent = self._held_express.parent
        with self.observed(order) as (_, span):
            return await self.caller.run(self._selected(selection, order), span)

    def _selected(self, selection: Selection, order: Call) -> SelectedTarget:
        return SelectedTarget(selection, order, max_attempts=self._max_attempts, loop=self.exchange.loop)

    async def stream_on(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        options: CallOptions = DEFAULTS,
    ) -> AsyncGenerator[Any, None]:
        """Run a task on the selected worker and yield its items; see Client.stream."""
        with FRAMES_HIDDEN:
            self.check_open()
            if not selection.hold.is_of(self.exchange):
                raise _not_ours(selection)
            order = self._order_on(selection, method, args, kwargs or {}, options)
            with self.observed(order) as (_, span):
                items = self.caller.stream(order, self._selected(selection, order), span)
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item

    def _order_on(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> Call:
        endpoint, dot, name = method.rpartition(".")
        order = self.order(f"{endpoint if dot else selection.endpoint}.{name}", args, kwargs, options)
        if order.pool == selection.endpoint:
            order.pool = selection.pool
        selection.check_usable(order.pool)
        return order

    def lease(
        self,
        target: str,
        *,
        slots: int = 1,
        ttl_s: float = 15.0,
        ledger: str = "behind",
        wait: bool = True,
        options: CallOptions = DEFAULTS,
    ) -> LeaseAcquisition:
        """Reserve slots of one worker for many tasks; see Client.lease."""
        pool, method = self._split_pool(target, options)
        _check_slots(slots)
        if not (isinstance(ttl_s, (int, float)) and MIN_TTL_S <= ttl_s <= MAX_TTL_S):
            raise InvalidSettings(
                f"ttl_s is {brief(ttl_s)}, it must be between {plain(MIN_TTL_S)} and {plain(MAX_TTL_S)}"
            )
        if ledger not in ("behind", "sync"):
            raise InvalidSettings(f"ledger is {ledger!r}, it must be 'behind' or 'sync'")
        flags = ReserveFlag.SYNC if ledger == "sync" else ReserveFlag(0)

        async def make() -> Lease:
            hold = await self._reserve(pool, method, slots, ttl_s, flags, options)
            return Lease(
                hold,
                caller=self.caller,
                fast_path=self._held_express,
                make=self._lease_order,
                observe=self.observed,
                options=options,
                wait=wait,
            )

        return LeaseAcquisition(make)

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
    ) -> Call:
        """The call with its deadline: the earlier of its own and that of the surrounding task."""
        options.check_for_call()
        split = self._targets.get(target)
        if split is None:
            split = split_target(target)
            if len(self._targets) < _MAX_TARGETS:
                self._targets[target] = split
        endpoint, method = split
        return Call(
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
        """Loop time by which a request made now must be done; None: no deadline."""
        timeout_s = options.deadline_s
        if timeout_s is None:
            timeout_s = options.timeout_s if options.timeout_s is not None else self.settings.default_timeout_s
        under = UNDER.get()
        inherited = None if under is None else under.deadline
        if timeout_s is None:
            return inherited
        own = asyncio.get_running_loop().time() + timeout_s
        return own if inherited is None else min(own, inherited)

    async def pool(self, name: str, deadline: float | None = None) -> RoutedPool:
        """The pool of that name, with its workers loaded; see PoolRegistry.get.

        Raises:
            ClosedError: the router is not running.
        """
        self.check_open()
        return await self._following.get(name, deadline)

    async def target(self, name: str) -> RoutedPool:
        """The pool of that name; for a standing set, the pool that has its gangs as workers.

        Raises:
            ClosedError: the router is not running.
            Unavailable: its workers or gangs could not be read.
        """
        self.check_open()
        routed = await self.sets.find_if_permitted(name, None)
        return await self._following.get(name, None) if routed is None else routed.pool

    def known_target(self, name: str) -> RoutedPool | None:
        """The same, if it is known already."""
        return self.sets.pool_of(name) or self._pools.get(name)

    async def hold(
        self, pool: str, *, slots: int, ttl_s: float, method: str | None = None, prefers: str = ""
    ) -> HeldSlots:
        """Slots of one worker of the pool, or of one gang of the standing set of that name (then a GangHeldSlots), for
        callers that send on them by themselves. Released by `HeldSlots.release`, or by `stop`. Cancelling releases
        slots that may have been granted. Raises the errors of `lease`.

        Args:
            method: only workers that have this task.
            prefers: the worker to take if it has room.
        """
        self.check_open()
        options = CallOptions(pool=pool)
        return await self._reserving.reserve(
            pool,
            method,
            slots,
            ttl_s=ttl_s,
            flags=ReserveFlag(0),
            options=options,
            deadline=self.deadline(options),
            sets=True,
            prefers=prefers,
        )

    def observed(self, order: Call, since: float | None = None) -> RequestTelemetry:
        """Count and trace one request: `with ... as (routed_request, span)`.

        Args:
            since: when the fast path sent it, if it has already been counted.
        """
        if since is None:
            self.check_open()
        return RequestTelemetry(
            order, order.routed_request(self._max_attempts), self.metrics, self.exchange.loop, since=since
        )

    def check_open(self) -> None:
        """
        Raises:
            ClosedError: the router is not running, or in the process that this one was forked from.
            InvalidRequest: it belongs to another event loop.
        """
        if self._state != "running":
            why = "was not started" if self._state == "new" else "was stopped"
            raise ClosedError(f"this router {why}")
        self.exchange.check_loop()

    @property
    def running(self) -> bool:
        return self._state == "running"

    @property
    def public_id(self) -> str:
        """Its id in what it publishes about waiting requests; see RouterQueues."""
        return self._parts.lengths.router  # made when it is needed first

    @property
    def pools(self) -> Mapping[str, RoutedPool]:
        """Open pools."""
        return self._pools

    async def ledger(self, *, make: bool = False) -> KeyValue:
        """The ledger's bucket.

        Args:
            make: create it if it does not exist; otherwise the first write does.
        """
        return await self._following.ledger(make=make)

    def statistics(self) -> dict[str, Any]:
        """Pools with their workers and queues, requests in flight, held slots."""
        return {
            "state": self._state,
            "holds": len(self._reserving),
            **self.gangs.statistics(),
            **self.exchange.statistics(),
            "gangsets": self.sets.statistics(),
            "pools": {name: pool.statistics() for name, pool in self._pools.items()},
            "routes": self._traffic.statistics(),
        }

    def __repr__(self) -> str:
        return f"Router({self._state}, pools={sorted(self._pools)}, {self.exchange!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _run(
        self, order: Call, routed_request: RoutedRequest, span: Span, tried: tuple[PoolTarget, Outcome] | None = None
    ) -> Any:
        """`tried`: a first attempt made elsewhere."""
        at = self._plain_target(order, routed_request) if tried is None else tried[0]
        if at is not None and routed_request.admission is None:
            try:
                return await self.caller.run(at, span, tried=tried)
            except RouteChanged:
                at = tried = None  # a route was set while it waited
        target = self._endpoint(order, routed_request, span, at)
        try:
            return await self.caller.run(target, span, tried=tried)
        finally:
            target.over()

    def _plain_target(self, order: Call, routed_request: RoutedRequest) -> PoolTarget | None:
        """The endpoint's pool, if it is plain (no route, no standing set)."""
        pool = self._traffic.plain.get(order.pool)
        if pool is None:
            return None
        if order.options.pool is None:
            routed_request.endpoint = order.endpoint
        return PoolTarget(pool, order, routed_request)

    def _endpoint(
        self, order: Call, routed_request: RoutedRequest, span: Span, at: AttemptTarget | None = None
    ) -> EndpointTarget:
        """The current target of the task's endpoint; `at`: if it is known."""
        return EndpointTarget(self._traffic, routed_request, lambda: self._target_of(order, routed_request, span), at)

    async def _target_of(self, order: Call, routed_request: RoutedRequest, span: Span) -> AttemptTarget:
        """The target of the order now. With `options.pool`, that pool."""
        self.check_open()
        if order.options.pool is not None:
            return PoolTarget(await self._following.get(order.options.pool, order.deadline), order, routed_request)
        target = await self._traffic.find(order.endpoint, routed_request, order.deadline, order)
        if (admission := self._traffic.visit_of(routed_request)) is not None and admission.pool is not None:
            order.pool = admission.pool
            admission.span = span
            span.set(gangline__pool=admission.pool)
            if isinstance(target, StandingSetRouter):
                admission.sent()  # the closest approximation: the call is sent to each member separately
        return (
            target.target(order, routed_request)
            if isinstance(target, StandingSetRouter)
            else PoolTarget(target, order, routed_request)
        )

    def _observed_routed(self, order: Call) -> RequestTelemetry:
        """`observed`, for an order whose pool may not be known yet."""
        self.check_open()
        counted = order.options.pool is not None or order.endpoint in self._traffic.plain
        return RequestTelemetry(
            order, order.routed_request(self._max_attempts), self.metrics, self.exchange.loop, counted=counted
        )

    async def _go_on(self, flight: PlainFlight, outcome: Outcome, order: Call) -> tuple[Any, str]:
        """The answer to a plain call was not a result: continue on the general path."""
        pool, since, order.deadline = flight.pool, flight.sent_at, flight.deadline
        order.span_parent = flight.trace
        routed_request = pool.core.tried_plain(
            order.routed_request(self._max_attempts), flight.worker, flight.id, since
        )
        routed_request.endpoint = order.endpoint
        at = PoolTarget(pool, order, routed_request)
        at.worker = flight.worker
        if flight.share is not None:
            order.pool = pool.name
            self._traffic.take_over(flight, routed_request, order)
        if (fate := fate_of(outcome)) is not None:
            flight.span.event("gangline.refused", {"reason": fate.value})
        with RequestTelemetry(
            order, routed_request, self.metrics, self.exchange.loop, since=since, span=flight.span
        ) as (_, span):
            result = await self._run(order, routed_request, span, tried=(at, outcome))
            return result, str(routed_request.last or "")

    async def _reserve(
        self,
        pool: str,
        method: str | None,
        slots: int | None,
        ttl_s: float,
        flags: ReserveFlag,
        options: CallOptions,
    ) -> HeldSlots:
        self.check_open()
        return await self._reserving.reserve(
            pool, method, slots, ttl_s=ttl_s, flags=flags, options=options, deadline=self.deadline(options)
        )

    def _lease_order(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions) -> Call:
        self.check_open()
        return self.order(target, args, kwargs, options)

    def _split_pool(self, target: str, options: CallOptions) -> tuple[str, str | None]:
        options.check_for_call()
        endpoint, dot, method = target.partition(".")
        if dot:
            endpoint, method = split_target(target)
        return options.pool or check_name(endpoint, "pool"), method or None


def _check_slots(slots: int | None) -> None:
    if slots is not None and not (type(slots) is int and 1 <= slots <= MAX_SLOTS):
        raise InvalidSettings(f"slots is {brief(slots)}, it must be a whole number between 1 and {MAX_SLOTS}")


def _not_ours(selection: Selection) -> WrongClient:
    return WrongClient(f"this selection of {selection.worker} was made by another client: dispatch it with that one")
