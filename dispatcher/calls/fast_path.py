"""The fast path of plain calls: from the arguments to the wire in one function.

Most calls have no options except, perhaps, a deadline or a key: no model or labels, one slot. Their routing state would
be the same for all, so none is created: each flight counts on its worker as one slot from placement to end. A route
that only shares requests between pools by weight does not change that. Special cases are left to `AttemptLoop`, whether
they show before sending (no free slot, a queue) or after (any answer but a result); it continues as if it had made the
first attempt. A call on the fast path costs about half of one that `AttemptLoop` makes from the start, counting both
sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ...runtime.failure_detector import TimeoutQueue
from ...schemas.deadline import UNDER
from ...schemas.errors.base import GanglineError
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp
from ...telemetry.metrics.instruments import Tally
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Parent, Span, Unsampled, tracer
from ..pools.pool import RoutedPool
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from ..transport.channel import AwaitedRequest, Outcome, OutcomeSink, Settlement
from ..transport.exchange import RequestExchange
from .attempts import AttemptLoop
from .call import CallOptions, code_of, too_late

_TASK: Final = int(RequestOp.TASK)
_OK: Final = int(AnswerOp.OK)
_HELD: Final = int(AnswerOp.HELD)
_under: Final = UNDER.get
_traced: Final = tracer.on

_MOST: Final = 64
"""Number of different timeouts with queues of their own. More are rare, and take the general path."""


class Way(NamedTuple):
    """The fast path to one task, valid while its endpoint is served by that pool alone."""

    endpoint: str
    method: str
    pool: RoutedPool | None
    """None: a route chooses the pool of each call."""


class Share(Protocol):
    """One pool of a route, and how many requests are in it; see PoolShare."""

    name: str
    inside: int


class Weights(Protocol):
    """An endpoint's route, as far as the fast path uses it; see EndpointRoute."""

    @property
    def endpoint(self) -> str: ...

    @property
    def plain(self) -> Mapping[str, tuple[RoutedPool, Tally]]:
        """Open pools that its requests have used, each with the counter of such requests."""

    def draw(self, key: str | None) -> Any:
        """The Share of a request's pool, in which it counts itself; None: the fast path does not support this
        route."""

    def left(self, share: Any) -> None:
        """A request that counted itself in that Share has ended."""


class ShortFlight(AwaitedRequest):
    """A request on the fast path. Times are those of its message; no frame needs its own."""

    pool: RoutedPool

    def __init__(
        self, id: int, worker: WorkerEntry, future: asyncio.Future[Any] | OutcomeSink, pool: RoutedPool
    ) -> None:
        self.id = id
        self.worker = worker
        self.future = future  # type: ignore[assignment] # a caller that gives a sink does not await it
        self.pool = pool

    @property
    def books(self) -> Settlement:  # type: ignore[override]
        return self.pool

    @property
    def sent_at(self) -> float:
        """Loop time; not later than the send."""
        return self.future.get_loop().time() if self.outbound is None else self.outbound.begun_at


class PlainFlight(ShortFlight):
    """A task. With a key, it is on the key's home."""

    checked = True
    method = ""
    key: str | None = None
    timeout_s: float | None = None
    timeouts: TimeoutQueue[PlainFlight] | None = None
    """The queue that ends it at its deadline."""
    trace: Unsampled | None = None
    """What it carries on, if tracing is on and it is not sampled."""
    span: Span = NO_SPAN
    """The call's span, if it is sampled."""
    route: Weights | None = None
    """The route that chose its pool."""
    share: Share | None = None
    """Where the route counts it: until it has ended; after an answer that is not a result, until the general path
    counts it."""

    @property
    def deadline(self) -> float | None:
        """Loop time; None: no deadline."""
        return None if self.timeout_s is None else self.sent_at + self.timeout_s

    @property
    def endpoint(self) -> str:
        """The endpoint of the call."""
        return self.pool.name if self.route is None else self.route.endpoint

    def leave(self) -> None:
        """The call has ended, or does not continue on the general path."""
        if self.route is not None and self.share is not None:
            share, self.share = self.share, None
            self.route.left(share)

    def settle(self) -> None:
        self.pool.core.end_plain(self.worker)

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _OK:
            if frame[0] == _HELD:
                return False
            self._end(frame)
            return True
        worker = self.worker
        worker.ended += 1  # all flights that one message ends are settled together
        worker.latest = self
        if self.key is not None and (core := self.pool.core).waiting:
            core.progressed_on(self.method, self.key, self.future.get_loop().time())
        # `_done`, inlined for speed.
        if self.timeouts is not None:
            self.timeouts.drop(self)
        if not self.future.done():
            self.future.set_result(frame)
        if self.share is not None:
            self.leave()
        return True

    def _end(self, outcome: Outcome) -> None:
        self.settle()
        self._done(outcome)

    def _done(self, outcome: Outcome) -> None:
        if self.timeouts is not None:
            self.timeouts.drop(self)
        if self.future.done():
            self.leave()
        else:
            self.future.set_result(outcome)


