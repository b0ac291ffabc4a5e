from __future__ import annotations

import pytest

from .world import World, world_of


def formed(world: World) -> list[str]:
    return sorted(gang for gang, step in world.states().items() if step == "formed")


def test_a_set_is_kept_up_and_scaled_by_whole_gangs():
    world = world_of(1, 1, 1, 1, 1, 1)
    world.declare("s", 3)
    world.flush()
    assert formed(world) == ["s-1-1", "s-1-2", "s-1-3"]
    world.declare("s", 1)
    world.advance(2.0)
    assert len(formed(world)) == 1
    assert len(world.ledger.members()) == 2
    world.undeclare("s")
    world.advance(2.0)
    assert world.states() == {}


def test_a_gang_of_a_set_that_crashes_comes_back_and_the_others_are_not_touched():
    world = world_of(1, 1, 1, 1)
    world.declare("s", 2)
    world.flush()
    holder = next(worker for worker in world.workers.values() if "s-1-1" in worker.members)
    world.report(holder, "s-1-1")
    world.advance(1.0)
    assert formed(world) == ["s-1-1", "s-1-2"]
    assert world.core.get("s-1-1").generation == 2
    assert world.kinds("s-1-2") == ["queued", "formed", "ready"]


def test_a_new_template_rolls_gang_by_gang_with_never_fewer_formed():
    world = world_of(1, 1, 1, 1, 1, 1)
    world.declare("s", 2)
    world.flush()
    world.declare("s", 2, priority=1)
    fewest, most = 9, 0
    for _ in range(100):
        world.advance(0.05)
        states = list(world.states().values())
        serving = states.count("formed")
        fewest, most = min(fewest, serving), max(most, serving + states.count("retiring"))
    assert formed(world) == ["s-1-3", "s-1-4"]
    assert fewest == 2
    assert most <= 3


def test_without_room_for_a_surge_a_set_can_roll_one_down_first():
    world = world_of(1, 1, 1, 1)
    world.declare("s", 2)
    world.flush()
    world.declare("s", 2, priority=1, surge=0)
    fewest = 9
    for _ in range(100):
        world.advance(0.05)
        fewest = min(fewest, list(world.states().values()).count("formed"))
    assert formed(world) == ["s-1-3", "s-1-4"]
    assert fewest == 1


def test_a_new_leader_goes_on_with_the_sets():
    world = world_of(1, 1, 1, 1)
    world.declare("s", 2)
    world.flush()
    world.elect()
    world.advance(3.0)
    assert formed(world) == ["s-1-1", "s-1-2"]
    world.ledger.keys.pop("gangset.s")
    world.elect()
    world.advance(3.0)
    assert world.states() == {}


# -- surge without room -----------------------------------------------------------------------------------------------


def test_a_replacement_without_room_waits_beside_the_old_gang_and_then_comes_in_its_place():
    world = world_of(1, 1)
    world.declare("s", 1)
    world.flush()
    world.declare("s", 1, priority=1, surge_wait_s=2.0)
    world.advance(1.9)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued"}
    world.advance(0.2)
    assert world.states()["s-1-1"] == "retiring"
    world.advance(1.0)
    assert world.states() == {"s-1-2": "formed"}


def test_a_replacement_that_waits_beside_the_old_gang_holds_nobody_up():
    world = world_of(1, 1, 1)
    world.declare("s", 1)
    world.flush()
    world.declare("s", 1, priority=1, surge_wait_s=3600.0)
    world.flush()
    world.acquire("later", 1, ttl_s=1000.0)
    world.flush()
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued", "later": "formed"}
    world.release("later")
    world.advance(60.0)
    assert not any(worker.to_keep or worker.kept for worker in world.workers.values())
    world.acquire("last", 1, ttl_s=1000.0)
    world.flush()
    assert world.states()["last"] == "formed"


def test_a_replacement_that_waits_beside_the_old_gang_takes_room_that_comes():
    world = world_of(1, 1)
    world.declare("s", 1)
    world.flush()
    world.declare("s", 1, priority=1, surge_wait_s=10.0)
    world.advance(1.0)
    world.add_worker("w8", 2)
    world.flush()
    assert world.states() == {"s-1-1": "retiring", "s-1-2": "formed"}


def test_all_gangs_of_a_full_pool_are_rolled_one_by_one_after_one_wait():
    world = world_of(1, 1, 1, 1, 1, 1)
    world.declare("s", 3)
    world.flush()
    world.declare("s", 3, priority=1, surge_wait_s=2.0, retire_s=0.5)
    fewest = 9
    for _ in range(80):
        world.advance(0.05)
        fewest = min(fewest, list(world.states().values()).count("formed"))
    assert formed(world) == ["s-1-4", "s-1-5", "s-1-6"]
    assert fewest == 2


def test_the_successor_has_the_old_gangs_place_in_the_queue():
    world = world_of(1, 1)
    world.declare("s", 1)
    world.flush()
    world.advance(1.0)
    world.acquire("waits-long", 2)
    world.declare("s", 1, owner="v2", surge_wait_s=1.0)
    for _ in range(8):
        world.renew("waits-long")
        world.advance(1.0)
    assert world.states() == {"waits-long": "queued", "s-1-2": "formed"}


@pytest.mark.parametrize("grace_s", [None, 30.0, 5.0])
def test_gangs_leave_a_draining_worker_well_before_its_grace_ends_though_there_is_no_room(grace_s):
    world = world_of(2, 1, 1)
    world.declare("s", 2, strategy="spread")
    world.flush()
    draining = next(worker for worker in world.workers.values() if worker.total == 2)
    assert len(draining.members) == 2
    world.drain(draining, grace_s)
    world.advance(0.8 * (grace_s or 30.0))
    assert not draining.members
    # A gang of two finds room in what is left; for the other there is none until a worker comes.
    assert sorted(world.states().values()) == ["formed", "queued"]
    world.restart(draining)
    world.advance(1.0)
    assert sorted(world.states().values()) == ["formed", "formed"]


def test_an_old_gang_whose_going_would_not_make_room_goes_on_serving():
    world = world_of(1, 1, 1)
    world.declare("s", 1, size=2)
    world.flush()
    world.declare("s", 1, size=4, surge_wait_s=1.0)
    world.advance(30.0)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued"}
    why = world.core.why("s-1-2")
    assert why is not None and "beside the gang" in why.lacks[0]
    world.add_worker("w9", 1)
    world.advance(10.0)
    assert formed(world) == ["s-1-2"]


def test_without_any_patience_the_old_gang_goes_first_at_once():
    world = world_of(1, 1)
    world.declare("s", 1)
    world.flush()
    world.declare("s", 1, priority=1, surge_wait_s=0.0, retire_s=0.0)
    world.flush()
    world.advance(0.01)
    assert world.states() == {"s-1-2": "formed"}
