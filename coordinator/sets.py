"""Standing sets: k gangs of one shape kept up, scaled, rolled and moved by whole gangs.

Laws:

1. A formed gang is told to retire before it is torn down, so that callers go elsewhere first.
2. Rolling and moving replace one gang at a time. With surge 1 its replacement is formed before it retires, if there is
   room for both. While it waits for that it stands aside: it is never the head of the queue and keeps no slots. Without
   room for `surge_wait_s` the old gang goes first, as with surge 0, and its replacement has its place in the queue.
3. A gang is out of date when its set's template is another by now, or when one of its workers drains. One that is out
   of date by its template alone goes first only if that makes room for its replacement; one on a draining worker has
   to go anyway, and does so well before the drain's grace ends.
4. A gang that ends by its own fault is replaced after a wait that doubles; one success starts the waits from the
   beginning.
"""

from __future__ import annotations

import math
from typing import Final

from ..schemas.gang_messages import GangEventKind
from ..schemas.gangs import GangSetRecord
from .books import Books, SetBooks
from .commits import CommitKind
from .events import Cause
from .gang import Failure, Gang
from .placement import place
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
                known.short, known.wait_until = 0, None
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
        self._lose_patience(name, of_set, stale, fresh)
        stale = self._retire_stale(of_set, stale, fresh)
        fresh += self._grow(name, of_set, stale, fresh)
        self._stand_aside(of_set, stale, fresh)
        if record.gangs == 0 and not of_set.gangs:
            books.agenda.cancel(("surge", name))
            del books.sets[name]

    def _shrink(self, fresh: list[Gang], wanted: int) -> list[Gang]:
        """Whole gangs go: those that do not serve first, then the newest."""
        order = sorted(fresh, key=lambda gang: (gang.step in _SERVING, -gang.created_at, gang.id))
        for gang in order[: max(0, len(fresh) - wanted)]:
            self._retire(gang)
        gone = order[: max(0, len(fresh) - wanted)]
        return [gang for gang in fresh if gang not in gone]

    def _lose_patience(self, name: str, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> None:
        """Replacements that found no room for long enough: let the set be short of one gang, so that there is room.
        Of one more each time, while gangs on draining workers are left: those have to go in any case."""
        books = self._books
        if not stale or all(gang.step is Step.FORMED for gang in fresh):
            of_set.short = min(of_set.short, 1) if stale else 0
            of_set.wait_until = None
            books.agenda.cancel(("surge", name))
            return
        patience_s = self._patience_s(of_set, stale)
        if of_set.wait_until is None or books.now < of_set.wait_until:
            until = books.now + patience_s
            of_set.wait_until = until if of_set.wait_until is None else min(of_set.wait_until, until)
        if books.now >= of_set.wait_until:
            if of_set.short == 0 or any(self._graces(gang) for gang in stale):
                of_set.short += 1
            of_set.wait_until = books.now + max(patience_s, _LOOK_AGAIN_S)
        books.agenda.set(("surge", name), of_set.wait_until)

    def _patience_s(self, of_set: SetBooks, stale: list[Gang]) -> float:
        """A draining worker's time is short: of its grace, most is left for the move itself."""
        graces = (grace for gang in stale for grace in self._graces(gang) if grace is not None)
        return min(of_set.record.surge_wait_s, min(graces, default=math.inf) / _PART_OF_GRACE)

    def _retire_stale(self, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> list[Gang]:
        """Gangs out of date go one by one, as their replacements have formed; at once if there are too many anyway."""
        books, record = self._books, of_set.record
        formed = sum(gang.step is Step.FORMED for gang in fresh)
        wanted = max(0, record.gangs - formed)
        short = max(of_set.short, 1 - record.surge)
        remaining = list(stale)
        for gang in sorted(stale, key=lambda gang: (not self._graces(gang), gang.created_at, gang.id)):
            retiring = any(_leaving(books.gangs[other]) for other in of_set.gangs)
            if len(remaining) <= max(0, wanted - short):
                break
            if retiring and len(remaining) + len(fresh) <= record.gangs + record.surge:
                break
            if len(remaining) <= wanted and record.surge and not self._makes_room(gang, record):
                continue
            if len(remaining) <= wanted:
                of_set.places.append(gang.created_at)
            remaining.remove(gang)
            self._retire(gang)
        return remaining

    def _makes_room(self, gang: Gang, record: GangSetRecord) -> bool:
        """Whether a gang that has no room beside this one has it, once plain traffic is done, in its place; or whether
        this one cannot stay in any case."""
        if self._graces(gang):
            return True
        freed = {worker: sum(seat.slots for seat in seats) for worker, seats in gang.seats_by_worker.items()}
        return place(record.template, self._books.inventory.claimable, changes=freed) is not None

    def _stand_aside(self, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> None:
        """Replacements beside gangs that still serve wait without being in anybody's way. When it is their turn, they
        have the place in the queue of the gang that went."""
        books = self._books
        waiting = sorted((gang for gang in fresh if gang.step is not Step.FORMED), key=lambda gang: gang.made)
        too_many = max(0, len(stale) + len(fresh) - of_set.record.gangs)
        due = len(waiting) - too_many
        for number, gang in enumerate(waiting):
            aside = number >= due
            if gang.aside and not aside:
                books.set_place(gang, of_set.take_place(gang.created_at))
            if gang.aside is not aside:
                gang.aside = aside
                books.look_for_room = True
        if not stale:
            of_set.places.clear()

    def _grow(self, name: str, of_set: SetBooks, stale: list[Gang], fresh: list[Gang]) -> list[Gang]:
        books, record = self._books, of_set.record
        missing = record.gangs - len(stale) - len(fresh)
        forming = any(gang.step is not Step.FORMED for gang in fresh)
        surge = record.surge and not of_set.short
        if missing <= 0 and stale and surge and not forming and len(fresh) < record.gangs:
            retiring = any(_leaving(books.gangs[gang]) for gang in of_set.gangs)
            missing = 0 if retiring else 1
        if missing > 0 and books.now < of_set.not_before:
            books.agenda.set(("set", name), of_set.not_before)
            return []
        made: list[Gang] = []
        for _ in range(missing):
            books.made += 1
            gang = Gang(
                id=f"{name}-{books.term}-{books.made}",
                spec=record.template,
                owner_token="",
                gangset=name,
                created_at=of_set.take_place(books.wall),
                queued_at=books.now,
                made=books.made,
            )
            books.add(gang)
            made.append(gang)
            books.tell(GangEventKind.QUEUED, gang)
            books.sets_to_look_at[name] = None  # the time that it may wait beside another begins
        return made

    def _out_of_date(self, gang: Gang, of_set: SetBooks) -> bool:
        if gang.spec != of_set.record.template:
            return True
        return bool(self._graces(gang))

    def _graces(self, gang: Gang) -> list[float | None]:
        """Of the gang's workers that drain, how long their drains take at most, where they say so."""
        workers = (self._books.inventory.workers.get(worker) for worker in gang.seats_by_worker)
        return [view.facts.drain_grace_s for view in workers if view is not None and view.draining]

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


_PART_OF_GRACE: Final = 5
"""Room beside the old gang is waited for at most this part of a drain's grace."""
_LOOK_AGAIN_S: Final = 1.0
_SERVING = frozenset({Step.FORMED, Step.REPAIRING, Step.REJOINING, Step.RETIRING})


def _leaving(gang: Gang) -> bool:
    doomed = gang.doom is not None and gang.doom.cause is Cause.REPLACED
    return doomed or gang.step is Step.RETIRING or (gang.closing is not None and gang.closing.ends)
