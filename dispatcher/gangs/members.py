"""The members of one generation, and the channels that send tasks to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ...runtime.tasks import set_within
from ...runtime.timers import Backoff, UsualDurations
from ...schemas.errors.base import GanglineError, Unavailable, WorkerLost
from ...schemas.records.gangs import Rendezvous, Seat
from ...telemetry.tracing import NO_SPAN, Span
from ..calls.attempts import AttemptLoop, AttemptTarget, TaskTarget, TwoPhaseStart
from ..calls.call import Call, fate_of, says_busy, too_late
from ..calls.streaming import StreamRequest
from ..leases.lease_slots import LeaseSlots
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome, error_of_fate
from ..routing.pool_core import RoutedRequest
from ..routing.settings import LOST_AFTER_S
from ..routing.worker_table import Method, WorkerEntry
from ..transport.channel import Outcome, Settlement, TaskRequest

PoolOf = Callable[[str, float | None], Awaitable[RoutedPool]]
"""Finds a pool of the router by its name, by a deadline."""

_SENT_AGAIN: Final = frozenset((TryOutcome.UNSEEN, TryOutcome.FULL, TryOutcome.UNSENT))
"""Nothing started, and the same member may still accept the task."""
_ABSENT: Final = frozenset((TryOutcome.UNHEARD, TryOutcome.GONE))
"""Nothing started. The member's process may have died, which the coordinator detects, or may be reconnecting to a
restarted server."""
_LOST: Final = frozenset((TryOutcome.UNSENT, TryOutcome.DRAINING))
"""The member cannot be reached; another gang may be tried."""
_ABSENT_S: Final = 10.0
"""How long a call without a deadline retries to reach an absent member while its generation lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """One rank of a generation: its worker, and the slots it holds there."""

    rank: int
    pool: str
    worker: str
    """`<pool>.<worker>`."""
    node: str
    zone: str
    address: str
    """Address at which other processes can reach the worker, if it published one; host or host:port."""
    labels: Mapping[str, str]
    slots: int
    token: str
    """Token of the member's lease. The ledger has its public id."""
    extras: tuple[Seat, ...] = field(default=(), repr=False)
    """Further parts held with it, for example licences."""

    @classmethod
    def of(cls, seats: list[Seat]) -> GangMember:
        """Make a member from the seats of one rank, part 0 first."""
        first, *extras = seats
        return cls(
            rank=first.rank,
            pool=first.pool,
            worker=f"{first.pool}.{first.worker}",
            node=first.node,
            zone=first.zone,
            address=first.address,
            labels=MappingProxyType(first.labels),
            slots=first.slots,
            token=first.token,
            extras=tuple(extras),
        )


class RankSlots(NamedTuple):
    """Slots of a member that are held for a task."""

    worker: WorkerEntry
    token: str
    books: Settlement
    """Accounts for the request until the task has ended."""
    routed_request: RoutedRequest


class MemberHold(Protocol):
    """Slots of members held under separate tokens."""

    formation: Formation

    def lose(self, error: GanglineError) -> None:
        """One of their members has ended."""


