"""Builds each batch when its turn comes, and acts on its outcome."""

from __future__ import annotations

from itertools import chain
from typing import assert_never

from ...schemas.messages.gangs import FormRequest, GangEventKind
from ...schemas.names import MARK, Names, WorkerId
from ...schemas.records.gangs import GangRecord, GangState, Rendezvous, Seat
from ..model.commits import (
    CommitKind,
    PendingCommit,
    close_writes,
    end_writes,
    grants,
    record_of,
    record_to_be,
    rewrites,
    spec_of,
    sweep_writes,
)
from ..model.effects import AnswerRequest, Commit, LedgerWrite, SendForm, WriteFence
from ..model.events import CommitRefused, Committed, CommitUnknown, Refenced, SeatsShown
from ..model.gang import FINAL, GRANTED, GangStep, HoldAttempt, ManagedGang, Move, by_worker, move
from .members import MemberFailures, Teardown
from .standing_sets import StandingSets
from .state import SchedulerState

Writes = tuple[LedgerWrite, ...]

_STEP_OF = {
    CommitKind.FORM: GangStep.COMMITTING,
    CommitKind.REJOIN: GangStep.REJOINING,
    CommitKind.READY: GangStep.FORMED,
    CommitKind.RETIRE: GangStep.RETIRING,
    CommitKind.CLOSE: GangStep.CLOSING,
}
"""A commit of this kind is void if its gang has moved on to another step."""


