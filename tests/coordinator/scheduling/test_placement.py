from __future__ import annotations

from itertools import permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.coordinator.scheduling import placement
from gangline.coordinator.scheduling.inventory import SlotIndex, WorkerSpot
from gangline.coordinator.scheduling.placement import (
    NoPlacement,
    Placement,
    TrialPlacement,
    find,
    lacks,
    place,
    wanted_of,
)
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangSpec, Strategy

from ...scale import repetitions
from ...support.rows import in_rows
from ...work import lines_run


def slots_of(*workers: tuple[str, str, int], labels: dict[str, dict[str, str]] | None = None) -> SlotIndex:
    """(name, node, slots); a name may be POOL.WORKER."""
    found = SlotIndex()
    for name, node, slots in workers:
        worker = WorkerId.parse(name) if "." in name else WorkerId("p", name)
        found.put(WorkerSpot(worker=worker, node=node, labels=(labels or {}).get(name, {})), slots)
    return found


def spec(size: int = 2, **more: object) -> GangSpec:
    fields = more if "bundles" in more else {"pool": "p", "size": size, **more}
    return GangSpec.model_validate(fields)


def workers_of(placement) -> list[str]:
    return [seat.worker.worker for seat in placement.seats]


def test_pack_uses_the_fullest_node_that_holds_all():
    slots = slots_of(("a", "n1", 8), ("b", "n2", 3), ("c", "n3", 2))
    assert workers_of(place(spec(3, strategy="pack"), slots)) == ["b", "b", "b"]


def test_pack_goes_over_as_few_nodes_as_it_can():
    slots = slots_of(("a", "n1", 1), ("b", "n2", 3), ("c", "n3", 2))
    assert sorted(workers_of(place(spec(5, strategy="pack"), slots))) == ["b", "b", "b", "c", "c"]


def test_spread_goes_over_all_nodes_evenly_and_then_doubles_up():
    slots = slots_of(("a", "n1", 4), ("b", "n2", 4), ("c", "n3", 4))
    assert sorted(workers_of(place(spec(5, strategy="spread"), slots))) == ["a", "a", "b", "b", "c"]


def test_spread_is_a_wish():
    assert workers_of(place(spec(3, strategy="spread"), slots_of(("a", "n1", 3)))) == ["a", "a", "a"]


def test_strict_pack_uses_several_workers_of_one_node_and_never_two_nodes():
    slots = slots_of(("a", "n1", 2), ("b", "n1", 2), ("c", "n2", 3))
    assert sorted(workers_of(place(spec(4, strategy="strict_pack"), slots))) == ["a", "a", "b", "b"]
    assert place(spec(5, strategy="strict_pack"), slots) is None


def test_strict_spread_needs_a_node_for_each_member():
    slots = slots_of(("a", "n1", 4), ("b", "n1", 4), ("c", "n2", 4))
    assert place(spec(3, strategy="strict_spread"), slots) is None
    assert len({seat.worker.worker for seat in place(spec(2, strategy="strict_spread"), slots).seats}) == 2


def test_strict_spread_over_two_pools_finds_the_only_matching():
    slots = slots_of(("pre.a", "n1", 1), ("pre.b", "n2", 1), ("dec.a", "n1", 1))
    asked = spec(strategy="strict_spread", bundles=[{"pool": "pre"}, {"pool": "dec"}])
    assert [str(seat.worker) for seat in place(asked, slots).seats] == ["pre.b", "dec.a"]


def test_a_member_may_have_parts_on_workers_of_other_pools():
    slots = slots_of(("cpu.a", "n1", 2), ("lic.s", "n9", 5))
    asked = spec(bundles=[{"pool": "cpu", "count": 2, "extras": [{"pool": "lic", "slots": 2}]}])
    found = place(asked, slots)
    assert [(seat.rank, seat.part, str(seat.worker), seat.slots) for seat in found.seats] == [
        (0, 0, "cpu.a", 1),
        (0, 1, "lic.s", 2),
        (1, 0, "cpu.a", 1),
        (1, 1, "lic.s", 2),
    ]
    more = spec(bundles=[{"pool": "cpu", "count": 2, "extras": [{"pool": "lic", "slots": 3}]}])
    assert place(more, slots) is None
    assert "pool 'lic' has room for 1 of 2" in lacks(more, slots)[0].text


