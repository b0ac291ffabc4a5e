"""Slots by pool, label, node and worker, so that placement looks only at workers that it may use.

A `SlotIndex` is one measure of all workers (free now, claimable, total); `Inventory` keeps the three in step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from ...schemas.names import WorkerId
from .bucketed_order import BucketedOrder

Filter = tuple[str, str, str]
"""(pool, label, value); ("images", "", "") is the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpot:
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


class SlotEntry:
    """One worker in a map. Known by its identity: no hash of a name is made for each move."""

    __slots__ = ("noted", "place", "sets", "slots")

    def __init__(self, place: WorkerSpot, sets: tuple[FilteredSlots, ...]) -> None:
        self.place = place
        self.sets = sets
        """Those that it is in."""
        self.slots = 0
        """As it stands in them."""
        self.noted = 0
        """What shall stand there."""


class FilteredSlots:
    """The workers that pass one filter, by slots; and their nodes, by their best worker and by their sum."""

    __slots__ = ("by_best", "by_sum", "nodes", "sum", "workers")

    def __init__(self) -> None:
        self.workers: BucketedOrder[SlotEntry] = BucketedOrder()
        self.nodes: dict[str, BucketedOrder[SlotEntry]] = {}
        self.by_best: BucketedOrder[str] = BucketedOrder()
        self.by_sum: BucketedOrder[str] = BucketedOrder()
        self.sum = 0

    def add(self, entry: SlotEntry, slots: int) -> None:
        node = entry.place.node
        self.nodes.setdefault(node, BucketedOrder())
        self.set(entry, slots)

    def set(self, entry: SlotEntry, slots: int) -> None:
        """For one that was added."""
        node = entry.place.node
        change = slots - self.workers.get(entry)
        self.workers.set(entry, slots)
        members = self.nodes[node]
        members.set(entry, slots)
        self.by_best.set(node, members.top)
        self.by_sum.set(node, self.by_sum.get(node) + change)
        self.sum += change

    def discard(self, entry: SlotEntry) -> None:
        node, slots = entry.place.node, self.workers.get(entry)
        self.workers.discard(entry)
        members = self.nodes[node]
        members.discard(entry)
        self.sum -= slots
        if members:
            self.by_best.set(node, members.top)
            self.by_sum.set(node, self.by_sum.get(node) - slots)
        else:
            del self.nodes[node]
            self.by_best.discard(node)
            self.by_sum.discard(node)


_NOTHING = FilteredSlots()
_MOST_NOTED: Final = 64


class SlotIndex:
    """One measure of all workers.

    Changes are noted, and worked into the order when somebody looks at it: what is asked for, held and given back
    before the next placement costs next to nothing.
    """

    __slots__ = ("_entries", "_filtered", "_noted", "_undo", "changes")

    def __init__(self) -> None:
        self._entries: dict[WorkerId, SlotEntry] = {}
        self._filtered: dict[Filter, FilteredSlots] = {}
        self._noted: dict[SlotEntry, None] = {}
        """Not worked in yet. At most _MOST_NOTED, so that no single look pays for many."""
        self._undo: dict[SlotEntry, int] | None = None
        self.changes = 0
        """Grows with each change that lasts: as long as it is the same, what was found before is still true."""

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._entries

    def get(self, worker: WorkerId) -> int:
        entry = self._entries.get(worker)
        return 0 if entry is None else entry.noted

    def place_of(self, worker: WorkerId) -> WorkerSpot:
        return self._entries[worker].place

    def put(self, place: WorkerSpot, slots: int) -> None:
        """Add a worker, or replace all that is known of it."""
        entry = self._entries.get(place.worker)
        if entry is not None and entry.place == place:
            self.set(place.worker, slots)
            return
        self.discard(place.worker)
        assert self._undo is None
        self.changes += 1
        sets = tuple(self._filtered.setdefault(key, FilteredSlots()) for key in place.filters())
        entry = self._entries[place.worker] = SlotEntry(place, sets)
        entry.noted = entry.slots = slots
        for found in sets:
            found.add(entry, slots)

    def discard(self, worker: WorkerId) -> None:
        assert self._undo is None
        entry = self._entries.pop(worker, None)
        if entry is None:
            return
        self.changes += 1
        self._noted.pop(entry, None)
        for key in entry.place.filters():
            found = self._filtered[key]
            found.discard(entry)
            if not found.workers:
                del self._filtered[key]

    def set(self, worker: WorkerId, slots: int) -> None:
        """Change the slots of a known worker; unknown ones are left alone."""
        assert self._undo is None
        entry = self._entries.get(worker)
        if entry is None or entry.noted == slots:
            return
        self.changes += 1
        entry.noted = slots
        self._noted[entry] = None
        if len(self._noted) > _MOST_NOTED:
            self._work_in()

    def change(self, worker: WorkerId, by: int) -> None:
        """Within a trial: give a known worker so many slots more, or take them."""
        assert self._undo is not None
        entry = self._entries[worker]
        self._undo.setdefault(entry, entry.slots)
        self._move(entry, entry.slots + by)

    def _work_in(self) -> None:
        noted, self._noted = self._noted, {}
        for entry in noted:
            self._move(entry, entry.noted)

    @staticmethod
    def _move(entry: SlotEntry, slots: int) -> None:
        if entry.slots != slots:
            entry.slots = entry.noted = slots
            for found in entry.sets:
                found.set(entry, slots)

    @contextmanager
    def trial(self, changes: Mapping[WorkerId, int]) -> Generator[None, None, None]:
        """Within the block some workers have so many slots more (or fewer, not below 0); after it all is as before,
        with what the block itself took. Costs what was changed."""
        assert self._undo is None
        self._work_in()
        self._undo = {}
        try:
            for worker, change in changes.items():
                if worker in self._entries:
                    self.change(worker, max(change, -self.get(worker)))
            yield
        finally:
            undo, self._undo = self._undo, None
            for entry, slots in undo.items():
                self._move(entry, slots)

    def filtered(self, pool: str, labels: Mapping[str, str]) -> FilteredSlots:
        """The smallest known set that has all workers of the pool with these labels. With two labels or more some in
        it may lack one: look at `WorkerSpot.has`."""
        if self._noted:
            self._work_in()
        best = self._filtered.get((pool, "", ""), _NOTHING)
        for key, value in labels.items():
            found = self._filtered.get((pool, key, value), _NOTHING)
            if len(found.workers) < len(best.workers):
                best = found
        return best

    def pools(self) -> list[str]:
        return sorted({pool for pool, label, _ in self._filtered if not label})
