"""Runs on seats of gangs: each task is given its gang, waits for its member to begin, and is stopped with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ...bus.port.bus import Bus
from ...schemas.errors.base import GanglineError, TaskCancelled, TaskCrashed
from ...schemas.errors.gangs import GangEnded, StaleGeneration
from ...schemas.messages.gangs import FormRequest, MemberCause
from ...schemas.names import Names
from ..context.gang_context import Collectives, GangBinding, GangContext, GangInfo, facts_of, link
from ..context.task_context import TaskContext, gang_of, seat
from ..execution.runner import TaskRun
from ..pool.declared_task import Outcome
from ..slots.admission_core import AdmissionCore
from ..slots.gang_records import LeavingMember, LocalMember, LocalSeat
from ..slots.lease_table import GrantedLease
from .collectives import CollectiveSessions
from .lifecycle_hooks import GangLifecycleHooks

Fail = Callable[[FormRequest, int, MemberCause, str], None]


EARLY_S: Final = 5.0
"""How long a task waits for its worker to be told of the generation that it is of. The coordinator tells a few times,
and pings find out what was lost."""


@dataclass(frozen=True, slots=True, eq=False)
class _Early:
    """A task that came before the news of its generation."""

    generation: int
    lease: GrantedLease
    context: TaskContext
    run: int
    ready: asyncio.Future[None]


class MemberTasks:
    """Implements runs.Seats for one worker."""

    def __init__(self, core: AdmissionCore, bus: Bus, names: Names, *, fail: Fail) -> None:
        """`fail`: that rank of that generation has failed."""
        self._core = core
        self._bus = bus
        self._names = names
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self.hooks: GangLifecycleHooks | None = None
        self._talks: dict[str, tuple[int, CollectiveSessions]] = {}
        """By token: those of the present generation, which is named."""
        self._early: dict[str, list[_Early]] = {}
        """By token: tasks of a generation of which we were not told yet."""

    # -- tasks ----------------------------------------------------------------------------------------------------

    def attach(
        self, lease: GrantedLease, context: TaskContext, run: int, generation: int
    ) -> asyncio.Future[None] | None:
        """See runs.Seats. A gang's owner may hear sooner than the worker of a survivor that the gang has a new
        generation (`restart_member`). The task belongs to that one, so it waits for the word."""
        member = self._core.gangs.member_of(lease)
        assert member is not None, "admitted on a seat that nobody has"
        self._seat(member, lease, context, run)
        if generation > member.generation:
            early = _Early(generation, lease, context, run, self._loop.create_future())
            self._early.setdefault(lease.token, []).append(early)
            self._loop.call_later(EARLY_S, self._too_early, early)
            return early.ready
        return self.hooks.ready(lease) if self.hooks is not None else None

    def _seat(self, member: LocalMember, lease: GrantedLease, context: TaskContext, run: int) -> None:
        here = member.seats[lease.token]
        gang = GangContext(facts_of(member.form, here.rank, run))
        link(gang, self._link(member.form, here, context), context)
        seat(context, gang)

    def _now(self, early: _Early, member: LocalMember) -> None:
        """The generation that it is of has come."""
        if not early.ready.done():
            self._seat(member, early.lease, early.context, early.run)
            early.ready.set_result(None)

    def _too_early(self, early: _Early) -> None:
        waiting = self._early.get(early.lease.token, [])
        if early in waiting:
            waiting.remove(early)
        if not waiting:
            self._early.pop(early.lease.token, None)
        if not early.ready.done():
            text = f"the worker was not told of generation {early.generation} within {EARLY_S:g} s: nothing started"
            early.ready.set_exception(
                StaleGeneration(text, details={"generation": early.generation}, may_have_started=False)
            )

    def ended(self, lease: GrantedLease, context: TaskContext, outcome: Outcome) -> None:
        """See runs.Seats. A child process that dies takes its member with it; what a task raises is its caller's."""
        gang, talks = gang_of(context), self._talks.get(lease.token)
        if gang is not None and talks is not None and talks[0] == gang.generation:
            talks[1].task_ended(gang.run)
        if self.hooks is not None:
            self.hooks.tasks_ended()
        error = outcome.error
        if isinstance(error, TaskCrashed) and error.may_have_started:
            member = self._core.gangs.member_of(lease)
            if member is not None and gang is not None:
                self._fail(member.form, gang.rank, MemberCause.CRASHED, error.message)

    def hook_context(self, form: FormRequest, here: LocalSeat) -> GangContext:
        """For hooks, which are no tasks."""
        context = GangContext(facts_of(form, here.rank))
        link(context, self._link(form, here, None))
        return context

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self, leaving: LeavingMember) -> None:
        """Tell all that runs on these seats to stop."""
        details = {"gang": leaving.gang, "generation": leaving.generation, "rank": leaving.rank}
        text = f"gang {leaving.gang} was torn down in generation {leaving.generation}: {leaving.reason}"
        over = GangEnded(text, details={**details, "reason": leaving.reason})
        for here in leaving.seats:
            self._hush(here, over)
            self._early.pop(here.lease.token, None)
        for run in self._runs_on(leaving.seats):
            run.cancel(TaskCancelled(text, details=details))

    def insist(self, leaving: LeavingMember) -> int:
        """The grace is over: tell again what still runs. Returns how many."""
        runs = self._runs_on(leaving.seats)
        for run in runs:
            run.insist()
        return len(runs)

    def renewed(self, member: LocalMember) -> None:
        """Its seats go on in a new generation: nobody answers collective calls of the one before."""
        text = f"gang {member.gang} has a new generation, {member.generation}: see current_task().gang.latest"
        for token, here in member.seats.items():
            known = self._talks.get(token)
            if known is not None and known[0] < member.generation:
                self._hush(here, StaleGeneration(text, details={"generation": member.generation}))
            waiting = self._early.pop(token, [])
            for early in waiting:
                if early.generation <= member.generation:
                    self._now(early, member)
                else:
                    self._early.setdefault(token, []).append(early)

    async def close(self) -> None:
        """End every talk. Idempotent."""
        talks, self._talks = self._talks, {}
        for _, each in talks.values():
            await each.close()

    def _hush(self, here: LocalSeat, error: GanglineError) -> None:
        known = self._talks.pop(here.lease.token, None)
        if known is not None:
            known[1].end(error)

    def _runs_on(self, seats: Iterable[LocalSeat]) -> list[TaskRun]:
        leases = {id(here.lease) for here in seats}
        records = [
            record
            for record in self._core.tasks
            if record.lease is not None and id(record.lease.seat or record.lease) in leases
        ]
        return [record.handle for record in records if isinstance(record.handle, TaskRun)]

    # -- what a context can ask -----------------------------------------------------------------------------------

    def _link(self, form: FormRequest, here: LocalSeat, task: TaskContext | None) -> GangBinding:
        def now() -> FormRequest | None:
            member = self._core.gangs.member_of(here.lease)
            return None if member is None or member.over else member.form

        def latest() -> GangInfo | None:
            gang, current = gang_of(task) if task is not None else None, now()
            return None if current is None else facts_of(current, here.rank, 0 if gang is None else gang.run)

        def fail(reason: str) -> None:
            self._loop.call_soon_threadsafe(failed, reason)

        def failed(reason: str) -> None:
            current = now()
            if current is not None:
                self._fail(current, here.rank, MemberCause.FAILED, reason)

        def talk(facts: GangInfo) -> Collectives:
            if task is None:
                raise LookupError("a hook makes no collective calls: members begin and end each on their own")
            if here.part != 0:
                raise LookupError("collective calls are for the member itself, not for slots that are held beside it")
            return self._talk(facts, here, now())

        return GangBinding(loop=self._loop, talk=talk, fail=fail, latest=latest)

    def _talk(self, facts: GangInfo, here: LocalSeat, current: FormRequest | None) -> Collectives:
        if current is None:
            raise GangEnded(f"gang {facts.id} was torn down", details={"generation": facts.generation})
        if current.generation != facts.generation:
            raise StaleGeneration(
                f"gang {facts.id} has a new generation, {current.generation}: see current_task().gang.latest",
                details={"generation": current.generation},
            )
        token = here.lease.token
        if token not in self._talks:
            talks = CollectiveSessions(
                self._bus,
                self._names,
                gang=facts.id,
                generation=facts.generation,
                rank=facts.rank,
                size=len(facts.members),
            )
            self._talks[token] = (facts.generation, talks)
        return self._talks[token][1].session(facts.run)
