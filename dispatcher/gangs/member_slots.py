"""Slots of a standing set's gang that this router holds: on rank 0, or the same number on every rank, all or none.

They are held at the members: each grants a lease on idle slots of the gang's seat there (a RESERVE with the seat's
token). Tasks sent on them are therefore not rejected, whatever other routers send to the gang; and they end like any
lease: released, used up, not renewed in time, or with the gang.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol

from ...schemas.errors.base import (
    GangFailed,
    GanglineError,
    InvalidRequest,
    LeaseBusy,
    LeaseError,
    LeaseExpired,
    StaleEpoch,
    WorkerLost,
)
from ...schemas.wire.frames import AnswerOp, TaskFlag
from ...telemetry.tracing import Span
from ..calls.attempts import HELD_WITHIN_S, AttemptLoop, AttemptTarget, TaskTarget
from ..calls.call import Call
from ..leases.held_slots import HeldSlots, HeldTarget, SlotRequest, SlotReserver
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import WorkerEntry
from ..transport.channel import Outcome, Settlement
from .members import Formation, MemberChannel, RankSlots

_OK: Final = int(AnswerOp.OK)
_END: Final = int(AnswerOp.END)
_STREAM: Final = int(TaskFlag.STREAM)


class HeldSet(Protocol):
    """The interface of a standing set that held slots of its gangs use."""

    name: str
    suspected: dict[str, None]
    """Gangs whose members could not be reached; their records are to be read."""

    @property
    def pool(self) -> RoutedPool:
        """The set's gangs, as workers."""

    def stands(self, formation: Formation) -> bool:
        """Whether this is its gang's current formation."""

    async def run(
        self,
        formation: Formation,
        order: Call,
        routed_request: RoutedRequest,
        span: Span,
        held: Sequence[RankSlots] = (),
        *,
        on_all: bool,
    ) -> Any:
        """Run a task on that gang: on rank 0, or on all ranks.

        Args:
            held: slots held for it, by rank.
        """

    async def fate_of_error(
        self, error: GanglineError, formation: Formation, worker: WorkerEntry, deadline: float | None
    ) -> TryOutcome | None:
        """Why a failed attempt may be retried; None if the error is the task's own."""

    def target(self, order: Call, routed_request: RoutedRequest) -> AttemptTarget:
        """Any gang of the set."""


