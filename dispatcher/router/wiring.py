"""Creates the parts of a router."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import cached_property
from typing import Final, Protocol

from ...bus.port.bus import BucketSettings, Bus, NotPermitted
from ...runtime.clock import Environment
from ...schemas.errors.base import ClosedError, Disconnected
from ...schemas.messages.operations import RouterQueues
from ...schemas.names import Names
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..calls.attempts import AttemptLoop
from ..calls.call import Call, CallOptions, RequestTelemetry
from ..calls.fast_path import FastPath
from ..gangs.gang import GangClient
from ..gangs.members import MemberChannelFactory
from ..gangs.set_registry import SetRegistry
from ..leases.fast_path import LeaseFastPath
from ..leases.held_slots import SlotReserver
from ..pools.pool import RoutedPool
from ..pools.registry import PoolRegistry
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from ..traffic.shadowing import ShadowTraffic
from ..traffic.table import FIRST_PULL_S, RouteTable
from ..transport.exchange import RequestExchange
from .traffic_director import EndpointReserver, TrafficDirector

PERIOD_S: Final = 1.0


class QueueLengths:
    """Broadcasts the queue lengths of one router: once a second while requests wait, and once when none are left."""

    def __init__(
        self, bus: Bus, names: Names, waiting: Callable[[], dict[str, int]], *, router: str, owner: str, node: str
    ) -> None:
        """
        Args:
            waiting: number of waiting requests by pool; pools without any are left out.
            router: its name in subjects.
            owner, node: owner and host of the router, for display.
        """
        self._bus = bus
        self._subject = names.router_event(router)
        self._waiting = waiting
        self.router = router
        """Its name in subjects."""
        self._owner = owner
        self._node = node
        self._said_at = float("-inf")
        self._said: dict[str, int] = {}

    def tick(self, now: float) -> None:
        """Call this more often than once a second."""
        if now - self._said_at < PERIOD_S:
            return
        waiting = self._waiting()
        if not waiting and not self._said:
            return
        told = {**dict.fromkeys(self._said, 0), **waiting}
        self._said, self._said_at = waiting, now
        event = RouterQueues(router=self.router, owner=self._owner, node=self._node, waiting=told)
        # Queue lengths are optional; the connection logs once that they are not permitted.
        with contextlib.suppress(Disconnected, ClosedError, NotPermitted):
            self._bus.publish(self._subject, event.model_dump_json().encode())


class RouterContext(Protocol):
    """The functions of the router that its parts use."""

    def check_open(self) -> None:
        """Raises ClosedError if the router is not running."""

    def deadline(self, options: CallOptions) -> float | None:
        """Deadline of a request made now."""

    def observed(self, order: Call, since: float | None = None) -> RequestTelemetry:
        """Counts and traces a request."""

    async def pool(self, name: str, deadline: float | None = None) -> RoutedPool:
        """The pool of that name."""


class RouterWiring:
    """Creates each part on first use, from the parts that it needs. Where two parts need each other, one of them gets
    the other only while running."""

    def __init__(
        self,
        router: RouterContext,
        bus: Bus,
        names: Names,
        *,
        settings: RouterSettings,
        ambient: Environment,
        bucket: BucketSettings,
        policy: Callable[[str], Policy],
        metrics: RouterMetrics,
        owner: str,
        routes_bucket: BucketSettings | None,
        makes_routes: bool,
    ) -> None:
        """See Router; `owner`: owner of the slots, as shown in the ledger."""
        self._router = router
        self._bus = bus
        self._names = names
        self._settings = settings
        self._ambient = ambient
        self._bucket = bucket
        self._policy = policy
        self._metrics = metrics
        self._owner = owner
        self._routes_bucket = routes_bucket
        self._makes_routes = makes_routes
        self.pools: dict[str, RoutedPool] = {}
        """Open pools."""
        self.targets: dict[str, tuple[str, str]] = {}
        """Endpoint and method of validated targets."""

    # -- the wire -------------------------------------------------------------------------------------------------

    @cached_property
    def exchange(self) -> RequestExchange:
        return RequestExchange(self._bus, self._names, self._ambient, self._settings, self.pools.get)

    @cached_property
    def caller(self) -> AttemptLoop:
        return AttemptLoop(self.exchange, self._settings.stream_window)

    @cached_property
    def fast_path(self) -> FastPath:
        return FastPath(
            self.exchange,
            self.caller,
            self._settings,
            self._metrics,
            self.targets,
            plain_pools=self.traffic.plain,
            routes=self.traffic.routes,
        )

    @cached_property
    def lengths(self) -> QueueLengths:
        router = self._ambient.token()  # not the exchange's name, which is for its workers only
        return QueueLengths(
            self._bus, self._names, self._waiting, router=router, owner=self._owner, node=self._settings.node
        )

    # -- workers, sets, routes ------------------------------------------------------------------------------------

    @cached_property
    def following(self) -> PoolRegistry:
        return PoolRegistry(
            self._bus,
            self._names,
            pools=self.pools,
            exchange=self.exchange,
            settings=self._settings,
            bucket=self._bucket,
            policy=self._policy,
            metrics=self._metrics,
            draw=self._chance.random,
            numbers=self.exchange.numbers,
            strays=self._strays,
            on_close=self._forget,
            on_tick=self._tick,
        )

    @cached_property
    def sets(self) -> SetRegistry:
        return SetRegistry(
            self._bus,
            self._names,
            self._settings,
            exchange=self.exchange,
            lines=self._lines,
            policy=self._policy,
            metrics=self._metrics,
            random=self._chance,
            ledger=self.following.ledger,
            numbers=self.exchange.numbers,
            strays=self._strays,
            on_change=self._forget,
        )

    @cached_property
    def routes(self) -> RouteTable:
        return RouteTable(
            self._bus,
            self._names,
            bucket=self._routes_bucket,
            make=self._makes_routes,
            reconcile_s=self._settings.reconcile_s,
            # A queue without its route would be run against its limits, or although it is paused.
            first_pull_s=None if self._makes_routes else FIRST_PULL_S,
        )

    @cached_property
    def traffic(self) -> TrafficDirector:
        shadows = ShadowTraffic(
            self.exchange,
            self._settings,
            self._metrics,
            pools=self.pools,
            open_soon=self.following.open_soon,
            draw=self._chance.random,
        )
        return TrafficDirector(
            self.routes,
            pools=self.pools,
            following=self.following,
            sets=self.sets,
            shadows=shadows,
            settings=self._settings,
            metrics=self._metrics,
            draw=self._chance.random,
            numbers=self.exchange.numbers,
        )

    # -- held slots -----------------------------------------------------------------------------------------------

    @cached_property
    def held_express(self) -> LeaseFastPath:
        return LeaseFastPath(self.fast_path, self._settings, self._metrics, self._owner)

    @cached_property
    def reserving(self) -> EndpointReserver:
        return EndpointReserver(
            self.caller,
            SlotReserver(self.exchange, self._settings, self._owner),
            self.held_express,
            self.traffic,
            self.following,
            self.sets,
            check_open=self._router.check_open,
            deadline=self._router.deadline,
            settings=self._settings,
        )

    @cached_property
    def gangs(self) -> GangClient:
        return GangClient(
            self._bus,
            self._names,
            self._ambient,
            self._settings,
            lines=self._lines,
            deadline=self._router.deadline,
            observe=self._router.observed,
            owner=self._owner,
        )

    # -- inside ---------------------------------------------------------------------------------------------------

    @cached_property
    def _chance(self) -> random.Random:
        # A separate generator: the system's costs a system call per draw.
        return random.Random(self._ambient.random.getrandbits(64))

    @cached_property
    def _lines(self) -> MemberChannelFactory:
        return MemberChannelFactory(caller=self.caller, pool=self._router.pool)

    def _strays(self, endpoint: str, pool: str) -> bool:
        return self.traffic.strays(endpoint, pool)

    def _waiting(self) -> dict[str, int]:
        pools = {name: pool.core.waiting for name, pool in self.pools.items() if pool.core.waiting}
        return {**pools, **self.sets.waiting()}

    def _tick(self) -> None:
        self.traffic.poke()
        now = self.exchange.loop.time()
        self.sets.tick(now)
        self.lengths.tick(now)

    def _forget(self, name: str) -> None:
        self.traffic.forget(name)
