"""Slots of one worker that this router holds by a token: reserved, renewed, and given back exactly once.

Laws:

1. Every reservation ends in exactly one way: released (one RELEASE frame), used up by the task of a single-use token,
   or lost with its worker. This holds on every path, including cancellation at any await; no clean-up awaits.
2. A hold is trusted for its time to live, measured from before the request, minus a margin, so this side always stops
   trusting it before the worker does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

from ...runtime.failure_detector import TimeoutQueue
from ...runtime.timers import margin_s
from ...schemas.errors.base import GanglineError, LeaseExpired, WorkerLost
from ...schemas.names import public_id
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp, ReserveFlag
from ...telemetry.tracing import Span
from ..calls.attempts import AttemptLoop, AttemptTarget, PoolTarget, TaskTarget
from ..calls.call import Call, error_of
from ..pools.pool import RoutedPool, by_its_deadline
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest, stale
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from ..transport.channel import AwaitedRequest, InFlightRequest, Outcome, ReservationRequest, Settlement
from ..transport.exchange import RequestExchange

_RENEWALS_PER_TTL: Final = 3

H = TypeVar("H", bound="HeldSlots")


class RenewalRequest(InFlightRequest):
    """A RENEW in flight; its answer goes to the hold."""

    __slots__ = ("hold", "sent_at")

    def __init__(self, id: int, worker: WorkerEntry, hold: HeldSlots, sent_at: float) -> None:
        super().__init__(id, worker)
        self.hold = hold
        self.sent_at = sent_at

    def deliver(self, frame: Frame) -> bool:
        self.hold.renewed(self, frame)
        return True

    def lose(self, fate: TryOutcome) -> None:
        """The timer retries as long as the hold is trusted."""


class LeaseTerms:
    """How long slots are requested and trusted for. One object serves many holds."""

    __slots__ = ("claim_s", "first_s", "renew_s", "ttl_ms", "ttl_s", "used_s")

    def __init__(self, ttl_s: float, claim_s: float) -> None:
        """
        Args:
            ttl_s: how long slots stay valid after a use or a renewal, in seconds.
            claim_s: how long a grant stays valid without either, if that is less.
        """
        self.ttl_s = ttl_s
        self.ttl_ms = round(ttl_s * 1000)
        self.claim_s = min(claim_s, ttl_s)
        self.first_s = self.claim_s - margin_s(self.claim_s)
        """How long a grant is trusted, measured from before the request."""
        self.used_s = ttl_s - margin_s(ttl_s)
        """The same after a use or a renewal."""
        self.renew_s = self.claim_s / _RENEWALS_PER_TTL
        """When the first renewal is due, measured likewise."""


class HeldSlots:
    """Slots held by a token. The creator must let them be renewed: see RenewalSet."""

    # No __slots__: most holds never set these, and class attributes make holds cheaper to create.

    slots = 1
    failure: GanglineError | None = None
    """Why it is lost; None while it is not known to be."""
    keeper: RenewalSet | None = None
    """The set that renews it."""
    charge: RoutedRequest | None = None
    """The request that accounts for it on the worker. None: it counts as one slot, like a plain request."""
    _ended = False
    _timer: asyncio.TimerHandle | None = None
    _renewal: RenewalRequest | None = None

    def __init__(
        self,
        exchange: RequestExchange,
        pool: RoutedPool,
        worker: WorkerEntry,
        reserve_id: int,
        granted: Frame,
        terms: LeaseTerms,
        asked_at: float,
    ) -> None:
        """
        Args:
            granted: the worker's answer.
            terms: those requested, at `asked_at` (loop time before the request).

        Holds one slot without a request, unless `charged` is called.
        """
        self._exchange = exchange
        self.pool = pool
        self.endpoint = pool.name
        """The name in the request: the pool, or an endpoint routed to it."""
        self.worker = worker
        self.reserve_id = reserve_id
        self.token: str = granted[2]
        self.fence: int = granted[3]
        self.epoch = worker.epoch
        if granted[4] < terms.ttl_ms:
            terms = LeaseTerms(granted[4] / 1000, terms.claim_s)
        self.terms = terms
        self.asked_at = asked_at
        self.trusted_until = asked_at + terms.first_s
        pool.held.count += 1

    def allows_repeat(self, order: Call) -> bool:
        """Whether a task that may have started here may be sent again."""
        if order.options.idempotent is not None:
            return order.options.idempotent
        method = self.worker.methods.get(order.method)
        return method is not None and method.idempotent

    # -- tasks on it ----------------------------------------------------------------------------------------------

    def check_streams(self, target: HeldTarget) -> None:
        """
        Raises:
            InvalidRequest: a stream is wanted, and the task does not stream.
        """
        target.check_streams()

    def attempt(self, target: HeldTarget, caller: AttemptLoop, span: Span) -> Coroutine[Any, Any, Outcome]:
        """One attempt of a task; see TaskTarget."""
        return TaskTarget.attempt(target, caller, span)

    def items(self, target: HeldTarget, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        """One attempt of a streaming task; see TaskTarget."""
        return TaskTarget.items(target, caller, span)

    async def fate_after(self, error: GanglineError, deadline: float | None) -> TryOutcome | None:
        """The outcome after which an attempt that failed on several workers may be made elsewhere; None: the error is
        the task's own."""
        return None

    async def lost_by(self, error: GanglineError, deadline: float | None) -> GanglineError:
        """The error to raise for such a failure: if the slots are lost, one that says so."""
        return error

    def elsewhere(self, order: Call, routed_request: RoutedRequest) -> AttemptTarget:
        """The target of a task that could not start on these slots."""
        return PoolTarget(self.pool, order, routed_request)

    # -- its life -------------------------------------------------------------------------------------------------

    def is_of(self, exchange: RequestExchange) -> bool:
        """Whether that exchange got the grant: only that one receives answers to tasks sent with its token."""
        return self._exchange is exchange

    def charged(self, routed_request: RoutedRequest) -> Self:
        """Hold as many slots as the request costs; the request accounts for them on the worker."""
        self.charge = routed_request
        self.slots = routed_request.cost
        self.pool.held.count += routed_request.cost - 1
        return self

    @property
    def counts_on(self) -> WorkerEntry:
        """What the pool counts them on: the worker, or the gang that they belong to."""
        return self.worker

    @property
    def leaving(self) -> bool:
        """Whether they belong to a gang that must get nothing new. (A draining worker honours existing holds.)"""
        return False

    @property
    def gang(self) -> str | None:
        """The gang of a standing set that they belong to; None for a plain pool."""
        return None

    @property
    def ended(self) -> bool:
        """Whether it was released or used up."""
        return self._ended

    @property
    def routed_request(self) -> RoutedRequest:
        """Its `charge`, created if there is none. After its end: a settled request of the same kind."""
        if self.charge is not None:
            return self.charge
        routed_request = RoutedRequest(method=None, slots=1)
        self.pool.core.tried_plain(routed_request, self.worker, self.reserve_id, self.asked_at)
        if not self._ended:
            routed_request.worker = self.worker
            self.charge = routed_request
        return routed_request

    def usable(self, now: float) -> bool:
        """Whether it may be used now: `trouble()` is None and it has not ended."""
        worker = self.worker
        return (
            now < self.trusted_until
            and worker.known
            and worker.epoch == self.epoch
            and not self._ended
            and self.failure is None
        )

    def trouble(self) -> GanglineError | None:
        """Why the hold must not be used, or None. Checked before each use."""
        if not self.worker.known:
            return WorkerLost(
                f"{self.worker.id} is gone, and the lease with it; nothing was sent",
                may_have_started=False,
                details={"worker": str(self.worker.id)},
            )
        if self.worker.epoch != self.epoch:
            return stale(self.worker, self.epoch)
        if self.failure is not None:
            return self.failure
        if self._exchange.loop.time() >= self.trusted_until:
            return LeaseExpired(
                f"the lease on {self.worker.id} may have expired (not renewed in time); nothing was sent: lease again",
                details={"worker": str(self.worker.id), "lease": public_id(self.token)},
            )
        return None

    def used(self, sent_at: float) -> None:
        """The worker accepted a task on it, which renews it."""
        until = sent_at + self.terms.used_s
        if until > self.trusted_until:
            self.trusted_until = until

    def release(self, *, aside_s: float = 0.0) -> None:
        """Give the slots back. Idempotent; never fails or waits, so it cannot be skipped or mask an error, except where
        the client may not be used: in another event loop or a forked process.

        Args:
            aside_s: for this many seconds, requests of this router do not take the freed slots, so that the worker can
                offer them to other routers first.
        """
        if not self._ended:
            self._exchange.check_loop()
            self.consume()
            self._exchange.post(self.worker, (RequestOp.RELEASE, self.reserve_id, self.token))
            if aside_s > 0:
                self._exchange.loop.call_later(aside_s, self._settle_and_pump)
            else:
                self._settle_and_pump()

    def settle(self) -> None:
        """Stop counting it on the worker. Call this once; after `consume`, by the new owner of the slot. Then call
        `pump`."""
        if self.charge is None:
            self.pool.core.end_plain(self.worker)
        else:
            self.pool.settle(self.charge)

    def consume(self) -> None:
        """End the hold without giving the slot back: the caller (the task of a single-use token) takes over its
        accounting and settles it."""
        self._ended = True
        if self._timer is not None or self._renewal is not None:
            self._stop()
        self.pool.held.count -= self.slots
        if self.keeper is not None:
            self.keeper.drop(self)

    def give_back(self) -> None:
        """After `consume`: release the token, because the task may not have arrived and the token may still hold the
        slot."""
        self._exchange.post(self.worker, (RequestOp.RELEASE, self.reserve_id, self.token))

    def _settle_and_pump(self) -> None:
        self.settle()
        self.pool.pump()

    def renew(self) -> None:
        """Send a renewal now; the answer arrives later. No-op if the hold is over."""
        if self._ended or self.failure is not None:
            return
        self._exchange.check_loop()
        if self._renewal is not None:
            self._exchange.forget(self._renewal)
        now, terms = self._exchange.loop.time(), self.terms
        flight = RenewalRequest(self._exchange.new_id(), self.worker, self, now)
        self._renewal = flight
        self._exchange.launch(flight, (RequestOp.RENEW, flight.id, self.token, terms.ttl_ms))
        # If it is not answered, it is sent again earlier; an answer schedules the next one.
        self._schedule(now + terms.ttl_s / _RENEWALS_PER_TTL / 4)

    def renewed(self, flight: RenewalRequest, frame: Frame) -> None:
        """The worker answered a renewal."""
        if self._ended or flight is not self._renewal:
            return
        self._renewal = None
        if frame[0] == AnswerOp.RENEWED:
            ttl_s = frame[2] / 1000
            self.trusted_until = max(self.trusted_until, flight.sent_at + ttl_s - margin_s(ttl_s))
            self._schedule(flight.sent_at + ttl_s / _RENEWALS_PER_TTL)
        elif frame[0] == AnswerOp.ERROR:
            self._fail(error_of(frame))
        elif TryOutcome.of_reason(frame[2]) is TryOutcome.STALE:
            self._fail(stale(self.worker, self.epoch))

    def renew_in_time(self) -> None:
        """Renew it automatically from now on, until it ends."""
        self._schedule(self.asked_at + self.terms.renew_s)

    def _schedule(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._exchange.loop.call_at(at, self.due)

    def due(self) -> None:
        """The renewal timer has fired."""
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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._exchange.forget(self._renewal)
            self._renewal = None

    def __repr__(self) -> str:
        state = "ended" if self._ended else f"lost: {self.failure.code}" if self.failure else "held"
        return f"HeldSlots({self.slots} slots of {self.worker.id}, {state})"


class HeldTarget(TaskTarget):
    """Slots that are held."""

    def __init__(self, order: Call, hold: HeldSlots, books: Settlement) -> None:
        self.order = order
        self.hold = hold
        self.books = books
        self.worker = hold.worker
        self.token = hold.token

    def attempt(self, caller: AttemptLoop, span: Span) -> Coroutine[Any, Any, Outcome]:
        return self.hold.attempt(self, caller, span)

    def items(self, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        return self.hold.items(self, caller, span)


class SlotReserver:
    """Reserves slots on workers."""

    def __init__(self, exchange: RequestExchange, settings: RouterSettings, owner: str) -> None:
        """`owner`: owner of the slots, as shown in the ledger."""
        self._exchange = exchange
        self.settings = settings
        self._meta = {"owner": owner} if owner else None

    async def ask(
        self,
        pool: RoutedPool,
        routed_request: RoutedRequest,
        worker: WorkerEntry,
        *,
        ttl_s: float,
        flags: ReserveFlag,
        probe_s: float,
        seat: str | None = None,
        make: type[H] | None = None,
    ) -> H | HeldSlots | TryOutcome:
        """Reserve as many slots on one worker as the request costs, in one attempt; the request accounts for them in
        the pool.

        Args:
            seat: token of a gang's seat there, whose slots to reserve.
            make: class of the hold; default: HeldSlots.

        Raises:
            GanglineError: the worker's error answer.
        """
        exchange, loop = self._exchange, self._exchange.loop
        flight = ReservationRequest(exchange.new_id(), worker, loop, pool, routed_request)
        terms, asked_at = LeaseTerms(ttl_s, self.settings.claim_s), loop.time()
        exchange.launch(
            flight,
            (
                RequestOp.RESERVE,
                flight.id,
                routed_request.cost,
                terms.ttl_ms,
                round(terms.claim_s * 1000),
                int(flags),
                max(1, round(probe_s * 1000)),
                self._meta if seat is None else {**(self._meta or {}), "seat": seat},
            ),
        )
        timer = loop.call_later(probe_s, exchange.lose, flight, TryOutcome.SLOW)
        try:
            outcome = await flight.future
            if isinstance(outcome, TryOutcome) or outcome[0] != AnswerOp.GRANTED:
                return self.refused(flight, outcome)
            hold = (make or HeldSlots)(exchange, pool, worker, flight.id, outcome, terms, asked_at)
            return hold.charged(flight.routed_request)
        except asyncio.CancelledError:
            # Granted or not, known or not: one release undoes it.
            self.undo(flight)
            raise
        finally:
            timer.cancel()

    def refused(self, flight: AwaitedRequest, outcome: Outcome) -> TryOutcome:
        """Map an outcome without a grant to the outcome of the attempt.

        Raises:
            GanglineError: the worker's error answer.
        """
        if isinstance(outcome, TryOutcome):
            if outcome is TryOutcome.SLOW:
                self.undo(flight)
            # A reservation starts nothing: if it was lost with its worker, another worker may be tried.
            return TryOutcome.GONE if outcome.may_have_started else outcome
        if outcome[0] == AnswerOp.REJECTED:
            return TryOutcome.of_reason(outcome[2])
        raise error_of(outcome)

    def undo(self, flight: AwaitedRequest) -> None:
        """Give back slots that were or may yet be granted."""
        exchange = self._exchange
        if not exchange.recall(flight):
            exchange.forget(flight)
            exchange.post(flight.worker, (RequestOp.RELEASE, flight.id, None))
        flight.settle()
        flight.books.pump()


class SlotRequest(NamedTuple):
    """A request for slots."""

    routed_request: RoutedRequest
    """How many, and requirements on the worker."""
    ttl_s: float
    flags: ReserveFlag
    deadline: float | None
    """Loop time by which they must be held."""


class ReserveTarget(AttemptTarget):
    """Slots of any worker of a pool. Cancelling releases slots that may have been granted."""

    worker: WorkerEntry
    """The worker of the current attempt."""
    _wait_s = 0.0
    """Timeout of the current attempt."""

    def __init__(self, reserver: SlotReserver, pool: RoutedPool, asked: SlotRequest) -> None:
        self.reserver = reserver
        self.pool = pool
        self.asked = asked
        settings = reserver.settings
        # If the ledger is written first, an answer takes as long as storage does.
        self._probe_s = settings.probe_max_s if asked.flags & ReserveFlag.SYNC else settings.probe_first_s

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        pool, routed_request, deadline = self.pool, self.asked.routed_request, self.asked.deadline
        if fate is TryOutcome.SLOW:
            self._probe_s = min(self.reserver.settings.probe_max_s, 2 * self._probe_s)
        self.worker = await pool.place(routed_request, deadline, fate)
        self._wait_s = self._probe_s
        if deadline is not None:
            self._wait_s = min(self._probe_s, deadline - asyncio.get_running_loop().time())
            if self._wait_s <= 0:
                pool.settle(routed_request)
                pool.pump()
                raise pool.core.give_up(routed_request, by_its_deadline(routed_request, deadline))
        return self

    def attempt(self, caller: AttemptLoop, span: Span) -> Coroutine[Any, Any, HeldSlots | TryOutcome]:
        asked = self.asked
        return self.reserver.ask(
            self.pool, asked.routed_request, self.worker, ttl_s=asked.ttl_s, flags=asked.flags, probe_s=self._wait_s
        )

    def settle(self, outcome: HeldSlots | TryOutcome) -> TryOutcome | None:
        if isinstance(outcome, HeldSlots):
            self.pool.accepted(self.asked.routed_request)
            return None
        self.pool.refused(self.asked.routed_request, self.worker, outcome)
        return outcome

    @staticmethod
    def result(outcome: HeldSlots, /) -> HeldSlots:
        return outcome


class HeldSlotsInfo:
    """Properties of held slots and their worker. Still valid after the slots were given back."""

    def __init__(self, hold: HeldSlots) -> None:
        self.hold = hold
        """The hold itself, for the router."""

    @property
    def pool(self) -> str:
        return self.hold.pool.name

    @property
    def endpoint(self) -> str:
        """The name in the request: the pool, or an endpoint routed to it."""
        return self.hold.endpoint

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`; in a standing set, the worker of rank 0, which the other properties of the worker also
        describe."""
        return str(self.hold.worker.id)

    @property
    def gang(self) -> str | None:
        """The gang of a standing set that the slots belong to (rank 0's, or every rank's); None for a plain pool."""
        return self.hold.gang

    @property
    def node(self) -> str:
        return self.hold.worker.node

    @property
    def zone(self) -> str:
        return self.hold.worker.zone

    @property
    def address(self) -> str:
        """Address at which other processes can reach the worker, if it published one; host or host:port."""
        return self.hold.worker.address

    @property
    def labels(self) -> Mapping[str, str]:
        return MappingProxyType(self.hold.worker.labels)

    @property
    def token(self) -> str:
        """The token: a secret. The ledger has its public id."""
        return self.hold.token

    @property
    def epoch(self) -> int:
        """The worker's epoch; the token is invalid in any other."""
        return self.hold.epoch

    @property
    def fence(self) -> int:
        """Fencing token: grows with each lease of the worker, so that resources can reject stale holders. With
        `ledger="sync"` it grows across the whole system."""
        return self.hold.fence

    @property
    def slots(self) -> int:
        """Number of slots; for a gang whose calls run on all ranks, per rank."""
        return self.hold.slots


class RenewalSet:
    """Renews each hold until it ends, and lists those that have not ended."""

    __slots__ = ("_brief", "_kept", "closed")

    def __init__(self) -> None:
        self.closed = False
        """All were released; holds that are kept from now on must be released too."""
        self._kept: dict[HeldSlots, None] = {}  # not a set: the order of releases must not depend on addresses
        self._brief: TimeoutQueue[HeldSlots] = TimeoutQueue(self._outlast)
        """Holds that will nearly all be used up before their first renewal: they do not have their own timers yet."""

    def __len__(self) -> int:
        return len(self._kept) + len(self._brief)

    def keep(self, hold: HeldSlots) -> None:
        """Renew it until it ends."""
        hold.keeper = self
        self._kept[hold] = None
        hold.renew_in_time()

    def keep_briefly(self, hold: HeldSlots) -> None:
        """The same, for a hold that will rarely live long enough to be renewed."""
        hold.keeper = self
        self._brief.add(hold, hold.asked_at + hold.terms.renew_s)

    def drop(self, hold: HeldSlots) -> None:
        """It has ended."""
        if not self._brief.drop(hold):
            self._kept.pop(hold, None)

    def release_all(self) -> None:
        """Called when the router stops."""
        self.closed = True
        for hold in [*self._kept, *self._brief]:
            hold.release()
        self._brief.close()

    def _outlast(self, hold: HeldSlots) -> None:
        self._kept[hold] = None
        hold.due()

    def __repr__(self) -> str:
        return f"RenewalSet({len(self._kept)} kept, {len(self._brief)} briefly)"
