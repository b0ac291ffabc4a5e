"""Copies of requests to shadow pools: sent after the request itself, never awaited, queued or retried.

A copy is sent at once to a worker that has room, or not at all. Its outcome is only counted:

=========  ========================================================================================================
sent       to a worker; it then ends as one of:
ok         it answered; items of a stream are read and dropped
failed     the task raised, or does not exist there
refused    the worker had no room after all, or is draining
late       no answer within `shadow_timeout_s`; it was cancelled
lost       the worker disappeared
dropped    not sent: no worker with room, none at all, too many copies in progress, or the pool is not open yet
=========  ========================================================================================================
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...schemas.errors.base import GanglineError
from ...schemas.records.routes import RouteRecord
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..calls.call import Call
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from ..transport.channel import InFlightRequest
from ..transport.exchange import RequestExchange
from .route_core import Draw

_log = logger_for("dispatcher")

_CREDIT_EVERY: Final = 32
_WINDOW: Final = 64


class ShadowFlight(InFlightRequest):
    """A copy in flight."""

    checked = True

    def __init__(
        self,
        id: int,
        worker: WorkerEntry,
        shadows: ShadowTraffic,
        pool: RoutedPool,
        order: Call,
        routed_request: RoutedRequest,
    ) -> None:
        super().__init__(id, worker)
        self.shadows = shadows
        self.pool = pool
        self.order = order
        self.routed_request = routed_request
        self.items = 0
        self.late = False
        self.timer: asyncio.TimerHandle | None = None
        self.span: Span = NO_SPAN

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == AnswerOp.ITEM:
            self.items += 1
            if self.items % _CREDIT_EVERY == 0:
                self.shadows.credit(self, _CREDIT_EVERY)
            return False
        if frame[0] == AnswerOp.REJECTED:
            self.shadows.ended(self, "refused")
        else:
            self.shadows.ended(self, "failed" if frame[0] == AnswerOp.ERROR else "ok")
        return True

    def lose(self, fate: TryOutcome) -> None:
        self.shadows.ended(self, "lost" if fate.may_have_started else "refused")


class ShadowTraffic:
    """All copies of one router."""

    def __init__(
        self,
        exchange: RequestExchange,
        settings: RouterSettings,
        metrics: RouterMetrics,
        *,
        pools: Mapping[str, RoutedPool],
        open_soon: Callable[[str], None],
        draw: Draw,
    ) -> None:
        """`pools`: open pools; `open_soon` opens another one in the background."""
        self._exchange = exchange
        self._settings = settings
        self._metrics = metrics
        self._pools = pools
        self._open_soon = open_soon
        self._draw = draw
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        """Outcomes by endpoint and pool."""
        self._under_way: Counter[str] = Counter()
        """Copies in progress by pool."""

    def mirror(self, record: RouteRecord, order: Call, parent: Span = NO_SPAN) -> None:
        """Draw for each shadow independently, and send it a copy if drawn. Called after the request itself was sent.
        Never raises."""
        for pool, percent in record.shadow.items():
            if self._draw() * 100 < percent:
                try:
                    self._copy(pool, order, parent)
                except GanglineError as error:  # not serializable: the caller of the request gets the error
                    self._count(order.endpoint, pool, "dropped")
                    _log.debug("no copy for %s: %s", pool, error, extra={"action": "shadow.dropped", "pool": pool})

    def open(self, record: RouteRecord) -> None:
        """Open the pools to which copies will be sent."""
        for pool, percent in record.shadow.items():
            if percent > 0 and pool not in self._pools:
                self._open_soon(pool)

    def statistics(self) -> dict[str, dict[str, dict[str, int]]]:
        """Outcomes of copies, by endpoint and pool."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for (endpoint, pool), counts in self._counts.items():
            found.setdefault(endpoint, {})[pool] = dict(counts)
        return found

    # -- flights --------------------------------------------------------------------------------------------------

    def credit(self, flight: ShadowFlight, items: int) -> None:
        """Grant the worker credit for this many items, which were read."""
        self._exchange.post(flight.worker, (RequestOp.CREDIT, flight.id, items))

    def ended(self, flight: ShadowFlight, outcome: str) -> None:
        """The worker has finished it, or is gone."""
        if flight.timer is not None:
            flight.timer.cancel()
        flight.pool.settle(flight.routed_request)
        self._under_way[flight.pool.name] -= 1
        if not flight.late:
            self._count(flight.order.endpoint, flight.pool.name, outcome)
        flight.span.end()
        flight.pool.pump()

    def _copy(self, name: str, order: Call, parent: Span) -> None:
        pool = self._pools.get(name)
        if pool is None:
            self._open_soon(name)
        if pool is None or self._under_way[name] >= self._settings.max_shadows:
            self._count(order.endpoint, name, "dropped")
            return
        options = order.options
        routed_request = RoutedRequest(
            method=order.method, key=options.key, model=options.model, labels=options.labels, max_attempts=1
        )
        if not pool.place_at_once(routed_request):
            self._count(order.endpoint, name, "dropped")
            return
        worker = routed_request.worker
        assert worker is not None
        exchange = self._exchange
        flight = ShadowFlight(exchange.new_id(), worker, self, pool, order, routed_request)
        if tracer.enabled:
            flight.span = tracer.start(
                f"gangline.shadow {order.target}",
                kind="producer",
                parent=parent.traceparent(),
                attributes={"gangline.pool": name, "gangline.worker": str(worker.id), "gangline.shadow": True},
            )
        self._under_way[name] += 1
        try:
            exchange.launch(flight, self._frame(flight, order))
        except BaseException:
            self._under_way[name] -= 1
            pool.settle(routed_request)
            flight.span.end()
            raise
        if exchange.is_open(flight):
            flight.timer = exchange.loop.call_later(self._settings.shadow_timeout_s, self._expire, flight)
        self._count(order.endpoint, name, "sent")

    def _frame(self, flight: ShadowFlight, order: Call) -> Frame:
        meta: dict[str, Any] = {"shadow": True, "attempt": 1, "window": _WINDOW}
        if order.options.key is not None:
            meta["key"] = order.options.key
        if order.options.model is not None:
            meta["model"] = order.options.model
        limit_ms = round(self._settings.shadow_timeout_s * 1000)
        trace = flight.span.traceparent()
        return (
            int(RequestOp.TASK),
            flight.id,
            order.method,
            order.args or None,
            order.kwargs or None,
            limit_ms,
            None,
            trace,
            order.flags,
            meta,
        )

    def _expire(self, flight: ShadowFlight) -> None:
        """Timeout: cancel the copy and count it now. It stays in progress until the worker frees the slot."""
        flight.timer = None
        flight.late = True
        self._count(flight.order.endpoint, flight.pool.name, "late")
        if self._exchange.recall(flight):
            self.ended(flight, "late")
        else:
            self._exchange.post(flight.worker, (RequestOp.CANCEL, flight.id))

    def _count(self, endpoint: str, pool: str, outcome: str) -> None:
        self._counts.setdefault((endpoint, pool), Counter())[outcome] += 1
        self._metrics.shadow(endpoint, pool, outcome)

    def __repr__(self) -> str:
        return f"ShadowTraffic({self._under_way.total()} under way)"
