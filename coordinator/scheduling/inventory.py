"""The leader's view of the workers, updated by heartbeats, by answers and by requests not answered yet.

A `SlotIndex` is one measure of all workers (free now, claimable, total), by pool, label, node and worker, so that
placement looks only at workers that it may use; `Inventory` keeps the three in step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ...schemas.names import WorkerId
from ...schemas.wire.frames import Load

K = TypeVar("K", bound=Hashable)


class BucketedOrder(Generic[K]):
    """Keys ordered by a whole number that changes often.

    Each key has one level. Setting and removing cost the number of distinct levels (slots of a worker: few), not the
    number of keys. Among equals, the one that reached its level first comes first: deterministic.

    Iterators are lazy: do not change the set while one is in use.
    """

    __slots__ = ("_keys", "_level", "_levels")

    def __init__(self) -> None:
        self._level: dict[K, int] = {}
        self._keys: dict[int, dict[K, None]] = {}
        self._levels: list[int] = []  # sorted; exactly the keys of _keys, none of which is empty

    def __len__(self) -> int:
        return len(self._level)

    def __contains__(self, key: K) -> bool:
        return key in self._level

    def __repr__(self) -> str:
        return f"<BucketedOrder {len(self._level)} keys on {len(self._levels)} levels>"

    def get(self, key: K) -> int:
        """The key's level; 0 if it is missing."""
        return self._level.get(key, 0)

    @property
    def top(self) -> int:
        """The highest level; 0 if empty."""
        return self._levels[-1] if self._levels else 0

    def set(self, key: K, level: int) -> None:
        before = self._level.get(key)
        if before == level:
            return
        if before is not None:
            self._leave(key, before)
        self._level[key] = level
        keys = self._keys.get(level)
        if keys is None:
            keys = self._keys[level] = {}
            insort(self._levels, level)
        keys[key] = None

    def discard(self, key: K) -> None:
        before = self._level.pop(key, None)
        if before is not None:
            self._leave(key, before)

    def best(self, floor: int) -> K | None:
        """The first key of `descending`."""
        if not self._levels or self._levels[-1] < floor:
            return None
        return next(iter(self._keys[self._levels[-1]]))

    def descending(self, floor: int) -> Iterator[K]:
        """Highest first, down to and including `floor`."""
        for level in reversed(self._levels):
            if level < floor:
                return
            yield from self._keys[level]

    def ascending(self, floor: int) -> Iterator[K]:
        """Lowest first, from `floor` on."""
        for level in self._levels[bisect_left(self._levels, floor) :]:
            yield from self._keys[level]

    def _leave(self, key: K, level: int) -> None:
        keys = self._keys[level]
        del keys[key]
        if not keys:
            del self._keys[level]
            del self._levels[bisect_left(self._levels, level)]