class MemberChannel:
    """Sends tasks to one member on its token, at most as many at once as it has slots."""

    def __init__(self, gang: str, seat: Seat, *, caller: AttemptLoop, pool: PoolOf) -> None:
        self.seat = seat
        self._gang = gang
        self._caller = caller
        self._pool = pool
        self._loop = caller.exchange.loop
        self.slots = LeaseSlots(seat.slots, self._loop, UsualDurations())
        self.flights: dict[TaskRequest | StreamRequest, None] = {}
        """Attempts with a waiting caller."""
        self.methods: Mapping[str, Method] = {}
        """Methods of the worker at the last attempt."""
        self.holds: dict[MemberHold, None] = {}
        """Holds on its slots with separate tokens: lost when the member ends."""
        self._end: Callable[[], GanglineError] | None = None
        self._ended = asyncio.Event()

    @property
    def used(self) -> int:
        """Slots in use now."""
        return self.slots.used

    @property
    def name(self) -> str:
        return f"rank {self.seat.rank} of gang {self._gang} ({self.seat.pool}.{self.seat.worker})"

    def __str__(self) -> str:
        return self.name

    def idempotent(self, method: str) -> bool:
        """Whether its worker declares the method idempotent."""
        return method in self.methods and self.methods[method].idempotent

    def end(self, error: Callable[[], GanglineError]) -> None:
        """End the member: tasks in progress end at once with the error (a new copy for each), and the worker is told to
        cancel them. Idempotent, never waits."""
        if self._end is not None:
            return
        self._end = error
        self._ended.set()
        for flight in list(self.flights):
            if isinstance(flight, StreamRequest):
                flight.stop(error())
            elif not flight.future.done():
                self._caller.abandon(flight)
                flight.future.set_exception(_uncertain(error()))
        for hold in list(self.holds):
            hold.lose(error())
        self.slots.close()

    async def call(
        self,
        order: Call,
        span: Span = NO_SPAN,
        *,
        patient: bool = True,
        together: TwoPhaseStart | None = None,
        held: RankSlots | None = None,
    ) -> Any:
        """Run a task on the member. Cancelling cancels the task.

        Args:
            patient: wait while all slots of the member are in use, and retry while it is absent, until the deadline or
                the end of the generation; False: raise LeaseBusy or WorkerLost.
            together: start only when all tasks of this group hold their slots.
            held: use these slots; the task is sent at most once.

        Raises:
            GanglineError: see Gang.call.
        """
        target = MemberTarget(self, order, self._loop, patient=patient, together=together, held=held)
        return await self._caller.run(target, span)

    def stream(
        self, order: Call, span: Span = NO_SPAN, *, patient: bool = True, held: RankSlots | None = None
    ) -> AsyncGenerator[Any, None]:
        """Run a task on the member and yield its items; otherwise like `call`."""
        target = MemberTarget(self, order, self._loop, patient=patient, held=held)
        return self._caller.stream(order, target, span)

    async def reach(self, deadline: float | None, target: str) -> WorkerEntry:
        """The member's worker; `target` is used in error texts.

        Raises:
            WorkerLost: it is gone; nothing was sent.
            GanglineError: the member has ended, or the deadline passed; nothing was sent.
        """
        self.check()
        seat = self.seat
        pool = await self._pool(seat.pool, deadline)
        worker = pool.core.view.workers.get(seat.worker)
        backoff = Backoff(0.025, 0.5)
        give_up_at = self._loop.time() + LOST_AFTER_S
        while worker is None and pool.discovery is not None and self._loop.time() < give_up_at:
            # The coordinator knows this worker. It may have registered a moment ago, or have been silent so long that
            # this router gave it up although its next heartbeat is on its way. If it is really gone, the gang is torn
            # down meanwhile.
            limit = give_up_at if deadline is None else min(give_up_at, deadline)
            with contextlib.suppress(Unavailable, TimeoutError):
                async with asyncio.timeout_at(limit):
                    await pool.discovery.informer.refresh()
            worker = pool.core.view.workers.get(seat.worker)
            if worker is None:
                await self.pause(backoff.next_s(0.0), deadline, target)
        self.check()
        if worker is None:
            raise WorkerLost(f"the worker of {self.name} is gone; nothing was sent", may_have_started=False)
        return worker

    def __repr__(self) -> str:
        return f"MemberChannel({self.name}, {self.used}/{self.seat.slots} slots used)"

    def check(self) -> None:
        """
        Raises:
            GanglineError: the member has ended; nothing was sent.
        """
        if self._end is not None:
            error = self._end()
            error.may_have_started = False
            raise error

    async def pause(
        self, delay_s: float, deadline: float | None, target: str, why: GanglineError | None = None
    ) -> None:
        """Wait before the next attempt to reach it, but not beyond its end.

        Raises:
            DeadlineExceeded: the deadline would pass meanwhile.
            GanglineError: as `check`.
        """
        if deadline is not None and self._loop.time() + delay_s >= deadline:
            raise too_late(target, may_have_started=False) from why
        await set_within(self._ended, delay_s)
        self.check()


class MemberTarget(TaskTarget):
    """The slots of one member."""

    def __init__(
        self,
        line: MemberChannel,
        order: Call,
        loop: asyncio.AbstractEventLoop,
        *,
        patient: bool,
        together: TwoPhaseStart | None = None,
        held: RankSlots | None = None,
    ) -> None:
        """See MemberChannel.call."""
        self.order = order
        self.usual = line.slots.usual
        self._line = line
        self._loop = loop
        self._patient = patient
        self._together = together
        self._held = held
        self._attempts = 0
        self._backoff = Backoff(0.025, 0.5)
        self._give_up_at: float | None = None

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        line, order = self._line, self.order
        if fate is not None:
            await self._before_another(fate)
        if self._held is not None:
            self.worker, self.token, self.books, self.routed_request = self._held
            try:
                line.check()
            except GanglineError:
                self.unsent()
                raise
        else:
            self.token, self.books = line.seat.token, line.slots
            self.worker = await line.reach(order.deadline, order.target)
            line.methods = self.worker.methods
            self.routed_request = await line.slots.enter(order, self.worker, line, wait=self._patient, check=line.check)
        self._attempts += 1
        self.routed_request.attempts = max(self.routed_request.attempts, self._attempts)
        return self

    async def _before_another(self, fate: TryOutcome) -> None:
        """Wait until a retry makes sense.

        Raises:
            GanglineError: there must be no retry.
        """
        line, order = self._line, self.order
        error = error_of_fate(fate, line.name, attempts=1, lost=_LOST, idempotent=line.idempotent(order.method))
        if self._held is not None:
            raise error
        if self._patient and fate in _ABSENT:
            now = self._loop.time()
            if self._give_up_at is None:
                self._give_up_at = now + _ABSENT_S
            again = order.deadline is not None or now < self._give_up_at
        elif fate is TryOutcome.STALE:
            # The epoch known here may have been older than the coordinator's; the answer had the new one.
            again = self.worker.epoch == line.seat.epoch
        else:
            again = fate in _SENT_AGAIN and (self._patient or fate is not TryOutcome.FULL)
        if not again:
            raise error
        await line.pause(self._backoff.next_s(0.0), order.deadline, order.target, error)

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        fate = fate_of(outcome)
        if fate is None and self._patient and says_busy(outcome):
            return TryOutcome.FULL  # an earlier task of this router was cancelled and has not stopped yet
        return fate

    def sent(self, flight: TaskRequest | StreamRequest | None) -> None:
        assert flight is not None
        self._line.flights[flight] = None
        if self._together is not None and isinstance(flight, TaskRequest):
            self._together.sent(flight)

    def left(self, flight: TaskRequest | StreamRequest | None, error: BaseException | None) -> None:
        assert flight is not None
        self._line.flights.pop(flight, None)


