from __future__ import annotations

from typing import Any

import pytest

from gangline.schemas.records.gangs import GangSetStatus

from ...support.coordinator.world import World, formed, world_of


def world_with_set(workers: int, *, gangs: int, after_s: float = 0.0, **shape: Any) -> World:
    """Workers of one slot each, and the set s of gangs of two."""
    world = world_of(*[1] * workers)
    world.declare("s", gangs, flush=True, **shape)
    world.advance(after_s)
    return world


def fewest_and_most(world: World, rounds: int) -> tuple[int, int]:
    """While time passes: the fewest gangs that were formed, and the most that were formed or retired."""
    served, there = [], []
    for _ in range(rounds):
        world.advance(0.05)
        steps = list(world.states().values())
        served.append(steps.count("formed"))
        there.append(served[-1] + steps.count("retiring"))
    return min(served), max(there)


def test_a_set_is_kept_up_and_scaled_by_whole_gangs():
    world = world_with_set(6, gangs=3)
    assert formed(world) == ["s-1-1", "s-1-2", "s-1-3"]
    world.declare("s", 1)
    world.advance(2.0)
    assert len(formed(world)) == 1
    assert len(world.ledger.members()) == 2
    world.undeclare("s")
    world.advance(2.0)
    assert world.states() == {}


def test_a_new_template_rolls_gang_by_gang_with_never_fewer_formed():
    world = world_with_set(6, gangs=2)
    world.declare("s", 2, priority=1)
    fewest, most = fewest_and_most(world, 100)
    assert formed(world) == ["s-1-3", "s-1-4"]
    assert fewest == 2
    assert most <= 3


def test_without_room_for_a_surge_a_set_can_roll_one_down_first():
    world = world_with_set(4, gangs=2)
    world.declare("s", 2, priority=1, surge=0)
    fewest, _ = fewest_and_most(world, 100)
    assert formed(world) == ["s-1-3", "s-1-4"]
    assert fewest == 1


def test_a_new_leader_goes_on_with_the_sets():
    world = world_with_set(4, gangs=2)
    world.elect()
    world.advance(3.0)
    assert formed(world) == ["s-1-1", "s-1-2"]
    world.ledger.keys.pop("gangset.s")
    world.elect()
    world.advance(3.0)
    assert world.states() == {}


def test_a_replacement_without_room_waits_beside_the_old_gang_and_then_comes_in_its_place():
    world = world_with_set(2, gangs=1)
    world.declare("s", 1, priority=1, surge_wait_s=2.0)
    world.advance(1.9)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued"}
    world.advance(0.2)
    assert world.states()["s-1-1"] == "retiring"
    world.advance(1.0)
    assert world.states() == {"s-1-2": "formed"}


def test_a_replacement_that_waits_beside_the_old_gang_holds_nobody_up():
    world = world_with_set(3, gangs=1)
    world.declare("s", 1, priority=1, surge_wait_s=3600.0, flush=True)
    world.acquire("later", 1, ttl_s=1000.0, flush=True)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued", "later": "formed"}
    world.release("later")
    world.advance(60.0)
    assert not any(worker.to_keep or worker.kept for worker in world.workers.values())
    world.acquire("last", 1, ttl_s=1000.0, flush=True)
    assert world.states()["last"] == "formed"


def test_a_replacement_that_waits_beside_the_old_gang_takes_room_that_comes():
    world = world_with_set(2, gangs=1)
    world.declare("s", 1, priority=1, surge_wait_s=10.0)
    world.advance(1.0)
    world.add_worker("w8", 2)
    world.advance(1.0)
    assert world.states() == {"s-1-1": "retiring", "s-1-2": "formed"}


def test_all_gangs_of_a_full_pool_are_rolled_one_by_one_after_one_wait():
    world = world_with_set(6, gangs=3)
    world.declare("s", 3, priority=1, surge_wait_s=2.0, retire_s=0.5)
    fewest, _ = fewest_and_most(world, 160)
    assert formed(world) == ["s-1-4", "s-1-5", "s-1-6"]
    assert fewest == 2


def test_the_successor_has_the_old_gangs_place_in_the_queue():
    world = world_with_set(2, gangs=1)
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
    world.declare("s", 2, strategy="spread", flush=True)
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
    world = world_with_set(3, gangs=1, size=2)
    world.declare("s", 1, size=4, surge_wait_s=1.0)
    world.advance(30.0)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued"}
    why = world.core.why("s-1-2")
    assert why is not None and "beside the gang" in why.lacks[0]
    world.add_worker("w9", 1)
    world.advance(10.0)
    assert formed(world) == ["s-1-2"]


