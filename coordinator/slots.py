"""Slots by pool, label, node and worker, so that placement looks only at workers that it may use.

A `SlotMap` is one measure of all workers (free now, claimable, total); `Inventory` keeps the three in step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..schemas.names import WorkerId
from .ranked import Ranked

Filter = tuple[str, str, str]
"""(pool, label, value); ("images", "", "") is the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What placement needs to know of a worker besides its slots."""

    worker: WorkerId
    node: str
    """Never empty: a worker that does not say its node is a node of its own."""
    labels: Mapping[str, str]
    """With `zone`."""

    def has(self, wanted: Mapping[str, str]) -> bool:
        return all(self.labels.get(key) == value for key, value in wanted.items())

    def filters(self) -> Iterator[Filter]:
        pool = self.worker.pool
        yield (pool, "", "")
        for key, value in self.labels.items():
            yield (pool, key, value)


class FilteredSlots:
    """The workers that pass one filter, by slots; and their nodes, by their best worker and by their sum."""

    __slots__ = ("by_best", "by_sum", "nodes", "sum", "workers")

    def __init__(self) -> None:
        self.workers: Ranked[WorkerId] = Ranked()
        self.nodes: dict[str, Ranked[WorkerId]] = {}
        self.by_best: Ranked[str] = Ranked()
        self.by_sum: Ranked[str] = Ranked()
        self.sum = 0

    def set(self, place: Place, slots: int) -> None:
        worker, node = place.worker, place.node
        change = slots - self.workers.get(worker)
        self.workers.set(worker, slots)
        members = self.nodes.setdefault(node, Ranked())
        members.set(worker, slots)
        self.by_best.set(node, members.top)
        self.by_sum.set(node, self.by_sum.get(node) + change)
        self.sum += change

    def discard(self, place: Place) -> None:
        worker, node = place.worker, place.node
        if worker not in self.workers:
            return
        slots = self.workers.get(worker)
        self.workers.discard(worker)
        members = self.nodes[node]
        members.discard(worker)
        self.sum -= slots
        if members:
            self.by_best.set(node, members.top)
            self.by_sum.set(node, self.by_sum.get(node) - slots)
        else:
            del self.nodes[node]
            self.by_best.discard(node)
            self.by_sum.discard(node)


_NOTHING = FilteredSlots()


class SlotMap:
    """One measure of all workers."""

    __slots__ = ("_filtered", "_places", "_undo")

    def __init__(self) -> None:
        self._places: dict[WorkerId, Place] = {}
        self._filtered: dict[Filter, FilteredSlots] = {}
        self._undo: list[tuple[WorkerId, int]] | None = None

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._places

    def get(self, worker: WorkerId) -> int:
        if worker not in self._places:
            return 0
        return self._filtered[(worker.pool, "", "")].workers.get(worker)

    def place_of(self, worker: WorkerId) -> Place:
        return self._places[worker]

    def put(self, place: Place, slots: int) -> None:
        """Add a worker, or replace all that is known of it."""
        assert self._undo is None
        if self._places.get(place.worker, place) != place:
            self.discard(place.worker)
        self._places[place.worker] = place
        for key in place.filters():
            self._filtered.setdefault(key, FilteredSlots()).set(place, slots)

    def discard(self, worker: WorkerId) -> None:
        assert self._undo is None
        place = self._places.pop(worker, None)
        if place is None:
            return
        for key in place.filters():
            found = self._filtered[key]
            found.discard(place)
            if not found.workers:
                del self._filtered[key]

    def set(self, worker: WorkerId, slots: int) -> None:
        """Change the slots of a known worker; unknown ones are left alone."""
        place = self._places.get(worker)
        if place is None:
            return
        if self._undo is not None:
            self._undo.append((worker, self.get(worker)))
        for key in place.filters():
            self._filtered[key].set(place, slots)

    @contextmanager
    def trial(self, changes: Mapping[WorkerId, int]) -> Generator[None, None, None]:
        """Within the block some workers have so many slots more (or fewer, not below 0); after it all is as before,
        with what the block itself took. Costs what was changed."""
        assert self._undo is None
        self._undo = []
        try:
            for worker, change in changes.items():
                self.set(worker, max(0, self.get(worker) + change))
            yield
        finally:
            undo, self._undo = self._undo, None
            for worker, slots in reversed(undo):
                self.set(worker, slots)

    def filtered(self, pool: str, labels: Mapping[str, str]) -> FilteredSlots:
        """The smallest known set that has all workers of the pool with these labels. With two labels or more some in
        it may lack one: look at `Place.has`."""
        best = self._filtered.get((pool, "", ""), _NOTHING)
        for key, value in labels.items():
            found = self._filtered.get((pool, key, value), _NOTHING)
            if len(found.workers) < len(best.workers):
                best = found
        return best

    def pools(self) -> list[str]:
        return sorted({pool for pool, label, _ in self._filtered if not label})