class Formation:
    """One generation: its members and their channels."""

    def __init__(
        self,
        gang: str,
        generation: int,
        seats: Sequence[Seat],
        lines: list[MemberChannel],
        *,
        fence: int = 0,
        rendezvous: Rendezvous | None = None,
    ) -> None:
        """`lines` by rank."""
        self.gang = gang
        self.generation = generation
        self.fence = fence
        self.rendezvous = rendezvous
        self.lines = lines
        self._seats = seats
        self.down: Callable[[], GanglineError] | None = None
        """Makes the error that says why it has ended; None while it exists."""
        self.lost: dict[int, Callable[[], GanglineError]] = {}
        """Ranks that are lost and being replaced while the others continue; the value makes the error that says so."""
        self._went = asyncio.Event()
        """Set, and replaced by a new one, when the generation ends or loses ranks."""

    @property
    def size(self) -> int:
        return len(self.lines)

    @cached_property
    def members(self) -> tuple[GangMember, ...]:
        """By rank. Created on first use, so that forming a gang does not wait for it."""
        by_rank: dict[int, list[Seat]] = {}
        for seat in sorted(self._seats, key=lambda seat: (seat.rank, seat.part)):
            by_rank.setdefault(seat.rank, []).append(seat)
        return tuple(GangMember.of(here) for _, here in sorted(by_rank.items()))

    @property
    def later(self) -> int:
        """Its generation number if it is not the first, else 0: workers of surviving members may not know it yet."""
        return self.generation if self.generation > 1 else 0

    def end(self, error: GanglineError, stay: Set[str] = frozenset()) -> None:
        """End the generation. Idempotent. Members whose tokens are in `stay` continue in the next one."""
        if self.down is None:
            self.down = make = copier(error)
            self._tell()
            for line in self.lines:
                if line.seat.token not in stay:
                    line.end(make)

    def lose(self, ranks: Sequence[int], error: GanglineError) -> None:
        """End these ranks: tasks in progress there end with the error. Idempotent."""
        make = copier(error)
        for rank in ranks:
            if self.down is None and rank not in self.lost and rank < self.size:
                self.lost[rank] = make
                self.lines[rank].end(make)
        self._tell()

    def fate(self, rank: int | None = None) -> Callable[[], GanglineError] | None:
        """Makes the error that says why nothing can be sent to that rank (None: to all ranks); None if tasks can be
        sent."""
        if self.down is not None:
            return self.down
        return next(iter(self.lost.values()), None) if rank is None else self.lost.get(rank)

    async def wait_fate(self, rank: int, timeout_s: float) -> Callable[[], GanglineError] | None:
        """Wait until this rank has ended; None if it has not after that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.fate(rank) is None:
                    await self._went.wait()
        return self.fate(rank)

    def _tell(self) -> None:
        went, self._went = self._went, asyncio.Event()
        went.set()

    def __repr__(self) -> str:
        state = "down" if self.down is not None else "formed"
        return f"Formation({self.gang}, generation {self.generation}, {self.size} ranks, {state})"


class MemberChannelFactory:
    """Opens channels to members."""

    def __init__(self, *, caller: AttemptLoop, pool: PoolOf) -> None:
        self._caller = caller
        self.pool = pool

    def together(self, size: int) -> TwoPhaseStart:
        """A joint start of one attempt on all ranks."""
        return TwoPhaseStart(self._caller, size)

    def lines(self, gang: str, seats: Sequence[Seat], before: Formation | None = None) -> list[MemberChannel]:
        """Channels by rank. Members that stayed from the previous generation keep theirs."""
        known = {line.seat.token: line for line in before.lines} if before is not None else {}
        first = sorted((seat for seat in seats if seat.part == 0), key=lambda seat: seat.rank)
        return [known.get(seat.token) or self._line(gang, seat) for seat in first]

    def _line(self, gang: str, seat: Seat) -> MemberChannel:
        return MemberChannel(gang, seat, caller=self._caller, pool=self.pool)


def copier(error: GanglineError) -> Callable[[], GanglineError]:
    """Makes copies of this error, so that each of many waiters raises its own."""
    return lambda: type(error)(error.message, details=dict(error.details), may_have_started=error.may_have_started)


def _uncertain(error: GanglineError) -> GanglineError:
    """Mark the error of a task that was sent."""
    error.may_have_started = True
    return error