def test_labels_and_the_zone_restrict_where_members_go():
    labels = {"a": {"gpu": "a100", "zone": "x"}, "b": {"gpu": "a100", "zone": "y"}, "c": {"gpu": "h100", "zone": "y"}}
    slots = slots_of(("a", "n1", 2), ("b", "n2", 2), ("c", "n3", 2), labels=labels)
    assert workers_of(place(spec(2, labels={"gpu": "a100", "zone": "y"}), slots)) == ["b", "b"]
    assert place(spec(3, labels={"gpu": "a100", "zone": "y"}), slots) is None
    assert place(spec(1, labels={"gpu": "v100"}), slots) is None


def test_a_member_without_wishes_makes_room_for_one_with_crossed_wishes():
    labels = {"a": {"x": "1", "y": "1"}, "b": {"x": "1"}}
    slots = slots_of(("a", "n1", 1), ("b", "n2", 1), labels=labels)
    asked = spec(bundles=[{"pool": "p", "labels": {"x": "1"}}, {"pool": "p", "labels": {"y": "1"}}], strategy="spread")
    assert workers_of(place(asked, slots)) == ["b", "a"]


@in_rows("strategy", list(Strategy))
def test_placing_leaves_the_slots_as_they_were(strategy):
    slots = slots_of(("a", "n1", 2), ("b", "n2", 1))
    for size in (1, 2, 3, 4):
        place(spec(size, strategy=strategy), slots, changes={WorkerId("p", "a"): 1})
        assert (slots.get(WorkerId("p", "a")), slots.get(WorkerId("p", "b"))) == (2, 1)


@in_rows(
    ("asked", "said"),
    [
        (spec(2, pool="nope"), "pool 'nope' has no worker"),
        (spec(9), "room for 5 of 9 members of 1 slot"),
        (spec(1, slots=4), "no worker of pool 'p' has 4 slots at once: the most is 3"),
        (spec(1, labels={"gpu": "x"}), "no worker of pool 'p' with gpu=x"),
        (spec(3, strategy="strict_spread"), "room on 2 nodes, strict_spread needs 3"),
        (spec(4, strategy="strict_pack"), "no node of pool 'p' has room for 4 members of 1 slot: the most is 3"),
    ],
)
def test_it_says_what_is_missing(asked, said):
    slots = slots_of(("a", "n1", 3), ("b", "n2", 2))
    assert place(asked, slots) is None
    assert said in lacks(asked, slots)[0].text


def test_together_too_many_is_said_of_the_pool():
    asked = spec(bundles=[{"pool": "p", "count": 3}, {"pool": "p", "slots": 2, "count": 2}])
    slots = slots_of(("a", "n1", 4), ("b", "n2", 2))
    assert "has 6 slots for the 7" in lacks(asked, slots)[0].text


SLOTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=1, max_size=5)
BUNDLES = st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=3)


@given(workers=SLOTS, bundles=BUNDLES, strategy=st.sampled_from(list(Strategy)))
@settings(max_examples=repetitions(15, whole=settings().max_examples))
def test_what_is_placed_is_right_and_what_is_not_cannot_be(workers, bundles, strategy):
    """With one slot for each member it is exact: checked against every possible assignment."""
    slots = SlotIndex()
    nodes: dict[WorkerId, str] = {}
    for number, (node, count, marked) in enumerate(workers):
        worker = WorkerId("p", f"w{number}")
        nodes[worker] = f"n{node}"
        slots.put(WorkerSpot(worker=worker, node=f"n{node}", labels={"m": "1"} if marked else {}), count)
    asked = spec(
        bundles=[{"pool": "p", "count": count, "labels": {"m": "1"} if marked else {}} for count, marked in bundles],
        strategy=strategy,
    )
    wanted = wanted_of(asked)

    def right(where: tuple[WorkerId, ...]) -> bool:
        if any(where.count(worker) > slots.get(worker) for worker in where):
            return False
        if not all(slots.place_of(w).has(item.want.labels) for w, item in zip(where, wanted, strict=True)):
            return False
        used = [nodes[worker] for worker in where]
        if strategy is Strategy.STRICT_PACK:
            return len(set(used)) == 1
        return strategy is not Strategy.STRICT_SPREAD or len(set(used)) == len(used)

    found = place(asked, slots)
    if found is not None:
        assert right(tuple(seat.worker for seat in found.seats))
    else:
        assert not any(right(where) for where in product(nodes, repeat=len(wanted)))
        assert lacks(asked, slots)


