"""Fast paths for held slots: choosing a worker, a task on a selection, a task on a lease.

See calls.fast_path: these handle requests without special options; all others are left to the general engine and its
targets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...runtime.failure_detector import TimeoutQueue
from ...schemas.limits import MIN_TTL_S
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp, ReserveFlag
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import Parent
from ..calls.call import CallOptions
from ..calls.fast_path import FastPath, PlainFlight, ShortFlight
from ..routing.outcome import TryOutcome
from ..routing.settings import RouterSettings
from ..transport.channel import ReservationRequest, Settlement
from .held_slots import HeldSlots, LeaseTerms
from .lease_slots import LeaseSlots
from .selection import OPEN, Selection

_OK: Final = int(AnswerOp.OK)
_RESERVE: Final = int(RequestOp.RESERVE)
_SINGLE_USE: Final = int(ReserveFlag.SINGLE_USE)


class _OnHold(PlainFlight):
    """A task on held slots; as it is, on a selected slot that counts like a plain request, whose accounting it takes
    over."""

    def __init__(self, id: int, future: asyncio.Future[Any], hold: HeldSlots) -> None:
        self.id = id
        self.worker = hold.worker
        self.future = future
        self.hold = hold
        self.pool = hold.pool

    @property
    def endpoint(self) -> str:
        return self.hold.endpoint


class LeasedFlight(_OnHold):
    """A task on a lease: it uses one of its slots."""

    cost = 1
    slots: LeaseSlots

    @property
    def books(self) -> Settlement:  # type: ignore[override]
        return self.slots

    def settle(self) -> None:
        self.slots.give(self)

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _OK:
            return super().deliver(frame)
        assert self.outbound is not None
        if self.slots.waiting and self.slots.usual is not None and self.method:
            self.slots.usual.ended(self.method, self.future.get_loop().time() - self.outbound.begun_at)
        self.slots.give(self)
        self.hold.used(self.outbound.begun_at)
        if self.timeouts is not None:
            self.timeouts.drop(self)
        if not self.future.done():
            self.future.set_result(frame)
        return True


class ChargedFlight(_OnHold):
    """A task on a selected slot that a request accounts for: it takes over the slot and its accounting."""

    def settle(self) -> None:
        self.hold.settle()

    def deliver(self, frame: Frame) -> bool:
        charge = self.hold.charge
        if frame[0] != _OK or charge is None:
            return super().deliver(frame)
        self.pool.settle(charge)
        self.pool.accepted(charge)
        self._done(frame)
        return True


class PlainReserve(ShortFlight, ReservationRequest):
    """A reservation of one slot on any worker. When it is granted, it stays counted, for the HeldSlots made from it."""

    _counts = True

    def settle(self) -> None:
        """Idempotent: a reservation that timed out is given up after its end."""
        if self._counts:
            self._counts = False
            self.pool.core.end_plain(self.worker)


class LeaseFastPath:
    """Fast paths of one router."""

    def __init__(self, fast_path: FastPath, settings: RouterSettings, metrics: RouterMetrics, owner: str) -> None:
        """`owner`: owner of the slots, as shown in the ledger."""
        self._fast_path = fast_path
        self.answered = fast_path.answered
        self.failed = fast_path.failed
        self._exchange = fast_path.exchange
        self._metrics = metrics
        self._probe_s = settings.probe_first_s
        self.terms = terms = LeaseTerms(max(MIN_TTL_S, settings.claim_s), settings.claim_s)
        """Terms of slots that are held for one task."""
        self._asked = (
            1,
            terms.ttl_ms,
            round(terms.claim_s * 1000),
            _SINGLE_USE,
            max(1, round(settings.probe_first_s * 1000)),
            {"owner": owner} if owner else None,
        )
        """Fields of a reserve after its id: slots, time to live, claim timeout, flags, deadline, owner."""
        self.probes: TimeoutQueue[PlainReserve] = TimeoutQueue(
            lambda flight: self._exchange.lose(flight, TryOutcome.SLOW)
        )
        """Reservations that are awaited: a worker that does not answer in time is taken for slow."""

    def close(self) -> None:
        """Called when the router stops."""
        self.probes.close()
        self._fast_path.close()

    @property
    def parent(self) -> Parent:
        """See FastPath.parent."""
        return self._fast_path.parent

    # -- choosing -------------------------------------------------------------------------------------------------

    def reserve(self, endpoint: str, options: CallOptions) -> PlainReserve | None:
        """Send a reservation to a worker; None: nothing was done."""
        fast_path = self._fast_path
        fast_path.parent = None
        pool = fast_path.plain_pools.get(endpoint)
        timed = options.timeout_s is not None or fast_path.timeout_s is not None
        if pool is None or timed or options.key is not None or not fast_path.allows(options):
            return None
        worker = pool.core.place_plain(None)
        if worker is None:
            return None
        exchange = self._exchange
        flight = PlainReserve(exchange.new_id(), worker, exchange.new_future(), pool)
        exchange.launch(flight, (_RESERVE, flight.id, *self._asked))
        self.probes.add(flight, flight.sent_at + self._probe_s)
        return flight

    def granted(self, flight: PlainReserve, frame: Frame) -> HeldSlots:
        """The slot that a worker has granted."""
        pool, asked_at = flight.pool, flight.sent_at
        pool.core.progressed(None, asked_at)
        return HeldSlots(self._exchange, pool, flight.worker, flight.id, frame, self.terms, asked_at)

    # -- tasks on held slots --------------------------------------------------------------------------------------

    def dispatch(
        self,
        selection: Selection,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> PlainFlight | None:
        """Send a task to the selected slot and mark the selection used; None: nothing was done."""
        hold, exchange = selection.hold, self._exchange
        self._fast_path.parent = None
        if (
            selection.state is not OPEN
            or method not in hold.worker.methods
            or not hold.usable(exchange.loop.time())
            or not self._fast_path.allows(options)
        ):
            return None
        kind = _OnHold if hold.charge is None else ChargedFlight
        flight = kind(exchange.new_id(), exchange.new_future(), hold)
        timeout_s = self._fast_path.timeout_s if options.timeout_s is None else options.timeout_s
        if not self._fast_path.send(flight, method, args, kwargs, timeout_s, hold.token, key=options.key):
            return None
        self._taken(hold)
        selection.mark_used()
        hold.consume()
        return flight

    def on_lease(
        self,
        hold: HeldSlots,
        slots: LeaseSlots,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> PlainFlight | None:
        """Send a task on a lease that has a free slot; None: nothing was done."""
        exchange = self._exchange
        self._fast_path.parent = None
        declared = hold.worker.methods.get(method)
        if (
            declared is None
            or declared.slots != 1
            or not hold.usable(exchange.loop.time())
            or not self._fast_path.allows(options)
        ):
            return None
        flight = LeasedFlight(exchange.new_id(), exchange.new_future(), hold)
        flight.slots = slots
        if not slots.take_nowait(flight):
            return None
        timeout_s = self._fast_path.timeout_s if options.timeout_s is None else options.timeout_s
        if not self._fast_path.send(flight, method, args, kwargs, timeout_s, hold.token, key=options.key):
            slots.give(flight)
            return None
        self._taken(hold)
        return flight

    def _taken(self, hold: HeldSlots) -> None:
        if hold.endpoint == hold.pool.name:
            hold.pool.taken.count += 1
        else:
            self._metrics.request(hold.endpoint, hold.pool.name)

    def __repr__(self) -> str:
        return f"LeaseFastPath(probes={len(self.probes)})"
