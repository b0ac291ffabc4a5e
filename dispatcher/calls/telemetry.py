"""One request as metrics and traces see it, from its taking to its end."""

from __future__ import annotations

import asyncio
from types import TracebackType

from ...schemas.errors.base import GanglineError
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Span, tracer
from ..routing.request import RoutedRequest
from .call import Call


class RequestTelemetry:
    """`with RequestTelemetry(...) as (ticket, span)`: counted when it is entered and when it is left, and traced if
    traces are on. A class and not a generator: it is entered at every call."""

    __slots__ = ("_began_at", "_counted", "_loop", "_metrics", "_order", "_since", "_span", "_routed")

    def __init__(
        self,
        order: Call,
        routed_request: RoutedRequest,
        metrics: RouterMetrics,
        loop: asyncio.AbstractEventLoop,
        *,
        counted: bool = True,
        since: float | None = None,
    ) -> None:
        """
        Args:
            counted: counted as taken when it is entered; else when it is left, since its pool is not known before.
            since: when it was taken and counted, elsewhere.
        """
        self._counted = counted
        self._since = since
        self._began_at = 0.0 if since is None else since
        self._order = order
        self._routed = routed_request
        self._metrics = metrics
        self._loop = loop

    def __enter__(self) -> tuple[RoutedRequest, Span]:
        order = self._order
        if self._since is None:
            self._began_at = self._loop.time()
        span = NO_SPAN
        if tracer.enabled:
            span = tracer.start(
                f"gangline.call {order.target}",
                kind="client",
                parent=order.span_parent,
                attributes={"gangline.pool": order.pool, "gangline.endpoint": order.endpoint},
            )
        self._span = span
        if self._counted and self._since is None:
            self._metrics.request(order.endpoint, order.pool)
        return self._routed, span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        order = self._order
        if self._span is not NO_SPAN:
            self._span.end(error)
        if not self._counted:
            self._metrics.request(order.endpoint, order.pool)
        self._metrics.finished(
            order.endpoint,
            order.pool,
            self._loop.time() - self._began_at,
            max(1, self._routed.attempts),
            None if error is None else code_of(error),
        )


def code_of(error: BaseException) -> str:
    """What an error is counted as."""
    if isinstance(error, GanglineError):
        return error.code
    return "cancelled" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else "internal"
