"""The end of a generation: first in the ledger, then at the members; then the gang restarts or is forgotten.

Laws:

1. One teardown for each generation, whatever else fails meanwhile.
2. Members are notified only after the batch that ended them was committed. (L9: a deposed coordinator stops nothing.)
3. The next generation is queued only when every worker has confirmed, is gone, or had the grace time and a margin. The
   limiter of a worker that confirms later counts its slots until then. (L8)
"""

from __future__ import annotations

from ...runtime.timers import exponential_s
from ...schemas.errors.base import GanglineError
from ...schemas.errors.gangs import GangEnded, GangFailed
from ...schemas.messages.gangs import GangEventKind, TeardownRequest
from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangState, Seat
from ...schemas.wire.frames import Load
from ..model.commits import CommitKind, record_of
from ..model.effects import AnswerRequest, SendTeardown
from ..model.events import Cause
from ..model.gang import FINAL, GRANTED, Failure, GangStep, ManagedGang, Move, TeardownProgress, move
from . import holds
from .state import FinishedGang, SchedulerState

BLAMELESS = FINAL | {Cause.PREEMPTED, Cause.DRAINED}
"""Ended like this, nobody failed."""


class Teardown:
    """Tears gangs down. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState) -> None:
        self._state = scheduler_state

    def close(self, gang: ManagedGang, failure: Failure, *, ends: bool, delay_s: float = 0.0) -> None:
        """End the generation of a gang that has members: every teardown begins here."""
        scheduler_state = self._state
        holds.abandon(scheduler_state, gang)
        scheduler_state.repairs.pop(gang.id, None)
        scheduler_state.agenda.cancel(("repair", gang.id))
        scheduler_state.agenda.cancel(("retire", gang.id))
        gang.closing = TeardownProgress(failure=failure, ends=ends, delay_s=delay_s)
        gang.doom = None
        gang.lost.clear()
        gang.ready = False
        gang.starting.clear()
        scheduler_state.look_at_set(gang)
        gang.reason, gang.rank = failure.text, failure.rank
        move(gang, Move.CLOSE)
        scheduler_state.commit(CommitKind.CLOSE, gang)

    def closed(self, gang: ManagedGang) -> None:
        """The batch is committed: tell the members."""
        scheduler_state, closing = self._state, gang.closing
        assert closing is not None
        move(gang, Move.COMMITTED)
        scheduler_state.unseat(gang)
        self.stop(gang)
        scheduler_state.tell(GangEventKind.TORN_DOWN, gang, ends=closing.ends)

    def stop(self, gang: ManagedGang) -> None:
        """Tell the workers of a gang in STOPPING, and wait for those that are there."""
        scheduler_state, closing = self._state, gang.closing
        assert closing is not None and gang.step is GangStep.STOPPING
        closing.waiting = {
            worker: None for worker in gang.seats_by_worker if worker in scheduler_state.inventory.workers
        }
        closing.until = scheduler_state.now + gang.spec.grace_s + scheduler_state.settings.stop_margin_s
        scheduler_state.agenda.set(("stop", gang.id), closing.until)
        for worker in gang.seats_by_worker:
            self._send(gang, worker)
        scheduler_state.agenda.set(("resend", gang.id), scheduler_state.now + scheduler_state.settings.resend_s)
        if not closing.waiting:
            # Before the caller has told of the teardown nothing may be told of what follows.
            scheduler_state.agenda.set(("stop", gang.id), scheduler_state.now)

    def resend(self, gang: ManagedGang) -> None:
        if gang.step is GangStep.STOPPING and gang.closing is not None:
            for worker in gang.closing.waiting:
                self._send(gang, worker)
            self._state.agenda.set(("resend", gang.id), self._state.now + self._state.settings.resend_s)

    def confirmed(self, worker: WorkerId, gang_id: str, generation: int, load: Load | None) -> None:
        """All has stopped on that worker, or it is gone (no load)."""
        scheduler_state = self._state
        if load is not None and scheduler_state.inventory.load(worker, load):
            scheduler_state.look_for_room = True
        gang = scheduler_state.gangs.get(gang_id)
        if gang is None or gang.step is not GangStep.STOPPING or gang.generation != generation or gang.closing is None:
            return
        gang.closing.waiting.pop(worker, None)
        if not gang.closing.waiting:
            self.stopped(gang)

    def stopped(self, gang: ManagedGang) -> None:
        """All have confirmed, or the time is up."""
        scheduler_state, closing = self._state, gang.closing
        if gang.step is not GangStep.STOPPING or closing is None:
            return
        scheduler_state.agenda.cancel(("stop", gang.id))
        scheduler_state.agenda.cancel(("resend", gang.id))
        unconfirmed = tuple(str(worker) for worker in closing.waiting)
        gang.seats, gang.rendezvous = (), None
        if closing.ends:
            move(gang, Move.FINISH)
            self._forget(gang, unconfirmed)
            return
        move(gang, Move.RESTART)
        gang.generation += 1
        scheduler_state.tell(GangEventKind.RESTARTING, gang, unconfirmed=unconfirmed)
        if closing.delay_s > 0:
            scheduler_state.agenda.set(("backoff", gang.id), scheduler_state.now + closing.delay_s)
        else:
            self.again(gang)

    def again(self, gang: ManagedGang) -> None:
        """The backoff is over: back to its place in the queue."""
        if gang.step is GangStep.BACKOFF:
            move(gang, Move.ELAPSED)
            gang.closing = None
            gang.queued_at = self._state.now
            self._state.enqueue(gang)

    def drop(self, gang: ManagedGang, failure: Failure, error: GanglineError | None = None) -> None:
        """Forget a gang that has no members: queued, holding or in backoff."""
        holds.abandon(self._state, gang)
        self._state.queue.discard(gang.id)
        move(gang, Move.DROP)
        gang.closing = TeardownProgress(failure=failure, ends=True)
        gang.reason, gang.rank = failure.text, failure.rank
        self._forget(gang, (), error)

    def end(self, gang: ManagedGang, failure: Failure, error: GanglineError | None = None) -> None:
        """Nobody wants the gang any more: end it from whatever step it is in."""
        match gang.step:
            case GangStep.QUEUED | GangStep.HOLDING | GangStep.BACKOFF:
                self.drop(gang, failure, error)
            case GangStep.COMMITTING | GangStep.REJOINING:
                gang.doom = failure
            case GangStep.FORMED | GangStep.REPAIRING | GangStep.RETIRING:
                self.close(gang, failure, ends=True)
            case GangStep.CLOSING | GangStep.STOPPING:
                assert gang.closing is not None
                gang.closing.ends = True
            case GangStep.ENDED:
                pass

    def _send(self, gang: ManagedGang, worker: WorkerId, only: tuple[Seat, ...] = ()) -> None:
        self._state.out.append(
            SendTeardown(
                worker=worker,
                request=TeardownRequest(
                    gang=gang.id,
                    generation=gang.generation,
                    reason=gang.reason,
                    rank=gang.rank,
                    grace_s=gang.spec.grace_s,
                    only=tuple(seat.token for seat in only) or None,
                ),
            )
        )

    def stop_lost(self, gang: ManagedGang) -> None:
        """Free what is left of the lost ranks of a gang in REPAIRING. Not fenced: they have failed already."""
        for worker, seats in gang.seats_by_worker.items():
            lost = tuple(seat for seat in seats if seat.rank in gang.lost)
            if lost and worker in self._state.inventory.workers:
                self._send(gang, worker, lost)

    def leave(self, gang: ManagedGang, workers: list[WorkerId]) -> None:
        """A repair took the gang off these workers: whatever they still have of the old generation goes."""
        for worker in workers:
            self._send(gang, worker)

    def _forget(self, gang: ManagedGang, unconfirmed: tuple[str, ...], error: GanglineError | None = None) -> None:
        scheduler_state = self._state
        assert gang.step is GangStep.ENDED and gang.step not in GRANTED
        for timer in ("owner", "deadline", "retry", "starve", "backoff"):
            scheduler_state.agenda.cancel((timer, gang.id))
        del scheduler_state.gangs[gang.id]
        scheduler_state.look_for_room = True
        if gang.gangset is not None and gang.gangset in scheduler_state.sets:
            self._leave_set(gang)
        if gang.persisted:
            scheduler_state.ledger.push(CommitKind.END, gang.id, record=record_of(gang, GangState.ENDED))
        scheduler_state.ended[gang.id] = FinishedGang(
            at=scheduler_state.now, owner_token=gang.owner_token, reply=gang.describe()
        )
        while len(scheduler_state.ended) > scheduler_state.settings.ended_keep:
            del scheduler_state.ended[next(iter(scheduler_state.ended))]
        scheduler_state.agenda.set(("forget", gang.id), scheduler_state.now + scheduler_state.settings.ended_keep_s)
        scheduler_state.tell(GangEventKind.ENDED, gang, unconfirmed=unconfirmed, ends=True)
        scheduler_state.answer_all(gang.releasers, gang)
        for waiter in (*gang.waiters, *gang.queue_waiters):
            scheduler_state.out.append(AnswerRequest(reply_to=waiter, error=error or _error_of(gang)))

    def _leave_set(self, gang: ManagedGang) -> None:
        scheduler_state = self._state
        assert gang.gangset is not None
        of_set = scheduler_state.sets[gang.gangset]
        of_set.gangs.pop(gang.id, None)
        closing = gang.closing
        if closing is not None and closing.failure.cause not in BLAMELESS:
            of_set.failures += 1
            wait = exponential_s(gang.spec.backoff_s, scheduler_state.settings.restart_max_s, of_set.failures)
            of_set.not_before = scheduler_state.now + wait
            scheduler_state.agenda.set(("set", gang.gangset), of_set.not_before)
        scheduler_state.sets_to_look_at[gang.gangset] = None


def _error_of(gang: ManagedGang) -> GanglineError:
    """For those who still wait for the gang to form."""
    closing = gang.closing
    details = {"generation": gang.generation, "rank": gang.rank, "reason": gang.reason}
    if closing is None or closing.failure.cause in BLAMELESS:
        return GangEnded(f"gang {gang.id} ended: {gang.reason}", details=details)
    who = f"rank {gang.rank}" if gang.rank is not None else "a member"
    return GangFailed(f"gang {gang.id} ended in generation {gang.generation}: {who} {gang.reason}", details=details)
