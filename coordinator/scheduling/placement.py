"""Places the members of a gang. Pure; the cost grows with the gang, not with workers that it does not use.

Laws:

1. Every placement fits: no worker gets more than its measure allows, and every seat's worker has the seat's labels.
2. PACK and SPREAD are preferences: if there are seats at all, the gang is placed. STRICT_PACK puts every part 0 on one
   node, STRICT_SPREAD each on a separate node, or the gang is not placed.
3. The most demanding parts choose first (most labels, then most slots); a part that finds no room may move parts placed
   before it, along a chain. With equal slot costs the outcome is therefore exact (augmenting paths, as in Kuhn's
   matching); with unequal ones this is bin packing, solved by first fit in decreasing size.
4. Where first fit may be wrong, a bounded exact search follows it. That there is no placement is PROVEN only if that
   search ended, or was not needed.
5. The slot map stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple, assert_never

from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangSpec, Part, Strategy
from ...schemas.text import count_of
from .inventory import FilteredSlots, SlotEntry, SlotIndex

Shape = tuple[str, int, tuple[tuple[str, str], ...]]
"""(pool, slots, labels): parts of one shape are interchangeable."""

_NO_CHANGES: Mapping[WorkerId, int] = {}


class PlacementRequest(NamedTuple):
    """One part of one rank, looking for a worker."""

    rank: int
    part: int
    want: Part

    @property
    def shape(self) -> Shape:
        return (self.want.pool, self.want.slots, tuple(sorted(self.want.labels.items())))


class Assignment(NamedTuple):
    """The worker of one part of one rank."""

    rank: int
    part: int
    slots: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A worker for every seat, in order of rank and part."""

    seats: tuple[Assignment, ...]

    def by_worker(self) -> dict[WorkerId, list[Assignment]]:
        """Seats of each worker, in order of rank and part."""
        found: dict[WorkerId, list[Assignment]] = {}
        for seat in self.seats:
            found.setdefault(seat.worker, []).append(seat)
        return found

    def slots_by_worker(self) -> dict[WorkerId, int]:
        return {worker: sum(seat.slots for seat in seats) for worker, seats in self.by_worker().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlacement:
    """A placement not yet used: valid as long as no slots have changed."""

    placement: Placement
    slots: SlotIndex
    changes: int

    @classmethod
    def of(cls, spec: GangSpec, slots: SlotIndex) -> TrialPlacement | None:
        found = place(spec, slots)
        return None if found is None else cls(placement=found, slots=slots, changes=slots.changes)

    @property
    def still(self) -> Placement | None:
        """The placement; None if it is no longer valid."""
        return self.placement if self.slots.changes == self.changes else None


def wanted_of(spec: GangSpec) -> list[PlacementRequest]:
    return [
        PlacementRequest(rank=rank, part=part, want=want)
        for rank, parts in enumerate(spec.ranks)
        for part, want in enumerate(parts)
    ]


class NoPlacement(Enum):
    """What is known if no placement was found."""

    PROVEN = auto()
    """There is none."""
    UNDECIDED = auto()
    """There may be one: the search reached its bound."""


def place(
    spec: GangSpec,
    slots: SlotIndex,
    *,
    changes: Mapping[WorkerId, int] = _NO_CHANGES,
    only: Sequence[PlacementRequest] | None = None,
    taken_nodes: frozenset[str] = frozenset(),
    exact: bool = True,
) -> Placement | None:
    """Find a worker for every seat; None when no room was found (`lacks` says what is missing).

    Args:
        changes: by how many slots workers differ from the map, for this placement.
        only: place just these seats (a repair); `taken_nodes` are then the nodes of the part 0s that stay.
        exact: search when first fit finds nothing. False where many placements are tried and one less does no harm.
    """
    if exact:
        found = find(spec, slots, changes=changes, only=only, taken_nodes=taken_nodes)
        return found if isinstance(found, Placement) else None
    return _first_fit(spec, slots, changes, wanted_of(spec) if only is None else list(only), taken_nodes)


def find(
    spec: GangSpec,
    slots: SlotIndex,
    *,
    changes: Mapping[WorkerId, int] = _NO_CHANGES,
    only: Sequence[PlacementRequest] | None = None,
    taken_nodes: frozenset[str] = frozenset(),
) -> Placement | NoPlacement:
    """Like `place`, but says whether it is proven that there is no placement."""
    wanted = wanted_of(spec) if only is None else list(only)
    found = _first_fit(spec, slots, changes, wanted, taken_nodes)
    if found is not None:
        return found
    if _first_fit_is_exact(spec.strategy, wanted):
        return NoPlacement.PROVEN
    with slots.trial(changes):
        return _ExactSearch(spec.strategy, slots, wanted, taken_nodes).run()


def place_most(spec: GangSpec, slots: SlotIndex, *, changes: Mapping[WorkerId, int] = _NO_CHANGES) -> Placement | None:
    """Like `place`, with as many members as first fit finds room for, within the sizes of the spec. A binary search
    over the sizes."""
    least, most = spec.sizes
    best = place(spec.sized(least), slots, changes=changes)
    while best is not None and least < most:
        middle = (least + most + 1) // 2
        found = place(spec.sized(middle), slots, changes=changes, exact=False)
        if found is None:
            most = middle - 1
        else:
            least, best = middle, found
    return best


def _first_fit(
    spec: GangSpec,
    slots: SlotIndex,
    changes: Mapping[WorkerId, int],
    wanted: list[PlacementRequest],
    taken_nodes: frozenset[str],
) -> Placement | None:
    members = [item for item in wanted if item.part == 0]
    extras = [item for item in wanted if item.part > 0]
    with slots.trial(changes):
        table = _Table(slots)
        match spec.strategy:
            case Strategy.STRICT_PACK:
                table.strict = True
                placed = _on_one_node(table, members, taken_nodes)
            case Strategy.STRICT_SPREAD:
                table.strict = True
                placed = _on_distinct_nodes(table, members, taken_nodes)
            case Strategy.PACK:
                placed = _on_one_node(table, members, taken_nodes) or _each(table, members, _Packer(table))
            case Strategy.SPREAD:
                placed = _each(table, members, _Spreader(table, taken_nodes))
            case _:
                assert_never(spec.strategy)
        if placed and _each(table, extras, _Packer(table)):
            return Placement(seats=table.assignments(wanted))
    return None


_STRICT: Final = frozenset((Strategy.STRICT_PACK, Strategy.STRICT_SPREAD))


def _first_fit_is_exact(strategy: Strategy, wanted: list[PlacementRequest]) -> bool:
    """Whether first fit finds a placement whenever there is one."""
    if strategy is Strategy.STRICT_SPREAD:
        return all(item.part == 0 for item in wanted)
    if strategy is Strategy.STRICT_PACK:
        return len({(item.part > 0, item.shape) for item in wanted}) == 1 and wanted[0].part == 0
    return len({(item.want.pool, item.want.slots) for item in wanted}) == len({item.want.pool for item in wanted})


# -- seats taken so far ---------------------------------------------------------------------------------------------


class _Table:
    """Seats taken during one placement; taking changes the map, within the trial."""

    def __init__(self, slots: SlotIndex) -> None:
        self.slots = slots
        self.strict = False
        """The nodes of members matter, so a placed member stays where it is."""
        self._rooms: dict[int, FilteredSlots] = {}
        """Keyed by the identity of the part, which outlives this object: members of a bundle share it."""
        self.taken: dict[tuple[int, int], SlotEntry] = {}
        self.on: dict[SlotEntry, dict[tuple[int, int], PlacementRequest]] = {}

    def room(self, want: Part) -> FilteredSlots:
        room = self._rooms.get(id(want))
        if room is None:
            room = self._rooms[id(want)] = self.slots.filtered(want.pool, want.labels)
        return room

    def take(self, item: PlacementRequest, entry: SlotEntry) -> None:
        key = (item.rank, item.part)
        self.slots.change(entry, -item.want.slots)
        self.taken[key] = entry
        here = self.on.get(entry)
        if here is None:
            here = self.on[entry] = {}
        here[key] = item

    def give_back(self, item: PlacementRequest) -> None:
        key = (item.rank, item.part)
        entry = self.taken.pop(key)
        del self.on[entry][key]
        self.slots.change(entry, item.want.slots)

    def assignments(self, wanted: list[PlacementRequest]) -> tuple[Assignment, ...]:
        taken = self.taken
        return tuple(Assignment(rank, part, want.slots, taken[rank, part].place.worker) for rank, part, want in wanted)


def _demanding_first(items: list[PlacementRequest]) -> list[PlacementRequest]:
    """Among equals, by rank and part, as they come."""
    return sorted(items, key=lambda item: (-len(item.want.labels), -item.want.slots))


def _each(table: _Table, items: list[PlacementRequest], picker: _Packer | _Spreader) -> bool:
    for item in _demanding_first(items):
        entry = picker.pick(item.want)
        if entry is not None:
            table.take(item, entry)
        elif not _augment(table, item, set()):
            return False
    return True


def _augment(table: _Table, item: PlacementRequest, seen: set[SlotEntry]) -> bool:
    """Make room for `item` by moving seats of this gang; visits each worker once."""
    want = item.want
    for entry in [entry for entry, seats in table.on.items() if seats and entry not in seen]:
        if entry.place.worker.pool != want.pool or not entry.place.has(want.labels) or entry in seen:
            continue
        seen.add(entry)
        for other in list(table.on[entry].values()):
            if entry.slots + other.want.slots < want.slots:
                continue
            if other.shape == item.shape:
                continue  # it would fail like this one
            if table.strict and other.part == 0:
                continue
            table.give_back(other)
            table.take(item, entry)
            elsewhere = next((e for e in _candidates(table, other.want) if e is not entry), None)
            if elsewhere is not None:
                table.take(other, elsewhere)
                return True
            if _augment(table, other, seen):
                return True
            table.give_back(item)
            table.take(other, entry)
    return False


def _candidates(table: _Table, want: Part) -> Iterator[SlotEntry]:
    """Workers with room, fullest last."""
    many = len(want.labels) > 1
    for entry in table.room(want).workers.descending(want.slots):
        if not many or entry.place.has(want.labels):
            yield entry


def _best_of_node(room: FilteredSlots, node: str, want: Part) -> SlotEntry | None:
    members = room.nodes.get(node)
    if members is None:
        return None
    if len(want.labels) <= 1:
        return members.best(want.slots)  # every worker in that set has the labels
    return next((entry for entry in members.descending(want.slots) if entry.place.has(want.labels)), None)


# -- PACK -----------------------------------------------------------------------------------------------------------


class _Packer:
    """Stays on a node while it has room, then goes to the node with the most."""

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._nodes: dict[str, None] = {}  # used nodes that may have room left, in order of use
        self._exhausted: dict[tuple[str, str, int, str], None] = {}

    def pick(self, want: Part) -> SlotEntry | None:
        room = self._table.room(want)
        entry = self._on_used_node(room, want)
        if entry is None:
            for node in room.by_sum.descending(want.slots):
                entry = _best_of_node(room, node, want)
                if entry is not None:
                    break
        if entry is not None:
            self._nodes[entry.place.node] = None
        return entry

    def _on_used_node(self, room: FilteredSlots, want: Part) -> SlotEntry | None:
        labels = repr(sorted(want.labels.items()))
        for node in self._nodes:
            key = (node, want.pool, want.slots, labels)
            if key in self._exhausted:
                continue
            entry = _best_of_node(room, node, want)
            if entry is not None:
                return entry
            self._exhausted[key] = None  # room on a node never grows within one placement
        return None


def _on_one_node(table: _Table, members: list[PlacementRequest], taken_nodes: frozenset[str]) -> bool:
    """Place all on one node, the fullest that can hold them. Changes nothing if there is none."""
    items = _demanding_first(members)
    if not items:
        return True
    first = items[0]
    floor = sum(item.want.slots for item in items if item.shape == first.shape)
    for node in taken_nodes or table.room(first.want).by_sum.ascending(floor):
        found = _fit_node(table, node, items)
        if found is not None:
            for item, entry in found:
                table.take(item, entry)
            return True
    return False


def _fit_node(
    table: _Table, node: str, items: list[PlacementRequest]
) -> list[tuple[PlacementRequest, SlotEntry]] | None:
    """First fit by decreasing size on the workers of one node."""
    used: dict[SlotEntry, int] = {}
    found: list[tuple[PlacementRequest, SlotEntry]] = []
    for item in items:
        want = item.want
        members = table.room(want).nodes.get(node)
        for entry in members.descending(want.slots) if members is not None else ():
            taken = used.get(entry, 0) + want.slots
            if entry.slots < taken or not entry.place.has(want.labels):
                continue
            used[entry] = taken
            found.append((item, entry))
            break
        else:
            return None
    return found


# -- SPREAD ---------------------------------------------------------------------------------------------------------


class _Spreader:
    """Picks the node with the most room that the gang does not use yet; if there is none, the used node with the fewest
    members."""

    def __init__(self, table: _Table, taken_nodes: frozenset[str]) -> None:
        self._table = table
        self._count = dict.fromkeys(taken_nodes, 1)
        self._used: list[tuple[int, int, str]] = []  # heap of (members, order of use, node); may hold old counts
        self._order: dict[str, int] = {}

    def pick(self, want: Part) -> SlotEntry | None:
        room = self._table.room(want)
        entry = self._on_new_node(room, want) or self._on_used_node(room, want)
        if entry is not None:
            node = entry.place.node
            count = self._count[node] = self._count.get(node, 0) + 1
            heappush(self._used, (count, self._order.setdefault(node, len(self._order)), node))
        return entry

    def _on_new_node(self, room: FilteredSlots, want: Part) -> SlotEntry | None:
        if len(room.nodes) <= len(self._count) and room.nodes.keys() <= self._count.keys():
            return None  # every node is in use: do not walk over them for each seat
        for node in room.by_best.descending(want.slots):
            if node not in self._count:
                entry = _best_of_node(room, node, want)
                if entry is not None:
                    return entry
        return None

    def _on_used_node(self, room: FilteredSlots, want: Part) -> SlotEntry | None:
        full: list[tuple[int, int, str]] = []
        found = None
        while self._used:
            count, _, node = self._used[0]
            if count == self._count[node]:
                found = _best_of_node(room, node, want)
                if found is not None:
                    break
                full.append(self._used[0])  # for this part, but perhaps not for another
            heappop(self._used)
        for entry in full:
            heappush(self._used, entry)
        if found is None:
            for node in self._count:
                found = found or _best_of_node(room, node, want)
        return found


def _on_distinct_nodes(table: _Table, members: list[PlacementRequest], taken_nodes: frozenset[str]) -> bool:
    """Kuhn's matching of members to nodes. Each shape needs to consider only as many nodes as there are members: the
    others can take no more than that from it."""
    items = _demanding_first(members)
    options: dict[Shape, list[str]] = {}
    for item in items:
        if item.shape not in options:
            options[item.shape] = list(islice(_nodes_for(table, item.want, taken_nodes), len(items)))
    owner: dict[str, PlacementRequest] = {}

    def assign(item: PlacementRequest, seen: set[str]) -> bool:
        nodes = options[item.shape]
        free = next((node for node in nodes if node not in owner), None)
        if free is not None:
            owner[free] = item
            return True
        for node in nodes:
            if node in seen or owner[node].shape == item.shape:
                continue
            seen.add(node)
            if assign(owner[node], seen):
                owner[node] = item
                return True
        return False

    for item in items:
        if not assign(item, set()):
            return False
    for node, item in owner.items():
        entry = _best_of_node(table.room(item.want), node, item.want)
        assert entry is not None
        table.take(item, entry)
    return True


def _nodes_for(table: _Table, want: Part, taken_nodes: frozenset[str]) -> Iterator[str]:
    room = table.room(want)
    for node in room.by_best.descending(want.slots):
        if node not in taken_nodes and _best_of_node(room, node, want) is not None:
            yield node


# -- the exact search, where first fit may be wrong ------------------------------------------------------------------

_SEARCH_STEPS: Final = 10_000
"""Classes of workers looked at before a search ends undecided: some milliseconds."""
_SEARCHED_WORKERS: Final = 1_000
"""Workers with room, at most, among which is searched."""

_Kind = tuple[Shape, bool]
"""A shape, and whether it is bound to the strict strategy's node: requests of one kind are interchangeable."""
_Class = tuple[int, str, frozenset[_Kind], str]
"""(slots left, pool, kinds that may go there, node if it matters): workers of one class are interchangeable."""


class _ExactSearch:
    """Depth first over all placements, largest requests first, the fullest worker that fits first. Workers that are
    interchangeable are tried once, states that led nowhere are not entered again, and no more room is left unusable
    than there is to spare."""

    def __init__(
        self, strategy: Strategy, slots: SlotIndex, wanted: list[PlacementRequest], taken_nodes: frozenset[str]
    ) -> None:
        self._strategy = strategy
        self._slots = slots
        self._taken_nodes = taken_nodes
        self._wanted = wanted
        self._kinds = {(item.rank, item.part): self._kind(item) for item in wanted}
        self._items = sorted(wanted, key=lambda item: (-item.want.slots, self._kinds[item.rank, item.part]))
        self._needs: dict[str, int] = {}
        """By pool: slots that all together need."""
        self._least: dict[str, int] = {}
        """By pool: the smallest request. Less than that on a worker is of no use."""
        for item in self._items:
            pool = item.want.pool
            self._needs[pool] = self._needs.get(pool, 0) + item.want.slots
            self._least[pool] = item.want.slots
        self._steps = 0
        self._classes: dict[_Class, list[SlotEntry]] = {}
        self._spare: dict[str, int] = {}
        self._used_nodes: set[str] = set()
        self._failed: set[object] = set()

    def _kind(self, item: PlacementRequest) -> _Kind:
        return item.shape, self._strategy in _STRICT and item.part == 0

    def run(self) -> Placement | NoPlacement:
        entries = self._entries()
        if isinstance(entries, NoPlacement):
            return entries
        homes: Sequence[str] = ("",)
        if self._strategy is Strategy.STRICT_PACK and any(item.part == 0 for item in self._items):
            homes = sorted(self._taken_nodes or filter(self._holds_members, {entry.place.node for entry in entries}))
        for home in homes:
            found = self._search(entries, home)
            if found is not NoPlacement.PROVEN:
                return found
        return NoPlacement.PROVEN

    def _holds_members(self, node: str) -> bool:
        """Whether the node has as many slots as all members together need."""
        needs: dict[str, int] = {}
        for item in self._items:
            if item.part == 0:
                needs[item.want.pool] = needs.get(item.want.pool, 0) + item.want.slots
        return all(self._slots.filtered(pool, {}).by_sum.get(node) >= need for pool, need in needs.items())

    def _entries(self) -> list[SlotEntry] | NoPlacement:
        """The workers with room for any request."""
        needs: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        for item in self._items:
            pool, slots, labels = item.shape
            needs[pool, labels] = needs.get((pool, labels), 0) + slots
            if self._slots.filtered(pool, item.want.labels).workers.top < slots:
                return NoPlacement.PROVEN
        for (pool, labels), need in needs.items():
            if self._slots.filtered(pool, dict(labels)).sum < need:
                return NoPlacement.PROVEN
        found: list[SlotEntry] = []
        for pool, least in self._least.items():
            room = self._slots.filtered(pool, {})
            if room.sum < self._needs[pool]:
                return NoPlacement.PROVEN
            found += islice(room.workers.descending(least), _SEARCHED_WORKERS + 1)
        return NoPlacement.UNDECIDED if len(found) > _SEARCHED_WORKERS else found

    def _search(self, entries: list[SlotEntry], home: str) -> Placement | NoPlacement:
        """Members of a strict pack go to the node `home`."""
        self._begin(entries, home)
        if min(self._spare.values()) < 0:
            return NoPlacement.PROVEN
        taken: list[tuple[_Class, _Class, SlotEntry]] = []
        choices = [iter(self._choices(self._items[0]))]
        states: list[object] = [None]
        while choices:
            chosen = next(choices[-1], None)
            if self._steps > _SEARCH_STEPS:
                return NoPlacement.UNDECIDED
            if chosen is None:
                choices.pop()
                self._failed.add(states.pop())
                if taken:
                    self._give_back(self._items[len(taken) - 1], *taken.pop())
                continue
            item = self._items[len(taken)]
            taken.append(self._take(item, chosen))
            if len(taken) == len(self._items):
                return self._placement([entry for _, _, entry in taken])
            state = self._state(len(taken))
            if self._spare[item.want.pool] < 0 or state in self._failed:
                self._give_back(item, *taken.pop())
                continue
            choices.append(iter(self._choices(self._items[len(taken)])))
            states.append(state)
        return NoPlacement.PROVEN

    def _begin(self, entries: list[SlotEntry], home: str) -> None:
        self._classes, self._failed, self._used_nodes = {}, set(), set(self._taken_nodes)
        self._spare = {pool: -need for pool, need in self._needs.items()}
        self._steps += len(entries)
        kinds = {self._kinds[item.rank, item.part]: item for item in self._items}
        for entry in entries:
            pool, node = entry.place.worker.pool, entry.place.node
            fits = frozenset(
                kind
                for kind, item in kinds.items()
                if item.want.pool == pool
                and entry.place.has(item.want.labels)
                and not (kind[1] and self._strategy is Strategy.STRICT_PACK and node != home)
            )
            if fits:
                self._spare[pool] += entry.slots
                where = node if self._strategy is Strategy.STRICT_SPREAD else ""
                self._classes.setdefault((entry.slots, pool, fits, where), []).append(entry)

    def _choices(self, item: PlacementRequest) -> list[_Class]:
        """Where it can go, the fullest first."""
        kind, want = self._kinds[item.rank, item.part], item.want
        self._steps += len(self._classes)
        apart = kind[1] and self._strategy is Strategy.STRICT_SPREAD
        found = [
            here
            for here, entries in self._classes.items()
            if entries and here[0] >= want.slots and kind in here[2] and not (apart and here[3] in self._used_nodes)
        ]
        found.sort(key=lambda here: here[0])
        return found

    def _take(self, item: PlacementRequest, here: _Class) -> tuple[_Class, _Class, SlotEntry]:
        left = here[0] - item.want.slots
        after = (left, *here[1:])
        entry = self._classes[here].pop()
        if not self._classes[here]:
            del self._classes[here]
        self._classes.setdefault(after, []).append(entry)
        if left < self._least[here[1]]:
            self._spare[here[1]] -= left
        if self._kinds[item.rank, item.part][1]:
            self._used_nodes.add(here[3])
        return here, after, entry

    def _give_back(self, item: PlacementRequest, here: _Class, after: _Class, entry: SlotEntry) -> None:
        self._classes[after].remove(entry)
        if not self._classes[after]:
            del self._classes[after]
        self._classes.setdefault(here, []).append(entry)
        if after[0] < self._least[here[1]]:
            self._spare[here[1]] += after[0]
        if self._kinds[item.rank, item.part][1]:
            self._used_nodes.discard(here[3])

    def _state(self, position: int) -> object:
        self._steps += len(self._classes)
        classes = frozenset((here, len(entries)) for here, entries in self._classes.items())
        nodes = frozenset(self._used_nodes) if self._strategy is Strategy.STRICT_SPREAD else None
        return position, classes, nodes

    def _placement(self, entries: list[SlotEntry]) -> Placement:
        where = {(item.rank, item.part): entry for item, entry in zip(self._items, entries, strict=True)}
        return Placement(
            seats=tuple(
                Assignment(rank, part, want.slots, where[rank, part].place.worker) for rank, part, want in self._wanted
            )
        )


# -- why a gang cannot be placed: for people, so it may look at every worker of the pools in question ----------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A requirement of a gang that cannot be met."""

    pool: str
    labels: Mapping[str, str]
    wanted: int
    """Slots, or nodes for the strict strategies."""
    there: int
    text: str
    """One sentence for people."""


def lacks(
    spec: GangSpec,
    slots: SlotIndex,
    *,
    changes: Mapping[WorkerId, int] = _NO_CHANGES,
) -> tuple[Shortage, ...]:
    """What is missing if `place` found nothing. Looks at every worker of the pools in question: for people."""
    wanted = wanted_of(spec)
    with slots.trial(changes):
        missing = tuple(_lacks(spec, slots, wanted))
    if missing:
        return missing
    first, how = wanted[0].want, f"all {spec.size} together as {spec.strategy.value} asks"
    if find(spec, slots, changes=changes) is NoPlacement.UNDECIDED:
        text = f"each member alone would fit; no room was found for {how}, but not every combination was tried"
    else:
        text = f"each member alone would fit, but not {how}"
    return (Shortage(pool=first.pool, labels=first.labels, wanted=spec.size, there=0, text=text),)


def _lacks(spec: GangSpec, slots: SlotIndex, wanted: list[PlacementRequest]) -> Iterator[Shortage]:
    """What is missing: one item for each shape that does not fit on its own; if each would, one for each pool that is
    too small for all together."""
    shapes: dict[Shape, list[PlacementRequest]] = {}
    for item in wanted:
        shapes.setdefault(item.shape, []).append(item)
    found = False
    pools: dict[str, int] = {}
    for items in shapes.values():
        want = items[0].want
        pools[want.pool] = pools.get(want.pool, 0) + want.slots * len(items)
        lack = _lack_of_shape(spec, slots, items)
        if lack is not None:
            found = True
            yield lack
    if found:
        return
    for pool, need in pools.items():
        there = slots.filtered(pool, {}).sum
        if there < need:
            text = f"pool {pool!r} has {count_of(there, 'slot')} for the {need} that all members together need"
            yield Shortage(pool=pool, labels={}, wanted=need, there=there, text=text)


def _lack_of_shape(spec: GangSpec, slots: SlotIndex, items: list[PlacementRequest]) -> Shortage | None:
    want, count = items[0].want, len(items)
    room = slots.filtered(want.pool, want.labels)
    which = f"pool {want.pool!r}" + (f" with {_said(want.labels)}" if want.labels else "")

    def lack(wanted: int, there: int, text: str) -> Shortage:
        return Shortage(pool=want.pool, labels=want.labels, wanted=wanted, there=there, text=text)

    if not slots.filtered(want.pool, {}).workers:
        return lack(count * want.slots, 0, f"pool {want.pool!r} has no worker")
    fitting = [entry.place.worker for entry in room.workers.descending(1) if entry.place.has(want.labels)]
    if not fitting and not any(entry.place.has(want.labels) for entry in room.workers.descending(0)):
        return lack(count * want.slots, 0, f"no worker of {which}")
    members = max(slots.get(worker) // want.slots for worker in fitting) if fitting else 0
    if members == 0 and fitting:
        best = max(slots.get(worker) for worker in fitting)
        text = f"no worker of {which} has {count_of(want.slots, 'slot')} at once: the most is {best}"
        return lack(want.slots, best, text)
    units = sum(slots.get(worker) // want.slots for worker in fitting)
    if units < count:
        text = f"{which} has room for {units} of {count} members of {count_of(want.slots, 'slot')}"
        return lack(count * want.slots, units * want.slots, text)
    if items[0].part:
        return None
    if spec.strategy is Strategy.STRICT_SPREAD:
        nodes = len({slots.place_of(worker).node for worker in fitting if slots.get(worker) >= want.slots})
        if nodes < count:
            return lack(count, nodes, f"{which} has room on {count_of(nodes, 'node')}, strict_spread needs {count}")
    if spec.strategy is Strategy.STRICT_PACK:
        by_node: dict[str, int] = {}
        for worker in fitting:
            node = slots.place_of(worker).node
            by_node[node] = by_node.get(node, 0) + slots.get(worker) // want.slots
        best = max(by_node.values())
        if best < count:
            shape = f"{count_of(count, 'member')} of {count_of(want.slots, 'slot')}"
            text = f"no node of {which} has room for {shape}: the most is {best}"
            return lack(count * want.slots, best * want.slots, text)
    return None


def _said(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
