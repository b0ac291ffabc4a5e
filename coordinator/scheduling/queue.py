"""The queue of gangs: which gang is next, and which slots those behind it may take meanwhile.

Laws:

1. Order: priority, then age; between tenants see core.tenants. A gang that is refused, preempted or restarted keeps its
   age and so its place.
2. No gang behind a waiting head takes a slot that the head is waiting for: on workers of the head's target, back-fill
   uses only slots beyond the head's whole need there. Durations are unknown, so no weaker rule would work.
3. The target is where the head would fit without plain traffic (or, failing that, without gangs either). It stays the
   same while possible, so that reserved slots accumulate in one place.
4. Only the head reserves slots, so that no two gangs hold slots that the other waits for.
5. Preemption takes only gangs of lower priority, the lowest and youngest first, and no more than needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangSpec, Seat
from .inventory import Inventory
from .placement import NoPlacement, Placement, find, place

Place = tuple[int, float, str]


class Preemptible(Protocol):
    """The attributes that decide which gangs are preempted."""

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
    """Slots by worker; empty if no room was found for it, not even on empty workers."""
    waits_for_gangs: bool
    """Without plain traffic there would still be too little room."""
    impossible: bool = False
    """Proven: not even empty workers could hold it."""


@dataclass(slots=True, kw_only=True)
class QueueHead:
    """The first gang that cannot be placed, and what it waits for."""

    gang: str
    target: QueueTarget
    preempting: tuple[str, ...] = ()
    """Gangs being torn down for it; until they are gone, the target is where they are."""
    keeping: bool = False
    """Workers were asked to reserve slots for it."""
    kept: dict[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    """How many slots they have reserved."""


def target_of(spec: GangSpec, inventory: Inventory) -> QueueTarget:
    """Where a gang that cannot be placed now should wait for room."""
    spec = spec.smallest
    found = place(spec, inventory.claimable)
    if found is not None:
        return QueueTarget(slots=found.slots_by_worker(), waits_for_gangs=False)
    largest = find(spec, inventory.total)
    slots = largest.slots_by_worker() if isinstance(largest, Placement) else {}
    return QueueTarget(slots=slots, waits_for_gangs=True, impossible=largest is NoPlacement.PROVEN)


def still_good(spec: GangSpec, target: QueueTarget, inventory: Inventory) -> bool:
    """Whether to keep waiting for a target. A target that waits for gangs is dropped as soon as there is one that need
    not."""
    measure = inventory.total if target.waits_for_gangs else inventory.claimable
    if not target.slots or any(measure.get(worker) < slots for worker, slots in target.slots.items()):
        return False
    return not (target.waits_for_gangs and place(spec.smallest, inventory.claimable) is not None)


def guard(target: Mapping[WorkerId, int]) -> dict[WorkerId, int]:
    """Changes to the free slots for placing back-fill."""
    return {worker: -slots for worker, slots in target.items()}


def lower_than(gang: Preemptible, formed: Iterable[G]) -> list[G]:
    """The gangs that `gang` may preempt, the first ones first."""
    found = [other for other in formed if other.spec.priority < gang.spec.priority]
    found.sort(key=lambda other: (other.spec.priority, -other.created_at, other.id))
    return found


def victims(gang: Preemptible, candidates: Iterable[G], inventory: Inventory) -> tuple[list[G], QueueTarget] | None:
    """Which of the candidates to tear down, the first ones first, so that `gang` can be placed, and its target then;
    None if that would not help."""
    chosen: list[G] = []
    found = None
    for other in candidates:
        chosen.append(other)
        found = place(gang.spec.smallest, inventory.free, changes=_freed(chosen), exact=False)
        if found is not None:
            break
    if found is None:
        return None
    for other in list(chosen):
        fewer = [kept for kept in chosen if kept is not other]
        better = place(gang.spec.smallest, inventory.free, changes=_freed(fewer), exact=False)
        if better is not None:
            chosen, found = fewer, better
    return chosen, QueueTarget(slots=found.slots_by_worker(), waits_for_gangs=True)


def _freed(gangs: Iterable[Preemptible]) -> dict[WorkerId, int]:
    freed: dict[WorkerId, int] = {}
    for gang in gangs:
        for worker, seats in gang.seats_by_worker.items():
            freed[worker] = freed.get(worker, 0) + sum(seat.slots for seat in seats)
    return freed