@pytest.mark.parametrize("surge", [0, 1])
def test_the_last_gang_of_several_that_serves_goes_on_serving_until_a_replacement_is_ready(surge):
    world = world_with_set(2, gangs=2, after_s=5.0)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "queued"}
    world.declare("s", 2, priority=1, surge=surge, surge_wait_s=1.0, retire_s=0.5)
    for _ in range(40):  # the other old gang, which never found room, serves nobody in its place
        world.advance(0.5)
        assert world.states()["s-1-1"] == "formed"
    world.add_worker("w9", 1)
    world.add_worker("w10", 1)
    world.advance(10.0)
    assert len(formed(world)) == 2 and not {"s-1-1", "s-1-2"} & set(formed(world))


def slowly(world: World, *gangs: str) -> None:
    """From now on members of these gangs take time to start."""
    world.slow_starts = lambda gang, worker: gang in gangs


def status(world: World, name: str = "s") -> GangSetStatus:
    found = world.ledger.keys[f"gangset_status.{name}"][0]
    assert isinstance(found, GangSetStatus)
    return found


def ready(world: World) -> list[str]:
    return [gang.id for gang in world.core.gangs() if gang.ready]


def test_an_old_gang_serves_until_its_replacement_has_been_ready_for_a_while():
    world = world_with_set(4, gangs=1, after_s=2.0)
    slowly(world, "s-1-2")
    world.declare("s", 1, owner="v2", min_ready_s=5.0)
    world.advance(60.0)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "formed"} and ready(world) == ["s-1-1"]
    record = world.ledger.gangs()["s-1-2"]
    assert (record.state, record.ready) == ("formed", False)
    world.start_all("s-1-2")
    world.flush()
    assert world.ledger.gangs()["s-1-2"].ready
    world.advance(4.9)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "formed"}
    world.advance(0.2)
    assert world.states() == {"s-1-1": "retiring", "s-1-2": "formed"}
    world.advance(2.0)
    assert world.states() == {"s-1-2": "formed"}


def test_a_replacement_that_breaks_soon_after_it_was_ready_does_not_count():
    world = world_with_set(4, gangs=1, after_s=2.0)
    world.declare("s", 1, owner="v2", min_ready_s=5.0)
    for _ in range(2):
        world.advance(1.5)
        assert "s-1-2" in ready(world)
        world.fail_starts("s-1-2")
        world.flush()
        world.advance(1.5)
    assert world.states()["s-1-1"] == "formed"
    assert status(world).failures == 2 and "failed_at_start" in status(world).reason


def failing_roll(world: World, gangs: int = 2, **more: object) -> int:
    """Declare a shape whose gangs fail whenever they start, and let time pass. The fewest gangs that were ready."""
    world.slow_starts = lambda gang, worker: world.core.get(gang).owner == "bad"
    world.declare("s", gangs, owner="bad", **more)
    fewest = 9
    for _ in range(400):
        world.advance(0.1)
        for gang in world.core.gangs():
            if gang.step == "formed" and not gang.ready:
                world.fail_starts(gang.id)
        world.flush()
        fewest = min(fewest, len(ready(world)))
        if status(world).stopped:
            break
    world.slow_starts = lambda gang, worker: False
    return fewest


def test_a_roll_to_gangs_that_fail_at_their_start_stops_and_the_old_ones_serve_on():
    world = world_with_set(6, gangs=2, after_s=2.0)
    assert status(world).state == "steady" and status(world).reason == ""
    assert failing_roll(world) == 2
    assert ready(world) == ["s-1-1", "s-1-2"]
    told = status(world)
    assert (told.state, told.stopped, told.failures) == ("failing", True, 3)
    assert "stopped" in told.reason and "s-1-3 rank 0: failed_at_start" in told.reason
    assert (told.gangs, told.formed, told.ready, told.old) == (2, 0, 0, 2)
    world.advance(100.0)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "formed"}


def test_while_a_roll_is_stopped_the_set_is_kept_up_in_the_shape_before_also_by_a_new_leader():
    world = world_with_set(6, gangs=2, after_s=2.0)
    failing_roll(world)
    world.elect(flush=True)
    holder = world.holder("s-1-1")
    world.crash(holder, noticed=True)
    world.advance(5.0)
    assert ready(world) == ["s-1-1", "s-1-2"]
    assert {gang.owner for gang in world.core.gangs()} == {""}
    assert status(world).stopped


