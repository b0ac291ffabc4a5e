"""One standing set as its callers use it: each formed gang is treated as one worker.

For the routing core, a gang *is* a worker: it has slots, gets its share by power of two choices, and drains when it
retires. So calls to a set wait, back off, stick to keys and are retried exactly like calls to a pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from ...schemas.errors.base import (
    GangFailed,
    GanglineError,
    InvalidRequest,
    LeaseBusy,
    LeaseError,
    NoWorkers,
    TaskCancelled,
    WorkerLost,
)
from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangRecord, GangSetRecord, GangState, Route
from ...schemas.records.workers import MethodInfo, Registration
from ...schemas.wire.frames import Load, ReserveFlag, TaskFlag
from ...telemetry.tracing import Span
from ..calls.attempts import AttemptLoop, AttemptTarget, PoolTarget
from ..calls.call import Call
from ..leases.held_slots import HeldSlots, ReserveTarget, SlotRequest, SlotReserver
from ..pools.pool import RoutedPool
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..routing.worker_table import Method, WorkerEntry
from ..transport.channel import Outcome
from .collective_call import Arguments, run_on_all, same_for_all
from .member_slots import attempt_on, cause_of, for_rank, hold_members, items_of, no_stream_of_all
from .members import Formation, MemberChannelFactory, RankSlots

_STREAM: Final = int(TaskFlag.STREAM)
_WORD_S: Final = 1.0
"""How long a task that neither the caller nor the router cancelled waits for the report that its gang was torn down."""


_REMEMBERED: Final = 1000
"""Maximum number of gangs for which generation numbers from events are kept."""


class SetAsPool(RoutedPool):
    """The gangs of a set, as workers of a pool of that name."""

    def formed(self, record: GangRecord, revision: int, methods: dict[str, Method], slots: int) -> WorkerEntry:
        """A generation is formed; returns the worker that represents the gang."""
        first = record.seats[0]
        self.registered(
            Registration(
                pool=self.name,
                worker=record.id,
                epoch=record.generation,
                instance=f"{record.id}.{record.generation}",
                # A gang that is not ready counts as draining: new members may still be starting beside those that
                # stayed.
                state="draining" if record.state is GangState.RETIRING or record.ready is False else "serving",
                slots=slots,
                methods={name: MethodInfo(**method._asdict()) for name, method in methods.items()},
                node=first.node,
                zone=first.zone,
                address=first.address,
            ),
            revision,
        )
        return self.core.view.workers[record.id]

    def expect(self, coming: bool) -> None:
        """Say whether the members of a gang are starting, so that requests wait for it even if no gang is ready."""
        if coming != self.core.coming:
            self.core.expect(coming, self._loop.time())
            self._arm_sooner()

    def gone(self, gang: str) -> None:
        """The gang no longer exists."""
        known = self.core.view.workers.get(gang)
        if known is not None and self.core.gone(known, self._loop.time()):
            self._arm_sooner()

    def full(self, worker: WorkerEntry) -> None:
        """Its members report that other routers use all of its slots."""
        if self.contains(worker) and not worker.draining:
            load = Load(worker.total, 0, worker.total)
            self.core.loaded(worker, load, worker.epoch, self._loop.time())

    def took(self, worker: WorkerEntry) -> None:
        """It accepted a task, so it is assumed to have free slots again."""
        if self.contains(worker) and worker.ongoing > worker.own and not worker.draining:
            self.core.loaded(worker, Load(worker.own, 0, worker.total), worker.epoch, self._loop.time())

    def tick(self, now: float) -> None:
        """See RoutedPool. Gangs send no heartbeats: the coordinator reports when they end."""
        for worker in self.core.view.workers.values():
            worker.heard_at = now
        super().tick(now)


class StandingSetRouter:
    """One standing set."""

    def __init__(
        self, name: str, record: GangSetRecord, pool: SetAsPool, lines: MemberChannelFactory, draw: random.Random
    ) -> None:
        self.name = name
        self.record = record
        self.pool = pool
        self._lines = lines
        self._draw = draw
        self._formations: dict[str, Formation] = {}
        """By gang, including those that retire."""
        self._gone: dict[str, int] = {}
        """By gang: the newest generation known to have ended."""
        self._starting: dict[str, int] = {}
        """By gang: the generation whose members are starting, to which nothing can be sent yet."""
        self._leaving: dict[str, int] = {}
        """By gang: the generation that must get nothing new, even if an older version of its record is read later."""
        self.suspected: dict[str, None] = {}
        """Gangs whose members could not be reached; their records are to be read."""

    @property
    def gangs(self) -> list[str]:
        """Formed gangs."""
        return list(self._formations)

    # -- events ---------------------------------------------------------------------------------------------------

    async def seen(self, record: GangRecord, revision: int) -> None:
        """A gang's record was read from the ledger."""
        standing = record.state in (GangState.FORMED, GangState.RETIRING)
        if not standing or not record.seats:
            gone = (
                record.generation
                if record.state in (GangState.TEARING_DOWN, GangState.ENDED)
                else record.generation - 1
            )
            self.gone(record.id, gone, record.reason)
            return
        known = self._formations.get(record.id)
        if record.ready is False and (known is None or not _stays(known, record)):
            # Its members are starting: the previous generation has ended.
            self.gone(record.id, record.generation - 1, record.reason)
            if record.generation > self._gone.get(record.id, 0):
                self._starts(record.id, record.generation)
            return
        pool = await self._lines.pool(record.seats[0].pool, None)
        first = pool.core.view.workers.get(record.seats[0].worker)
        if first is None and pool.discovery is not None:
            with contextlib.suppress(GanglineError):
                await pool.discovery.informer.refresh()
            first = pool.core.view.workers.get(record.seats[0].worker)
        # No await from here on: events that arrived during the wait count.
        known = self._formations.get(record.id)
        if record.generation <= self._gone.get(record.id, 0) or first is None:
            return
        if known is not None and known.generation > record.generation:
            return
        if known is None or known.generation < record.generation:
            formation = Formation(
                record.id,
                record.generation,
                record.seats,
                self._lines.lines(record.id, record.seats, known),
                fence=record.fence_at(revision),
                rendezvous=record.rendezvous,
            )
            if known is not None:
                stay = {seat.token for seat in record.seats}
                known.end(_torn_down(self.name, known, "a newer generation was formed"), stay)
            self._formations[record.id] = formation
            for line in formation.lines:
                for hold in line.holds:
                    hold.formation = formation
        worker = self.pool.formed(record, revision, dict(first.methods), self._slots(record))
        self._starts(record.id, 0)
        if record.generation <= self._leaving.get(record.id, 0):
            self.pool.core.view.retire(worker)

    def gone(self, gang: str, generation: int, reason: str) -> None:
        """That generation of a gang, and all before it, have ended: end all tasks on them now."""
        _note(self._gone, gang, generation)
        if self._starting.get(gang, generation + 1) <= generation:
            self._starts(gang, 0)
        known = self._formations.get(gang)
        if known is not None and known.generation <= generation:
            self._end(known, reason)

    def vanished(self, gang: str) -> None:
        """Its record is no longer in the ledger."""
        self._starts(gang, 0)
        if (known := self._formations.get(gang)) is not None:
            self._end(known, "its record is gone")

    def leaving(self, gang: str, generation: int) -> None:
        """The gang must get nothing new."""
        _note(self._leaving, gang, generation)
        known = self._formations.get(gang)
        worker = self.pool.core.view.workers.get(gang)
        if known is not None and worker is not None and known.generation <= generation:
            self.pool.core.view.retire(worker)

    def close(self, error: GanglineError) -> None:
        """Refuse waiting requests and end tasks in progress."""
        self.pool.close(error)
        for formation in self._formations.values():
            formation.end(error)
        self._formations.clear()

    def statistics(self) -> dict[str, Any]:
        """Gangs known, requests waiting and placed."""
        return {"route": self.record.route.value, "gangs": self.gangs, **self.pool.statistics()}

    def __repr__(self) -> str:
        return f"StandingSetRouter({self.name}, {len(self._formations)} gangs, route={self.record.route.value})"

    # -- held slots -----------------------------------------------------------------------------------------------

    def stands(self, formation: Formation) -> bool:
        """Whether this is its gang's current formation."""
        return self._formations.get(formation.gang) is formation

    def reserve_target(self, reserver: SlotReserver, asked: SlotRequest) -> SetReserveTarget:
        """Reserve slots of any gang.

        Raises:
            InvalidRequest: ledger='sync' was requested.
        """
        if asked.flags & ReserveFlag.SYNC:
            raise InvalidRequest(
                f"{self.name!r} is a standing set: the slots of its gangs are in the ledger with the gang, and a "
                "lease of them is not: use ledger='behind'"
            )
        return SetReserveTarget(self, reserver, asked)

    # -- tasks ----------------------------------------------------------------------------------------------------

    def target(self, order: Call, routed_request: RoutedRequest) -> SetTarget:
        """Any gang of the set: rank 0, or all ranks."""
        return SetTarget(self, order, routed_request)

    async def place(
        self, deadline: float | None, routed_request: RoutedRequest, fate: TryOutcome | None
    ) -> WorkerEntry:
        """Find a gang; see RoutedPool.place."""
        try:
            return await self.pool.place(routed_request, deadline, fate)
        except NoWorkers as error:
            if self._formations:
                raise
            raise NoWorkers(
                f"no gang of standing set {self.name!r} is ready: 'gangline gangset status {self.name}' says why",
                details=error.details,
            ) from error

    def formation_of(self, worker: WorkerEntry) -> Formation | None:
        """The current formation of the gang that this worker represents; None: it has ended."""
        return self._formations.get(worker.id.worker)

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
        """See member_slots.HeldSet."""
        if not on_all:
            slots = held[0] if held else None
            return await formation.lines[0].call(for_rank(order, formation, 0), span, patient=False, held=slots)
        run = 1 + self._draw.getrandbits(48)  # unlike the numbers of other routers that use the same gang

        together = self._lines.together(formation.size)
        # After a refusal, rank 0 goes first, so that one of several competing routers gets the whole gang.
        in_order = routed_request.attempts > 1 and not held

        async def on_rank(rank: int, _: Arguments) -> Any:
            if in_order and rank:
                await together.first_held()
            each = for_rank(order, formation, rank)
            each.run, each.hold = run, True
            slots = held[rank] if held else None
            return await formation.lines[rank].call(each, span, patient=False, together=together, held=slots)

        try:
            return await run_on_all(formation, on_rank, same_for_all(formation.size, (), {}), partial=False)
        except GanglineError as error:
            if not together.begun:
                error.may_have_started = False
            raise
        finally:
            together.close()

    async def fate_of_error(
        self, error: GanglineError, formation: Formation, worker: WorkerEntry, deadline: float | None
    ) -> TryOutcome | None:
        """See member_slots.HeldSet."""
        cause = cause_of(error)
        started = error.may_have_started
        if isinstance(cause, TaskCancelled) and formation.down is None:
            left_s = _WORD_S if deadline is None else deadline - asyncio.get_running_loop().time()
            await formation.wait_fate(0, max(0.0, min(_WORD_S, left_s)))
            if formation.down is None and started is False:
                return TryOutcome.FULL  # it was held and got no BEGIN for too long
        if formation.down is not None and isinstance(cause, (GangFailed, LeaseError, WorkerLost, TaskCancelled)):
            return TryOutcome.LOST if started else TryOutcome.GONE
        if isinstance(cause, LeaseBusy):
            self.pool.full(worker)
            return TryOutcome.LOST if started else TryOutcome.FULL
        if isinstance(cause, (LeaseError, WorkerLost)):
            self.suspected[formation.gang] = None
            return TryOutcome.LOST if started else TryOutcome.GONE
        return None

    # -- inside ---------------------------------------------------------------------------------------------------

    def _starts(self, gang: str, generation: int) -> None:
        """Members of that generation are starting; 0: no generation is starting."""
        if generation:
            self._starting[gang] = generation
        else:
            self._starting.pop(gang, None)
        self.pool.expect(bool(self._starting))

    def _end(self, formation: Formation, reason: str) -> None:
        self._formations.pop(formation.gang, None)
        formation.end(_torn_down(self.name, formation, reason))
        self.pool.gone(formation.gang)

    def _slots(self, record: GangRecord) -> int:
        """Number of concurrent calls per gang."""
        slots = [seat.slots for seat in sorted(record.seats, key=lambda seat: seat.rank) if seat.part == 0]
        return slots[0] if self.record.route is Route.RANK0 else min(slots)