class CommitPipeline:
    """Sends batches one at a time. A part of the core."""

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

    def next(self) -> bool:
        """Send the next batch, if none is in flight. True: something was taken from the queue."""
        ledger = self._state.ledger
        if ledger.busy or not ledger.line:
            return False
        pending = ledger.pop()
        writes = self._writes(pending)
        if writes:
            ledger.in_flight = pending
            ledger.number += 1
            self._state.out.append(
                Commit(number=ledger.number, what=pending.kind.value, gang=pending.gang, writes=writes)
            )
        return True

    def _writes(self, pending: PendingCommit) -> Writes | None:
        scheduler_state, ledger = self._state, self._state.ledger
        kind = pending.kind
        if kind is CommitKind.END or kind is CommitKind.STATUS or kind is CommitKind.SWEEP:
            return self._of_no_gang(pending)
        gang = scheduler_state.gangs.get(pending.gang)
        if gang is None or gang.step is not _STEP_OF.get(kind, gang.step):
            return None
        match kind:
            case CommitKind.QUEUE if not gang.seats:
                return (ledger.fenced(Names.gang_key(gang.id), record_of(gang, GangState.QUEUED)),)
            case CommitKind.QUEUE:
                self._queued(gang)  # it was granted meanwhile
                return None
            case CommitKind.FORM | CommitKind.REJOIN:
                return self._granting.writes(gang)
            case CommitKind.READY if gang.starting or gang.ready:
                return None  # it was of the previous generation, or has been sent already
            case CommitKind.READY | CommitKind.RETIRE if ledger.waits(CommitKind.REWRITE, gang.id):
                return rewrites(ledger, gang)  # a new bucket does not have its members yet
            case CommitKind.READY:
                return (ledger.fenced(Names.gang_key(gang.id), record_of(gang, GangState.FORMED)),)
            case CommitKind.RETIRE:
                return (ledger.fenced(Names.gang_key(gang.id), record_of(gang, GangState.RETIRING)),)
            case CommitKind.CLOSE:
                return close_writes(ledger, gang)
            case CommitKind.REWRITE if gang.step is GangStep.CLOSING:
                return None  # its members were to be granted again, but now they end: the next batch says so
            case CommitKind.REWRITE:
                return rewrites(ledger, gang)
            case _:
                assert_never(kind)

    def _of_no_gang(self, pending: PendingCommit) -> Writes | None:
        """Writes about gangs that are no longer known, or about none."""
        ledger = self._state.ledger
        if pending.kind is CommitKind.END:
            return end_writes(ledger, pending.record) if pending.record is not None else None
        if pending.kind is CommitKind.STATUS:
            status = self._sets.status(pending.gangset)
            if status is None and pending.gangset in self._state.sets:
                return None  # the last attempt failed, and it is described again when something happens
            return (ledger.fenced(Names.gangset_status_key(pending.gangset), status),)
        still = tuple(item for item in pending.leaked if self._state.is_leaked(*item))
        return sweep_writes(ledger, still) if still else None

    # -- how it went -------------------------------------------------------------------------------------------------

    def answered(self, event: Committed | CommitRefused | CommitUnknown | Refenced) -> None:
        ledger = self._state.ledger
        if event.number != ledger.number or not ledger.busy:
            return
        if isinstance(event, Refenced):
            if ledger.refencing:
                self._refenced(event)
            return
        if ledger.refencing or ledger.in_flight is None:
            return
        pending = ledger.in_flight
        match event:
            case Committed():
                ledger.in_flight = None
                self._done(pending, event.revision)
            case CommitRefused():
                # Certain: nothing was written. A registration was stale, or we were deposed: the WriteFence tells.
                ledger.in_flight = None
                self._refence(pending)
                self._failed(pending)
            case CommitUnknown():
                self._refence(pending)
            case _:
                assert_never(event)

    def _refence(self, pending: PendingCommit) -> None:
        ledger = self._state.ledger
        ledger.refencing = True
        self._state.out.append(WriteFence(number=ledger.number, gang=pending.gang))

    def _refenced(self, event: Refenced) -> None:
        """The commit in flight is either void or written; the record says which."""
        ledger = self._state.ledger
        ledger.refencing = False
        ledger.fence = event.fence
        pending, ledger.in_flight = ledger.in_flight, None
        if pending is None:
            return
        if event.record is not None and self._written(pending, event.record):
            self._done(pending, event.revision)
        else:
            self._failed(pending)

    def _written(self, pending: PendingCommit, record: GangRecord) -> bool:
        gang = self._state.gangs.get(pending.gang)
        match pending.kind:
            case CommitKind.FORM | CommitKind.REJOIN:
                attempt = gang.attempt if gang is not None else None
                return attempt is not None and record.state is GangState.FORMED and record.seats == attempt.seats
            case CommitKind.CLOSE:
                same = gang is not None and record.generation == gang.generation
                return same and record.state is GangState.TEARING_DOWN
            case CommitKind.READY:
                return bool(record.state is GangState.FORMED and record.ready)
            case CommitKind.RETIRE:
                return record.state is GangState.RETIRING
            case CommitKind.QUEUE:
                return record.state is GangState.QUEUED
            case CommitKind.END:
                return record.state is GangState.ENDED
            case CommitKind.REWRITE | CommitKind.STATUS | CommitKind.SWEEP:
                return False
            case _:
                assert_never(pending.kind)

    def _done(self, pending: PendingCommit, revision: int) -> None:
        gang = self._state.gangs.get(pending.gang)
        if gang is None:
            return
        match pending.kind:
            case CommitKind.FORM | CommitKind.REJOIN:
                self._granting.committed(gang, revision)
            case CommitKind.READY:
                self._members.ready(gang)
            case CommitKind.RETIRE if gang.step is GangStep.RETIRING:
                self._sets.retiring(gang)
            case CommitKind.CLOSE:
                self._teardown.closed(gang)
            case CommitKind.QUEUE:
                self._queued(gang)
            case _:
                pass

    def _queued(self, gang: ManagedGang) -> None:
        for waiter in gang.queue_waiters:
            self._state.out.append(AnswerRequest(reply_to=waiter, reply=gang.describe(to_owner=True)))
        gang.queue_waiters.clear()

    def _failed(self, pending: PendingCommit) -> None:
        """Nothing was written: give up what can be retried from the beginning, and repeat the rest."""
        gang = self._state.gangs.get(pending.gang)
        match pending.kind:
            case CommitKind.FORM | CommitKind.REJOIN:
                if gang is not None:
                    self._members.refused(gang)
            case CommitKind.SWEEP:
                pass  # the next reading finds them again
            case CommitKind.STATUS:
                self._sets.not_told(pending.gangset)
            case _:
                self._state.ledger.line.appendleft(pending)