PART = st.tuples(st.sampled_from("pq"), st.integers(1, 4), st.booleans())
MEMBERS = st.lists(st.tuples(PART, st.none() | PART), min_size=1, max_size=4)
ROOM = st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 2), st.integers(0, 6), st.booleans()), max_size=4)


@given(workers=ROOM, members=MEMBERS, strategy=st.sampled_from(list(Strategy)))
@settings(max_examples=repetitions(40, whole=10 * settings().max_examples))
def test_members_of_different_sizes_are_placed_whenever_there_is_a_placement(workers, members, strategy):
    """With extras and labels, checked against every possible assignment."""
    slots = SlotIndex()
    for number, (pool, node, count, marked) in enumerate(workers):
        spot = WorkerSpot(worker=WorkerId(pool, f"w{number}"), node=f"n{node}", labels={"m": "1"} if marked else {})
        slots.put(spot, count)
    ids = [WorkerId(pool, f"w{number}") for number, (pool, *_) in enumerate(workers)]

    def part(pool: str, count: int, marked: bool) -> dict[str, object]:
        return {"pool": pool, "slots": count, "labels": {"m": "1"} if marked else {}}

    bundles = [part(*own) | ({"extras": [part(*extra)]} if extra else {}) for own, extra in members]
    asked = spec(bundles=bundles, strategy=strategy)
    wanted = wanted_of(asked)

    def right(where: tuple[WorkerId, ...]) -> bool:
        left = {worker: slots.get(worker) for worker in ids}
        for worker, (_, _, want) in zip(where, wanted, strict=True):
            left[worker] -= want.slots
            if left[worker] < 0 or worker.pool != want.pool or not slots.place_of(worker).has(want.labels):
                return False
        own = [slots.place_of(worker).node for worker, item in zip(where, wanted, strict=True) if item.part == 0]
        if strategy is Strategy.STRICT_PACK:
            return len(set(own)) == 1
        return strategy is not Strategy.STRICT_SPREAD or len(set(own)) == len(own)

    found = find(asked, slots)
    if isinstance(found, Placement):
        assert [(seat.rank, seat.part) for seat in found.seats] == [(item.rank, item.part) for item in wanted]
        assert right(tuple(seat.worker for seat in found.seats))
    else:
        assert found is NoPlacement.PROVEN
        options = [[worker for worker in ids if worker.pool == item.want.pool] for item in wanted]
        assert not any(right(where) for where in product(*options))
        assert lacks(asked, slots)


@in_rows("strategy", [Strategy.PACK, Strategy.SPREAD])
def test_a_gang_that_needs_every_slot_is_placed(strategy):
    """Workers of random sizes, each filled exactly by members of random sizes."""
    random = Random(strategy.value)
    for _ in range(repetitions(60, whole=600)):
        sizes = [random.choice((8, 12, 16)) for _ in range(random.randint(2, 6))]
        parts: list[int] = []
        for size in sizes:
            while size:
                part = random.randint(min(size, 3), size)
                parts.append(part)
                size -= part
        random.shuffle(parts)
        slots = slots_of(*((f"w{number}", f"n{number}", size) for number, size in enumerate(sizes)))
        asked = spec(bundles=[{"pool": "p", "slots": part} for part in parts], strategy=strategy)
        assert place(asked, slots) is not None, (sizes, parts)


