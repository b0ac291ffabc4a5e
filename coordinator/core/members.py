"""Failures of members, and their effect on the gang; and the end of a generation: first in the ledger, then at the
members; then the gang restarts or is forgotten.

Laws:

1. Several failures of one generation count as one: each generation is torn down once, whatever else fails meanwhile.
2. Members are notified only after the batch that ended them was committed. (L9: a deposed coordinator stops nothing.)
3. The next generation is queued only when every worker has confirmed, is gone, or has had the grace time and a margin.
   The limiter of a worker that confirms later counts its slots until then. (L8)
"""

from __future__ import annotations

from ...runtime.timers import exponential_s
from ...schemas.errors.base import GangEnded, GangFailed, GanglineError
from ...schemas.messages.gangs import GangEventKind, TeardownRequest
from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangState, Seat
from ...schemas.wire.frames import Load
from ..model.commits import CommitKind, record_of
from ..model.effects import AnswerRequest, SendTeardown
from ..model.events import Cause, MemberFailed
from ..model.gang import (
    FINAL,
    GRANTED,
    Failure,
    GangStep,
    ManagedGang,
    Move,
    RestartDecision,
    TeardownProgress,
    Verdict,
    decide,
    move,
)
from ..scheduling.inventory import WorkerFacts
from .state import FinishedGang, SchedulerState

BLAMELESS = FINAL | {Cause.PREEMPTED, Cause.DRAINED}
"""Ends that are no failure of a member."""


