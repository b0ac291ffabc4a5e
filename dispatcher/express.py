"""The short way of plain calls: from the arguments to the wire in one function.

Most calls ask for nothing but a task: no key, model, labels or deadline, no trace, one slot of any worker. For those,
what Order, Caller and the general choice of a worker do step by step is done here at once, and with the same outcome.
Whatever turns out to be special, before it is sent (nobody has room, a line is waiting) or after (a refusal, a lost
worker), is left to them, with the same ticket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..schemas.deadline import DEADLINE
from ..schemas.errors import GanglineError
from ..schemas.frames import Request
from ..telemetry.instruments import metrics_enabled
from ..telemetry.metrics import RouterMetrics
from ..telemetry.tracing import tracer
from .caller import Caller
from .exchange import Exchange
from .inflight import TaskFlight
from .observed import code_of
from .order import CallOptions
from .pool import RoutedPool
from .settings import RouterSettings

_TASK: Final = int(Request.TASK)
_deadline: Final = DEADLINE.get


class PlainFlight(TaskFlight):
    """A call on its short way."""

    pool: RoutedPool
    """Where it was placed."""
    endpoint: str
    """What was asked for; for the metrics."""
    sent_at: float


class Express:
    """Sends plain calls of one router."""

    def __init__(
        self,
        exchange: Exchange,
        caller: Caller,
        settings: RouterSettings,
        metrics: RouterMetrics,
        targets: Mapping[str, tuple[str, str]],
        plain_pools: Mapping[str, RoutedPool],
    ) -> None:
        """
        Args:
            targets: endpoint and method of each `ENDPOINT.METHOD` that was found right.
            plain_pools: the open pool that alone serves an endpoint, where there is no more to it.
        """
        self.exchange = exchange
        self.plain_pools = plain_pools
        self._caller = caller
        self._metrics = metrics
        self._targets = targets
        self._has_deadline = settings.default_timeout_s is not None
        self._max_attempts = settings.max_attempts
        self._plain: CallOptions | None = None
        """Options that are known to ask for nothing: one client's are the same at every call."""

    def launch(
        self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: CallOptions, flags: int
    ) -> PlainFlight | None:
        """Send a call, if it is as plain as all that; None: nothing was done."""
        split = self._targets.get(target)
        if split is None or not self.allows(options):
            return None
        endpoint, method = split
        pool = self.plain_pools.get(endpoint)
        if pool is None:
            return None
        exchange, core = self.exchange, pool.core
        loop = exchange.loop
        core.connected = exchange.bus.connected
        now = loop.time()
        ticket = core.place_plain(method, now, self._max_attempts)
        if ticket is None:
            return None
        assert ticket.worker is not None
        flight = PlainFlight(exchange.new_id(), ticket.worker, loop, pool, ticket)
        flight.pool, flight.endpoint, flight.sent_at = pool, endpoint, now
        frame = (_TASK, flight.id, method, args or None, kwargs or None, None, None, None, flags, None)
        try:
            exchange.launch(flight, frame, now)
        except GanglineError:
            # Arguments that cannot be sent: the general way says so.
            pool.settle(ticket)
            pool.pump()
            return None
        pool.used_at = now
        self._metrics.request(endpoint, pool.name)
        return flight

    def allows(self, options: CallOptions) -> bool:
        """Whether a request made now, with these options, asks for nothing special."""
        if options is not self._plain and not self._is_plain(options):
            return False
        return not tracer.probe() and _deadline() is None

    def answered(self, flight: PlainFlight) -> None:
        """The task has its result."""
        if metrics_enabled():
            seconds = self.exchange.loop.time() - flight.sent_at
            self._metrics.finished(flight.endpoint, flight.pool.name, seconds, 1, None)

    def failed(self, flight: PlainFlight, error: BaseException) -> None:
        """Nobody waits for the answer any more: the caller was cancelled, or the router stopped."""
        self._caller.abandon(flight)
        seconds = self.exchange.loop.time() - flight.sent_at
        self._metrics.finished(flight.endpoint, flight.pool.name, seconds, 1, code_of(error))

    def _is_plain(self, options: CallOptions) -> bool:
        asked = (options.key, options.model, options.labels, options.timeout_s, options.max_attempts, options.pool)
        if self._has_deadline or options.idempotent is not None or any(value is not None for value in asked):
            return False
        self._plain = options
        return True
