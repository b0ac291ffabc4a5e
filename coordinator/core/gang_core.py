"""The gang coordinator's core: every decision about gangs, and nothing else.

Nothing in here (or in its parts) awaits, reads a clock, draws a random number or logs: time and
draws arrive in the event, `handle` returns effects. Nothing outside changes state.

The laws that it keeps, `check()` asserts, and tests quote (numbered as in the project's list of laws):

- **L7 gang atomicity.** All members of a gang are granted by one batch and ended by one batch. No member is told to
  start before the batch that grants it was committed.
- **L8 gang fate.** Each generation is torn down once, whatever else fails; a restart is the next generation, with fresh
  leases, and is queued when the old members have confirmed, are gone, or have had their grace time and a margin.
- **L9 one coordinator** (of each shard). Every batch is conditioned on our own `leader` record. Before LeadershipGained
  and after LeadershipLost the core does nothing at all.
- **No deadlock.** A waiting gang holds no slots. Exceptions are slots reserved for the head of the queue and survivors
  of a repair; both are time-limited.
- **One commit in flight.** The others wait in line. If its outcome is unknown, it is voided and looked up before the
  next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...schemas.messages.gangs import GangReply, GangWhyReply, PingRequest
from ...schemas.names import WorkerId, is_token_of
from ...schemas.records.gangs import Seat
from ..model import events as on
from ..model.effects import Effect, PingWorker, SetGangTimer, StepDown
from ..model.events import PingAnswered, PingUnanswered
from ..model.gang import GRANTED, ManagedGang
from ..settings.settings import CoordinatorSettings
from ..sharding.shards import WHOLE, Shard
from .commit_pipeline import CommitPipeline, GrantPipeline
from .members import MemberFailures, Teardown
from .owner_requests import OwnerRequests, kept_slots, waiting_by_obstacle, why
from .recovery import LedgerRecovery
from .scheduler import GangScheduler
from .standing_sets import StandingSets
from .state import SchedulerState, check

GONE_AFTER = 2
"""A worker is gone after this many pings in a row without responders. A single one may hit a worker that is just
reconnecting."""


class HeartbeatMonitor:
    """Pings workers that have members, which also renews the gangs there. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, members: MemberFailures, granting: GrantPipeline) -> None:
        self._state = scheduler_state
        self._granting = granting
        self._members = members

    def ping(self, worker: WorkerId) -> None:
        scheduler_state = self._state
        here = scheduler_state.on.get(worker)
        if here:
            gangs = {gang: scheduler_state.gangs[gang].generation for gang in here}
            scheduler_state.out.append(PingWorker(worker=worker, request=PingRequest(gangs=gangs)))
            scheduler_state.agenda.set(("ping", str(worker)), scheduler_state.now + scheduler_state.settings.ping_s)

    def answered(self, event: PingAnswered) -> None:
        view = self._state.inventory.workers.get(event.worker)
        if view is not None:
            view.silent = 0
        for gang_id, generation in event.started.items():
            self._members.started(gang_id, generation, None, event.worker)
        for gang_id, generation in event.missing.items():
            gang = self._state.gangs.get(gang_id)
            if gang is not None and gang.step in GRANTED and gang.generation == generation:
                # Our `form` was lost. Send it again: the worker either accepts it or refuses, which is a failure of its
                # own.
                self._granting.announce(gang, only=event.worker)

    def unanswered(self, event: PingUnanswered) -> None:
        scheduler_state = self._state
        view = scheduler_state.inventory.workers.get(event.worker)
        if view is None:
            return
        view.silent += 1
        if view.silent >= GONE_AFTER:
            self._members.worker_gone(event.worker, "no responders")
        else:
            scheduler_state.agenda.set(
                ("ping", str(event.worker)), scheduler_state.now + scheduler_state.settings.confirm_s
            )


