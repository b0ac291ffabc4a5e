"""How a new leader recovers the gangs from the ledger.

Laws:

1. It starts only from a complete and successful read, made after its own `leader` record was written: no write of an
   earlier leader can come after that.
2. Formed gangs are kept, and their members are notified again (the previous leader may have died before it did).
   Teardowns in progress are completed. Holds that were never committed expire at the workers.
3. A member record is removed only if it was read and no known gang has that member. A failed read produces no event, so
   it removes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...schemas.messages.gangs import GangEventKind
from ...schemas.names import WorkerId, public_id
from ...schemas.records.gangs import MAX_SEATS, GangRecord, GangState, MemberRecord
from ..model.commits import CommitKind
from ..model.events import Cause, LeadershipGained, LedgerVanished
from ..model.gang import Failure, GangStep, ManagedGang, TeardownProgress
from .commit_pipeline import GrantPipeline
from .members import MemberFailures, Teardown
from .standing_sets import StandingSets
from .state import FinishedGang, SchedulerState


class LedgerRecovery:
    """Recovers the state of a new leader. A part of the core."""

    def __init__(
        self,
        scheduler_state: SchedulerState,
        members: MemberFailures,
        teardown: Teardown,
        granting: GrantPipeline,
        sets: StandingSets,
    ) -> None:
        self._state = scheduler_state
        self._members = members
        self._teardown = teardown
        self._granting = granting
        self._sets = sets

    def gained(self, event: LeadershipGained) -> None:
        scheduler_state = self._state
        scheduler_state.reset()
        scheduler_state.out.clear()  # effects of a term that failed to begin
        scheduler_state.leading, scheduler_state.term, scheduler_state.ledger.fence = True, event.term, event.fence
        for facts in event.workers:
            scheduler_state.inventory.seen(facts)
        for name, record in event.sets:
            self._sets.declare(name, record)
        for name, status in event.statuses:
            self._sets.remember(name, status)
        granted = {(worker, member.gang, member.generation) for worker, member in event.members}
        for gang_record, revision in sorted(event.gangs, key=lambda item: item[0].id):
            self._restore(gang_record, revision, granted)
        self.sweep(event.members)
        for gang in list(scheduler_state.gangs.values()):
            if not scheduler_state.shard.keeps_all(gang.spec):
                self._teardown.end(gang, Failure(cause=Cause.RESHARDED))
            elif gang.gangset is not None and gang.gangset not in scheduler_state.sets:
                self._teardown.end(gang, Failure(cause=Cause.REPLACED))
        scheduler_state.look_for_room = True

    def _restore(self, record: GangRecord, revision: int, granted: set[tuple[WorkerId, str, int]]) -> None:
        scheduler_state = self._state
        gang = ManagedGang(
            id=record.id,
            spec=record.spec,
            owner_id=record.owner_token and public_id(record.owner_token),
            tenant=record.tenant,
            gangset=record.gangset,
            created_at=record.created_at,
            queued_at=scheduler_state.now,
            queued_wall=scheduler_state.wall,
            generation=record.generation,
            failures=record.counted,
            streak=record.counted,
            persisted=True,
            seats=record.seats,
            rendezvous=record.rendezvous,
            fence=record.fence_at(revision),
            ready_at=scheduler_state.now,
            formed_wall=record.formed_at,
            reason=record.reason,
            rank=record.rank,
        )
        match record.state:
            case GangState.FORMED | GangState.RETIRING:
                self._restore_formed(gang, record, granted)
            case GangState.TEARING_DOWN:
                gang.step = GangStep.STOPPING
                failure = _failure_of(record)
                gang.closing = TeardownProgress(failure=failure, ends=record.ends)
                scheduler_state.add(gang)
                self._teardown.stop(gang)
            case GangState.QUEUED:
                if record.created_at and not record.formed_at:
                    # It has waited since its request; since when one waits that was torn down is not recorded.
                    waited_s = max(0.0, scheduler_state.wall - record.created_at)
                    gang.queued_at -= waited_s
                    gang.queued_wall -= waited_s
                if record.deadline_at is not None:
                    gang.deadline_wall = record.deadline_at
                    gang.deadline_at = scheduler_state.now + max(0.0, record.deadline_at - scheduler_state.wall)
                    scheduler_state.agenda.set(("deadline", gang.id), gang.deadline_at)
                scheduler_state.add(gang)
            case GangState.ENDED:
                gang.step = GangStep.ENDED
                scheduler_state.ended[gang.id] = FinishedGang(owner_id=gang.owner_id, reply=gang.describe())
                scheduler_state.agenda.set(
                    ("forget", gang.id), scheduler_state.now + scheduler_state.settings.ended_keep_s
                )
                return
        if gang.gangset is None:
            scheduler_state.agenda.set(("owner", gang.id), scheduler_state.now + gang.spec.ttl_s)

    def _restore_formed(self, gang: ManagedGang, record: GangRecord, granted: set[tuple[WorkerId, str, int]]) -> None:
        scheduler_state = self._state
        gang.step = GangStep.RETIRING if record.state is GangState.RETIRING else GangStep.FORMED
        # If the ledger does not say it, the workers do when they are notified again. An older coordinator took formed
        # for ready, and its callers rely on that.
        gang.ready = record.ready is True or (record.ready is None and record.gangset is not None)
        if not gang.ready:
            gang.starting = {seat.rank: None for seat in gang.seats if seat.part == 0}
        scheduler_state.add(gang)
        scheduler_state.seat(gang)
        if not scheduler_state.shard.keeps_all(gang.spec):
            return  # it will end soon: we know nothing about workers of other shards
        lost: dict[int, tuple[Cause, str]] = {}
        for worker, seats in gang.seats_by_worker.items():
            view = scheduler_state.inventory.workers.get(worker)
            for seat in seats:
                if view is None:
                    lost[seat.rank] = (Cause.WORKER_LOST, f"{worker}: gone while there was no leader")
                elif view.facts.epoch != seat.epoch:
                    lost[seat.rank] = (Cause.EPOCH_CHANGED, f"{worker} is in epoch {view.facts.epoch}")
                elif (worker, gang.id, gang.generation) not in granted:
                    lost[seat.rank] = (Cause.MISSING, f"no member record of {worker}")
        if gang.step is GangStep.RETIRING:
            self._sets.retiring(gang)
        if lost:
            cause, detail = lost[min(lost)]
            self._members.fail(gang, Failure(cause=cause, ranks=tuple(sorted(lost)), detail=detail))
        else:
            self._granting.announce(gang)
            scheduler_state.tell(GangEventKind.RECOVERED, gang)

    # -- leaked records ----------------------------------------------------------------------------------------------

    def sweep(self, members: Iterable[tuple[WorkerId, MemberRecord]]) -> None:
        """Remove the records of members that no gang has."""
        leaked = [(worker, member.gang) for worker, member in members if self._state.is_leaked(worker, member.gang)]
        for start in range(0, len(leaked), MAX_SEATS):
            self._state.ledger.push(CommitKind.SWEEP, "", leaked=tuple(leaked[start : start + MAX_SEATS]))

    def vanished(self, event: LedgerVanished) -> None:
        """Write what we know again. Workers do the same for their own keys. If a gang's grant is in the queue, the
        grant writes all of it; if that fails, `MemberFailures.refused` does. The same holds for the end of a gang that
        closes."""
        scheduler_state = self._state
        scheduler_state.ledger.fence = event.fence
        for name, of_set in scheduler_state.sets.items():
            of_set.status = None  # so that it is written again
            scheduler_state.sets_to_look_at[name] = None
        for gang in scheduler_state.gangs.values():
            if gang.step in (GangStep.COMMITTING, GangStep.REJOINING):
                gang.lost_record = gang.persisted
            elif gang.persisted and gang.step is not GangStep.CLOSING:
                scheduler_state.commit(CommitKind.REWRITE, gang)


def _failure_of(record: GangRecord) -> Failure:
    word, _, detail = record.reason.partition(": ")
    cause = Cause(word) if word in set(Cause) else Cause.FAILED
    return Failure(cause=cause, ranks=() if record.rank is None else (record.rank,), detail=detail)
