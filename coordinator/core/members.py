"""Failures of members, and their effect on the gang. Several failures of one generation count as one."""

from __future__ import annotations

from ...runtime.timers import exponential_s
from ...schemas.messages.gangs import GangEventKind
from ...schemas.names import WorkerId
from ..model.commits import CommitKind
from ..model.events import Cause, MemberFailed
from ..model.gang import FINAL, Failure, GangStep, ManagedGang, Move, RestartDecision, Verdict, decide, move
from ..scheduling.inventory import WorkerFacts
from . import holds
from .state import SchedulerState
from .teardown import BLAMELESS, Teardown


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
        """That member has started; or all of a worker."""
        gang = self._state.gangs.get(gang_id)
        if gang is None or gang.generation != generation or not gang.starting:
            return
        here = () if worker is None else gang.seats_by_worker.get(worker, ())
        for number in [rank] if rank is not None else [seat.rank for seat in here if seat.part == 0]:
            gang.starting.pop(number, None)
        if not gang.starting and gang.step is GangStep.FORMED:
            self.all_started(gang)

    def all_started(self, gang: ManagedGang) -> None:
        """Every member of a formed gang has. Where callers look into the ledger, it says so before anybody else."""
        if gang.gangset is None:
            self.ready(gang)
        else:
            self._state.commit(CommitKind.READY, gang)

    def ready(self, gang: ManagedGang) -> None:
        """It is known to whoever must know it first: tell all."""
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
        """Standing gangs move away; others stay, since what was granted is honoured."""
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
        """A try to hold or to commit came to nothing: wait a little, in the same place of the queue."""
        scheduler_state = self._state
        holds.abandon(scheduler_state, gang)
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
        """Members of the present generation are lost, or the gang as a whole must go."""
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
        """Something more was lost while replacements were looked for."""
        new = {rank: None for rank in failure.ranks if rank not in gang.lost}
        verdict = self._decide(gang, failure, lost=len(gang.lost) + len(new), repairing=True)
        if verdict.fate is not RestartDecision.REPAIR:
            ends = verdict.fate is RestartDecision.END
            self._teardown.close(gang, failure, ends=ends, delay_s=verdict.delay_s)
            return
        if not new:
            return
        holds.abandon(self._state, gang)
        gang.lost.update(new)
        move(gang, Move.LOST_MEMBER)
        self._state.repairs[gang.id] = None
        gang.reason, gang.rank = failure.text, failure.rank
        self._state.tell(GangEventKind.MEMBER_LOST, gang)
        self._teardown.stop_lost(gang)

    def not_repaired(self, gang: ManagedGang) -> None:
        """The time for a repair is up: the whole gang restarts. A swap that is being committed is let through."""
        if gang.step is GangStep.REPAIRING:
            self.fail(gang, Failure(cause=Cause.NOT_REPAIRED, ranks=tuple(sorted(gang.lost))))
        elif gang.step is GangStep.REJOINING:
            self._state.agenda.set(("repair", gang.id), self._state.now + self._state.settings.resend_s)
