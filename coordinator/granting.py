"""The commit: what is written when a gang is granted or repaired, and what follows when it is done or refused."""

from __future__ import annotations

from itertools import chain

from ..schemas.gang_messages import FormRequest, GangEventKind
from ..schemas.gangs import Rendezvous, Seat
from ..schemas.names import Names, WorkerId
from .books import Books
from .commits import grants, record_to_be, spec_of
from .effects import LedgerWrite, SendForm
from .gang import Attempt, Gang, by_worker
from .members import Members
from .restarts import FINAL
from .states import Move, move
from .teardown import Teardown


class Granting:
    """Turns holds into members. A part of the core."""

    def __init__(self, books: Books, members: Members, teardown: Teardown) -> None:
        self._books = books
        self._members = members
        self._teardown = teardown

    def writes(self, gang: Gang) -> tuple[LedgerWrite, ...] | None:
        """The batch, now that its turn has come; None (and the holds are given up) when it would be in vain."""
        books, attempt = self._books, gang.attempt
        assert attempt is not None
        late = books.now > attempt.hold_until - books.settings.hold_margin_s
        doomed = gang.doom is not None and (gang.doom.cause in FINAL or not gang.seats)
        revisions = self._revisions(gang, attempt)
        if late or doomed or revisions is None:
            self._members.refused(gang)
            return None
        stay = [seat for seat in gang.seats if seat.rank not in gang.lost]
        placed = {worker: attempt.fresh[worker] for worker in attempt.wanted}
        if stay:
            placed = by_worker(sorted(chain(stay, *placed.values()), key=_place))
        attempt.seats = tuple(sorted(chain.from_iterable(placed.values()), key=_place))
        attempt.rendezvous = gang.rendezvous if any(seat.rank == 0 for seat in stay) else self._rendezvous(attempt)
        record = record_to_be(gang, attempt, books.wall)
        members = grants(gang.id, record.generation, placed, revisions)
        used = {write.key for write in members}
        left = [Names.member_key(worker, gang.id) for worker in gang.seats_by_worker]
        gone = [LedgerWrite(key=key, record=None) for key in left if key not in used]
        return (*gone, *members, books.ledger.fenced(Names.gang_key(gang.id), record))

    def _revisions(self, gang: Gang, attempt: Attempt) -> dict[WorkerId, int] | None:
        """The registration that each member record is conditioned on; None when one is known to be stale."""
        revisions = {worker: answer.reg_revision for worker, answer in attempt.answers.items()}
        for worker in attempt.wanted:
            if worker not in self._books.inventory.workers:
                return None
        for seat in gang.seats:
            worker = WorkerId(seat.pool, seat.worker)
            if seat.rank in gang.lost or worker in revisions:
                continue
            view = self._books.inventory.workers.get(worker)
            if view is None or view.facts.epoch != seat.epoch:
                return None
            revisions[worker] = view.facts.revision
        return revisions

    def _rendezvous(self, attempt: Attempt) -> Rendezvous | None:
        first = attempt.seats[0]
        answer = attempt.answers.get(WorkerId(first.pool, first.worker))
        host = first.address.rpartition(":")[0] if ":" in first.address else first.address
        if answer is None or answer.port is None:
            return None
        return Rendezvous(host=host or first.node or "127.0.0.1", port=answer.port)

    def committed(self, gang: Gang, revision: int) -> None:
        """The members are in the ledger: all of them may start."""
        books, attempt = self._books, gang.attempt
        assert attempt is not None
        generation = gang.next_generation
        books.unseat(gang)
        stay = {WorkerId(seat.pool, seat.worker) for seat in attempt.seats}
        self._teardown.leave(gang, [worker for worker in gang.seats_by_worker if worker not in stay])
        gang.fence, gang.persisted, gang.lost_record = revision, True, False
        gang.formed_at, gang.formed_wall = books.now, books.wall
        gang.refusals, gang.not_before = 0, 0.0
        gang.deadline_at = gang.deadline_wall = None
        gang.reason, gang.rank = "", None
        known = {seat.token for seat in gang.seats if seat.rank not in gang.starting}
        gang.starting = {seat.rank: None for seat in attempt.seats if seat.part == 0 and seat.token not in known}
        gang.ready = False
        gang.spec = spec_of(gang, attempt.seats)
        gang.seats, gang.rendezvous, gang.generation = attempt.seats, attempt.rendezvous, generation
        gang.attempt = None
        gang.lost.clear()
        books.agenda.cancel(("deadline", gang.id))
        books.agenda.cancel(("repair", gang.id))
        move(gang, Move.COMMITTED)
        books.seat(gang)
        if gang.gangset is not None:
            books.sets_to_look_at[gang.gangset] = None
        elif gang.waiters or ("owner", gang.id) not in books.agenda:
            # Whoever waits for the answer has all of its time from now on.
            books.agenda.set(("owner", gang.id), books.now + gang.spec.ttl_s)
        self.announce(gang)
        books.tell(GangEventKind.FORMED, gang)
        books.answer_all(gang.waiters, gang)
        doom, gang.doom = gang.doom, None
        if doom is not None:
            if doom.cause in FINAL:
                self._teardown.end(gang, doom)
            else:
                self._members.fail(gang, doom)

    def announce(self, gang: Gang, *, only: WorkerId | None = None) -> None:
        """Tell every worker of the gang (or one) to form; idempotent, so also again, under a new leader."""
        books = self._books
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
        for worker in gang.seats_by_worker if only is None else (only,):
            books.out.append(SendForm(worker=worker, request=request))
            if ("ping", str(worker)) not in books.agenda:
                books.agenda.set(("ping", str(worker)), books.now + books.settings.ping_s)


def _place(seat: Seat) -> tuple[int, int]:
    return seat.rank, seat.part
