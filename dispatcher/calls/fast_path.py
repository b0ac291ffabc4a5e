"""The short way of plain calls: from the arguments to the wire in one function.

Most calls ask for nothing but a task, and maybe to be done in time: no key, model or labels, no trace, one slot of any
worker. For those, what Order, Caller and the general choice of a worker do step by step is done here at once, and with
the same outcome. Whatever turns out to be special, before it is sent (nobody has room, a line is waiting) or after (a
refusal, a lost worker), is left to them, as if they had made the first try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...schemas.deadline import UNDER, current_deadline
from ...schemas.errors.base import GanglineError
from ...schemas.wire.frames import Request
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import tracer
from ..pools.pool import RoutedPool
from ..routing.settings import RouterSettings
from ..transport.exchange import Exchange
from .attempts import Caller
from .call import CallOptions
from .fast_requests import PlainFlight, TimedFlight, Way
from .telemetry import code_of
from .timeouts import Deadlines

_TASK: Final = int(Request.TASK)
_under: Final = UNDER.get
_traced: Final = tracer.on


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
        self._ways: dict[str, Way] = {}
        """By target; each is good for as long as its pool is the plain one."""
        self._timeout_s = settings.default_timeout_s
        self._deadlines = Deadlines(caller)

    def launch(
        self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, options: CallOptions, flags: int
    ) -> PlainFlight | None:
        """Send a call, if it is as plain as all that; None: nothing was done."""
        way = self._ways.get(target)
        if way is None or self.plain_pools.get(way.endpoint) is not way.pool:
            way = self._find(target)
        under = _under()
        if way is None or not options.plain or _traced() or (under is not None and under.deadline is not None):
            return None
        pool, exchange = way.pool, self.exchange
        timeout_s = self._timeout_s if options.timeout_s is None else options.timeout_s
        if timeout_s is not None:
            return self._launch_timed(way, target, args, kwargs, flags, timeout_s)
        worker = pool.core.place_plain(way.method)
        if worker is None:
            return None
        flight = PlainFlight(exchange.new_id(), worker, exchange.new_future(), pool)
        return self._sent(flight, way, args, kwargs, flags, None)

    def allows(self, options: CallOptions) -> bool:
        """Whether a request made now, with these options, asks for nothing special, nor to be done in time."""
        timeless = options.timeout_s is None and self._timeout_s is None
        return timeless and options.plain and not _traced() and current_deadline() is None

    def close(self) -> None:
        """The router stops."""
        self._deadlines.close()

    def answered(self, flight: PlainFlight) -> None:
        """The task has its result; need only be told while `measured`."""
        seconds = self.exchange.loop.time() - flight.sent_at
        self._metrics.finished(flight.endpoint, flight.pool.name, seconds, 1, None)

    def failed(self, flight: PlainFlight, error: BaseException) -> None:
        """Nobody waits for the answer any more: the caller was cancelled, or the router stopped, or time is up."""
        if isinstance(error, asyncio.CancelledError):
            self._caller.abandon(flight)
        seconds = self.exchange.loop.time() - flight.sent_at
        self._metrics.finished(flight.endpoint, flight.pool.name, seconds, 1, code_of(error))

    def _find(self, target: str) -> Way | None:
        split = self._targets.get(target)
        pool = None if split is None else self.plain_pools.get(split[0])
        if split is None or pool is None:
            self._ways.pop(target, None)
            return None
        endpoint, method = split
        way = self._ways[target] = Way(endpoint, method, pool)
        return way

    def _launch_timed(
        self,
        way: Way,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        flags: int,
        timeout_s: float,
    ) -> PlainFlight | None:
        exchange, deadline_ms = self.exchange, int(timeout_s * 1000)
        alarms = self._deadlines.of(timeout_s)
        worker = way.pool.core.place_plain(way.method) if alarms is not None and deadline_ms > 0 else None
        if alarms is None or worker is None:
            return None
        flight = TimedFlight(
            exchange.new_id(),
            worker,
            exchange.new_future(),
            way.pool,
            target=target,
            timeout_s=timeout_s,
            alarms=alarms,
        )
        if self._sent(flight, way, args, kwargs, flags, deadline_ms) is None:
            return None
        if not flight.future.done():  # else it was lost at once
            alarms.add(flight, flight.deadline)
        return flight

    def _sent(
        self,
        flight: PlainFlight,
        way: Way,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        flags: int,
        deadline_ms: int | None,
    ) -> PlainFlight | None:
        """The flight, if it could be sent."""
        frame = (_TASK, flight.id, way.method, args or None, kwargs or None, deadline_ms, None, None, flags, None)
        pool = flight.pool
        try:
            self.exchange.launch(flight, frame)
        except GanglineError:
            # Arguments that cannot be sent: the general way says so.
            flight.settle()
            pool.pump()
            return None
        pool.taken.count += 1
        return flight
