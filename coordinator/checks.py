"""The invariants of the books, asserted by tests after every event."""

from __future__ import annotations

from .books import Books
from .gang import Gang
from .states import GRANTED, Step


def check(books: Books) -> None:
    """Raises:
    AssertionError: names the gang and what is wrong with it.
    """
    assert not books.out, "effects were left behind"
    if not books.leading:
        assert not books.gangs and books.agenda.next_at is None, "a coordinator that does not lead remembers gangs"
        return
    queued = {gang.id for gang in books.gangs.values() if gang.step is Step.QUEUED}
    assert set(books.queue) == queued, "the queue is not exactly the queued gangs"
    for gang in books.gangs.values():
        _check_gang(books, gang)
    for worker, here in books.on.items():
        assert here, f"{worker} is listed without gangs"
        for gang_id in here:
            assert worker in books.gangs[gang_id].seats_by_worker, f"{gang_id} is listed on {worker}"
    if books.head is not None:
        assert books.head.gang in books.queue, "the head does not wait"
        assert not books.gangs[books.head.gang].aside, "the head is one that stands aside"
    assert not (books.ledger.line and not books.ledger.busy), "commits wait, and none is in flight"
    for worker, view in books.inventory.workers.items():
        assert view.free == books.inventory.free.get(worker) or view.draining, f"free slots of {worker}"
        held = [gang.attempt for gang in books.gangs.values() if gang.attempt is not None]
        charged = sum(
            sum(seat.slots for seat in attempt.wanted[worker])
            for attempt in held
            if worker in attempt.wanted and worker not in attempt.answers
        )
        assert view.charged <= charged, f"{worker} is charged for {view.charged} slots, asked for {charged}"


def _check_gang(books: Books, gang: Gang) -> None:
    granted = gang.step in GRANTED
    assert gang.step is not Step.ENDED, f"{gang} is remembered"
    assert bool(gang.seats) == (granted or gang.step is Step.STOPPING), f"{gang} has {len(gang.seats)} seats"
    listed = all(gang.id in books.on.get(worker, {}) for worker in gang.seats_by_worker)
    assert not granted or listed, f"{gang} is granted and not listed on its workers"
    assert granted or not (gang.starting or gang.ready), f"{gang} starts, or is ready, and is not granted"
    assert not (gang.starting and gang.ready), f"{gang} is ready, and {list(gang.starting)} have not started"
    ranks = [seat.rank for seat in gang.seats if seat.part == 0]
    assert not ranks or ranks == list(range(gang.spec.size)), f"{gang} has the ranks {ranks}"
    least, most = gang.spec.sizes
    assert least <= gang.spec.size <= most, f"{gang} has {gang.spec.size} members, and {least} to {most} were asked for"
    assert bool(gang.lost) == (gang.step in (Step.REPAIRING, Step.REJOINING)), f"{gang} has lost {list(gang.lost)}"
    closing = gang.step in (Step.CLOSING, Step.STOPPING, Step.BACKOFF)
    assert (gang.closing is not None) == closing, f"{gang} closes: {gang.closing}"
    must_hold = gang.step in (Step.HOLDING, Step.COMMITTING, Step.REJOINING)
    assert (gang.attempt is not None) == must_hold or gang.step is Step.REPAIRING, f"{gang} holds: {gang.attempt}"
    waits = gang.step is Step.REPAIRING and gang.attempt is None
    assert (gang.id in books.repairs) == waits, f"{gang} waits for repair"
    timers = {
        Step.HOLDING: "hold",
        Step.REPAIRING: "repair",
        Step.REJOINING: "repair",
        Step.STOPPING: "stop",
        Step.BACKOFF: "backoff",
    }
    timer = timers.get(gang.step)
    assert timer is None or (timer, gang.id) in books.agenda, f"{gang} waits without the timer {timer!r}"
    commits = [*books.ledger.line, *([books.ledger.in_flight] if books.ledger.in_flight else [])]
    on_its_way = any(pending.gang == gang.id for pending in commits)
    writing = gang.step in (Step.COMMITTING, Step.REJOINING, Step.CLOSING)
    assert not writing or on_its_way, f"{gang} waits for a commit that is not in line"
