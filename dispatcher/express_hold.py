"""The short ways of held slots: choosing a worker, a task on what was chosen, a task on a lease.

See express: what these do for requests that ask for nothing special, selection, hold and leases do for all; and what
turns out to be special is left to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..schemas.errors import GanglineError
from ..schemas.frames import Request, ReserveFlag
from ..schemas.limits import MIN_TTL_S
from ..telemetry.metrics import RouterMetrics
from .alarms import Alarms
from .core import Ticket
from .express import Express, PlainFlight
from .hold import Hold
from .inflight import ReserveFlight
from .lease_slots import LeaseSlots
from .order import CallOptions
from .pool import RoutedPool
from .retry import Fate
from .selection import Selection, State
from .settings import RouterSettings

_TASK: Final = int(Request.TASK)
_RESERVE: Final = int(Request.RESERVE)
_SINGLE_USE: Final = int(ReserveFlag.SINGLE_USE)


class PlainReserve(ReserveFlight):
    """A slot of any worker, asked for the short way."""

    pool: RoutedPool
    asked_at: float


class HeldExpress:
    """For one router."""

    def __init__(self, express: Express, settings: RouterSettings, metrics: RouterMetrics, owner: str) -> None:
        """`owner`: who holds, as the ledger says it."""
        self._express = express
        self.answered = express.answered
        self.failed = express.failed
        self._exchange = express.exchange
        self._metrics = metrics
        self._max_attempts = settings.max_attempts
        self._probe_s = settings.probe_first_s
        ttl_s = max(MIN_TTL_S, settings.claim_s)
        self._terms = (
            round(ttl_s * 1000),
            round(min(settings.claim_s, ttl_s) * 1000),
            _SINGLE_USE,
            max(1, round(settings.probe_first_s * 1000)),
            {"owner": owner} if owner else None,
        )
        """Of a reserve: time to live, claim timeout, flags, deadline, and who asks."""
        self._probes: Alarms[PlainReserve] = Alarms(lambda flight: self._exchange.lose(flight, Fate.SLOW))
        self.renewals: Alarms[Hold] = Alarms(lambda hold: hold.due())
        """First renewals of what was chosen: nearly all of it is used before that."""

    def close(self) -> None:
        """The router stops."""
        self._probes.close()
        self.renewals.close()

    # -- choosing -------------------------------------------------------------------------------------------------

    def reserve(self, endpoint: str, options: CallOptions) -> PlainReserve | None:
        """Ask a worker for a slot; None: nothing was done."""
        if not self._express.allows(options):
            return None
        pool = self._express.plain_pools.get(endpoint)
        if pool is None:
            return None
        exchange, core = self._exchange, pool.core
        core.connected = exchange.bus.connected
        now = exchange.loop.time()
        ticket = core.place_plain(None, now, self._max_attempts)
        if ticket is None:
            return None
        assert ticket.worker is not None
        flight = PlainReserve(exchange.new_id(), ticket.worker, exchange.loop, pool, ticket)
        flight.pool, flight.asked_at = pool, now
        ttl_ms, claim_ms, flags, probe_ms, meta = self._terms
        exchange.launch(flight, (_RESERVE, flight.id, 1, ttl_ms, claim_ms, flags, probe_ms, meta), now)
        pool.used_at = now
        self._probes.add(flight, now + self._probe_s)
        return flight

    def reserved(self, flight: PlainReserve) -> None:
        """There is an answer, or nobody waits for it any more."""
        self._probes.drop(flight)

    # -- tasks on what is held ------------------------------------------------------------------------------------

    def dispatch(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> PlainFlight | None:
        """Send a task to the slot that was chosen, which is used then; None: nothing was done."""
        hold = selection.hold
        if (
            selection.state is not State.OPEN
            or not self._express.allows(options)
            or method not in hold.worker.methods
            or hold.trouble() is not None
        ):
            return None
        flight = self._send(hold, hold.pool, hold.ticket, method, args, kwargs)
        if flight is not None:
            selection.mark_used()
            hold.consume()
        return flight

    def on_lease(
        self,
        hold: Hold,
        slots: LeaseSlots,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> PlainFlight | None:
        """Send a task on a lease that has a slot for it now; None: nothing was done."""
        declared = hold.worker.methods.get(method)
        if (
            declared is None
            or declared.slots != 1
            or hold.ended
            or not self._express.allows(options)
            or hold.trouble() is not None
        ):
            return None
        ticket = Ticket(method=method, max_attempts=1)
        ticket.cost = ticket.attempts = 1
        if not slots.take_nowait(ticket):
            return None
        ticket.worker = hold.worker
        flight = self._send(hold, slots, ticket, method, args, kwargs)
        if flight is None:
            slots.settle(ticket)
        return flight

    def _send(
        self,
        hold: Hold,
        books: RoutedPool | LeaseSlots,
        ticket: Ticket,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> PlainFlight | None:
        exchange = self._exchange
        now = exchange.loop.time()
        flight = PlainFlight(exchange.new_id(), hold.worker, exchange.loop, books, ticket)
        flight.pool, flight.endpoint, flight.sent_at = hold.pool, hold.endpoint, now
        try:
            exchange.launch(
                flight, (_TASK, flight.id, method, args or None, kwargs or None, None, hold.token, None, 0, None), now
            )
        except GanglineError:
            return None  # arguments that cannot be sent: the general way says so
        self._metrics.request(hold.endpoint, hold.pool.name)
        return flight

    def __repr__(self) -> str:
        return f"HeldExpress(probes={len(self._probes)}, renewals={len(self.renewals)})"
