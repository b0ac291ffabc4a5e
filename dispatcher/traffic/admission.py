"""One endpoint's route in operation: admits requests to pools, queues them at limits, and sends copies to shadows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...schemas.errors.base import GanglineError, QueueFull, Saturated
from ...schemas.records.routes import RouteRecord
from ...schemas.text import count_of
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Span
from ..routing.settings import RouterSettings
from .route_core import Admitted, Draw, PoolShare, RouteCore

if TYPE_CHECKING:
    from ...telemetry.metrics.instruments import Tally
    from ..calls.call import Call
    from ..pools.pool import RoutedPool
    from ..routing.pool_core import RoutedRequest
    from .shadowing import ShadowTraffic

Waiter = asyncio.Future[str | GanglineError]
"""Ends with the pool, or with the error why there is none."""


class RouteAdmission:
    """One request's admission by a route, from entering a pool to its end; the pool calls `settled` and `sent`.

    It counts against the pool's limit until its task has really ended, even if its caller is gone by then.
    """

    __slots__ = ("_over", "_sent", "order", "pool", "route", "span")

    def __init__(self, route: EndpointRoute, order: Call | None) -> None:
        """`order`: the call to copy to shadows; None: no copies."""
        self.route = route
        self.order = order
        self.pool: str | None = None
        self.span: Span = NO_SPAN
        self._over = False
        self._sent = False

    def sent(self) -> None:
        """The request itself was sent; copies follow in the next turn of the loop."""
        if not self._sent:
            self._sent = True
            if self.order is not None and self.route.core.record.shadow:
                asyncio.get_running_loop().call_soon(self.route.mirror, self.order, self.span)

    def settled(self) -> None:
        """The request no longer counts on a worker."""
        if self._over:
            self.leave()

    def leave(self) -> None:
        """Leave its pool, if it is in one. Idempotent."""
        pool, self.pool = self.pool, None
        if pool is not None:
            self.route.leave(pool)

    def end(self, routed_request: RoutedRequest) -> None:
        """The request is no longer awaited."""
        self._over = True
        if routed_request.worker is None:
            self.leave()


class EndpointRoute:
    """The route of one endpoint, in one router."""

    def __init__(
        self,
        endpoint: str,
        record: RouteRecord,
        *,
        settings: RouterSettings,
        metrics: RouterMetrics,
        shadows: ShadowTraffic,
        draw: Draw,
        deserted: Callable[[str], bool],
        numbers: Iterator[int],
    ) -> None:
        self.endpoint = endpoint
        self.core = RouteCore(endpoint, record, draw=draw, deserted=deserted, numbers=numbers)
        self.draw = self.core.draw
        self.deleted = False
        """The route was deleted; this object stays for requests that are still in its pools."""
        self.plain: dict[str, tuple[RoutedPool, Tally]] = {}
        """Open pools that its requests have used, each with the counter of such requests."""
        self._settings = settings
        self._metrics = metrics
        self._shadows = shadows
        self._timers: dict[RoutedRequest, asyncio.TimerHandle] = {}
        """Timeouts of waiting requests."""
        self._moved_at = 0.0
        """When a request was last admitted while others waited."""

    def used(self, pool: RoutedPool) -> None:
        """A request uses that pool."""
        if pool.name not in self.plain and not self.deleted:
            self.plain[pool.name] = pool, self._metrics.taken(self.endpoint, pool.name)

    async def enter(
        self,
        routed_request: RoutedRequest,
        admission: RouteAdmission,
        deadline: float | None,
        drawn: str | None = None,
    ) -> str:
        """The pool to use; the request is counted there until `admission` ends. Waits while all pools are at their
        limits.

        Args:
            drawn: what `draw` gave for it.

        Raises:
            QueueFull: at once.
            Saturated: no request was admitted for too long, or not this one by the deadline; nothing was sent.
        """
        full = len(self.core.line) >= self._settings.max_queued
        pool = self.core.enter(routed_request, drawn)
        if pool is None:
            if full:
                self.core.withdraw(routed_request)
                raise QueueFull(
                    f"the queue for route {self.endpoint!r} is full ({count_of(len(self.core.line), 'request')}): "
                    "slow down, or raise max_queued",
                    details={"endpoint": self.endpoint, "max_queued": self._settings.max_queued},
                )
            pool = await self._wait(routed_request, deadline)
        admission.pool = pool
        return pool

    def left(self, share: PoolShare) -> None:
        """As `leave`, of a request that counted itself inside."""
        share.inside -= 1
        if self.core.line.size:
            self.poke()

    def leave(self, pool: str) -> None:
        """A request that entered the pool has ended or moves elsewhere."""
        if admitted := self.core.leave(pool):
            self._let_in(admitted)

    def changed(self, record: RouteRecord | None) -> None:
        """Use another route; None: it was deleted."""
        self.deleted = record is None
        self.plain.clear()
        self._let_in(self.core.changed(record or RouteRecord()))

    def poke(self) -> None:
        """Admit waiting requests after an outside change, for example when a pool has workers again."""
        self._let_in(self.core.pump())

    def mirror(self, order: Call, span: Span) -> None:
        """Send copies of a request."""
        self._shadows.mirror(self.core.record, order, span)

    def close(self, error: GanglineError) -> None:
        """Refuse waiting requests."""
        for routed_request in list(self.core.line):
            self.core.withdraw(routed_request)
            _wake(routed_request, error)

    def statistics(self) -> dict[str, Any]:
        """Requests inside by pool, and requests that wait for a limit."""
        return {"inside": dict(self.core.inside), "waiting": len(self.core.line)}

    def __repr__(self) -> str:
        return f"EndpointRoute({self.core!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _wait(self, routed_request: RoutedRequest, deadline: float | None) -> str:
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        routed_request.waiter = waiter
        began_at = loop.time()
        self._metrics.held_back(self.endpoint, +1)
        until = began_at + self._settings.saturated_wait_s if deadline is None else deadline
        self._timers[routed_request] = loop.call_at(until, self._too_late, routed_request, deadline, began_at)
        try:
            found = await waiter
        except asyncio.CancelledError:
            self._give_up(routed_request, waiter)
            raise
        finally:
            self._timers.pop(routed_request).cancel()
            self._metrics.held_back(self.endpoint, -1)
            routed_request.waiter = None
        if isinstance(found, GanglineError):
            raise found
        return found

    def _give_up(self, routed_request: RoutedRequest, waiter: Waiter) -> None:
        if self.core.withdraw(routed_request):
            self._let_in(self.core.pump())
        elif waiter.done() and not waiter.cancelled() and isinstance(found := waiter.result(), str):
            self.leave(found)  # admitted in the very turn in which its caller left

    def _too_late(self, routed_request: RoutedRequest, deadline: float | None, began_at: float) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._settings.saturated_wait_s
        if deadline is None and (again_at := max(began_at, self._moved_at) + limit_s) > loop.time():
            # Others were admitted meanwhile: the route makes progress, so its turn will come.
            self._timers[routed_request] = loop.call_at(again_at, self._too_late, routed_request, deadline, began_at)
            return
        if not self.core.withdraw(routed_request):
            return
        _wake(
            routed_request,
            Saturated(
                f"all pools of route {self.endpoint!r} were at their limits for {loop.time() - began_at:.3g} s; "
                "nothing was sent: raise the limits, or wait longer",
                details={"endpoint": self.endpoint, "limits": dict(self.core.record.limits)},
            ),
        )
        self._let_in(self.core.pump())

    def _let_in(self, admitted: list[Admitted]) -> None:
        if admitted:
            self._moved_at = asyncio.get_running_loop().time()
        for request, pool in admitted:
            if not _wake(request, pool):
                self.leave(pool)


def _wake(routed_request: Any, found: str | GanglineError) -> bool:
    """Wake a waiting request. False if its caller has just been cancelled: its own clean-up has no pool to leave."""
    waiter = routed_request.waiter
    assert isinstance(waiter, asyncio.Future), routed_request
    if waiter.done():
        return False
    waiter.set_result(found)
    return True