class SetTarget(PoolTarget):
    """Any gang of a standing set: rank 0, or all ranks."""

    _formation: Formation | None = None
    """Formation of the gang that runs the attempt."""

    def __init__(self, routed: StandingSetRouter, order: Call, routed_request: RoutedRequest) -> None:
        super().__init__(routed.pool, order, routed_request)
        self._routed = routed

    @property
    def on_all(self) -> bool:
        return self._routed.record.route is Route.ALL

    @property
    def where(self) -> tuple[WorkerId, str | None]:
        if self._formation is None:
            return super().where
        seat = self._formation.lines[0].seat
        return WorkerId(seat.pool, seat.worker), self._formation.gang

    def place_nowait(self, fate: TryOutcome | None) -> AttemptTarget | None:
        return None

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        routed = self._routed
        if self.on_all and self.order.flags & _STREAM:
            raise no_stream_of_all(routed.name)
        self.worker = await routed.place(self.order.deadline, self.routed_request, fate)
        self._formation = routed.formation_of(self.worker)
        return self

    async def attempt(self, caller: AttemptLoop, span: Span) -> Outcome:
        try:
            if self._formation is None:
                return TryOutcome.GONE
            outcome = await attempt_on(self._routed, self._formation, self, span, on_all=self.on_all)
            if not isinstance(outcome, TryOutcome):
                self._took()
            return outcome
        finally:
            self._over()

    async def items(self, caller: AttemptLoop, span: Span) -> AsyncGenerator[Any, None]:
        """The items of rank 0."""
        self.ended = TryOutcome.GONE
        try:
            if self._formation is not None:
                items = items_of(self._formation, self, span)
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item
                if not isinstance(self.ended, TryOutcome):
                    self._took()
        finally:
            self._over()

    async def failed(self, error: GanglineError) -> TryOutcome:
        assert self._formation is not None
        fate = await self._routed.fate_of_error(error, self._formation, self.worker, self.order.deadline)
        if fate is None:
            self._took()
            raise error
        return fate

    def _took(self) -> None:
        """The gang accepted the task, and it has ended."""
        self.pool.accepted(self.routed_request)
        self.pool.settle(self.routed_request)
        self._routed.pool.took(self.worker)

    def _over(self) -> None:
        self.pool.settle(self.routed_request)
        self.pool.pump()