def test_members_are_not_moved_off_their_node_for_an_extra():
    labels = {"a": {"disk": "1"}}
    slots = slots_of(("a", "n1", 2), ("b", "n2", 1), labels=labels)
    member = {"pool": "p", "extras": [{"pool": "p", "labels": {"disk": "1"}}]}
    asked = spec(bundles=[member, {"pool": "p"}], strategy="strict_pack")
    assert find(asked, slots) is NoPlacement.PROVEN


def test_a_search_that_reached_its_bound_proves_nothing(monkeypatch: pytest.MonkeyPatch):
    slots = slots_of(("a", "n1", 8), ("b", "n2", 16), ("c", "n3", 16))
    asked = spec(bundles=[{"pool": "p", "slots": part} for part in (3, 5, 7, 4, 9, 12)], strategy="spread")
    monkeypatch.setattr(placement, "_SEARCH_STEPS", 0)
    assert find(asked, slots) is NoPlacement.UNDECIDED
    assert "not every combination was tried" in lacks(asked, slots)[0].text
    monkeypatch.undo()
    assert isinstance(find(asked, slots), Placement)


CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.booleans()), max_size=12)


@given(changes=CHANGES)
@settings(max_examples=repetitions(15, whole=settings().max_examples))
def test_changes_count_at_once_and_in_the_order_when_somebody_looks(changes):
    """A map that nobody looked at in between finds what one finds that was made so."""
    noted = slots_of(("a", "n1", 1), ("b", "n1", 2), ("c", "n2", 3))
    now = {"a": 1, "b": 2, "c": 3}
    for name, slots, look in changes:
        noted.set(WorkerId("p", name), slots)
        now[name] = slots
        assert noted.get(WorkerId("p", name)) == slots
        if look:
            place(spec(2), noted)
    assert noted.filtered("p", {}).sum == sum(now.values())
    made = slots_of(*((name, "n2" if name == "c" else "n1", slots) for name, slots in now.items()))
    for size, strategy in product(range(1, 7), Strategy):
        asked = spec(size, strategy=strategy)
        assert (place(asked, noted) is None) == (place(asked, made) is None)


def test_many_changes_do_not_wait_for_whoever_looks_next():
    slots = slots_of(*((f"w{number}", f"n{number}", 8) for number in range(1_000)))
    for number in range(1_000):
        slots.set(WorkerId("p", f"w{number}"), 0)
    assert len(slots._noted) <= 64
    assert place(spec(1), slots) is None


def test_a_placement_is_good_until_slots_change():
    slots = slots_of(("a", "n1", 2), ("b", "n2", 2))
    fit = TrialPlacement.of(spec(2), slots)
    assert fit is not None and fit.still == fit.placement
    slots.set(WorkerId("p", "a"), 2)
    assert fit.still is not None, "that changed nothing"
    slots.set(WorkerId("p", "a"), 1)
    assert fit.still is None
    gone = TrialPlacement.of(spec(2), slots)
    slots.discard(WorkerId("p", "b"))
    assert gone is not None and gone.still is None
    assert TrialPlacement.of(spec(2), slots) is None


@in_rows("strategy", list(Strategy))
def test_the_cost_does_not_grow_with_workers_that_are_not_used(strategy):
    asked = spec(8, strategy=strategy)

    def cost(workers: int) -> int:
        slots = slots_of(*((f"w{number}", f"n{number}", 8) for number in range(workers)))
        assert place(asked, slots) is not None  # sorts them, once
        return lines_run(lambda: place(asked, slots))

    assert cost(repetitions(1_000, whole=10_000)) <= 1.2 * cost(10)


def test_the_order_in_which_workers_came_does_not_decide_whether_there_is_room():
    for order in permutations([("a", "n1", 1), ("b", "n1", 2), ("c", "n2", 3)]):
        assert place(spec(3, strategy="strict_pack"), slots_of(*order)) is not None
