from __future__ import annotations

from gangline.coordinator.model.gang import ManagedGang
from gangline.coordinator.scheduling.inventory import Inventory, WorkerFacts
from gangline.coordinator.scheduling.queue import GangQueue, guard, lower_than, still_good, target_of, victims
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangSpec, Seat
from gangline.schemas.wire.frames import Load


def inventory_of(*workers: tuple[int, int]) -> Inventory:
    """(slots, in use) of each."""
    inventory = Inventory()
    for number, (total, ongoing) in enumerate(workers):
        facts = WorkerFacts(
            id=WorkerId("p", f"w{number}"),
            epoch=1,
            revision=1,
            total=total,
            load=Load(ongoing, 0, total),
            node=f"n{number}",
        )
        inventory.seen(facts)
    return inventory


def spec(size: int, **more: object) -> GangSpec:
    return GangSpec.model_validate({"pool": "p", "size": size, **more})


def gang_on(name: str, worker: int, slots: int, **more: object) -> ManagedGang:
    gang = ManagedGang(id=name, spec=spec(1, slots=slots, **more), owner_id="~t", created_at=0.0, queued_at=0.0)
    gang.seats = (Seat(rank=0, pool="p", worker=f"w{worker}", slots=slots, token=name, epoch=1),)
    return gang


W0, W1 = WorkerId("p", "w0"), WorkerId("p", "w1")


def test_priority_then_age_then_name():
    queue = GangQueue()
    for name, priority, created_at in [("c", 0, 2.0), ("b", 0, 1.0), ("a", 0, 2.0), ("d", 5, 9.0)]:
        queue.add(name, priority=priority, created_at=created_at)
    assert list(queue) == ["d", "b", "a", "c"]
    assert [queue.place_of(name) for name in "dbacx"] == [0, 1, 2, 3, None]
    queue.discard("b")
    queue.discard("b")
    assert (list(queue), len(queue), queue.at(1)) == (["d", "a", "c"], 3, "a")


def test_the_target_is_where_only_plain_traffic_is_in_the_way():
    inventory = inventory_of((2, 2), (2, 2))
    inventory.grant(W0, 2)
    target = target_of(spec(2), inventory)
    assert (dict(target.slots), target.waits_for_gangs) == ({W1: 2}, False)
    assert target_of(spec(4), inventory).waits_for_gangs
    assert not target_of(spec(5), inventory).slots


def test_a_target_is_kept_while_it_is_possible():
    inventory = inventory_of((2, 2), (2, 2))
    target = target_of(spec(2), inventory)
    assert still_good(spec(2), target, inventory)
    [worker] = target.slots
    inventory.grant(worker, 1)
    assert not still_good(spec(2), target, inventory)


def test_a_target_that_waits_for_gangs_is_left_for_one_that_does_not():
    inventory = inventory_of((2, 2))
    inventory.grant(W0, 2)
    target = target_of(spec(2), inventory)
    assert still_good(spec(2), target, inventory)
    inventory.seen(WorkerFacts(id=W1, epoch=1, revision=1, total=2, load=Load(2, 0, 2)))
    assert not still_good(spec(2), target, inventory)


def test_the_guard_covers_the_whole_need_of_the_head():
    assert guard({W0: 2}) == {W0: -2}


def test_victims_are_the_lowest_and_youngest_and_no_more_than_needed():
    inventory = inventory_of((1, 1), (2, 2))
    for worker, slots in [(W0, 1), (W1, 2)]:
        inventory.grant(worker, slots)
    low, lower = gang_on("low", 1, 2, priority=1), gang_on("lower", 0, 1, priority=0)
    asking = ManagedGang(id="x", spec=spec(2, priority=5), owner_id="~t", created_at=0.0, queued_at=0.0)
    found = victims(asking, lower_than(asking, [low, lower]), inventory)
    assert found is not None
    assert ([gang.id for gang in found[0]], dict(found[1].slots)) == (["low"], {W1: 2})


def test_nobody_is_preempted_in_vain_or_by_an_equal():
    inventory = inventory_of((1, 1))
    equal = gang_on("equal", 0, 1, priority=5)
    asking = ManagedGang(id="x", spec=spec(1, priority=5), owner_id="~t", created_at=0.0, queued_at=0.0)
    assert victims(asking, lower_than(asking, [equal]), inventory) is None
    big = ManagedGang(id="y", spec=spec(2, priority=9), owner_id="~t", created_at=0.0, queued_at=0.0)
    assert victims(big, lower_than(big, [equal]), inventory) is None