Filter = tuple[str, str, str]
"""(pool, label, value); ("images", "", "") is the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpot:
    """What placement needs to know about a worker besides its slots."""

    worker: WorkerId
    node: str
    """Never empty: a worker without a node name is its own node."""
    labels: Mapping[str, str]
    """Labels, including `zone`."""

    def has(self, wanted: Mapping[str, str]) -> bool:
        return all(self.labels.get(key) == value for key, value in wanted.items())

    def filters(self) -> Iterator[Filter]:
        pool = self.worker.pool
        yield (pool, "", "")
        for key, value in self.labels.items():
            yield (pool, key, value)


class SlotEntry:
    """One worker in a map. Hashed by identity, so that a move need not hash a name."""

    __slots__ = ("noted", "place", "sets", "slots")

    def __init__(self, place: WorkerSpot, sets: tuple[FilteredSlots, ...]) -> None:
        self.place = place
        self.sets = sets
        """The sets that contain it."""
        self.slots = 0
        """Its slots according to these sets."""
        self.noted = 0
        """Its slots according to changes not applied yet."""


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
        """Change the slots of a worker in the set."""
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

    Changes are noted, and applied to the order when it is read: slots that are requested, held and released before the
    next placement cost next to nothing.
    """

    __slots__ = ("_entries", "_filtered", "_noted", "_undo", "changes")

    def __init__(self) -> None:
        self._entries: dict[WorkerId, SlotEntry] = {}
        self._filtered: dict[Filter, FilteredSlots] = {}
        self._noted: dict[SlotEntry, None] = {}
        """Changes not applied yet. At most _MOST_NOTED, so that no single read pays for many."""
        self._undo: dict[SlotEntry, int] | None = None
        self.changes = 0
        """Grows with each lasting change: while it stays the same, earlier results remain valid."""

    def __contains__(self, worker: WorkerId) -> bool:
        return worker in self._entries

    def get(self, worker: WorkerId) -> int:
        entry = self._entries.get(worker)
        return 0 if entry is None else entry.noted

    def place_of(self, worker: WorkerId) -> WorkerSpot:
        return self._entries[worker].place

    def put(self, place: WorkerSpot, slots: int) -> None:
        """Add a worker, or replace everything known about it."""
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

    def change(self, entry: SlotEntry, by: int) -> None:
        """Within a trial: give a worker this many more slots, or fewer if negative."""
        assert self._undo is not None
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
        """Within the block some workers have this many more slots (or fewer, not below 0); afterwards all these changes
        and those of the block are undone. The cost is proportional to the changes."""
        assert self._undo is None
        self._work_in()
        self._undo = {}
        try:
            for worker, change in changes.items():
                entry = self._entries.get(worker)
                if entry is not None:
                    self.change(entry, max(change, -entry.slots))
            yield
        finally:
            undo, self._undo = self._undo, None
            for entry, slots in undo.items():
                self._move(entry, slots)

    def filtered(self, pool: str, labels: Mapping[str, str]) -> FilteredSlots:
        """The smallest known set that contains all workers of the pool with these labels. With two or more labels some
        of them may lack one: check `WorkerSpot.has`."""
        if self._noted:
            self._work_in()
        best = self._filtered.get((pool, "", ""), _NOTHING)
        for key, value in labels.items():
            found = self._filtered.get((pool, key, value), _NOTHING)
            if len(found.workers) < len(best.workers):
                best = found
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A registration, as the ledger has it."""

    id: WorkerId
    epoch: int
    revision: int
    """Revision of the `reg` key."""
    total: int
    load: Load | None = None
    """From its heartbeat, when known."""
    node: str = ""
    zone: str = ""
    address: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    draining: bool = False
    drain_grace_s: float | None = None
    """While it drains: how long the drain may take, if the worker says so."""


@dataclass(slots=True, kw_only=True)
class WorkerView:
    facts: WorkerFacts
    ongoing: int = 0
    """Running + reserved, by its last report."""
    charged: int = 0
    """Slots of unanswered holds."""
    granted: int = 0
    """Slots of members in the ledger."""
    draining: bool = False
    silent: int = 0
    """Number of pings in a row without responders."""

    @property
    def free(self) -> int:
        return max(0, self.facts.total - self.ongoing - self.charged)

    @property
    def claimable(self) -> int:
        """Slots that would be free without plain traffic."""
        return max(0, self.facts.total - self.granted)


class Inventory:
    """Three measures of the usable workers: free now, claimable, total. Draining workers are in none."""

    __slots__ = ("claimable", "free", "total", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerView] = {}
        self.free = SlotIndex()
        self.claimable = SlotIndex()
        self.total = SlotIndex()

    def __repr__(self) -> str:
        return f"<Inventory {len(self.workers)} workers>"

    def seen(self, facts: WorkerFacts) -> WorkerView:
        """A registration. Returns the view of it."""
        view = self.workers.get(facts.id)
        if view is None or view.facts.epoch != facts.epoch:
            granted = view.granted if view is not None else 0
            view = self.workers[facts.id] = WorkerView(facts=facts, granted=granted)
        view.facts = facts
        view.draining = facts.draining
        view.silent = 0
        if facts.load is not None:
            view.ongoing = facts.load.ongoing
            view.draining = view.draining or facts.load.draining
        self._put(view)
        return view

    def gone(self, worker: WorkerId) -> None:
        if self.workers.pop(worker, None) is not None:
            for measure in (self.free, self.claimable, self.total):
                measure.discard(worker)

    def load(self, worker: WorkerId, load: Load) -> bool:
        """A worker reported how many slots are in use. True: there may be more room than before."""
        view = self.workers.get(worker)
        if view is None:
            return False
        before = view.free
        view.ongoing = load.ongoing
        if load.draining and not view.draining:
            view.draining = True
            self._put(view)
            return False
        self.free.set(worker, view.free)
        return view.free > before

    def charge(self, worker: WorkerId, slots: int) -> None:
        """`slots` were requested and are not answered yet; negative when they are."""
        view = self.workers.get(worker)
        if view is not None:
            view.charged = max(0, view.charged + slots)
            self.free.set(worker, view.free)

    def occupy(self, worker: WorkerId, slots: int) -> None:
        """`slots` more are in use (negative: fewer), until the worker's next report."""
        view = self.workers.get(worker)
        if view is not None:
            view.ongoing = max(0, view.ongoing + slots)
            self.free.set(worker, view.free)

    def held(self, worker: WorkerId, slots: int) -> None:
        """The charged slots are now in use: the worker accepted a hold."""
        view = self.workers.get(worker)
        if view is not None:
            view.charged = max(0, view.charged - slots)
            view.ongoing += slots
            self.free.set(worker, view.free)

    def grant(self, worker: WorkerId, slots: int) -> None:
        """`slots` more belong to members in the ledger; negative: fewer."""
        view = self.workers.get(worker)
        if view is not None:
            view.granted = max(0, view.granted + slots)
            self.claimable.set(worker, view.claimable)

    def _put(self, view: WorkerView) -> None:
        facts = view.facts
        if view.draining:
            for measure in (self.free, self.claimable, self.total):
                measure.discard(facts.id)
            return
        labels = dict(facts.labels)
        if facts.zone:
            labels.setdefault("zone", facts.zone)
        place = WorkerSpot(worker=facts.id, node=facts.node or f"worker {facts.id}", labels=labels)
        self.free.put(place, view.free)
        self.claimable.put(place, view.claimable)
        self.total.put(place, facts.total)
