"""Slots of a standing set's gang that this router holds: of rank 0, or as many of every rank, all or none.

They are held at the members: each grants a lease of slots that the gang's seat has idle there (a RESERVE with the
seat's token). So what is sent on them is not refused, whoever else sends to the gang; and they end like any lease:
released, used up, not renewed in time, or with the gang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import GanglineError, LeaseError, LeaseExpired, StaleEpoch, WorkerLost
from ...schemas.errors.gangs import GangFailed
from ...schemas.wire.frames import ReserveFlag
from ..calls.two_phase_start import HELD_WITHIN_S
from ..leases.held_slots import Hold, Reserver
from ..routing.outcome import Fate
from ..routing.request import Ticket
from ..routing.worker_table import Worker
from ..transport.flights import Books
from .members import Formation, HeldSlots, MemberLine

if TYPE_CHECKING:
    from .standing_set import RoutedSet


class GangHold(Hold):
    """Slots of rank 0, and with them those of the other ranks where the set's calls run on all of them."""

    others: tuple[Hold, ...] = ()
    """By rank, from 1 on; none where tasks run on rank 0 alone."""
    routed: RoutedSet
    formation: Formation
    lines: tuple[MemberLine, ...] = ()
    """Of the ranks on which slots are held; none until it was joined."""
    stands_for: Worker
    """The gang, as a worker of its set."""
    on_all = False
    """Tasks run on all ranks."""

    def join(
        self, routed: RoutedSet, formation: Formation, stands_for: Worker, others: Sequence[Hold], *, on_all: bool
    ) -> GangHold:
        """It is of this gang, and is lost with any of its members."""
        self.routed, self.formation, self.stands_for, self.others = routed, formation, stands_for, tuple(others)
        self.lines, self.on_all = tuple(formation.lines[: 1 + len(others)]), on_all
        for line in self.lines:
            line.holds[self] = None
        return self

    @property
    def counts_on(self) -> Worker:
        return self.stands_for

    @property
    def leaving(self) -> bool:
        return self.stands_for.draining or not self.stands_for.known

    @property
    def gang(self) -> str:
        return self.formation.gang

    @property
    def parts(self) -> tuple[Hold, ...]:
        """By rank."""
        return (self, *self.others)

    def slots_for(self, books: Books, ticket: Ticket) -> list[HeldSlots]:
        """What one task on it takes, by rank; the ticket is settled in the books when it has ended on all of them."""
        if not self.others:
            return [HeldSlots(self.worker, self.token, books, ticket)]
        jointly = _Jointly(books, ticket, len(self.parts))
        return [HeldSlots(part.worker, part.token, jointly, _part_of(ticket)) for part in self.parts]

    # -- Hold -----------------------------------------------------------------------------------------------------

    def usable(self, now: float) -> bool:
        """See Hold. Never: the short ways know of no gangs."""
        return False

    def trouble(self) -> GanglineError | None:
        error = super().trouble()
        for other in self.others:
            error = error or other.trouble()
        return None if error is None else self._lost(error)

    def lose(self, error: GanglineError) -> None:
        """Its gang was torn down, or has lost one of these members. What stays of it gets its slots back."""
        if not self.ended and self.failure is None:
            self._fail(self._lost(error))
            for part in self.parts:
                part.give_back()

    def used(self, sent_at: float) -> None:
        super().used(sent_at)
        for other in self.others:
            other.used(sent_at)

    def release(self, *, aside_s: float = 0.0) -> None:
        if not self.ended:
            for other in self.others:
                other.release()
        super().release(aside_s=aside_s)

    def consume(self) -> None:
        super().consume()
        for other in self.others:
            if not other.ended:
                other.consume()
        for line in self.lines:
            line.holds.pop(self, None)

    def give_back(self) -> None:
        super().give_back()
        for other in self.others:
            other.give_back()

    def renew(self) -> None:
        super().renew()
        for other in self.others:
            other.renew()

    def renew_in_time(self) -> None:
        super().renew_in_time()
        for other in self.others:
            other.renew_in_time()

    def _lost(self, error: GanglineError) -> GanglineError:
        if isinstance(error, (WorkerLost, LeaseExpired, StaleEpoch)):
            return error
        gang = f"gang {self.formation.gang} of standing set {self.routed.name!r}"
        over = error.message if isinstance(error, GangFailed) else f"{gang} was torn down"
        return WorkerLost(
            f"{over}, and what was held on it is lost; nothing was sent: choose or lease again",
            may_have_started=False,
            details=dict(error.details),
        )

    def __repr__(self) -> str:
        if not self.lines:
            return super().__repr__()
        state = "ended" if self.ended else f"lost: {self.failure.code}" if self.failure else "held"
        return f"GangHold({self.slots} slots of {len(self.lines)} ranks of {self.formation.gang}, {state})"