def test_a_failure_that_is_being_repaired_counts_once_against_a_roll_for_the_next_leader_too():
    world = world_of(1, 1, 1, 1)
    shape = {"size": 2, "restart": "restart_member", "roll_failures": 2, "min_ready_s": 5.0, "max_restarts": None}
    world.declare("s", 1, **shape, owner="old")
    world.advance(20.0)
    world.declare("s", 1, **shape, owner="new")
    world.advance(1.0)
    new = next(gang for gang in world.core.gangs() if gang.owner == "new")
    holder = next(worker for worker in world.workers.values() if new.id in worker.members)
    world.crash(holder, noticed=True)
    world.advance(0.0)
    assert (status(world).failures, status(world).stopped) == (1, False)
    world.elect(flush=True)
    assert (status(world).failures, status(world).stopped) == (1, False)


def test_without_room_beside_a_failing_roll_costs_one_gang_which_then_comes_back():
    world = world_with_set(4, gangs=2, after_s=2.0)
    assert failing_roll(world, surge_wait_s=1.0) == 1
    world.advance(5.0)
    assert len(ready(world)) == 2 and {gang.owner for gang in world.core.gangs()} == {""}
    assert status(world).state == "failing" and status(world).old == 2


def test_an_old_gang_that_fails_while_the_new_shape_has_not_served_comes_back():
    world = world_with_set(6, gangs=2, after_s=2.0)
    slowly(world, "s-1-3")
    world.declare("s", 2, owner="v2")
    world.advance(2.0)
    holder = world.holder("s-1-1")
    world.report(holder, "s-1-1")
    world.advance(3.0)
    assert ready(world) == ["s-1-1", "s-1-2"] and world.core.get("s-1-1").generation == 2
    world.start_all("s-1-3")
    world.advance(10.0)
    assert {gang.owner for gang in world.core.gangs()} == {"v2"} and len(ready(world)) == 2


def test_what_was_declared_before_can_be_declared_again_and_is_kept_over_a_second_mistake():
    world = world_with_set(6, gangs=2, after_s=2.0)
    good = status(world).current
    failing_roll(world)
    slowly(world, "s-1-4", "s-1-5", "s-1-6")
    world.declare("s", 2, owner="worse")
    world.advance(2.0)
    assert status(world).previous == good and status(world).state == "rolling"
    world.declare("s", 2)
    world.advance(2.0)
    told = status(world)
    assert (told.state, told.previous, told.current, told.served) == ("steady", good, good, True)
    assert world.states() == {"s-1-1": "formed", "s-1-2": "formed"}


def test_a_set_that_never_served_goes_on_trying_and_says_that_it_fails():
    world = world_of(1, 1)
    world.slow_starts = lambda gang, worker: True
    world.declare("s", 1)
    for _ in range(100):
        world.advance(0.1)
        for gang in world.core.gangs():
            if gang.step == "formed":
                world.fail_starts(gang.id)
        world.flush()
    assert status(world).state == "failing" and not status(world).stopped
    world.slow_starts = lambda gang, worker: False
    world.advance(40.0)
    assert status(world).state == "steady" and status(world).failures == 0


def test_a_gang_whose_replacement_starts_slowly_stays_on_its_draining_worker_for_half_of_the_grace():
    world = world_with_set(4, gangs=1, after_s=2.0)
    slowly(world, "s-1-2")
    draining = world.holder()
    world.drain(draining, 60.0)
    world.advance(29.0)
    assert ready(world) == ["s-1-1"]
    world.advance(5.0)
    assert not draining.members
    world.start_all("s-1-2")
    world.advance(1.0)
    assert ready(world) == ["s-1-2"]


def test_the_status_of_a_set_goes_with_it():
    world = world_with_set(2, gangs=1, after_s=2.0)
    world.lose_the_ledger()
    world.flush()
    assert status(world).state == "steady"
    world.undeclare("s")
    world.advance(5.0)
    assert "gangset_status.s" not in world.ledger.keys
    world.declare("s", 1)
    world.advance(2.0)
    world.elect()
    world.ledger.keys.pop("gangset.s")
    world.elect()
    world.advance(5.0)
    assert not any(key.startswith("gangset") for key in world.ledger.keys)


def test_gangs_that_were_formed_under_an_older_coordinator_are_ready():
    world = world_with_set(2, gangs=1, after_s=2.0)
    key = "gang.s-1-1"
    world.ledger.put(key, world.ledger.keys[key][0].model_copy(update={"ready": None}))
    world.elect()
    assert ready(world) == ["s-1-1"]
