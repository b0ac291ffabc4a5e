"""Who goes first in a queue: limits, order, pools, and endpoints that nobody knows."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.core import events as on
from gangline.schemas.errors.base import TaskFailed
from gangline.schemas.records.routes import QueueRules, RouteRecord

from ....support.durable.world import World
from ....support.durable.worlds import started, world_of, world_running

# -- limits -----------------------------------------------------------------------------------------------------------


def test_no_more_run_than_max_running():
    world = world_of(8, max_running=3)
    for _ in range(5):
        world.arrive()
    assert len(world.started) == 3
    world.end("j1")
    assert len(world.started) == 4


def test_no_more_of_a_key_run_than_per_key_and_others_go_by():
    world = world_of(8, per_key=2)
    for number in range(4):
        world.arrive(f"a{number}", key="a")
    world.arrive("b0", key="b")
    world.arrive("none")
    assert started(world) == ["a0", "a1", "b0", "none"]
    world.end("a1")
    assert started(world)[-1] == "a2"


def test_a_pools_limit_holds_whatever_credit_there_is():
    world = world_of(8, limits={"e": 2})
    for _ in range(4):
        world.arrive()
    assert len(world.started) == 2


def test_a_rate_starts_empty_and_allows_its_burst_after_a_pause():
    world = world_of(8, rate_per_s=2.0, burst=3)
    for _ in range(8):
        world.arrive()
    assert not world.started
    world.advance(0.5)
    assert len(world.started) == 1
    world.advance(1.0)
    assert len(world.started) == 3
    assert world.begun_at == [1000.5, 1001.0, 1001.5]
    for job, _ in world.started[:3]:
        world.end(job)
    world.advance(100.0)
    world.credit(8)
    for _ in range(3):
        world.arrive()
    assert len(world.started) == 11


def test_a_burst_comes_at_once_after_a_pause():
    world = world_of(8, rate_per_s=2.0, burst=3)
    world.advance(10.0)
    for _ in range(5):
        world.arrive()
    assert world.begun_at == [1010.0] * 3
    world.advance(1.0)
    assert world.begun_at[3:] == [1010.5, 1011.0]


def test_a_paused_queue_starts_nothing_and_says_so():
    world = world_of(1, paused=True)
    world.arrive("a")
    assert not world.started
    assert [obstacle.kind for obstacle in world.core.why("a").obstacles] == ["paused"]
    world.reroute(RouteRecord())
    assert started(world) == ["a"]


def test_a_task_of_several_slots_waits_for_one_lease_that_has_them_and_nobody_passes_it():
    world = world_of(1, 1)
    world.pool(largest=4, wide=3)
    world.arrive("w", method="wide")
    world.arrive("n")
    assert not world.started
    assert (world.wants["e"].slots, world.wants["e"].largest) == (4, 3)
    world.credit(1, 3)
    assert started(world) == ["w", "n"]


def test_a_task_of_several_slots_and_those_behind_it_have_their_turns():
    world = world_of()
    world.pool(largest=4, wide=3)
    world.arrive("w", method="wide")
    world.arrive("a", "b")
    world.credit(1)
    world.advance(9.9)
    assert not world.started
    world.advance(0.1)
    assert started(world) == ["a"]
    world.advance(9.9)
    world.end("a")
    assert started(world) == ["a", "b"]
    world.arrive("c")
    world.advance(0.1)
    world.end("b")
    assert started(world) == ["a", "b"]  # it is the head's turn again
    world.credit(1, 3)
    assert started(world) == ["a", "b", "w", "c"]


def test_one_that_is_too_large_for_every_worker_stands_aside_and_dies_if_none_comes():
    world = world_of(4)
    world.pool(largest=4, huge=9)
    world.arrive("h", method="huge")
    world.arrive("n")
    assert started(world) == ["n"]
    assert "no worker of pool 'e' has more than 4" in world.core.why("h").obstacles[0].text
    world.advance(29.0)
    world.pool(largest=16, huge=9)
    world.credit(9)
    assert started(world) == ["n", "h"]
    world.end("h")
    world.pool(largest=4, huge=9)
    world.arrive("h2", method="huge")
    world.advance(31.0)
    assert world.dead == [("h2", "impossible")]


# -- order ------------------------------------------------------------------------------------------------------------


def test_priority_goes_first_then_age():
    world = world_of()
    for job, priority in (("low", -1), ("a", 0), ("b", 0), ("high", 1)):
        world.arrive(job, priority=priority)
    world.credit(4)
    assert started(world) == ["high", "a", "b", "low"]


def test_the_bound_of_starvation_is_the_difference_of_priorities_times_the_step():
    world = world_of()
    world.arrive("old")
    step = world.settings.age_step_s
    world.arrive("just before the bound", priority=3, published_at=world.now + 3 * step - 0.01)
    world.arrive("just after the bound", priority=3, published_at=world.now + 3 * step + 0.01)
    world.credit(3)
    assert started(world) == ["just before the bound", "old", "just after the bound"]


def test_a_flood_of_high_priority_cannot_hold_up_a_low_one_for_longer_than_the_bound():
    world = world_running("low")
    world.settle("low")
    world.arrive("busy", "low2")
    begun = world.now
    while "low2" not in started(world):
        world.arrive(priority=1)
        world.arrive(priority=1)
        world.advance(0.5)
        world.settle(next(run.job for run in world.runs if not run.ended))
        assert world.now - begun < 60.0
    # Those of the first 10 s go before it, which take 10 s more: two come for each that ends.
    assert world.now - begun <= 2 * world.settings.age_step_s + 1.0


def test_an_ordered_key_goes_by_sequence_whatever_the_priorities_and_through_retries():
    world = world_of(4)
    world.arrive("first", key="k", ordered=True, backoff_s=10.0)
    world.arrive("second", key="k", ordered=True, priority=9)
    world.arrive("other", key="k")
    assert started(world) == ["first", "other"]
    world.settle("first", TaskFailed("no"))
    assert world.core.why("second").obstacles[0].jobs == ("first",)
    assert started(world) == ["first", "other"]
    world.advance(10.0)
    world.finish("first")
    assert started(world) == ["first", "other", "first"]
    world.flush()
    assert started(world)[-1] == "second"


def test_a_new_head_of_a_key_takes_the_place_of_one_that_may_start():
    world = world_of(per_key=1)
    world.arrive("a", key="k")
    world.arrive("b", key="k", priority=5)
    assert world.core.why("a").obstacles[0].kind == "key"
    world.credit(2)
    assert started(world) == ["b"]


def test_rules_that_change_are_followed_by_those_in_line():
    world = world_of(ordered=True)
    world.arrive("a", "b", "c", key="k")
    assert world.core.statistics().blocked == 2
    world.reroute(RouteRecord(queue=QueueRules(per_key=2)))
    assert world.core.statistics().blocked == 1
    world.credit(3)
    assert started(world) == ["a", "b"]


# -- pools ------------------------------------------------------------------------------------------------------------


def test_tasks_are_drawn_by_weight_and_stay_with_their_pool_though_another_has_room():
    world = world_of(weights={"e": 3.0, "f": 1.0})
    for draw in range(16):
        world.draw = draw / 16
        world.arrive()
    world.credit(16)
    assert len(world.started) == 12
    assert world.wants["f"].slots == 4
    world.credit(16, pool="f")
    assert len(world.started) == 16


def test_a_new_route_draws_those_anew_that_have_not_started():
    world = world_of(1, weights={"e": 1.0})
    world.arrive("runs", "waits")
    world.reroute(RouteRecord(to={"f": 1.0}))
    world.credit(1, pool="f")
    assert [run.pool for run in world.runs] == ["e", "f"]


def test_a_key_keeps_its_pool():
    world = world_of(weights={"e": 1.0, "f": 1.0})
    for number in range(32):
        world.draw = number % 16 / 16
        world.arrive(key=f"k{number % 4}")
    world.credit(64)
    world.credit(64, pool="f")
    pools = {(run.key, run.pool) for run in world.runs}
    assert len(world.runs) == 32 and len(pools) == 4


def test_a_task_that_names_a_pool_of_the_route_goes_there_whatever_the_weights():
    world = world_of(1, weights={"e": 1.0, "g": 0.0})
    world.pool("g")
    world.arrive("a", pool="g")
    assert world.wants["g"].slots == 1
    world.credit(1, pool="g")
    assert world.runs[0].pool == "g"


def test_a_task_that_names_a_pool_that_its_endpoints_route_does_not_is_a_dead_letter():
    world = world_of(1)
    world.pool("g")
    world.arrive("a", pool="g")
    world.credit(1, pool="g")
    world.flush()
    assert not world.started
    assert world.dead == [("a", "unknown_endpoint")]


def test_a_task_that_names_a_pool_of_the_route_waits_for_it_even_if_nothing_may_start():
    world = world_of(paused=True, weights={"e": 1.0, "g": 0.0})
    world.arrive("a", pool="g")
    world.pool("g")
    world.advance(100.0)
    assert not world.dead


def test_attempts_of_an_earlier_life_are_counted_on_and_do_not_count_as_tries():
    world = world_of(per_key=4)
    world.arrive("older", key="k", ordered=True)
    world.arrive("replayed", key="k", ordered=True, attempts=5, max_attempts=2, backoff_s=1.0)
    world.credit(2)
    assert world.started == [("older", 1)]
    world.settle("older")
    for attempt in (6, 7):
        assert world.run_of("replayed").attempt == attempt
        world.end("replayed", TaskFailed("no"))
        world.advance(1.0)
    assert world.dead == [("replayed", "failed")]


def test_a_replay_that_meets_a_message_of_its_first_life_goes_on_from_its_attempts():
    world = world_of(max_running=1)
    world.arrive("older")
    world.arrive("again", max_attempts=1)
    world.arrive("again", max_attempts=1, attempts=3)
    world.credit(2)
    world.settle("older")
    assert world.started == [("older", 1), ("again", 4)]
    world.end("again", TaskFailed("no"))
    world.advance(10.0)
    assert world.dead == [("again", "failed")]


# -- unknown endpoints ------------------------------------------------------------------------------------------------


def test_an_endpoint_that_nobody_knows_has_so_long_to_become_known():
    world = World()
    world.open()
    world.arrive("dead")
    world.advance(29.0)
    world.arrive("saved")
    world.advance(2.0)
    assert world.dead == [("dead", "unknown_endpoint")]
    world.pool()
    world.advance(60.0)
    assert world.dead == [("dead", "unknown_endpoint")]
    world.credit(1)
    assert started(world) == ["saved"]


@pytest.mark.parametrize("unheard_s", [2.0, 45.0])
def test_an_endpoint_that_nobody_knows_has_so_much_longer_as_the_dispatcher_heard_nothing(unheard_s):
    world = World()
    world.open()
    world.arrive("a")
    world.advance(29.0)
    world.now += unheard_s  # its pool may have come and gone
    world.tell(on.Unheard, seconds=unheard_s)
    world.advance(0.5)
    assert not world.dead
    world.advance(1.0)
    assert world.dead == [("a", "unknown_endpoint")]


def test_an_endpoint_that_nobody_knows_is_not_forgotten_while_a_result_is_looked_up():
    world = World()
    world.open()
    world.submit("i1")
    world.deliver_message()
    world.advance(31.0, flush=False)
    world.flush()
    assert not world.dead
    world.advance(31.0)
    assert world.dead == [("i1", "unknown_endpoint")]


def test_an_endpoint_with_a_route_or_with_a_pool_that_once_was_waits_for_ever():
    world = World(explicit=True)
    world.open()
    world.arrive("a")
    world.advance(10_000.0)
    assert [obstacle.kind for obstacle in world.core.why("a").obstacles] == ["no_workers"]
    world.explicit = False
    world.pool(workers=0, largest=0)
    world.reroute(RouteRecord())
    world.advance(10_000.0)
    assert not world.dead