class SetReserveTarget(ReserveTarget):
    """Slots of any gang, reserved at its members: on rank 0, or on all ranks, as the set's calls run. Cancelling
    releases slots that may have been granted."""

    def __init__(self, routed: StandingSetRouter, reserver: SlotReserver, asked: SlotRequest) -> None:
        super().__init__(reserver, routed.pool, asked)
        self._routed = routed

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        self.worker = await self._routed.place(self.asked.deadline, self.asked.routed_request, fate)
        return self

    async def attempt(self, caller: AttemptLoop, span: Span) -> HeldSlots | TryOutcome:
        routed, pool, asked = self._routed, self._routed.pool, self.asked
        formation = routed.formation_of(self.worker)
        result: HeldSlots | TryOutcome = TryOutcome.GONE
        try:
            if formation is not None:
                on_all = routed.record.route is Route.ALL
                result = await hold_members(routed, formation, self.reserver, asked, on_all=on_all)
        finally:
            if isinstance(result, TryOutcome):
                pool.settle(asked.routed_request)
                pool.pump()
        if result is TryOutcome.FULL:
            pool.full(self.worker)
        return result

    def settle(self, outcome: HeldSlots | TryOutcome) -> TryOutcome | None:
        fate = super().settle(outcome)
        if fate is None:
            self._routed.pool.took(self.worker)
        return fate


def _note(newest: dict[str, int], gang: str, generation: int) -> None:
    newest[gang] = max(generation, newest.pop(gang, 0))
    if len(newest) > _REMEMBERED:
        del newest[next(iter(newest))]


def _stays(known: Formation, record: GangRecord) -> bool:
    """Whether some or all members of that generation are also in this one."""
    tokens = {line.seat.token for line in known.lines}
    return known.generation == record.generation or any(seat.token in tokens for seat in record.seats)


def _torn_down(name: str, formation: Formation, reason: str) -> GangFailed:
    return GangFailed(
        f"gang {formation.gang} of standing set {name!r} was torn down ({reason})",
        details={"generation": formation.generation, "rank": None, "reason": reason},
    )
