"""Members of gangs: their hooks (`@pool.gang_start`, `@pool.gang_stop`) and the runs on their seats. Each task is given
its gang, waits for its member to start, and is stopped with it. Each `@pool.health_check` runs once before the member's
first task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ...bus.port.bus import Bus
from ...runtime.hooks import HookOverdue, call, look_at, name_of, stop, within
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GangEnded, GangFailed, GanglineError, StaleGeneration, TaskCancelled, TaskCrashed
from ...schemas.messages.gangs import FormRequest, MemberCause
from ...schemas.messages.operations import RankTimes
from ...schemas.names import Names
from ...telemetry.exceptions import error_text
from ...telemetry.logs import Log
from ..context.task_context import (
    Collectives,
    GangBinding,
    GangContext,
    GangInfo,
    TaskContext,
    facts_of,
    gang_of,
    link,
    seat,
)
from ..execution.runner import TaskRun
from ..pool.health import Probe
from ..pool.pool import Outcome, Pool
from ..slots.admission_core import AdmissionCore
from ..slots.gang_core import LeavingMember, LocalMember, LocalSeat
from ..slots.lease_table import GrantedLease
from .collectives import CollectiveSessions
from .rank_timer import RankTimer
from .shared_run import SharedRuns

START_TIMEOUT_S: Final = 600.0
"""For gangs whose coordinator gives no `start_timeout_s`."""
STOP_LEAST_S: Final = 1.0
"""Stop hooks have at least this long, whatever the grace time."""


class _Start:
    """One member that is starting, or has started."""

    __slots__ = ("began", "context", "rank", "ready", "running", "task", "timer")

    def __init__(self, context: GangContext, rank: int, ready: asyncio.Future[None]) -> None:
        self.context = context
        self.rank = rank
        self.running = ""
        """The hook that runs, for the log."""
        self.ready = ready
        """Done when it has started or failed to: its tasks wait for this."""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        """Fires when its hooks have used up their time."""
        self.began = False
        """Its start hooks have begun, so its stop hooks are due."""


class GangLifecycleHooks:
    """Runs the hooks of one worker's members. Does nothing if the pool has none."""

    def __init__(
        self,
        pool: Pool,
        *,
        context: Callable[[FormRequest, LocalSeat], GangContext],
        started: Callable[[FormRequest, int], None],
        failed: Callable[[FormRequest, int, str], None],
        unhealthy: Callable[[str], None],
        changed: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            context: makes the GangContext of one member.
            started: called when the start hooks of that rank have succeeded.
            failed: called when a start hook of that rank raised or timed out, with the reason.
            unhealthy: called with the reason when a first health check failed too often: then the worker itself has
                failed too.
            changed: called when a teardown may be complete.
        """
        self._pool = pool
        self._context = context
        self._started = started
        self._failed = failed
        self._unhealthy = unhealthy
        self._changed = changed
        self._log = log
        self._probes: list[Probe] | None = None
        """The health checks; made when the first member starts."""
        self._starts: dict[str, _Start] = {}
        """By token, from the member's start to its end."""
        self._ending = TaskSet("gang stop")
        self._idle = asyncio.Event()
        """Set whenever a task on a seat has ended."""

    @property
    def any(self) -> bool:
        """Whether there are hooks or health checks."""
        return bool(self._pool.gang_starts or self._pool.gang_stops or self._pool.health_checks)

    def begin(self, form: FormRequest, seats: Iterable[LocalSeat]) -> None:
        """Start these members."""
        if not self.any:
            return
        loop = asyncio.get_running_loop()
        for each in seats:
            if each.part == 0:
                start = _Start(self._context(form, each), each.rank, loop.create_future())
                self._starts[each.lease.token] = start
                start.ready.add_done_callback(look_at)
                timeout_s = START_TIMEOUT_S if form.start_timeout_s is None else form.start_timeout_s
                start.timer = loop.call_later(timeout_s, self._too_late, form, each, start, timeout_s)
                start.task = loop.create_task(self._start(form, each, start), name="gangline gang start")

    def ready(self, lease: GrantedLease) -> asyncio.Future[None] | None:
        """What a task on this seat must wait for, if anything."""
        start = self._starts.get(lease.token)
        if start is None or (start.ready.done() and not start.ready.cancelled() and start.ready.exception() is None):
            return None
        return start.ready

    def end(self, leaving: LeavingMember, grace_s: float) -> None:
        """These seats have ended: cancel their start hooks, and run the stop hooks when their tasks have stopped. Hooks
        have `grace_s` to stop, and again `grace_s` to run."""
        starts = [self._starts.pop(seat.lease.token) for seat in leaving.seats if seat.lease.token in self._starts]
        if not starts:
            return
        for start in starts:
            _disarm(start)
            if start.task is not None:
                start.task.cancel()  # now, so that no further hook starts
        leaving.hooks += 1
        self._ending.start(self._end(leaving, starts, max(grace_s, STOP_LEAST_S)))

    def tasks_ended(self) -> None:
        """A task on a seat has ended."""
        self._idle.set()

    async def stop(self) -> None:
        """Cancel whatever is running, and leave behind what does not stop. Idempotent."""
        for start in self._starts.values():
            _disarm(start)
        await stop([*self._ending, *(start.task for start in self._starts.values() if start.task is not None)])

    async def _start(self, form: FormRequest, seat: LocalSeat, start: _Start) -> None:
        start.began = True
        try:
            for hook in self._pool.gang_starts:
                start.running = name_of(hook)
                await call(hook, start.context)
                if start.ready.done():
                    return  # timed out: the hook ignored its cancellation
            start.running = "(health checks)"
            sick = await self._first_checks()
        except asyncio.CancelledError:
            start.ready.cancel()
            raise
        except Exception as error:
            detail = f"{type(error).__name__}: {error_text(error, 2_000)}"
            self._log.exception(
                "rank %d of gang %s did not start", seat.rank, form.gang,
                extra={"action": "gang.start_failed", "gang": form.gang, "rank": seat.rank},
            )  # fmt: skip
            self._fail(form, seat, start, detail)
        else:
            if sick is not None:
                self._fail(form, seat, start, sick)
                self._unhealthy(sick)
            elif not start.ready.done():
                start.ready.set_result(None)
                self._started(form, seat.rank)
        finally:
            _disarm(start)

    async def _first_checks(self) -> str | None:
        """Why the worker is not healthy; None if it is."""
        if self._probes is None:
            self._probes = [Probe(check, self._log) for check in self._pool.health_checks]
        found = await asyncio.gather(*(probe.first() for probe in self._probes))
        return next((why for why in found if why is not None), None)

    def _too_late(self, form: FormRequest, seat: LocalSeat, start: _Start, timeout_s: float) -> None:
        """Its hooks have used up their time. It has failed, even if they cannot be stopped."""
        checks = " and first health checks" if self._pool.health_checks else ""
        detail = (
            f"its gang_start functions{checks} did not end within start_timeout_s ({timeout_s:g} s) and were cancelled"
        )
        self._log.warning(
            "rank %d of gang %s did not start: %s", seat.rank, form.gang, detail,
            extra={"action": "gang.start_timeout", "gang": form.gang, "rank": seat.rank},
        )  # fmt: skip
        self._fail(form, seat, start, detail)
        if start.task is not None:
            start.task.cancel()

    def _fail(self, form: FormRequest, seat: LocalSeat, start: _Start, detail: str) -> None:
        if start.ready.done():
            return
        details = {"rank": seat.rank, "generation": form.generation, "reason": detail}
        text = f"rank {seat.rank} of gang {form.gang} did not start: {detail}"
        start.ready.set_exception(GangFailed(text, details=details, may_have_started=False))
        self._failed(form, seat.rank, detail)

    async def _end(self, leaving: LeavingMember, starts: list[_Start], limit_s: float) -> None:
        try:
            await self._end_starts(leaving, starts, limit_s)
            while any(seat.lease.busy for seat in leaving.seats):
                self._idle.clear()
                await self._idle.wait()
            await asyncio.gather(*(self._stops(leaving, start, limit_s) for start in starts if start.began))
        finally:
            leaving.hooks -= 1
            self._changed()

    async def _end_starts(self, leaving: LeavingMember, starts: list[_Start], limit_s: float) -> None:
        """Wait until the start hooks have stopped, which were cancelled."""
        tasks = {start.task: start for start in starts if start.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=limit_s)
            for task in await stop(late):
                start = tasks[task]
                self._log.warning(
                    "gang_start function %s of rank %d of gang %s did not stop within %g s after it was "
                    "cancelled, and is no longer waited for", start.running, start.rank, leaving.gang, limit_s,
                    extra={"action": "hook.overdue", "gang": leaving.gang, "rank": start.rank},
                )  # fmt: skip
        for start in starts:
            start.ready.cancel()

    async def _stops(self, leaving: LeavingMember, start: _Start, limit_s: float) -> None:
        """Run one member's stop hooks in order. They share `limit_s`."""
        clock = asyncio.get_running_loop().time
        until, gang, rank = clock() + limit_s, leaving.gang, start.rank
        for number, hook in enumerate(self._pool.gang_stops):
            what = f"gang_stop function {name_of(hook)} of rank {rank} of gang {gang}"
            try:
                work = call(hook, start.context)
                await within(until - clock(), work, what=what, log=self._log, gang=gang, rank=rank)
            except HookOverdue:
                for left_out in self._pool.gang_stops[number + 1 :]:
                    self._log.warning(
                        "gang_stop function %s of rank %d of gang %s does not run: no time is left",
                        name_of(left_out), rank, gang,
                        extra={"action": "hook.left_out", "gang": gang, "rank": rank},
                    )  # fmt: skip
                return
            except Exception:
                self._log.exception(
                    "%s failed", what, extra={"action": "gang.stop_failed", "gang": gang, "rank": rank}
                )  # fmt: skip


def _disarm(start: _Start) -> None:
    if start.timer is not None:
        start.timer.cancel()
        start.timer = None


Fail = Callable[[FormRequest, int, MemberCause, str], None]


EARLY_S: Final = 5.0
"""How long a task waits until its worker is told of its generation. The coordinator repeats the message, and pings
detect a lost one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Early:
    """A task that arrived before its generation was announced."""

    generation: int
    lease: GrantedLease
    context: TaskContext
    run: int
    ready: asyncio.Future[None]


class MemberTasks:
    """Implements MemberSeats for one worker."""

    def __init__(
        self, core: AdmissionCore, bus: Bus, names: Names, *, fail: Fail, waited: Callable[[float], None]
    ) -> None:
        """
        Args:
            fail: called when a rank of a generation has failed.
            waited: called when a rank has waited this many seconds for the others.
        """
        self._core = core
        self._bus = bus
        self._names = names
        self._shared = SharedRuns(bus, names)
        self._fail = fail
        self._waited = waited
        self._loop = asyncio.get_running_loop()
        self.hooks: GangLifecycleHooks | None = None
        self._talks: dict[str, tuple[int, CollectiveSessions]] = {}
        """By token: the current generation and its sessions."""
        self._early: dict[str, list[_Early]] = {}
        """By token: tasks of a generation that has not been announced to us yet."""
        self.timers: dict[str, RankTimer] = {}
        """By token: of ranks that have run tasks."""
        self._timed: dict[int, tuple[RankTimer, int]] = {}
        """By the identity of their context: tasks whose time is measured, with the number of their run."""

    # -- tasks ----------------------------------------------------------------------------------------------------

    def attach(
        self, lease: GrantedLease, context: TaskContext, run: int, generation: int
    ) -> asyncio.Future[None] | None:
        """See MemberSeats. A gang's owner may learn of a new generation (`restart_member`) before a survivor's worker
        does. A task of the new generation waits until the worker is told."""
        member = self._core.gangs.member_of(lease)
        assert member is not None, "admitted on a seat that nobody has"
        self._seat(member, lease, context, run)
        if generation > member.generation:
            early = _Early(generation, lease, context, run, self._loop.create_future())
            self._early.setdefault(lease.token, []).append(early)
            self._loop.call_later(EARLY_S, self._too_early, early)
            ready: asyncio.Future[None] | None = early.ready
        else:
            ready = self.hooks.ready(lease) if self.hooks is not None else None
        here = member.seats[lease.id]
        if here.part == 0:
            if ready is None:
                self._begin(here, context, run)
            else:
                ready.add_done_callback(lambda done: self._begin_if(done, here, context, run))
        return ready

    def _begin(self, here: LocalSeat, context: TaskContext, run: int) -> None:
        """Measure the time of a task that starts."""
        token = here.lease.token
        timer = self.timers.get(token)
        if timer is None:
            timer = self.timers[token] = RankTimer(here.rank, self._waited)
        timer.began(run, self._loop.time())
        self._timed[id(context)] = timer, run

    def _begin_if(self, ready: asyncio.Future[None], here: LocalSeat, context: TaskContext, run: int) -> None:
        if not ready.cancelled() and ready.exception() is None and here.lease.ended is None:
            self._begin(here, context, run)

    def times(self, seats: Iterable[LocalSeat]) -> tuple[RankTimes, ...]:
        """Of the ranks among these seats that have run tasks."""
        now = self._loop.time()
        found = (self.timers.get(here.lease.token) for here in seats)
        return tuple(timer.times(now) for timer in found if timer is not None)

    def stopped(self, leaving: LeavingMember) -> tuple[RankTimes, ...]:
        """Their last times: these seats are over, and no task runs on them."""
        times = self.times(leaving.seats)
        for here in leaving.seats:
            self.timers.pop(here.lease.token, None)
        return times

    def _seat(self, member: LocalMember, lease: GrantedLease, context: TaskContext, run: int) -> None:
        here = member.seats[lease.id]
        gang = GangContext(facts_of(member.form, here.rank, run))
        link(gang, self._link(here, context), context)
        seat(context, gang)

    def _now(self, early: _Early, member: LocalMember) -> None:
        """Its generation has been announced."""
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
        """See MemberSeats. A child process that dies fails its member; an error that a task raises only fails its
        call."""
        timed = self._timed.pop(id(context), None)
        if timed is not None:
            timer, run = timed
            timer.ended(run, self._loop.time())
        gang = gang_of(context)
        error = outcome.error
        if gang is not None and gang.run and (error is None or error.may_have_started):
            talks = self._sessions(gang, lease)
            if talks is not None:
                talks.task_ended(gang.run, "returned" if error is None else "failed")
        if self.hooks is not None:
            self.hooks.tasks_ended()
        if isinstance(error, TaskCrashed) and error.may_have_started:
            member = self._core.gangs.member_of(lease)
            if member is not None and gang is not None:
                self._fail(member.form, gang.rank, MemberCause.CRASHED, error.message)

    def hook_context(self, form: FormRequest, here: LocalSeat) -> GangContext:
        """The context for hooks, which are not tasks."""
        context = GangContext(facts_of(form, here.rank))
        link(context, self._link(here, None))
        return context

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self, leaving: LeavingMember) -> None:
        """Cancel all runs on these seats."""
        details = {"gang": leaving.gang, "generation": leaving.generation, "rank": leaving.rank}
        text = f"gang {leaving.gang} was torn down in generation {leaving.generation}: {leaving.reason}"
        over = GangEnded(text, details={**details, "reason": leaving.reason})
        for here in leaving.seats:
            self._hush(here, over)
            self._early.pop(here.lease.token, None)
        for run in self._runs_on(leaving.seats):
            run.cancel(TaskCancelled(text, details=details))

    def insist(self, leaving: LeavingMember) -> int:
        """The grace time is over: cancel again what still runs. Returns how many."""
        runs = self._runs_on(leaving.seats)
        for run in runs:
            run.insist()
        return len(runs)

    def renewed(self, member: LocalMember) -> None:
        """Its seats continue in a new generation: end the collective calls of the previous one."""
        text = f"gang {member.gang} has a new generation, {member.generation}: see current_task().gang.latest"
        for here in member.seats.values():
            token = here.lease.token
            known = self._talks.get(token)
            if known is not None and known[0] < member.generation:
                self._hush(here, StaleGeneration(text, details={"generation": member.generation}))
            timer = self.timers.get(token)
            if timer is not None:
                timer.restart(self._loop.time())
            waiting = self._early.pop(token, [])
            for early in waiting:
                if early.generation <= member.generation:
                    self._now(early, member)
                else:
                    self._early.setdefault(token, []).append(early)

    async def close(self) -> None:
        """End every session. Idempotent."""
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

    def _link(self, here: LocalSeat, task: TaskContext | None) -> GangBinding:
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
                raise LookupError("a hook cannot make collective calls: each member starts and stops on its own")
            if here.part != 0:
                raise LookupError("only the member itself can make collective calls, not the slots held beside it")
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
        return self._made(facts, here.lease.token).session(facts.run)

    def _sessions(self, gang: GangContext, lease: GrantedLease) -> CollectiveSessions | None:
        """Those of the member whose task of that generation has ended, unless the generation is over."""
        member = self._core.gangs.member_of(lease)
        if member is None or member.over or member.generation != gang.generation:
            return None
        here = member.seats.get(lease.id)
        if here is None or here.part != 0:
            return None
        return self._made(gang, lease.token)

    def _made(self, facts: GangInfo | GangContext, token: str) -> CollectiveSessions:
        if token not in self._talks:
            talks = CollectiveSessions(
                self._bus,
                self._names,
                self._shared,
                gang=facts.id,
                generation=facts.generation,
                rank=facts.rank,
                size=len(facts.members),
                timer=self.timers.get(token),
            )
            self._talks[token] = (facts.generation, talks)
        return self._talks[token][1]