class _Jointly:
    """Books of one task on several ranks: it counts until it has ended on the last of them."""

    def __init__(self, books: Books, ticket: Ticket, ranks: int) -> None:
        self._books = books
        self._ticket = ticket
        self._left = ranks

    def settle(self, ticket: Ticket, /) -> None:
        if ticket.worker is not None:
            ticket.worker = None
            self._left -= 1
            if not self._left:
                self._books.settle(self._ticket)

    def pump(self) -> None:
        self._books.pump()


def _part_of(ticket: Ticket) -> Ticket:
    """For one rank."""
    part = Ticket(method=ticket.method)
    part.cost, part.attempts, part.worker = ticket.cost, ticket.attempts, ticket.worker
    return part


class _Refused(Exception):  # noqa: N818
    """A member grants nothing."""

    def __init__(self, fate: Fate) -> None:
        super().__init__(fate)
        self.fate = fate


async def hold_members(
    routed: RoutedSet,
    formation: Formation,
    reserver: Reserver,
    ticket: Ticket,
    *,
    on_all: bool,
    ttl_s: float,
    flags: ReserveFlag,
    deadline: float | None,
) -> GangHold | Fate:
    """Hold slots of rank 0, or of all members or none; cancelling gives back whatever may have been granted.

    Rank 0 comes first and the others then, at once: of several routers that want all ranks, one gets them.

    Args:
        ticket: placed on the gang; it stays so if a hold is returned.
    """
    loop = asyncio.get_running_loop()
    stands_for = ticket.worker
    assert stands_for is not None

    held: dict[int, Hold] = {}

    async def ask(rank: int, ticket: Ticket, make: type[Hold]) -> None:
        line = formation.lines[rank]
        worker = await line.reach(deadline, routed.name)
        left_s = HELD_WITHIN_S if deadline is None else min(HELD_WITHIN_S, deadline - loop.time())
        if left_s <= 0:
            raise _Refused(Fate.LATE)
        granted = await reserver.ask(
            routed.pool, ticket, worker, ttl_s=ttl_s, flags=flags, probe_s=left_s, seat=line.seat.token, make=make
        )
        if isinstance(granted, Fate):
            raise _Refused(granted)
        held[rank] = granted

    try:
        await ask(0, ticket, GangHold)
        if on_all:
            await _all_of(ask(rank, _unplaced(ticket), Hold) for rank in range(1, formation.size))
        if not routed.stands(formation):
            return Fate.GONE
        first, *others = (held[rank] for rank in sorted(held))
        assert isinstance(first, GangHold)
        held.clear()
        return first.join(routed, formation, stands_for, others, on_all=on_all)
    except _Refused as refused:
        if refused.fate in _AWAY:
            routed.suspected[formation.gang] = None
        return refused.fate
    except (GangFailed, LeaseError, WorkerLost):
        # Its gang is no more, here at least: we are told of that soon, or find it out.
        routed.suspected[formation.gang] = None
        return Fate.GONE
    finally:
        for rank in sorted(held, reverse=True):
            held[rank].release()


_AWAY: Final = frozenset((Fate.UNHEARD, Fate.GONE))


async def _all_of(asking: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; raise what the first failed with. Cancelling cancels all."""
    tasks = [asyncio.get_running_loop().create_task(each, name="gangline-hold-rank") for each in asking]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        task.result()


def _unplaced(ticket: Ticket) -> Ticket:
    """For a further rank: what is held there is counted with rank 0."""
    part = Ticket(method=ticket.method, slots=ticket.cost)
    part.cost = ticket.cost
    return part
