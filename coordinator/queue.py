"""Who is next, and what those behind may take meanwhile.

Laws:

1. Order: priority, then age. A gang that is refused, preempted or restarted keeps its age, and with it its place.
2. Nobody behind a waiting head takes a slot that the head is waiting for: back-fill uses, on a worker of the head's
   target, only what is free beyond the head's whole need there. Durations are not known, so nothing weaker would do.
3. A target is where the head could go if no plain traffic ran (else: if no gang ran either). It stays the same while it
   is possible, so that kept slots add up instead of wandering.
4. Only the head keeps slots, so that two gangs never hold what the other waits for.
5. Preemption takes gangs of lower priority only, the lowest and youngest first, and none that is not needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..schemas.gangs import GangSpec
from ..schemas.names import WorkerId
from .gang import Gang
from .inventory import Inventory
from .placement import place

Place = tuple[int, float, str]


class GangQueue:
    """Ids in order of priority, then age, then id."""

    __slots__ = ("_order", "_places")

    def __init__(self) -> None:
        self._order: list[Place] = []
        self._places: dict[str, Place] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, gang: str) -> bool:
        return gang in self._places

    def __iter__(self) -> Iterator[str]:
        return (gang for _, _, gang in self._order)

    def at(self, index: int) -> str:
        return self._order[index][2]

    def add(self, gang: str, *, priority: int, created_at: float) -> None:
        assert gang not in self._places
        place_ = self._places[gang] = (-priority, created_at, gang)
        insort(self._order, place_)

    def discard(self, gang: str) -> None:
        place_ = self._places.pop(gang, None)
        if place_ is not None:
            del self._order[bisect_left(self._order, place_)]

    def place_of(self, gang: str) -> int | None:
        """From 0; None if it does not wait."""
        place_ = self._places.get(gang)
        return None if place_ is None else bisect_left(self._order, place_)


@dataclass(slots=True, kw_only=True)
class Head:
    """The first gang that cannot be placed, and what it waits for."""

    gang: str
    target: dict[WorkerId, int]
    """Slots by worker; empty if not even empty workers could hold it."""
    keeping: bool = False
    """Workers were asked to keep slots for it."""
    kept: dict[WorkerId, int] = field(default_factory=dict)
    """What they said they keep."""


def target_of(spec: GangSpec, inventory: Inventory) -> dict[WorkerId, int]:
    """Where a gang that cannot be placed now should wait for room."""
    for measure in (inventory.claimable, inventory.total):
        found = place(spec, measure)
        if found is not None:
            return found.slots_by_worker()
    return {}


def still_possible(target: Mapping[WorkerId, int], inventory: Inventory) -> bool:
    """Whether a target can be waited for on. One that waits for plain traffic only is left for nothing; one that waits
    for gangs as well is looked for anew, as a better one may exist by now."""
    return bool(target) and all(inventory.claimable.get(worker) >= slots for worker, slots in target.items())


def guard(target: Mapping[WorkerId, int]) -> dict[WorkerId, int]:
    """Changes to the free slots under which back-fill is placed."""
    return {worker: -slots for worker, slots in target.items()}


def victims(gang: Gang, formed: Iterable[Gang], inventory: Inventory) -> list[Gang]:
    """Which gangs to tear down so that `gang` can be placed; empty if it would not help. A gang in which all of its
    victims' slots came back is placeable at once, but for plain traffic that comes first."""
    lower = [other for other in formed if other.spec.priority < gang.spec.priority]
    lower.sort(key=lambda other: (other.spec.priority, -other.created_at, other.id))
    chosen: list[Gang] = []
    for other in lower:
        chosen.append(other)
        if place(gang.spec, inventory.free, changes=_freed(chosen)) is not None:
            break
    else:
        return []
    for other in list(chosen):
        fewer = [kept for kept in chosen if kept is not other]
        if place(gang.spec, inventory.free, changes=_freed(fewer)) is not None:
            chosen = fewer
    return chosen


def _freed(gangs: Iterable[Gang]) -> dict[WorkerId, int]:
    freed: dict[WorkerId, int] = {}
    for gang in gangs:
        for worker, seats in gang.seats_by_worker.items():
            freed[worker] = freed.get(worker, 0) + sum(seat.slots for seat in seats)
    return freed