class GrantPipeline:
    """Turns accepted holds into members. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, members: MemberFailures, teardown: Teardown) -> None:
        self._state = scheduler_state
        self._members = members
        self._teardown = teardown

    def writes(self, gang: ManagedGang) -> tuple[LedgerWrite, ...] | None:
        """The batch, now that its turn has come; None (and the holds are released) if it would fail."""
        scheduler_state, attempt = self._state, gang.attempt
        assert attempt is not None
        late = scheduler_state.now > attempt.hold_until - scheduler_state.settings.hold_margin_s
        doomed = gang.doom is not None and (gang.doom.cause in FINAL or not gang.seats)
        revisions = self._revisions(gang, attempt)
        if late or doomed or revisions is None:
            self._members.refused(gang)
            return None
        stay = [seat for seat in gang.seats if seat.rank not in gang.lost]
        placed = {worker: attempt.fresh[worker] for worker in attempt.wanted}
        if stay:
            placed = by_worker(sorted(chain(stay, *placed.values()), key=_place))
        attempt.placed = placed
        attempt.seats = tuple(sorted(chain.from_iterable(placed.values()), key=_place))
        attempt.rendezvous = gang.rendezvous if any(seat.rank == 0 for seat in stay) else self._rendezvous(attempt)
        record = record_to_be(gang, attempt, scheduler_state.wall)
        members = grants(gang.id, record.generation, placed, revisions)
        used = {write.key for write in members}
        left = [Names.member_key(worker, gang.id) for worker in gang.seats_by_worker]
        gone = [LedgerWrite(key=key, record=None) for key in left if key not in used]
        return (*gone, *members, scheduler_state.ledger.fenced(Names.gang_key(gang.id), record))

    def _revisions(self, gang: ManagedGang, attempt: HoldAttempt) -> dict[WorkerId, int] | None:
        """The registration revision that each member record is conditioned on; None when one is known to be stale."""
        revisions = {worker: answer.reg_revision for worker, answer in attempt.answers.items()}
        for worker in attempt.wanted:
            if worker not in self._state.inventory.workers:
                return None
        for seat in gang.seats:
            worker = WorkerId(seat.pool, seat.worker)
            if seat.rank in gang.lost or worker in revisions:
                continue
            view = self._state.inventory.workers.get(worker)
            if view is None or view.facts.epoch != seat.epoch:
                return None
            revisions[worker] = view.facts.revision
        return revisions

    def _rendezvous(self, attempt: HoldAttempt) -> Rendezvous | None:
        first = attempt.seats[0]
        answer = attempt.answers.get(WorkerId(first.pool, first.worker))
        host = first.address
        if host.startswith("["):
            host = host[1:].partition("]")[0]  # [::1] or [::1]:7000
        elif host.count(":") == 1:
            host = host.partition(":")[0]  # more colons are an IPv6 address, without a port
        if answer is None or answer.port is None:
            return None
        return Rendezvous(host=host or first.node or "127.0.0.1", port=answer.port)

    def committed(self, gang: ManagedGang, revision: int) -> None:
        """The members are in the ledger: all of them may start."""
        scheduler_state, attempt = self._state, gang.attempt
        assert attempt is not None
        generation = gang.next_generation
        scheduler_state.unseat(gang)
        self._teardown.leave(gang, [worker for worker in gang.seats_by_worker if worker not in attempt.placed])
        gang.fence, gang.persisted, gang.lost_record = revision, True, False
        gang.formed_wall = scheduler_state.wall
        gang.refusals, gang.not_before = 0, 0.0
        gang.deadline_at = gang.deadline_wall = None
        gang.reason, gang.rank = "", None
        known = {seat.token for seat in gang.seats if seat.rank not in gang.starting}
        gang.starting = {seat.rank: None for seat in attempt.seats if seat.part == 0 and seat.token not in known}
        gang.ready = False
        gang.spec = spec_of(gang, attempt.seats)
        gang.take_seats(attempt)
        gang.generation = generation
        known_tokens = {**gang.tokens, **attempt.tokens}
        gang.tokens = {seat.token: known_tokens[seat.token] for seat in gang.seats if seat.token in known_tokens}
        gang.attempt = None
        gang.lost.clear()
        scheduler_state.agenda.cancel(("deadline", gang.id))
        scheduler_state.agenda.cancel(("repair", gang.id))
        move(gang, Move.COMMITTED)
        scheduler_state.seat(gang)
        if gang.gangset is not None:
            scheduler_state.sets_to_look_at[gang.gangset] = None
        elif gang.waiters or ("owner", gang.id) not in scheduler_state.agenda:
            # The owner's full time to live starts now, even if it ran out while the commit was in flight: the owner
            # gets its answer only now.
            scheduler_state.agenda.set(("owner", gang.id), scheduler_state.now + gang.spec.ttl_s)
            if gang.given_up:
                gang.doom = None
        self.announce(gang)
        scheduler_state.tell(GangEventKind.FORMED, gang)
        scheduler_state.answer_waiters(gang)
        doom, gang.doom = gang.doom, None
        if doom is not None:
            if doom.cause in FINAL:
                self._teardown.end(gang, doom)
            else:
                self._members.fail(gang, doom)

    def announce(self, gang: ManagedGang, *, only: WorkerId | None = None) -> None:
        """Tell every worker of the gang (or one) to form. Idempotent, so a new leader may send it again."""
        scheduler_state = self._state
        request = FormRequest(
            gang=gang.id,
            generation=gang.generation,
            fence=gang.fence,
            size=gang.spec.size,
            seats=gang.seats,
            rendezvous=gang.rendezvous,
            ttl_s=max(gang.spec.ttl_s, 10.0),
            grace_s=gang.spec.grace_s,
            start_timeout_s=gang.spec.start_timeout_s,
            owner=gang.spec.owner,
            traceparent=gang.spec.traceparent,
        )
        opened = request.model_copy(update={"open": True}) if gang.gangset is not None else request
        untold = gang.gangset is None and len(gang.tokens) < len(gang.seats)
        for worker in gang.seats_by_worker if only is None else (only,):
            here = gang.seats_by_worker.get(worker, ())
            sealed = all(seat.token.startswith(MARK) for seat in here)
            scheduler_state.out.append(SendForm(worker=worker, request=opened if sealed else request, untold=untold))
            if ("ping", str(worker)) not in scheduler_state.agenda:
                scheduler_state.agenda.set(("ping", str(worker)), scheduler_state.now + scheduler_state.settings.ping_s)

    def ask_tokens(self, gang: ManagedGang) -> bool:
        """Ask the workers for the tokens that this leader does not know; their answers to `form` have them. True: some
        are missing."""
        untold = gang.untold if gang.gangset is None and gang.step in GRANTED else []
        for worker in untold:
            self.announce(gang, only=worker)
        return bool(untold)

    def shown(self, event: SeatsShown) -> None:
        """A worker has reported the tokens of its seats: the owner may be waiting for them."""
        gang = self._state.gangs.get(event.gang)
        if gang is None or gang.gangset is not None:
            return
        ids = {seat.token for seat in gang.seats_by_worker.get(event.worker, ())}
        gang.tokens.update((id, token) for id, token in event.tokens.items() if id in ids)
        if gang.waiters and gang.step in GRANTED and not gang.untold:
            self._state.answer_waiters(gang)


def _place(seat: Seat) -> tuple[int, int]:
    return seat.rank, seat.part
