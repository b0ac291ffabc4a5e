"""Standing sets: k gangs of one shape kept up, scaled, rolled and moved by whole gangs.

Laws:

1. A formed gang is told to retire before it is torn down, so that callers go elsewhere first.
2. Rolling and moving replace one gang at a time. With surge 1 its replacement is formed before it retires.
3. A gang is out of date when its set's template is another by now, or when one of its workers drains.
4. A gang that ends by its own fault is replaced after a wait that doubles; one success starts the waits from the
   beginning.
"""

from __future__ import annotations

from ..schemas.gang_messages import GangEventKind
from ..schemas.gangs import GangSetRecord
from ..schemas.names import WorkerId
from .books import Books, SetBooks
from .commits import CommitKind
from .events import Cause
from .gang import Failure, Gang
from .states import Move, Step, move
from .teardown import Teardown


class Sets:
    """Keeps standing sets as declared. A part of the core."""

    def __init__(self, books: Books, teardown: Teardown) -> None:
        self._books = books
        self._teardown = teardown

    def declare(self, name: str, record: GangSetRecord | None) -> None:
        """The set is wanted like this from now on; None: no more."""
        books = self._books
        if record is not None:
            known = books.sets.get(name)
            if known is not None:
                known.record = record
                known.failures, known.not_before = 0, 0.0
            else:
                mine = {gang.id: None for gang in books.gangs.values() if gang.gangset == name}
                books.sets[name] = SetBooks(record=record, gangs=mine)
        elif name in books.sets:
            known = books.sets[name]
            known.record = known.record.model_copy(update={"gangs": 0})
        books.sets_to_look_at[name] = None

    def look(self) -> None:
        """Bring the sets that something happened to nearer to what is declared."""
        books = self._books
        while books.sets_to_look_at:
            name = next(iter(books.sets_to_look_at))
            del books.sets_to_look_at[name]
            of_set = books.sets.get(name)
            if of_set is not None:
                self._reconcile(name, of_set)

    def _reconcile(self, name: str, of_set: SetBooks) -> None:
        books, record = self._books, of_set.record
        live = [books.gangs[gang] for gang in of_set.gangs if not _leaving(books.gangs[gang])]
        for gang in [gang for gang in live if gang.step not in _SERVING and gang.spec != record.template]:
            # Serves nobody, and would come back in the old shape.
            self._teardown.end(gang, Failure(cause=Cause.REPLACED))
        live = [gang for gang in live if gang.id in of_set.gangs and not _leaving(gang)]
        stale = [gang for gang in live if self._out_of_date(gang, of_set)]
        fresh = [gang for gang in live if gang not in stale]
        if any(gang.step is Step.FORMED for gang in fresh):
            of_set.failures = 0
        fresh = self._shrink(fresh, record.gangs)
        stale = self._retire_stale(of_set, stale, fresh)
        self._grow(name, of_set, stale, fresh)
        if record.gangs == 0 and not of_set.gangs:
            del books.sets[name]

    def _shrink(self, fresh: list[Gang], wanted: int) -> list[Gang]:
        """Whole gangs go: those that do not serve first, then the newest."""
        order = sorted(fresh, key=lambda gang: (gang.step in _SERVING, -gang.created_at, gang.id))
        for gang in order[: max(0, len(fresh) - wanted)]:
            self._retire(gang)
        gone = order[: max(0, len(fresh) - wanted)]
        return [gang for gang in fresh if gang not in gone]

    def _retire_stale(self, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> list[Gang]:
        """Gangs out of date go one by one, as their replacements have formed; at once if there are too many anyway."""
        books, record = self._books, of_set.record
        formed = sum(gang.step is Step.FORMED for gang in fresh)
        needed = max(0, record.gangs - formed)
        if not record.surge and len(fresh) == formed and len(stale) + len(fresh) <= record.gangs:
            needed = max(0, needed - 1)
        remaining = list(stale)
        for gang in sorted(stale, key=lambda gang: (gang.created_at, gang.id)):
            retiring = any(_leaving(books.gangs[other]) for other in of_set.gangs)
            if len(remaining) <= needed or (retiring and len(remaining) + len(fresh) <= record.gangs + record.surge):
                break
            remaining.remove(gang)
            self._retire(gang)
        return remaining

    def _grow(self, name: str, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> None:
        books, record = self._books, of_set.record
        missing = record.gangs - len(stale) - len(fresh)
        forming = any(gang.step is not Step.FORMED for gang in fresh)
        if missing <= 0 and stale and record.surge and not forming and len(fresh) < record.gangs:
            retiring = any(_leaving(books.gangs[gang]) for gang in of_set.gangs)
            missing = 0 if retiring else 1
        if missing > 0 and books.now < of_set.not_before:
            books.agenda.set(("set", name), of_set.not_before)
            return
        for _ in range(missing):
            books.made += 1
            gang = Gang(
                id=f"{name}-{books.term}-{books.made}",
                spec=record.template,
                owner_token="",
                gangset=name,
                created_at=books.wall,
                queued_at=books.now,
            )
            books.add(gang)
            books.tell(GangEventKind.QUEUED, gang)

    def _out_of_date(self, gang: Gang, of_set: SetBooks) -> bool:
        if gang.spec != of_set.record.template:
            return True
        workers = (self._books.inventory.workers.get(WorkerId(seat.pool, seat.worker)) for seat in gang.seats)
        return any(view is not None and view.draining for view in workers)

    def _retire(self, gang: Gang) -> None:
        if gang.step is Step.FORMED:
            move(gang, Move.RETIRE)
            self._books.commit(CommitKind.RETIRE, gang)
        else:
            self._teardown.end(gang, Failure(cause=Cause.REPLACED))

    def retiring(self, gang: Gang) -> None:
        """The ledger says that it retires: tell callers, and give them time to go elsewhere."""
        books = self._books
        of_set = books.sets.get(gang.gangset or "")
        books.tell(GangEventKind.RETIRING, gang)
        books.agenda.set(("retire", gang.id), books.now + (of_set.record.retire_s if of_set is not None else 0.0))

    def retired(self, gang: Gang) -> None:
        if gang.step is Step.RETIRING:
            self._teardown.close(gang, Failure(cause=Cause.REPLACED), ends=True)


_SERVING = frozenset({Step.FORMED, Step.REPAIRING, Step.REJOINING, Step.RETIRING})


def _leaving(gang: Gang) -> bool:
    doomed = gang.doom is not None and gang.doom.cause is Cause.REPLACED
    return doomed or gang.step is Step.RETIRING or (gang.closing is not None and gang.closing.ends)