class FastPath:
    """Sends plain calls of one router."""

    def __init__(
        self,
        exchange: RequestExchange,
        caller: AttemptLoop,
        settings: RouterSettings,
        metrics: RouterMetrics,
        targets: Mapping[str, tuple[str, str]],
        plain_pools: Mapping[str, RoutedPool],
        routes: Mapping[str, Weights],
    ) -> None:
        """
        Args:
            targets: endpoint and method of each validated `ENDPOINT.METHOD`.
            plain_pools: open pools that serve their endpoint alone, with no route or set.
            routes: routes that were used, by endpoint.
        """
        self.exchange = exchange
        self.plain_pools = plain_pools
        self.timeout_s = settings.default_timeout_s
        self._caller = caller
        self._metrics = metrics
        self._targets = targets
        self._routes = routes
        self._ways: dict[str, Way] = {}
        """By target; each is valid as long as its pool is the plain one."""
        self._timeouts: dict[float, TimeoutQueue[PlainFlight]] = {}
        """By timeout. Most calls of a client have the same, and are answered in time; see TimeoutQueue for the cost."""
        self.parent: Parent = None
        """After a request was declined: what its span is to be started with, or the trace that it carries on."""
        self.drawn: str | None = None
        """After a request was declined: the pool that its route chose."""

    def launch(
        self,
        target: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        flags: int,
        parent: Parent = None,
        sink: OutcomeSink | None = None,
    ) -> PlainFlight | None:
        """Send a call with plain options, if nothing else is special about it. None: nothing was done; `parent` says
        how its trace goes on, and `drawn` in which pool. `sink`: takes the outcome in place of a new future."""
        self.parent = parent
        self.drawn = None
        way = self._ways.get(target)
        if way is None or self.plain_pools.get(way.endpoint) is not way.pool:
            way = self._find(target)
        under, traced = _under(), _traced()
        if traced:
            self.parent = parent = tracer.decide(parent)
        if way is None or (under is not None and under.deadline is not None):
            return None
        method, pool, key = way.method, way.pool, options.key
        route: Weights | None = None
        share: Share | None = None
        if pool is not None:
            taken = pool.taken
        elif (route := self._routes.get(way.endpoint)) is None or (share := route.draw(key)) is None:
            return None
        else:
            self.drawn = share.name
            if (found := route.plain.get(share.name)) is None:
                return None
            pool, taken = found
        worker = pool.core.place_plain(method) if key is None else pool.core.place_keyed(method, key)
        if worker is None:
            return None
        exchange = self.exchange
        future = exchange.new_future() if sink is None else sink
        flight = PlainFlight(exchange.new_id(), worker, future, pool)
        if share is not None:
            flight.route, flight.share = route, share
            share.inside += 1
        if key is not None:
            flight.key, flight.method = key, method
        if traced and type(parent) is not Unsampled:
            flight.span = tracer.start(
                f"gangline.call {target}",
                kind="client",
                parent=parent,
                attributes={
                    "gangline.pool": pool.name,
                    "gangline.endpoint": way.endpoint,
                    "gangline.worker": str(worker.id),
                },
            )
        timeout_s = self.timeout_s if options.timeout_s is None else options.timeout_s
        if not self.send(flight, method, args, kwargs, timeout_s, None, flags, key):
            flight.settle()
            flight.leave()
            pool.pump()
            return None
        taken.count += 1
        return flight

    def allows(self, options: CallOptions) -> bool:
        """Whether a request with these options needs nothing special now; see `launch` for `parent`."""
        self.parent = None
        under = _under()
        return options.short and (under is None or under.deadline is None) and self._spanless()

    def _spanless(self) -> bool:
        if _traced():
            self.parent = tracer.decide(self.parent)
            return type(self.parent) is Unsampled
        return True

    def send(
        self,
        flight: PlainFlight,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        timeout_s: float | None,
        token: str | None,
        flags: int = 0,
        key: str | None = None,
    ) -> bool:
        """Send a task. False: it cannot be sent; the general path finds out why."""
        deadline_ms = timeouts = None
        if timeout_s is not None:
            deadline_ms = int(timeout_s * 1000)
            timeouts = self._timeouts.get(timeout_s)
            if timeouts is None:
                timeouts = self._new_timeouts(timeout_s)
            if timeouts is None or deadline_ms <= 0:
                return False
            flight.method, flight.timeout_s, flight.timeouts = method, timeout_s, timeouts
        trace: str | None = None
        if type(self.parent) is Unsampled:
            flight.trace = self.parent
            trace = self.parent.traceparent
        elif flight.span is not NO_SPAN:
            trace = flight.span.traceparent()
        meta = None if key is None else {"key": key}
        frame = (_TASK, flight.id, method, args or None, kwargs or None, deadline_ms, token, trace, flags, meta)
        try:
            self.exchange.launch(flight, frame)
        except GanglineError:
            return False
        if timeouts is not None and timeout_s is not None and not flight.future.done():  # otherwise it was lost at once
            timeouts.add(flight, flight.sent_at + timeout_s)
        return True

    def close(self) -> None:
        """Called when the router stops."""
        for timeouts in self._timeouts.values():
            timeouts.close()
        self._timeouts.clear()

    def answered(self, flight: PlainFlight) -> None:
        """The task has its result; only called while `measured`, or if the flight has a span."""
        flight.span.end()
        if self.exchange.measured:
            self._metrics.answered(flight.endpoint, flight.pool.name, self.exchange.loop.time() - flight.sent_at)

    def failed(self, flight: PlainFlight, error: BaseException) -> None:
        """The answer is no longer awaited: the caller was cancelled, the router stopped, or the deadline passed."""
        flight.span.end(error)
        if isinstance(error, asyncio.CancelledError):
            self._caller.abandon(flight)
        seconds = self.exchange.loop.time() - flight.sent_at
        self._metrics.finished(flight.endpoint, flight.pool.name, seconds, 1, code_of(error))
        if not self.exchange.is_open(flight):
            flight.leave()

    def _find(self, target: str) -> Way | None:
        split = self._targets.get(target)
        pool = None if split is None else self.plain_pools.get(split[0])
        if split is None or (pool is None and split[0] not in self._routes):
            self._ways.pop(target, None)
            return None
        way = self._ways[target] = Way(*split, pool)
        return way

    def _new_timeouts(self, timeout_s: float) -> TimeoutQueue[PlainFlight] | None:
        """The queue of that timeout; None: there are too many different ones."""
        if len(self._timeouts) >= _MOST:
            for other, timeouts in list(self._timeouts.items()):
                if not timeouts:
                    timeouts.close()
                    del self._timeouts[other]
            if len(self._timeouts) >= _MOST:
                return None
        found = self._timeouts[timeout_s] = TimeoutQueue(self._expire)
        return found

    def _expire(self, flight: PlainFlight) -> None:
        if not flight.future.done():
            sent = self._caller.abandon(flight)
            flight.future.set_exception(too_late(f"{flight.endpoint}.{flight.method}", may_have_started=sent))
