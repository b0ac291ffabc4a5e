"""The queue of gangs: which is next, and what those behind it may take meanwhile.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangSpec, Seat
from .inventory import Inventory
from .placement import place

Place = tuple[int, float, str]


class Preemptible(Protocol):
    """What decides which gangs are preempted."""

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> GangSpec: ...

    @property
    def created_at(self) -> float: ...

    @property
    def seats_by_worker(self) -> Mapping[WorkerId, Sequence[Seat]]: ...


G = TypeVar("G", bound=Preemptible)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """Where a gang waits for room."""

    slots: Mapping[WorkerId, int]
    """By worker; empty if not even empty workers could hold it."""
    waits_for_gangs: bool
    """Plain traffic going away is not enough."""


@dataclass(slots=True, kw_only=True)
class QueueHead:
    """The first gang that cannot be placed, and what it waits for."""

    gang: str
    target: QueueTarget
    preempting: tuple[str, ...] = ()
    """Gangs that are torn down for it; until they are gone, the target is where they were."""
    keeping: bool = False
    """Workers were asked to keep slots for it."""
    kept: dict[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    """What they said they keep."""


def target_of(spec: GangSpec, inventory: Inventory) -> QueueTarget:
    """Where a gang that cannot be placed now should wait for room."""
    spec = spec.smallest
    found = place(spec, inventory.claimable)
    if found is not None:
        return QueueTarget(slots=found.slots_by_worker(), waits_for_gangs=False)
    found = place(spec, inventory.total)
    return QueueTarget(slots=found.slots_by_worker() if found is not None else {}, waits_for_gangs=True)


def still_good(spec: GangSpec, target: QueueTarget, inventory: Inventory) -> bool:
    """Whether to wait on for a target. One that waits for gangs is left as soon as another would not have to."""
    measure = inventory.total if target.waits_for_gangs else inventory.claimable
    if not target.slots or any(measure.get(worker) < slots for worker, slots in target.slots.items()):
        return False
    return not (target.waits_for_gangs and place(spec.smallest, inventory.claimable) is not None)


def guard(target: Mapping[WorkerId, int]) -> dict[WorkerId, int]:
    """Changes to the free slots under which back-fill is placed."""
    return {worker: -slots for worker, slots in target.items()}


def victims(gang: Preemptible, formed: Iterable[G], inventory: Inventory) -> tuple[list[G], QueueTarget] | None:
    """Which gangs to tear down so that `gang` can be placed, and where it then will be; None if it would not help."""
    lower = [other for other in formed if other.spec.priority < gang.spec.priority]
    lower.sort(key=lambda other: (other.spec.priority, -other.created_at, other.id))
    chosen: list[G] = []
    found = None
    for other in lower:
        chosen.append(other)
        found = place(gang.spec.smallest, inventory.free, changes=_freed(chosen))
        if found is not None:
            break
    if found is None:
        return None
    for other in list(chosen):
        fewer = [kept for kept in chosen if kept is not other]
        better = place(gang.spec.smallest, inventory.free, changes=_freed(fewer))
        if better is not None:
            chosen, found = fewer, better
    return chosen, QueueTarget(slots=found.slots_by_worker(), waits_for_gangs=True)


def _freed(gangs: Iterable[Preemptible]) -> dict[WorkerId, int]:
    freed: dict[WorkerId, int] = {}
    for gang in gangs:
        for worker, seats in gang.seats_by_worker.items():
            freed[worker] = freed.get(worker, 0) + sum(seat.slots for seat in seats)
    return freed
