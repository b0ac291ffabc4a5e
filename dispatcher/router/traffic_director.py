"""Where requests go, and where slots are reserved: an endpoint without a route is the pool (or standing set) of its
name, others follow their route.

Nearly all requests are for endpoints without a route; one look-up in `plain` finds their pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...runtime.tracebacks import FRAMES_HIDDEN
from ...schemas.errors.base import ClosedError, GanglineError, NoWorkers
from ...schemas.records.routes import RouteRecord
from ...schemas.wire.frames import AnswerOp, ReserveFlag
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import Parent, tracer
from ..calls.attempts import AttemptLoop, AttemptTarget
from ..calls.call import DEFAULTS, CallOptions
from ..calls.fast_path import PlainFlight
from ..gangs.set_registry import SetRegistry
from ..gangs.standing_set import StandingSetRouter
from ..leases.fast_path import LeaseFastPath, PlainReserve
from ..leases.held_slots import HeldSlots, RenewalSet, ReserveTarget, SlotRequest, SlotReserver
from ..leases.selection import Selection, WorkerChoice
from ..pools.pool import RouteChanged, RoutedPool
from ..pools.registry import PoolRegistry
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..routing.settings import RouterSettings
from ..traffic.admission import EndpointRoute, RouteAdmission
from ..traffic.route_core import Draw
from ..traffic.shadowing import ShadowTraffic
from ..traffic.table import RouteTable
from ..transport.channel import Outcome

if TYPE_CHECKING:
    from ..calls.call import Call


Target = RoutedPool | StandingSetRouter


class EndpointTarget(AttemptTarget):
    """The current target of an endpoint: it changes when the route changes, or when its pool has no workers."""

    def __init__(
        self,
        traffic: TrafficDirector,
        routed_request: RoutedRequest,
        find: Callable[[], Awaitable[AttemptTarget]],
        at: AttemptTarget | None = None,
    ) -> None:
        """
        Args:
            find: finds the target.
            at: the target, if it is known.
        """
        self.routed_request = routed_request
        self._traffic = traffic
        self._find = find
        self._at = at

    @property
    def uncertain(self) -> bool:
        return self.routed_request.uncertain is not None

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        while True:
            if self._at is None:
                self._at = await self._find()
            try:
                return self._at.place_nowait(fate) or await self._at.place(fate)
            except RouteChanged:
                pass
            except NoWorkers:
                if not self._traffic.elsewhere(self.routed_request):
                    raise
            self._at = fate = None

    def over(self) -> None:
        """The request is no longer awaited; what it holds is counted until it is given back."""
        if self.routed_request.admission is not None:
            self._traffic.over(self.routed_request)


class TrafficDirector:
    """Finds the target of each request, and moves waiting requests when routes change."""

    def __init__(
        self,
        table: RouteTable,
        *,
        pools: Mapping[str, RoutedPool],
        following: PoolRegistry,
        sets: SetRegistry,
        shadows: ShadowTraffic,
        settings: RouterSettings,
        metrics: RouterMetrics,
        draw: Draw,
        numbers: Iterator[int],
    ) -> None:
        """`pools`: open pools; `numbers`: order of arrival across all of them."""
        self.plain: dict[str, RoutedPool] = {}
        """Open pools of endpoints that certainly have no route and are no standing sets. Maintained by this object."""
        self.shadows = shadows
        self._table = table
        self._pools = pools
        self._following = following
        self._sets = sets
        self._settings = settings
        self._metrics = metrics
        self._draw = draw
        self._numbers = numbers
        self.routes: dict[str, EndpointRoute] = {}
        """Routes of endpoints that were used. Maintained by this object."""
        self._unlisten: Callable[[], None] | None = table.listen(self._changed)

    # -- requests -------------------------------------------------------------------------------------------------

    async def find(
        self, endpoint: str, routed_request: RoutedRequest, deadline: float | None, order: Call | None = None
    ) -> Target:
        """The target of a request to the endpoint; called again if the request was moved.

        Args:
            order: the call to copy to shadows.

        Raises:
            Unavailable: the target could not be read, or too many requests wait; nothing was sent.
        """
        admission = self.visit_of(routed_request)
        if admission is not None:
            admission.leave()
        routed_request.endpoint = endpoint
        if not (self._table.settled and self._sets.none):
            self._table.start()  # so that both are read concurrently
            await self._sets.find(endpoint, deadline)
            await self._table.ready(deadline)
        while True:
            route = self._route(endpoint)
            if route is None:
                target = await self._open(endpoint, deadline)
                if isinstance(target, StandingSetRouter):
                    if self._route(endpoint) is None:
                        return target
                elif self._route(endpoint) is None and self._sets.pool_of(endpoint) is None:
                    self.plain[endpoint] = target
                    return target
                continue  # a route or a set of that name appeared while its pool was opened
            if admission is None or admission.route is not route:
                admission = routed_request.admission = RouteAdmission(route, order)
            drawn = None
            if order is not None:
                drawn, order.drawn = order.drawn, None
            pool = await route.enter(routed_request, admission, deadline, drawn)
            target = await self._open(pool, deadline)
            if route.core.takes(pool):
                if isinstance(target, RoutedPool) and self._sets.pool_of(pool) is None:
                    route.used(target)
                return target
            admission.leave()  # the route changed while the pool was opened

    def visit_of(self, routed_request: RoutedRequest) -> RouteAdmission | None:
        """The request's admission by a route; None: it has none."""
        return routed_request.admission if isinstance(routed_request.admission, RouteAdmission) else None

    def take_over(self, flight: PlainFlight, routed_request: RoutedRequest, order: Call) -> None:
        """The request of that flight continues on the general path."""
        assert isinstance(flight.route, EndpointRoute)
        admission = routed_request.admission = RouteAdmission(flight.route, order)
        admission.pool, flight.share = flight.pool.name, None

    def over(self, routed_request: RoutedRequest) -> None:
        """The request is no longer awaited; it is counted until its task has ended."""
        if (admission := self.visit_of(routed_request)) is not None:
            admission.end(routed_request)

    def elsewhere(self, routed_request: RoutedRequest) -> bool:
        """Whether a request that found no worker in its pool may go to another pool of its route that has workers."""
        admission = self.visit_of(routed_request)
        if admission is None or admission.pool is None or routed_request.uncertain is not None:
            return False
        return self.deserted(admission.pool) and admission.route.core.others(admission.pool)

    def strays(self, endpoint: str, pool: str) -> bool:
        """Whether requests to the endpoint must not (or no longer) use that pool."""
        record = self._table.get(endpoint)
        if record is None or not record.to:
            return pool != endpoint
        return record.to.get(pool, 0.0) <= 0

    def deserted(self, pool: str) -> bool:
        """Whether a pool has been without workers for so long that requests need not wait for any."""
        known = self._sets.pool_of(pool) or self._pools.get(pool)
        return known is not None and known.deserted

    # -- what changes ---------------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """The pool of that name was closed, or a set of that name appeared or disappeared: requests that wait in a pool
        of that name are routed again."""
        self.plain.pop(name, None)
        for route in self.routes.values():
            route.plain.pop(name, None)
        pool = self._pools.get(name)
        if pool is not None:
            pool.move(name)

    def poke(self) -> None:
        """Called regularly: pools may have got workers."""
        for endpoint, route in list(self.routes.items()):
            route.poke()
            if route.deleted and route.core.idle:
                del self.routes[endpoint]

    def refuse(self, error: GanglineError) -> None:
        """Refuse requests that wait for a limit, and stop following routes."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        for route in self.routes.values():
            route.close(error)

    def statistics(self) -> dict[str, Any]:
        """Statistics of routes, requests inside, and shadow copies."""
        return {
            **self._table.statistics(),
            "traffic": {endpoint: route.statistics() for endpoint, route in self.routes.items()},
            "shadows": self.shadows.statistics(),
        }

    def __repr__(self) -> str:
        return f"TrafficDirector({len(self.plain)} plain, {len(self.routes)} routed)"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _route(self, endpoint: str) -> EndpointRoute | None:
        route = self.routes.get(endpoint)
        if route is None:
            record = self._table.get(endpoint)
            if record is None:
                return None
            route = self.routes[endpoint] = EndpointRoute(
                endpoint,
                record,
                settings=self._settings,
                metrics=self._metrics,
                shadows=self.shadows,
                draw=self._draw,
                deserted=self.deserted,
                numbers=self._numbers,
            )
            self.shadows.open(record)
        if route.deleted and route.core.idle:
            del self.routes[endpoint]
            return None
        return route

    def _changed(self, endpoint: str, record: RouteRecord | None) -> None:
        self.plain.pop(endpoint, None)
        route = self.routes.get(endpoint)
        if route is not None:
            if record is not None:
                # Open new pools now, so that requests routed to them need not wait for that.
                for pool, weight in record.to.items():
                    if weight > 0 and self._known(pool) is None:
                        self._following.open_soon(pool)
                self.shadows.open(record)
            route.changed(record)
        for open_ in [*self._pools.values(), *self._sets.pools()]:
            if self.strays(endpoint, open_.name):
                open_.move(endpoint)

    def _known(self, name: str) -> RoutedPool | None:
        return self._sets.pool_of(name) or self._pools.get(name)

    async def _open(self, name: str, deadline: float | None) -> Target:
        if not self._sets.none and (routed := await self._sets.find(name, deadline)) is not None:
            return routed
        return await self._following.get(name, deadline)


