"""Slots of one worker that this router holds by a token: asked for, kept alive, given back exactly once.

Laws:

1. Whatever was reserved ends in exactly one way: released (one RELEASE frame), used up by the task of a single-use
   token, or lost with its worker. This holds on every path, cancellation at any await included; no clean-up awaits.
2. A hold is trusted until its time to live, measured from before the request, less a margin: this end always stops
   trusting first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..schemas.errors import GanglineError, LeaseExpired, WorkerLost
from ..schemas.frames import Answer, Frame, Request, ReserveFlag
from ..telemetry.metrics import RouterMetrics
from .alarms import Alarms
from .core import Ticket, stale
from .exchange import Exchange
from .inflight import Flight, Outcome, ReserveFlight
from .order import error_of
from .pool import RoutedPool
from .retry import Fate
from .settings import RouterSettings
from .view import Worker

_RENEWALS_PER_TTL: Final = 3


def margin_s(ttl_s: float) -> float:
    """How much earlier than the worker its holder stops trusting a lease: for clocks that drift, at most a quarter."""
    return min(ttl_s / 4, 0.05 + ttl_s / 100)


class RenewFlight(Flight):
    """A RENEW; its answer goes to the hold."""

    __slots__ = ("hold", "sent_at")

    def __init__(self, id: int, worker: Worker, hold: Hold, sent_at: float) -> None:
        super().__init__(id, worker)
        self.hold = hold
        self.sent_at = sent_at

    def deliver(self, frame: Frame) -> bool:
        self.hold.renewed(self, frame)
        return True

    def lose(self, fate: Fate) -> None:
        """The timer tries again for as long as the hold is trusted."""


class Hold:
    """Slots held by a token."""

    __slots__ = (
        "_ended",
        "_alarms",
        "_exchange",
        "_loop",
        "_metrics",
        "_renewal",
        "_timer",
        "endpoint",
        "epoch",
        "failure",
        "fence",
        "on_end",
        "pool",
        "reserve_id",
        "slots",
        "ticket",
        "token",
        "trusted_until",
        "ttl_s",
        "worker",
    )

    def __init__(
        self,
        *,
        exchange: Exchange,
        pool: RoutedPool,
        metrics: RouterMetrics,
        ticket: Ticket,
        flight: ReserveFlight,
        granted: Frame,
        epoch: int,
        slots: int,
        ttl_s: float,
        first_s: float,
        asked_at: float,
        alarms: Alarms[Hold] | None = None,
    ) -> None:
        """
        Args:
            first_s: for how long the grant is good without a use or renewal.
            asked_at: before the request.
            alarms: for the first renewal, in place of a timer.
        """
        self._alarms = alarms
        self._exchange = exchange
        self._loop = exchange.loop
        self._metrics = metrics
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: RenewFlight | None = None
        self._ended = False
        self.pool = pool
        self.endpoint = pool.name
        """What was asked for: the pool, or an endpoint whose route led there."""
        self.worker = flight.worker
        self.ticket = ticket
        self.reserve_id = flight.id
        self.token: str = granted[2]
        self.fence: int = granted[3]
        self.epoch = epoch
        self.slots = slots
        self.ttl_s = min(ttl_s, granted[4] / 1000)
        self.trusted_until = asked_at + min(first_s, self.ttl_s) - margin_s(min(first_s, self.ttl_s))
        self.on_end: Callable[[Hold], object] | None = None
        """Called once, when it is released or used up."""
        self.failure: GanglineError | None = None
        """Why it is lost; None while it is not known to be."""
        metrics.reserved(pool.name, slots)
        first_at = asked_at + min(first_s, self.ttl_s) / _RENEWALS_PER_TTL
        if alarms is None:
            self._schedule(first_at)
        else:
            alarms.add(self, first_at)

    @property
    def ended(self) -> bool:
        """Whether it was released or used up."""
        return self._ended

    def trouble(self) -> GanglineError | None:
        """Why the hold must not be used, or None. Asked before each use."""
        if not self.pool.contains(self.worker):
            return WorkerLost(
                f"{self.worker.id} is gone, and the lease with it; nothing was sent",
                may_have_started=False,
                details={"worker": str(self.worker.id)},
            )
        if self.worker.epoch != self.epoch:
            return stale(self.worker, self.epoch)
        if self.failure is not None:
            return self.failure
        if self._loop.time() >= self.trusted_until:
            return LeaseExpired(
                f"the lease on {self.worker.id} may have expired (not renewed in time); nothing was sent: lease again",
                details={"worker": str(self.worker.id), "token": self.token},
            )
        return None

    def used(self, sent_at: float) -> None:
        """The worker took a task of it, which is as good as a renewal."""
        self.trusted_until = max(self.trusted_until, sent_at + self.ttl_s - margin_s(self.ttl_s))

    def release(self, *, aside_s: float = 0.0) -> None:
        """Give the slots back. Idempotent, never fails, never waits: it cannot be skipped, nor mask an error.

        Args:
            aside_s: for so long this router's own requests do not go for them. Else whoever of ours waits is there
                before the worker can invite others.
        """
        if self._end():
            self._exchange.post(self.worker, (Request.RELEASE, self.reserve_id, self.token))
            if aside_s > 0:
                self._loop.call_later(aside_s, self._settle)
            else:
                self._settle()

    def _settle(self) -> None:
        self.pool.settle(self.ticket)
        self.pool.pump()

    def consume(self) -> Ticket:
        """The task of a single-use token takes the slot over: whoever sends it settles the ticket."""
        self._end()
        return self.ticket

    def give_back(self) -> None:
        """After `consume`: the task may not have arrived, so that the token may still hold the slot."""
        self._exchange.post(self.worker, (Request.RELEASE, self.reserve_id, self.token))

    def renew(self) -> None:
        """Ask for more time now; the answer comes later. No-op when it is over."""
        if self._ended or self.failure is not None:
            return
        if self._renewal is not None:
            self._exchange.forget(self._renewal)
        now = self._loop.time()
        flight = RenewFlight(self._exchange.new_id(), self.worker, self, now)
        self._renewal = flight
        self._exchange.launch(flight, (Request.RENEW, flight.id, self.token, round(self.ttl_s * 1000)))
        # Unanswered, it is asked again sooner; answered, the answer schedules the next.
        self._schedule(now + self.ttl_s / _RENEWALS_PER_TTL / 4)

    def renewed(self, flight: RenewFlight, frame: Frame) -> None:
        """The worker answered a renewal."""
        if self._ended or flight is not self._renewal:
            return
        self._renewal = None
        if frame[0] == Answer.RENEWED:
            ttl_s = frame[2] / 1000
            self.trusted_until = max(self.trusted_until, flight.sent_at + ttl_s - margin_s(ttl_s))
            self._schedule(flight.sent_at + ttl_s / _RENEWALS_PER_TTL)
        elif frame[0] == Answer.ERROR:
            self._fail(error_of(frame))
        elif Fate.of_reason(frame[2]) is Fate.STALE:
            self._fail(stale(self.worker, self.epoch))

    def _schedule(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self.due)

    def due(self) -> None:
        """It is time to renew."""
        self._timer = None
        trouble = self.trouble()
        if trouble is not None:
            self._fail(trouble)
        else:
            self.renew()

    def _fail(self, error: GanglineError) -> None:
        self.failure = error
        self._stop()

    def _stop(self) -> None:
        if self._alarms is not None:
            self._alarms.drop(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._exchange.forget(self._renewal)
            self._renewal = None

    def _end(self) -> bool:
        if self._ended:
            return False
        self._ended = True
        self._stop()
        self._metrics.reserved(self.pool.name, -self.slots)
        if self.on_end is not None:
            self.on_end(self)
        return True

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"lost: {self.failure.code}" if self.failure else "held"
        return f"Hold({self.slots} slots of {self.worker.id}, {state})"


class Reserver:
    """Asks workers for slots."""

    def __init__(self, exchange: Exchange, settings: RouterSettings, metrics: RouterMetrics, owner: str) -> None:
        self._exchange = exchange
        self._settings = settings
        self._metrics = metrics
        self._owner = owner

    async def reserve(
        self,
        pool: RoutedPool,
        ticket: Ticket,
        *,
        ttl_s: float,
        flags: ReserveFlag,
        deadline: float | None,
        tried: tuple[Worker, Fate] | None = None,
    ) -> Hold:
        """Hold slots on one worker of the pool. Cancelling releases whatever may have been granted.

        Args:
            tried: where a first try, made elsewhere, came to nothing, and why.

        Raises:
            Unavailable: see RoutedPool.place.
            GanglineError: what the worker answered.
        """
        # With the ledger written first, an answer takes as long as storage does.
        probe_s = self._settings.probe_max_s if flags & ReserveFlag.SYNC else self._settings.probe_first_s
        fate: Fate | None = None
        while True:
            if tried is None:
                worker = await pool.place(ticket, deadline, fate)
                left_s = probe_s if deadline is None else min(probe_s, deadline - self._exchange.loop.time())
                if left_s <= 0:
                    pool.settle(ticket)
                    pool.pump()
                    raise pool.core.give_up(ticket, "by the deadline")
                result = await self._try(pool, ticket, worker, ttl_s=ttl_s, flags=flags, probe_s=left_s)
                if isinstance(result, Hold):
                    pool.accepted(ticket)
                    return result
            else:
                (worker, result), tried = tried, None
            if result is Fate.SLOW:
                probe_s = min(self._settings.probe_max_s, 2 * probe_s)
            fate = result
            pool.refused(ticket, worker, fate)

    async def _try(
        self, pool: RoutedPool, ticket: Ticket, worker: Worker, *, ttl_s: float, flags: ReserveFlag, probe_s: float
    ) -> Hold | Fate:
        exchange, loop = self._exchange, self._exchange.loop
        flight = ReserveFlight(exchange.new_id(), worker, loop, pool, ticket)
        asked_at = loop.time()
        claim_s = min(self._settings.claim_s, ttl_s)
        meta = {"owner": self._owner} if self._owner else None
        exchange.launch(
            flight,
            (
                Request.RESERVE,
                flight.id,
                ticket.cost,
                round(ttl_s * 1000),
                round(claim_s * 1000),
                int(flags),
                max(1, round(probe_s * 1000)),
                meta,
            ),
        )
        timer = loop.call_later(probe_s, exchange.lose, flight, Fate.SLOW)
        try:
            return await self.answer(pool, flight, ttl_s=ttl_s, asked_at=asked_at)
        finally:
            timer.cancel()

    async def answer(
        self,
        pool: RoutedPool,
        flight: ReserveFlight,
        *,
        ttl_s: float,
        asked_at: float,
        alarms: Alarms[Hold] | None = None,
    ) -> Hold | Fate:
        """What a reserve that was sent comes to; `asked_at` and `alarms` as of Hold.

        Raises:
            GanglineError: what the worker answered.
        """
        try:
            outcome = await flight.future
        except asyncio.CancelledError:
            # Granted or not, known or not: one release, and the books are straight.
            self.undo(pool, flight)
            raise
        return self.taken(pool, flight, outcome, ttl_s=ttl_s, asked_at=asked_at, alarms=alarms)

    def taken(
        self,
        pool: RoutedPool,
        flight: ReserveFlight,
        outcome: Outcome,
        *,
        ttl_s: float,
        asked_at: float,
        alarms: Alarms[Hold] | None = None,
    ) -> Hold | Fate:
        """What an outcome comes to; as `answer`."""
        ticket = flight.ticket
        if isinstance(outcome, Fate):
            if outcome is Fate.SLOW:
                self.undo(pool, flight)
            # A reservation starts nothing: what was lost with its worker may be asked for elsewhere.
            return Fate.GONE if outcome.may_have_started else outcome
        if outcome[0] == Answer.GRANTED:
            return Hold(
                exchange=self._exchange,
                pool=pool,
                metrics=self._metrics,
                ticket=ticket,
                flight=flight,
                granted=outcome,
                epoch=flight.worker.epoch,
                slots=ticket.cost,
                ttl_s=ttl_s,
                first_s=min(self._settings.claim_s, ttl_s),
                asked_at=asked_at,
                alarms=alarms,
            )
        if outcome[0] == Answer.REJECTED:
            return Fate.of_reason(outcome[2])
        raise error_of(outcome)

    def undo(self, pool: RoutedPool, flight: ReserveFlight) -> None:
        """Give back what may have been granted, or will be."""
        exchange = self._exchange
        if not exchange.recall(flight):
            exchange.forget(flight)
            exchange.post(flight.worker, (Request.RELEASE, flight.id, None))
        pool.settle(flight.ticket)
        pool.pump()