class Teardown:
    """Tears gangs down. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState) -> None:
        self._state = scheduler_state

    def close(self, gang: ManagedGang, failure: Failure, *, ends: bool, delay_s: float = 0.0) -> None:
        """End the generation of a gang that has members: every teardown begins here."""
        scheduler_state = self._state
        scheduler_state.abandon_holds(gang)
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
        """The batch is committed: notify the members."""
        scheduler_state, closing = self._state, gang.closing
        assert closing is not None
        move(gang, Move.COMMITTED)
        scheduler_state.unseat(gang)
        self.stop(gang)
        scheduler_state.tell(GangEventKind.TORN_DOWN, gang, ends=closing.ends)

    def stop(self, gang: ManagedGang) -> None:
        """Notify the workers of a gang in STOPPING, and wait for those that are present."""
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
            # Send nothing else before the caller has sent the teardown.
            scheduler_state.agenda.set(("stop", gang.id), scheduler_state.now)

    def resend(self, gang: ManagedGang) -> None:
        if gang.step is GangStep.STOPPING and gang.closing is not None:
            for worker in gang.closing.waiting:
                self._send(gang, worker)
            self._state.agenda.set(("resend", gang.id), self._state.now + self._state.settings.resend_s)

    def confirmed(self, worker: WorkerId, gang_id: str, generation: int, load: Load | None) -> None:
        """Everything on that worker has stopped, or it is gone (no load)."""
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
        """All workers have confirmed, or the time is up."""
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
        scheduler_state.look_for_room = True  # another gang of its tenant may have waited for its slots
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
            gang.queued_at, gang.queued_wall = self._state.now, self._state.wall
            self._state.enqueue(gang)

    def drop(self, gang: ManagedGang, failure: Failure, error: GanglineError | None = None) -> None:
        """Forget a gang that has no members: queued, holding or in backoff."""
        self._state.abandon_holds(gang)
        self._state.queue.discard(gang.id)
        move(gang, Move.DROP)
        gang.closing = TeardownProgress(failure=failure, ends=True)
        gang.reason, gang.rank = failure.text, failure.rank
        self._forget(gang, (), error)

    def end(self, gang: ManagedGang, failure: Failure, error: GanglineError | None = None) -> None:
        """End the gang for good, whatever step it is in."""
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
        """Stop what remains of the lost ranks of a gang in REPAIRING. Not fenced: they have failed already."""
        for worker, seats in gang.seats_by_worker.items():
            lost = tuple(seat for seat in seats if seat.rank in gang.lost)
            if lost and worker in self._state.inventory.workers:
                self._send(gang, worker, lost)

    def leave(self, gang: ManagedGang, workers: list[WorkerId]) -> None:
        """A repair moved the gang off these workers: stop what they still have of the old generation."""
        for worker in workers:
            self._send(gang, worker)

    def _forget(self, gang: ManagedGang, unconfirmed: tuple[str, ...], error: GanglineError | None = None) -> None:
        scheduler_state = self._state
        assert gang.step is GangStep.ENDED and gang.step not in GRANTED
        for timer in ("owner", "deadline", "retry", "starve", "backoff"):
            scheduler_state.agenda.cancel((timer, gang.id))
        scheduler_state.remove(gang)
        if gang.gangset is not None and gang.gangset in scheduler_state.sets:
            self._leave_set(gang)
        if gang.persisted:
            scheduler_state.ledger.push(CommitKind.END, gang.id, record=record_of(gang, GangState.ENDED))
        reply = gang.describe()
        scheduler_state.ended[gang.id] = FinishedGang(owner_id=gang.owner_id, reply=reply)
        while len(scheduler_state.ended) > scheduler_state.settings.ended_keep:
            del scheduler_state.ended[next(iter(scheduler_state.ended))]
        scheduler_state.agenda.set(("forget", gang.id), scheduler_state.now + scheduler_state.settings.ended_keep_s)
        scheduler_state.tell(GangEventKind.ENDED, gang, unconfirmed=unconfirmed, ends=True)
        scheduler_state.out += [AnswerRequest(reply_to=releaser, reply=reply) for releaser in gang.releasers]
        gang.releasers.clear()
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
    """For callers that still wait for the gang to form."""
    closing = gang.closing
    details = {"generation": gang.generation, "rank": gang.rank, "reason": gang.reason}
    if closing is None or closing.failure.cause in BLAMELESS:
        return GangEnded(f"gang {gang.id} ended: {gang.reason}", details=details)
    who = f"rank {gang.rank}" if gang.rank is not None else "a member"
    return GangFailed(f"gang {gang.id} ended in generation {gang.generation}: {who} {gang.reason}", details=details)


class MemberFailures:
    """Decides what happens after a failure. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, teardown: Teardown) -> None:
        self._state = scheduler_state
        self._teardown = teardown

    def reported(self, event: MemberFailed) -> None:
        gang = self._state.gangs.get(event.gang)
        if gang is None:
            return
        coming = gang.attempt is not None and event.generation == gang.next_generation
        if event.generation != gang.generation and not (gang.step is GangStep.REJOINING and coming):
            return
        if event.generation == gang.generation and event.rank in gang.lost:
            return  # known, and being replaced
        self.fail(gang, Failure(cause=Cause(event.cause.value), ranks=(event.rank,), detail=event.detail))

    def started(self, gang_id: str, generation: int, rank: int | None, worker: WorkerId | None = None) -> None:
        """That member has started; or all members on a worker have."""
        gang = self._state.gangs.get(gang_id)
        if gang is None or gang.generation != generation or not gang.starting:
            return
        here = () if worker is None else gang.seats_by_worker.get(worker, ())
        for number in [rank] if rank is not None else [seat.rank for seat in here if seat.part == 0]:
            gang.starting.pop(number, None)
        if not gang.starting and gang.step is GangStep.FORMED:
            self.all_started(gang)

    def all_started(self, gang: ManagedGang) -> None:
        """Every member of a formed gang has started. For standing gangs, whose callers read the ledger, write it there
        first."""
        if gang.gangset is None:
            self.ready(gang)
        else:
            self._state.commit(CommitKind.READY, gang)

    def ready(self, gang: ManagedGang) -> None:
        """The ledger has it, if it must: tell everybody else."""
        if gang.step is not GangStep.FORMED or gang.starting or gang.ready:
            return
        gang.ready, gang.ready_at = True, self._state.now
        self._state.look_at_set(gang)
        self._state.tell(GangEventKind.READY, gang)

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        self._state.inventory.gone(worker)
        self._lost(worker, Cause.WORKER_LOST, f"{worker}: {reason}")
        for gang in [gang for gang in self._state.gangs.values() if gang.step is GangStep.STOPPING]:
            self._teardown.confirmed(worker, gang.id, gang.generation, None)

    def worker_seen(self, facts: WorkerFacts) -> None:
        """A registration: leases of an older epoch are dead."""
        view = self._state.inventory.seen(facts)
        self._state.look_for_room = True
        self._lost(facts.id, Cause.EPOCH_CHANGED, f"{facts.id} is in epoch {facts.epoch}", epoch=facts.epoch)
        if view.draining:
            self.draining(facts.id)

    def draining(self, worker: WorkerId) -> None:
        """Standing gangs move away; others stay, since grants are honoured."""
        scheduler_state = self._state
        for gang_id in scheduler_state.on.get(worker, {}):
            gangset = scheduler_state.gangs[gang_id].gangset
            if gangset is not None:
                scheduler_state.sets_to_look_at[gangset] = None
        head = scheduler_state.head
        if head is not None and worker in head.target.slots:
            scheduler_state.look_for_room = True

    def _lost(self, worker: WorkerId, cause: Cause, detail: str, *, epoch: int | None = None) -> None:
        scheduler_state = self._state
        for gang_id in list(scheduler_state.on.get(worker, {})):
            gang = scheduler_state.gangs[gang_id]
            seats = gang.seats_by_worker[worker]
            dead = [seat for seat in seats if epoch is None or seat.epoch != epoch]
            ranks = {seat.rank for seat in dead if seat.rank not in gang.lost}
            self._fail_ranks(gang, cause, detail, ranks)
        for gang in [gang for gang in scheduler_state.gangs.values() if gang.attempt and worker in gang.attempt.wanted]:
            attempt = gang.attempt
            assert attempt is not None
            answer = attempt.answers.get(worker)
            if epoch is not None and (answer is None or answer.epoch == epoch):
                continue
            match gang.step:
                case GangStep.COMMITTING | GangStep.REJOINING:
                    ranks = {seat.rank for seat in attempt.wanted[worker]}
                    self._fail_ranks(gang, cause, detail, ranks)
                case _:
                    self.refused(gang)

    def _fail_ranks(self, gang: ManagedGang, cause: Cause, detail: str, ranks: set[int]) -> None:
        if ranks:
            self.fail(gang, Failure(cause=cause, ranks=tuple(sorted(ranks)), detail=detail))

    def refused(self, gang: ManagedGang) -> None:
        """An attempt to hold or to commit failed: wait a little, in the same place in the queue."""
        scheduler_state = self._state
        scheduler_state.abandon_holds(gang)
        settings = scheduler_state.settings
        wait = exponential_s(settings.refused_first_s, settings.refused_max_s, gang.refusals)
        gang.refusals += 1
        gang.not_before = scheduler_state.now + wait * (0.5 + scheduler_state.draw / 2)
        scheduler_state.agenda.set(("retry", gang.id), gang.not_before)
        match gang.step:
            case GangStep.HOLDING | GangStep.COMMITTING:
                move(gang, Move.REFUSED)
                scheduler_state.enqueue(gang)
            case GangStep.REJOINING:
                move(gang, Move.REFUSED)
                scheduler_state.repairs[gang.id] = None
            case _:
                scheduler_state.repairs[gang.id] = None
        if gang.lost_record:
            gang.lost_record = False
            scheduler_state.commit(CommitKind.REWRITE, gang)
        doom, gang.doom = gang.doom, None
        if doom is None:
            return
        if gang.step is GangStep.REPAIRING:
            self.fail(gang, doom)
        elif doom.cause in FINAL:
            self._teardown.drop(gang, doom)

    def fail(self, gang: ManagedGang, failure: Failure) -> None:
        """Members of the current generation are lost, or the whole gang must end."""
        match gang.step:
            case GangStep.FORMED:
                self._judge(gang, failure)
            case GangStep.REPAIRING:
                self._worse(gang, failure)
            case GangStep.COMMITTING | GangStep.REJOINING:
                gang.doom = gang.doom or failure
            case GangStep.RETIRING:
                self._teardown.close(gang, failure, ends=True)
            case (
                GangStep.QUEUED
                | GangStep.HOLDING
                | GangStep.CLOSING
                | GangStep.STOPPING
                | GangStep.BACKOFF
                | GangStep.ENDED
            ):
                pass

    def _judge(self, gang: ManagedGang, failure: Failure) -> None:
        scheduler_state = self._state
        if gang.ready and scheduler_state.now - gang.ready_at >= scheduler_state.settings.stable_after_s:
            gang.streak = 0
        of_set = scheduler_state.sets.get(gang.gangset or "")
        if of_set is not None and failure.cause not in BLAMELESS:
            of_set.failed(gang, failure, scheduler_state.now)
        verdict = self._decide(gang, failure, lost=len(failure.ranks))
        if verdict.counted:
            gang.failures += 1
            gang.streak += 1
        match verdict.fate:
            case RestartDecision.END:
                self._teardown.close(gang, failure, ends=True)
            case RestartDecision.RESTART:
                self._teardown.close(gang, failure, ends=False, delay_s=verdict.delay_s)
            case RestartDecision.REPAIR:
                self._repair(gang, failure, verdict.delay_s)

    def _decide(self, gang: ManagedGang, failure: Failure, *, lost: int, repairing: bool = False) -> Verdict:
        return decide(
            gang.spec,
            failure.cause,
            failures=gang.failures,
            streak=gang.streak,
            draw=self._state.draw,
            settings=self._state.settings,
            some_left=lost < gang.spec.size,
            repairing=repairing,
        )

    def _repair(self, gang: ManagedGang, failure: Failure, delay_s: float) -> None:
        scheduler_state = self._state
        begins_at = scheduler_state.now + delay_s
        if delay_s:
            gang.not_before = begins_at
            scheduler_state.agenda.set(("retry", gang.id), begins_at)
        move(gang, Move.LOST_MEMBER)
        gang.ready = False
        scheduler_state.look_at_set(gang)
        gang.lost = dict.fromkeys(failure.ranks)
        gang.reason, gang.rank = failure.text, failure.rank
        scheduler_state.repairs[gang.id] = None
        scheduler_state.look_for_room = True
        scheduler_state.agenda.set(("repair", gang.id), begins_at + scheduler_state.settings.repair_s)
        scheduler_state.tell(GangEventKind.MEMBER_LOST, gang)
        self._teardown.stop_lost(gang)

    def _worse(self, gang: ManagedGang, failure: Failure) -> None:
        """Another member was lost during the search for replacements."""
        new = {rank: None for rank in failure.ranks if rank not in gang.lost}
        verdict = self._decide(gang, failure, lost=len(gang.lost) + len(new), repairing=True)
        if verdict.fate is not RestartDecision.REPAIR:
            ends = verdict.fate is RestartDecision.END
            self._teardown.close(gang, failure, ends=ends, delay_s=verdict.delay_s)
            return
        if not new:
            return
        self._state.abandon_holds(gang)
        gang.lost.update(new)
        move(gang, Move.LOST_MEMBER)
        self._state.repairs[gang.id] = None
        gang.reason, gang.rank = failure.text, failure.rank
        self._state.tell(GangEventKind.MEMBER_LOST, gang)
        self._teardown.stop_lost(gang)

    def not_repaired(self, gang: ManagedGang) -> None:
        """The time for a repair is up: the whole gang restarts. A swap that is being committed may finish."""
        if gang.step is GangStep.REPAIRING:
            self.fail(gang, Failure(cause=Cause.NOT_REPAIRED, ranks=tuple(sorted(gang.lost))))
        elif gang.step is GangStep.REJOINING:
            self._state.agenda.set(("repair", gang.id), self._state.now + self._state.settings.resend_s)