class GangHeldSlots(HeldSlots):
    """Slots of rank 0, plus those of the other ranks if the set's calls run on all ranks."""

    others: tuple[HeldSlots, ...] = ()
    """Holds of ranks 1 and up; empty if tasks run on rank 0 only."""
    routed: HeldSet
    formation: Formation
    lines: tuple[MemberChannel, ...] = ()
    """Channels of the ranks with held slots; empty until `join`."""
    stands_for: WorkerEntry
    """The worker that represents the gang in its set."""
    on_all = False
    """Whether tasks run on all ranks."""

    def join(
        self,
        routed: HeldSet,
        formation: Formation,
        stands_for: WorkerEntry,
        others: Sequence[HeldSlots],
        *,
        on_all: bool,
    ) -> GangHeldSlots:
        """Bind the slots to this gang: they are lost with any of its members."""
        self.routed, self.formation, self.stands_for, self.others = routed, formation, stands_for, tuple(others)
        self.lines, self.on_all = tuple(formation.lines[: 1 + len(others)]), on_all
        for line in self.lines:
            line.holds[self] = None
        return self

    @property
    def counts_on(self) -> WorkerEntry:
        return self.stands_for

    @property
    def leaving(self) -> bool:
        return self.stands_for.draining or not self.stands_for.known

    @property
    def gang(self) -> str:
        return self.formation.gang

    @property
    def parts(self) -> tuple[HeldSlots, ...]:
        """Holds by rank."""
        return (self, *self.others)

    def slots_for(self, books: Settlement, routed_request: RoutedRequest) -> list[RankSlots]:
        """The slots that one task takes, by rank; the request is settled when the task has ended on all of them."""
        if not self.others:
            return [RankSlots(self.worker, self.token, books, routed_request)]
        jointly = _Jointly(books, routed_request, len(self.parts))
        return [RankSlots(part.worker, part.token, jointly, _part_of(routed_request)) for part in self.parts]

    # -- tasks on it ----------------------------------------------------------------------------------------------

    def check_streams(self, target: HeldTarget) -> None:
        if self.on_all and target.order.flags & _STREAM:
            raise no_stream_of_all(self.routed.name)

    async def attempt(self, target: HeldTarget, caller: AttemptLoop, span: Span) -> Outcome:
        target.sent(None)
        held = self.slots_for(target.books, target.routed_request)
        return await attempt_on(self.routed, self.formation, target, span, held, on_all=self.on_all)

    def items(self, target: HeldTarget, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        target.sent(None)
        return items_of(self.formation, target, span, *self.slots_for(target.books, target.routed_request))

    async def fate_after(self, error: GanglineError, deadline: float | None) -> TryOutcome | None:
        return await self.routed.fate_of_error(error, self.formation, self.stands_for, deadline)

    async def lost_by(self, error: GanglineError, deadline: float | None) -> GanglineError:
        cause = cause_of(error)
        if isinstance(cause, LeaseBusy):
            return cause
        fate = await self.fate_after(error, deadline)
        if fate is None or fate is TryOutcome.FULL:
            return error
        if not fate.may_have_started and (lost := self.trouble()) is not None:
            return lost
        if isinstance(cause, (LeaseError, WorkerLost)) and cause.may_have_started == fate.may_have_started:
            return cause
        started = "the task may have started" if fate.may_have_started else "nothing started"
        return WorkerLost(
            f"{cause.message}, and the lease on it: {started}",
            may_have_started=fate.may_have_started,
            details=cause.details,
        )

    def elsewhere(self, order: Call, routed_request: RoutedRequest) -> AttemptTarget:
        return self.routed.target(order, routed_request)

    # -- Hold -----------------------------------------------------------------------------------------------------

    def usable(self, now: float) -> bool:
        """See HeldSlots. Always False: the fast paths do not support gangs."""
        return False

    def trouble(self) -> GanglineError | None:
        error = super().trouble()
        for other in self.others:
            error = error or other.trouble()
        return None if error is None else self._lost(error)

    def lose(self, error: GanglineError) -> None:
        """Its gang was torn down or has lost one of these members. The remaining members get their slots back."""
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
        return f"GangHeldSlots({self.slots} slots of {len(self.lines)} ranks of {self.formation.gang}, {state})"


def no_stream_of_all(name: str) -> InvalidRequest:
    """The error for a stream of a set whose calls run on all ranks."""
    return InvalidRequest(f"calls to standing set {name!r} run on all ranks: none of them can be streamed")


def cause_of(error: GanglineError) -> GanglineError:
    """For a failed rank: the rank's own error."""
    cause = error.__cause__
    return cause if isinstance(error, GangFailed) and isinstance(cause, GanglineError) else error


def for_rank(order: Call, formation: Formation, rank: int) -> Call:
    """The call as it is sent to one rank."""
    each = Call(
        endpoint=formation.lines[rank].seat.pool,
        method=order.method,
        args=order.args,
        kwargs=order.kwargs,
        options=order.options,
        deadline=order.deadline,
        flags=order.flags,
    )
    each.generation = formation.later
    return each


async def attempt_on(
    routed: HeldSet,
    formation: Formation,
    target: TaskTarget,
    span: Span,
    held: Sequence[RankSlots] = (),
    *,
    on_all: bool,
) -> Outcome:
    """One attempt of a task on a gang; see TaskTarget."""
    try:
        return (_OK, 0, await routed.run(formation, target.order, target.routed_request, span, held, on_all=on_all))
    except GanglineError as error:
        return await target.failed(error)
    except BaseException as error:
        target.left(None, error)
        raise


async def items_of(
    formation: Formation, target: TaskTarget, span: Span, held: RankSlots | None = None
) -> AsyncGenerator[Any, None]:
    """One attempt of a streaming task, on rank 0 of a gang; see TaskTarget."""
    read = 0
    try:
        items = formation.lines[0].stream(for_rank(target.order, formation, 0), span, patient=False, held=held)
        async with contextlib.aclosing(items):
            async for item in items:
                read += 1
                yield item
        target.ended = (_END, 0, read)
    except GanglineError as error:
        target.ended = await target.failed(error)
        if read:
            raise
    except BaseException as error:
        target.left(None, error)
        raise


class _Jointly:
    """Settles one task on several ranks when it has ended on the last of them."""

    def __init__(self, books: Settlement, routed_request: RoutedRequest, ranks: int) -> None:
        self._books = books
        self._routed = routed_request
        self._left = ranks

    def settle(self, routed_request: RoutedRequest, /) -> None:
        if routed_request.worker is not None:
            routed_request.worker = None
            self._left -= 1
            if not self._left:
                self._books.settle(self._routed)

    def pump(self) -> None:
        self._books.pump()


def _part_of(routed_request: RoutedRequest) -> RoutedRequest:
    """The request of one rank."""
    part = RoutedRequest(method=routed_request.method)
    part.cost, part.attempts, part.worker = routed_request.cost, routed_request.attempts, routed_request.worker
    return part


class _Refused(Exception):  # noqa: N818
    """A member did not grant slots."""

    def __init__(self, fate: TryOutcome) -> None:
        super().__init__(fate)
        self.fate = fate


async def hold_members(
    routed: HeldSet,
    formation: Formation,
    reserver: SlotReserver,
    asked: SlotRequest,
    *,
    on_all: bool,
) -> GangHeldSlots | TryOutcome:
    """Reserve slots on rank 0, or on all members or none; cancelling releases slots that may have been granted.

    Rank 0 is first and the others follow together, so that one of several competing routers gets all ranks.

    Args:
        asked: its request is placed on the gang, and stays so if a hold is returned.
    """
    loop, routed_request, deadline = asyncio.get_running_loop(), asked.routed_request, asked.deadline
    stands_for = routed_request.worker
    assert stands_for is not None

    held: dict[int, HeldSlots] = {}

    async def ask(rank: int, routed_request: RoutedRequest, make: type[HeldSlots]) -> None:
        line = formation.lines[rank]
        worker = await line.reach(deadline, routed.name)
        left_s = HELD_WITHIN_S if deadline is None else min(HELD_WITHIN_S, deadline - loop.time())
        if left_s <= 0:
            raise _Refused(TryOutcome.LATE)
        granted = await reserver.ask(
            routed.pool,
            routed_request,
            worker,
            ttl_s=asked.ttl_s,
            flags=asked.flags,
            probe_s=left_s,
            seat=line.seat.token,
            make=make,
        )
        if isinstance(granted, TryOutcome):
            raise _Refused(granted)
        held[rank] = granted

    try:
        await ask(0, routed_request, GangHeldSlots)
        if on_all:
            await _all_of(ask(rank, _unplaced(routed_request), HeldSlots) for rank in range(1, formation.size))
        if not routed.stands(formation):
            return TryOutcome.GONE
        first, *others = (held[rank] for rank in sorted(held))
        assert isinstance(first, GangHeldSlots)
        held.clear()
        return first.join(routed, formation, stands_for, others, on_all=on_all)
    except _Refused as refused:
        if refused.fate in _AWAY:
            routed.suspected[formation.gang] = None
        return refused.fate
    except (GangFailed, LeaseError, WorkerLost):
        # The gang has ended, at least on this member: an event or the look-up will confirm it.
        routed.suspected[formation.gang] = None
        return TryOutcome.GONE
    finally:
        for rank in sorted(held, reverse=True):
            held[rank].release()


_AWAY: Final = frozenset((TryOutcome.UNHEARD, TryOutcome.GONE))


async def _all_of(asking: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all; raise the first error. Cancelling cancels all."""
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


def _unplaced(routed_request: RoutedRequest) -> RoutedRequest:
    """A request for a further rank; its slots are counted with rank 0."""
    part = RoutedRequest(method=routed_request.method, slots=routed_request.cost)
    part.cost = routed_request.cost
    return part