class SchedulerCore:
    """All gangs of one coordinator. `event.now` must never decrease from call to call."""

    def __init__(self, settings: CoordinatorSettings | None = None, shard: Shard = WHOLE) -> None:
        """It must not be given gangs of other shards."""
        self._state = scheduler_state = SchedulerState(settings or CoordinatorSettings(), shard)
        self._teardown = Teardown(scheduler_state)
        self._members = MemberFailures(scheduler_state, self._teardown)
        self._forming = GangScheduler(scheduler_state, self._members)
        self._granting = GrantPipeline(scheduler_state, self._members, self._teardown)
        self._owners = OwnerRequests(scheduler_state, self._teardown, self._granting)
        self._sets = StandingSets(scheduler_state, self._teardown)
        self._liveness = HeartbeatMonitor(scheduler_state, self._members, self._granting)
        self._recovery = LedgerRecovery(scheduler_state, self._members, self._teardown, self._granting, self._sets)
        self._writing = CommitPipeline(scheduler_state, self._members, self._teardown, self._granting, self._sets)
        self._wake_at: float | None = None
        self._timers: dict[str, Callable[[ManagedGang], None]] = {
            "hold": self._forming.timed_out,
            "stop": self._teardown.stopped,
            "resend": self._teardown.resend,
            "backoff": self._teardown.again,
            "repair": self._members.not_repaired,
            "retire": self._sets.retired,
            "owner": self._owners.silent,
            "deadline": self._owners.too_late,
        }

    def __repr__(self) -> str:
        state, name = self._state, type(self).__name__
        if not state.leading:
            return f"<{name} standing by>"
        return f"<{name} term={state.term} {len(state.gangs)} gangs, {len(state.queue)} queued, {state.inventory!r}>"

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self._state.leading

    @property
    def fence(self) -> int:
        """Revision of our `leader` record."""
        return self._state.ledger.fence

    def tenant_of(self, account: str) -> str:
        """The tenant that has this account; empty: it is our own."""
        return self._state.settings.quotas.tenant_of(account)

    def get(self, gang: str) -> GangReply | None:
        """A gang, or one that ended recently, without secrets."""
        found = self._state.gangs.get(gang)
        if found is not None:
            return found.describe()
        ended = self._state.ended.get(gang)
        return ended.reply if ended is not None else None

    def seats_of(self, gang: str) -> tuple[Seat, ...]:
        """The seats of a gang that has not ended."""
        found = self._state.gangs.get(gang)
        return () if found is None else found.seats

    def get_owned(self, gang: str, owner_token: str) -> GangReply | None:
        """The gang for its owner, with the tokens of its seats. None: that is not the owner's token."""
        found = self._state.gangs.get(gang)
        if found is not None:
            shown = found.describe(to_owner=True).model_copy(update={"owner_token": None})
            return shown if is_token_of(owner_token, found.owner_id) else None
        ended = self._state.ended.get(gang)
        return ended.reply if ended is not None and is_token_of(owner_token, ended.owner_id) else None

    def seated(self, gang: str, generation: int, rank: int, worker: WorkerId) -> bool:
        """Whether that worker has a part of that rank in the current generation or the one being formed."""
        known = self._state.gangs.get(gang)
        if known is None:
            return False
        attempt = known.attempt
        coming = attempt.wanted if attempt is not None and generation == known.next_generation else {}
        here = known.seats_by_worker if generation == known.generation else {}
        return any(seat.rank == rank for seats in (here, coming) for seat in seats.get(worker, ()))

    def gangs(self) -> list[GangReply]:
        """All gangs that have not ended, oldest first."""
        return [gang.describe() for gang in sorted(self._state.gangs.values(), key=lambda g: (g.created_at, g.id))]

    def why(self, gang: str) -> GangWhyReply | None:
        """What a gang waits for; None if the gang is unknown. Looks at all workers: for people, not for loops."""
        return why(self._state, gang)

    def waiting_by_obstacle(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By pool and obstacle: waiting gangs, and the slots that they need there."""
        return waiting_by_obstacle(self._state)

    def kept_slots(self) -> dict[str, int]:
        """By pool: slots that are kept for the head of the queue."""
        return kept_slots(self._state)

    def statistics(self) -> dict[str, float]:
        """Gauges: `gangs`, `formed`, `queued`, `oldest_s` (age of the head of the queue), `commits_waiting`."""
        scheduler_state = self._state
        waiting = [scheduler_state.gangs[gang].queued_at for gang in scheduler_state.queue]
        return {
            "gangs": len(scheduler_state.gangs),
            "formed": sum(bool(gang.seats) for gang in scheduler_state.gangs.values()),
            "queued": len(scheduler_state.queue),
            "oldest_s": scheduler_state.now - min(waiting) if waiting else 0.0,
            "commits_waiting": len(scheduler_state.ledger.line),
        }

    @property
    def writing(self) -> bool:
        """Whether batches are waiting or in flight."""
        return self._state.ledger.busy or bool(self._state.ledger.line)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        check(self._state)

    # -- what happens ------------------------------------------------------------------------------------------------

    def handle(self, event: on.AnyEvent) -> list[Effect]:
        """Decide. Effects must be carried out in order."""
        scheduler_state = self._state
        assert event.now >= scheduler_state.now, "time went backwards"
        scheduler_state.now, scheduler_state.wall, scheduler_state.draw = event.now, event.wall, event.draw
        if not scheduler_state.leading and type(event) is not on.LeadershipGained:
            return []
        HANDLERS[type(event)](self, event)
        self._settle()
        out, scheduler_state.out = scheduler_state.out, []
        return out

    def _settle(self) -> None:
        """Reconcile sets, schedule gangs and write commits until nothing changes."""
        scheduler_state = self._state
        if not scheduler_state.leading:
            return
        while True:
            self._sets.look()
            if scheduler_state.look_for_room:
                self._forming.schedule()
            elif not self._writing.next() and not (scheduler_state.sets_to_look_at or scheduler_state.look_for_room):
                break
        if scheduler_state.agenda.next_at != self._wake_at:
            self._wake_at = scheduler_state.agenda.next_at
            scheduler_state.out.append(SetGangTimer(at=self._wake_at))

    def _gained(self, event: on.LeadershipGained) -> None:
        self._wake_at = None
        self._recovery.gained(event)

    def _lost(self, event: on.LeadershipLost) -> None:
        self._state.reset()
        self._wake_at = None
        self._state.out.append(StepDown(reason=event.reason))

    def _load(self, event: on.LoadSeen) -> None:
        scheduler_state, worker, load = self._state, event.worker, event.load
        view = scheduler_state.inventory.workers.get(worker)
        if view is None or view.facts.epoch != event.epoch:
            return  # its registration will follow
        was_draining = view.draining
        if scheduler_state.inventory.load(worker, load):
            scheduler_state.look_for_room = True
        if load.draining and not was_draining:
            self._members.draining(worker)

    def _tick(self) -> None:
        for name in self._state.agenda.due(self._state.now):
            self._due(name)

    def _due(self, name: tuple[str, ...]) -> None:
        scheduler_state = self._state
        match name:
            case ("ping", worker):
                self._liveness.ping(WorkerId.parse(worker))
            case ("keep",):
                self._forming.renew_keeps()
                # Another tenant may have borrowed slots since.
                scheduler_state.look_for_room |= bool(scheduler_state.of_tenant)
            case ("retry" | "starve", _):
                scheduler_state.look_for_room = True
            case ("set" | "surge" | "ready", gangset):
                scheduler_state.sets_to_look_at[gangset] = None
            case ("forget", gang_id):
                scheduler_state.ended.pop(gang_id, None)
            case (timer, gang_id):
                gang = scheduler_state.gangs.get(gang_id)
                if gang is not None:
                    self._timers[timer](gang)
            case _:
                raise AssertionError(name)


HANDLERS: Final[dict[type[on.AnyEvent], Callable[[SchedulerCore, Any], None]]] = {
    on.LeadershipGained: SchedulerCore._gained,
    on.LeadershipLost: SchedulerCore._lost,
    on.WorkerSeen: lambda core, event: core._members.worker_seen(event.worker),
    on.LoadSeen: SchedulerCore._load,
    on.WorkerGone: lambda core, event: core._members.worker_gone(event.worker, event.reason),
    on.PingAnswered: lambda core, event: core._liveness.answered(event),
    on.PingUnanswered: lambda core, event: core._liveness.unanswered(event),
    on.HoldAnswered: lambda core, event: core._forming.answered(event),
    on.HoldUnanswered: lambda core, event: core._forming.unanswered(event),
    on.KeepAnswered: lambda core, event: core._forming.kept(event),
    on.TeardownConfirmed: lambda core, event: core._teardown.confirmed(
        event.worker, event.gang, event.generation, event.load
    ),
    on.TeardownUnanswered: lambda core, event: core._teardown.confirmed(
        event.worker, event.gang, event.generation, None
    ),
    on.Formed: lambda core, event: core._members.started(event.gang, event.generation, None, event.worker),
    on.SeatsShown: lambda core, event: core._granting.shown(event),
    on.MemberStarted: lambda core, event: core._members.started(event.gang, event.generation, event.rank),
    on.MemberFailed: lambda core, event: core._members.reported(event),
    on.Committed: lambda core, event: core._writing.answered(event),
    on.CommitRefused: lambda core, event: core._writing.answered(event),
    on.CommitUnknown: lambda core, event: core._writing.answered(event),
    on.Refenced: lambda core, event: core._writing.answered(event),
    on.MembersRead: lambda core, event: core._recovery.sweep(event.members),
    on.LedgerVanished: lambda core, event: core._recovery.vanished(event),
    on.AcquireAsked: lambda core, event: core._owners.acquire(event),
    on.RenewAsked: lambda core, event: core._owners.renew(event),
    on.ReleaseAsked: lambda core, event: core._owners.release(event),
    on.EndAsked: lambda core, event: core._owners.end(event),
    on.SetSeen: lambda core, event: core._sets.declare(event.name, event.record),
    on.SchedulerTick: lambda core, _: core._tick(),
}
"""What each event does. There is an entry for each class of AnyEvent: a test checks that."""
