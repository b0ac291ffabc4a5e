"""The gang coordinator's core: every decision about gangs, and nothing else.

Nothing in here (or in its parts) awaits, reads a clock, draws a random number or logs: time and
draws arrive in the event, `handle` returns effects. Nothing outside changes state.

The laws it keeps, `check()` asserts, and tests and checkers quote (the numbers are those of the project's laws):

- **L7 gang atomicity.** All members of a gang are granted by one batch and ended by one batch. No member is told to
  start before the batch that grants it was committed.
- **L8 gang fate.** Each generation is torn down once, whatever else fails; a restart is the next generation, with fresh
  leases, and is queued when the old members have confirmed, are gone, or had their grace time and a margin.
- **L9 one coordinator** (of each shard). Every batch is conditioned on our own `leader` record. Before LeadershipGained
  and after LeadershipLost the core does nothing at all.
- **No deadlock.** A gang that waits holds nothing, but for what is kept for the head of the queue, and but for the
  survivors of a repair, whose wait is bounded.
- **One commit in flight.** The others wait in line; one of unknown fate is voided and looked up before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...schemas.messages.gangs import GangReply, GangWhyReply
from ...schemas.names import WorkerId
from ..model import events as on
from ..model.effects import Effect, SetGangTimer, StepDown
from ..model.gang import ManagedGang
from ..settings import CoordinatorSettings
from ..sharding.shards import WHOLE, Shard
from .commit_pipeline import CommitPipeline, GrantPipeline
from .explain import why
from .liveness import HeartbeatMonitor
from .members import MemberFailures
from .owner_requests import OwnerRequests
from .recovery import LedgerRecovery
from .scheduler import GangScheduler
from .standing_sets import StandingSets
from .state import SchedulerState, check
from .teardown import Teardown


class SchedulerCore:
    """All gangs of one coordinator. `event.now` must never go backwards from call to call."""

    def __init__(self, settings: CoordinatorSettings | None = None, shard: Shard = WHOLE) -> None:
        """What belongs to other shards must not be given to it; it is not known here."""
        self._books = books = SchedulerState(settings or CoordinatorSettings(), shard)
        self._teardown = Teardown(books)
        self._members = MemberFailures(books, self._teardown)
        self._forming = GangScheduler(books, self._members, self._teardown)
        self._granting = GrantPipeline(books, self._members, self._teardown)
        self._owners = OwnerRequests(books, self._teardown)
        self._sets = StandingSets(books, self._teardown)
        self._liveness = HeartbeatMonitor(books, self._members, self._granting)
        self._recovery = LedgerRecovery(books, self._members, self._teardown, self._granting, self._sets)
        self._writing = CommitPipeline(books, self._members, self._teardown, self._granting, self._sets)
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
        books = self._books
        if not books.leading:
            return "<GangCore standing by>"
        return f"<GangCore term={books.term} {len(books.gangs)} gangs, {len(books.queue)} queued, {books.inventory!r}>"

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def leading(self) -> bool:
        return self._books.leading

    @property
    def fence(self) -> int:
        """Revision of our `leader` record."""
        return self._books.ledger.fence

    def get(self, gang: str) -> GangReply | None:
        """A gang, also one that ended a short while ago; without its owner's token, with those of its seats."""
        found = self._books.gangs.get(gang)
        if found is not None:
            return found.describe()
        ended = self._books.ended.get(gang)
        return ended.reply if ended is not None else None

    def owned_by(self, gang: str, owner_token: str) -> bool:
        """Whether that is the owner's token of a gang that it knows."""
        known = self._books.gangs.get(gang) or self._books.ended.get(gang)
        return known is not None and known.owner_token == owner_token

    def gangs(self) -> list[GangReply]:
        """All gangs that have not ended, in order of age."""
        return [gang.describe() for gang in sorted(self._books.gangs.values(), key=lambda g: (g.created_at, g.id))]

    def why(self, gang: str) -> GangWhyReply | None:
        """What a gang waits for; None if it is not known. Looks at all workers: for people, not for loops."""
        return why(self._books, gang)

    def statistics(self) -> dict[str, float]:
        """Gauges: `gangs`, `formed`, `queued`, `oldest_s` (age of the head of the queue), `commits_waiting`."""
        books = self._books
        waiting = [books.gangs[gang].queued_at for gang in books.queue]
        return {
            "gangs": len(books.gangs),
            "formed": sum(bool(gang.seats) for gang in books.gangs.values()),
            "queued": len(books.queue),
            "oldest_s": books.now - min(waiting) if waiting else 0.0,
            "commits_waiting": len(books.ledger.line),
        }

    def check(self) -> None:
        """Assert the invariants; for tests."""
        check(self._books)

    # -- what happens ------------------------------------------------------------------------------------------------

    def handle(self, event: on.AnyEvent) -> list[Effect]:
        """Decide. Effects are to be carried out in order."""
        books = self._books
        assert event.now >= books.now, "time went backwards"
        books.now, books.wall, books.draw = event.now, event.wall, event.draw
        if not books.leading and type(event) is not on.LeadershipGained:
            return []
        HANDLERS[type(event)](self, event)
        self._settle()
        out, books.out = books.out, []
        return out

    def _settle(self) -> None:
        """Follow up until nothing more follows: what a set wants, what there is room for, what can be written."""
        books = self._books
        if not books.leading:
            return
        while True:
            self._sets.look()
            if books.look_for_room:
                self._forming.schedule()
            elif not self._writing.next() and not (books.sets_to_look_at or books.look_for_room):
                break
        if books.agenda.next_at != self._wake_at:
            self._wake_at = books.agenda.next_at
            books.out.append(SetGangTimer(at=self._wake_at))

    def _gained(self, event: on.LeadershipGained) -> None:
        self._wake_at = None
        self._recovery.gained(event)

    def _lost(self, event: on.LeadershipLost) -> None:
        self._books.reset()
        self._wake_at = None
        self._books.out.append(StepDown(reason=event.reason))

    def _load(self, event: on.LoadSeen) -> None:
        books, worker, load = self._books, event.worker, event.load
        view = books.inventory.workers.get(worker)
        if view is None or view.facts.epoch != event.epoch:
            return  # its registration is on the way
        was_draining = view.draining
        if books.inventory.load(worker, load):
            books.look_for_room = True
        if load.draining and not was_draining:
            self._members.draining(worker)

    def _tick(self) -> None:
        for name in self._books.agenda.due(self._books.now):
            self._due(name)

    def _due(self, name: tuple[str, ...]) -> None:
        books = self._books
        match name:
            case ("ping", worker):
                self._liveness.ping(WorkerId.parse(worker))
            case ("keep",):
                self._forming.renew_keeps()
            case ("retry" | "starve", _):
                books.look_for_room = True
            case ("set" | "surge" | "ready", gangset):
                books.sets_to_look_at[gangset] = None
            case ("forget", gang_id):
                books.ended.pop(gang_id, None)
            case (timer, gang_id):
                gang = books.gangs.get(gang_id)
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
"""What each event does. One for each of AnyEvent: a test sees to it."""