_GRANTED: Final = int(AnswerOp.GRANTED)


class EndpointReserver:
    """Reserves slots for a router's requests, and tracks those held."""

    def __init__(
        self,
        caller: AttemptLoop,
        reserver: SlotReserver,
        fast_path: LeaseFastPath,
        traffic: TrafficDirector,
        following: PoolRegistry,
        sets: SetRegistry,
        *,
        check_open: Callable[[], None],
        deadline: Callable[[CallOptions], float | None],
        settings: RouterSettings,
    ) -> None:
        """
        Args:
            check_open: raises if the router is not running.
            deadline: deadline of a request made now.
        """
        self._caller = caller
        self._reserver = reserver
        self._fast_path = fast_path
        self._traffic = traffic
        self._following = following
        self._sets = sets
        self._check_open = check_open
        self._deadline = deadline
        self._max_attempts = settings.max_attempts
        self._holds = RenewalSet()

    def __len__(self) -> int:
        return len(self._holds)

    def release_all(self) -> None:
        """Called when the router stops."""
        self._holds.release_all()
        self._fast_path.close()

    async def choose(self, choosing: WorkerChoice, endpoint: str, options: CallOptions) -> Selection:
        """Reserve one slot for one task, on the fast path if there are no special options; otherwise as `reserve`."""
        fast_path, holds = self._fast_path, self._holds
        asked = None if holds.closed else fast_path.reserve(endpoint, options)
        if asked is None:
            with FRAMES_HIDDEN:
                self._check_open()
                flags, deadline, ttl_s = ReserveFlag.SINGLE_USE, self._deadline(options), fast_path.terms.ttl_s
                return choosing.chosen(
                    await self.reserve(
                        endpoint,
                        None,
                        1,
                        ttl_s=ttl_s,
                        flags=flags,
                        options=options,
                        deadline=deadline,
                        parent=fast_path.parent,
                    )
                )
        try:
            outcome = await asked.future
        except asyncio.CancelledError:
            self._reserver.undo(asked)
            raise
        finally:
            fast_path.probes.drop(asked)
        if type(outcome) is not list or outcome[0] != _GRANTED:
            with FRAMES_HIDDEN:
                return choosing.chosen(self._held(await self._go_on(endpoint, asked, outcome)))
        hold = fast_path.granted(asked, outcome)
        holds.keep_briefly(hold)
        if holds.closed:
            self._check_held(hold)
        return choosing.chosen(hold)

    async def _go_on(self, endpoint: str, asked: PlainReserve, outcome: Outcome) -> HeldSlots:
        """A fast-path reservation was not granted: continue on the general path."""
        fate = self._reserver.refused(asked, outcome)
        routed_request = RoutedRequest(method=None, slots=1, max_attempts=self._max_attempts)
        asked.pool.core.tried_plain(routed_request, asked.worker, asked.id, asked.sent_at)
        routed_request.endpoint = endpoint
        wanted = SlotRequest(routed_request, self._fast_path.terms.ttl_s, ReserveFlag.SINGLE_USE, None)
        at = ReserveTarget(self._reserver, asked.pool, wanted)
        at.worker = asked.worker
        return await self._somewhere(endpoint, wanted, DEFAULTS, tried=(at, fate))

    async def reserve(
        self,
        endpoint: str,
        method: str | None,
        slots: int | None,
        *,
        ttl_s: float,
        flags: ReserveFlag,
        options: CallOptions,
        deadline: float | None,
        sets: bool = False,
        prefers: str = "",
        parent: Parent = None,
    ) -> HeldSlots:
        """Reserve slots of one worker, or of one gang of a standing set.

        Args:
            endpoint: the endpoint, or the pool.
            method: the task that they are for, if that matters; with `slots=None`, as many slots as it takes.
            sets: whether the pool in the options may be a standing set.
            prefers: the worker to take if it has room.

        Raises:
            Unavailable: see RoutedPool.place.
            GanglineError: the worker's error answer.
        """
        routed_request = RoutedRequest(
            method=method,
            slots=slots,
            key=options.key,
            model=options.model,
            labels=options.labels,
            deadline=deadline,
            max_attempts=options.max_attempts or self._max_attempts,
            queue=options.queue,
            prefers=prefers,
        )
        asked = SlotRequest(routed_request, ttl_s, flags, deadline)
        facts = {"gangline.pool": endpoint}
        with tracer.span("gangline.reserve", kind="client", attributes=facts, parent=parent) as span:
            hold = await self._somewhere(endpoint, asked, options, sets=sets)
            span.set(gangline__worker=str(hold.worker.id), gangline__pool=hold.pool.name)
        return self._held(hold)

    def _held(self, hold: HeldSlots) -> HeldSlots:
        self._holds.keep(hold)
        self._check_held(hold)
        return hold

    def _check_held(self, hold: HeldSlots) -> None:
        """The slot was granted, but the router may have stopped meanwhile."""
        try:
            self._check_open()
        except ClosedError:
            hold.release()
            raise

    async def _somewhere(
        self,
        endpoint: str,
        asked: SlotRequest,
        options: CallOptions,
        *,
        sets: bool = False,
        tried: tuple[AttemptTarget, TryOutcome] | None = None,
    ) -> HeldSlots:
        """`tried`: a failed first attempt, made elsewhere."""
        at = None if tried is None else tried[0]
        target = EndpointTarget(
            self._traffic, asked.routed_request, lambda: self._target(endpoint, asked, options, sets), at
        )
        try:
            hold: HeldSlots = await self._caller.run(target, tried=tried)
            hold.endpoint = endpoint
            return hold
        finally:
            target.over()

    async def _target(self, endpoint: str, asked: SlotRequest, options: CallOptions, sets: bool) -> AttemptTarget:
        """A pool (or standing set) of the endpoint's route, or the pool in the options, to reserve slots of."""
        self._check_open()
        pool: RoutedPool | StandingSetRouter
        if options.pool is None:
            pool = await self._traffic.find(endpoint, asked.routed_request, asked.deadline)
        else:
            routed = await self._sets.find_if_permitted(endpoint, asked.deadline) if sets else None
            pool = routed or await self._following.get(endpoint, asked.deadline)
        if isinstance(pool, StandingSetRouter):
            return pool.reserve_target(self._reserver, asked)
        return ReserveTarget(self._reserver, pool, asked)
