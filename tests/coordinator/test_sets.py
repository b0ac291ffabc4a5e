from __future__ import annotations

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
    assert world.kinds("s-1-2") == ["queued", "formed"]


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
