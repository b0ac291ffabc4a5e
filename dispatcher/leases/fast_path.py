"""The short ways of held slots: choosing a worker, a task on what was chosen, a task on a lease.

See express: what these do for requests that ask for nothing special, selection, hold and leases do for all; and what
turns out to be special is left to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...runtime.timeouts import Alarms
from ...schemas.errors.base import GanglineError
from ...schemas.limits import MIN_TTL_S
from ...schemas.wire.frames import Frame, Request, ReserveFlag
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..calls.call import CallOptions
from ..calls.fast_path import Express
from ..calls.fast_requests import PlainFlight
from ..routing.outcome import Fate
from ..routing.settings import RouterSettings
from .fast_requests import LeasedFlight, PlainReserve, TokenFlight
from .held_slots import Hold, Terms
from .lease_slots import LeaseSlots
from .selection import OPEN, Selection

_TASK: Final = int(Request.TASK)
_RESERVE: Final = int(Request.RESERVE)
_SINGLE_USE: Final = int(ReserveFlag.SINGLE_USE)


class HeldExpress:
    """For one router."""

    def __init__(self, express: Express, settings: RouterSettings, metrics: RouterMetrics, owner: str) -> None:
        """`owner`: who holds, as the ledger says it."""
        self._express = express
        self.answered = express.answered
        self.failed = express.failed
        self._exchange = express.exchange
        self._metrics = metrics
        self._probe_s = settings.probe_first_s
        self.terms = terms = Terms(max(MIN_TTL_S, settings.claim_s), settings.claim_s)
        """Of what is held for one task."""
        self._asked = (
            terms.ttl_ms,
            round(terms.claim_s * 1000),
            _SINGLE_USE,
            max(1, round(settings.probe_first_s * 1000)),
            {"owner": owner} if owner else None,
        )
        """Of a reserve: time to live, claim timeout, flags, deadline, and who asks."""
        self._probes: Alarms[PlainReserve] = Alarms(lambda flight: self._exchange.lose(flight, Fate.SLOW))

    def close(self) -> None:
        """The router stops."""
        self._probes.close()
        self._express.close()

    # -- choosing -------------------------------------------------------------------------------------------------

    def reserve(self, endpoint: str, options: CallOptions) -> PlainReserve | None:
        """Ask a worker for a slot; None: nothing was done."""
        pool = self._express.plain_pools.get(endpoint)
        if pool is None or not self._express.allows(options):
            return None
        worker = pool.core.place_plain(None)
        if worker is None:
            return None
        exchange = self._exchange
        flight = PlainReserve(exchange.new_id(), worker, exchange.new_future(), pool)
        ttl_ms, claim_ms, flags, probe_ms, meta = self._asked
        exchange.launch(flight, (_RESERVE, flight.id, 1, ttl_ms, claim_ms, flags, probe_ms, meta))
        self._probes.add(flight, flight.sent_at + self._probe_s)
        return flight

    def granted(self, flight: PlainReserve, frame: Frame) -> Hold:
        """The slot that a worker has granted."""
        pool, asked_at = flight.pool, flight.sent_at
        pool.core.progressed(None, asked_at)
        return Hold(self._exchange, pool, flight.worker, flight.id, frame, self.terms, asked_at)

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
        hold, exchange = selection.hold, self._exchange
        if (
            selection.state is not OPEN
            or method not in hold.worker.methods
            or not hold.usable(exchange.loop.time())
            or not self._express.allows(options)
        ):
            return None
        flight = TokenFlight(exchange.new_id(), exchange.new_future(), hold)
        if not self._send(flight, hold, method, args, kwargs):
            return None
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
        exchange = self._exchange
        declared = hold.worker.methods.get(method)
        if (
            declared is None
            or declared.slots != 1
            or not hold.usable(exchange.loop.time())
            or not self._express.allows(options)
        ):
            return None
        flight = LeasedFlight(exchange.new_id(), exchange.new_future(), hold, slots)
        if not slots.take_nowait(flight):
            return None
        if not self._send(flight, hold, method, args, kwargs):
            slots.give(flight)
            return None
        return flight

    def _send(
        self, flight: PlainFlight, hold: Hold, method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> bool:
        frame = (_TASK, flight.id, method, args or None, kwargs or None, None, hold.token, None, 0, None)
        try:
            self._exchange.launch(flight, frame)
        except GanglineError:
            return False  # arguments that cannot be sent: the general way says so
        if hold.endpoint == hold.pool.name:
            hold.pool.taken.count += 1
        else:
            self._metrics.request(hold.endpoint, hold.pool.name)
        return True

    def __repr__(self) -> str:
        return f"HeldExpress(probes={len(self._probes)})"
