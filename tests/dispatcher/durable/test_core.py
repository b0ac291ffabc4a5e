"""What the core promises of one queue, against the model world."""

from __future__ import annotations

import time

import pytest

from gangline.dispatcher.durable import effects as do
from gangline.dispatcher.durable import events as on
from gangline.dispatcher.durable.core import QueueCore
from gangline.dispatcher.durable.settings import DispatcherSettings
from gangline.dispatcher.durable.window import AT_ONCE
from gangline.schemas.errors import (
    DeadlineExceeded,
    InvalidArguments,
    LeaseExpired,
    NoWorkers,
    TaskFailed,
    UnknownMethod,
    WorkerLost,
)
from gangline.schemas.jobs import JobState
from gangline.schemas.routes import QueueRules, RouteRecord
from gangline.schemas.submission import Submission
from gangline.schemas.task_errors import InvalidSchedule

from .world import World


def world_of(
    *free: int, weights: dict[str, float] | None = None, limits: dict[str, int] | None = None, **rules
) -> World:
    route = RouteRecord(to=weights or {}, limits=limits or {}, queue=QueueRules(**rules))
    world = World(route=route, explicit=True)
    world.pool()
    world.open()
    world.credit(*free)
    return world


def started(world: World) -> list[str]:
    return [job for job, _ in world.started]


# -- one end ----------------------------------------------------------------------------------------------------------


def test_a_task_is_started_stored_and_only_then_acknowledged():
    world = world_of(1)
    seq = world.arrive("a")
    world.end("a")
    assert [name for name, _ in world.network] == ["store a"]
    assert world.core.info("a").state is JobState.RUNNING
    world.deliver()
    assert [name for name, _ in world.network] == ["ack a"]
    assert world.core.info("a").state is JobState.DONE
    world.deliver()
    assert world.core.info("a") is None
    assert seq in world.acked


def test_a_failing_task_is_tried_as_often_as_it_says_and_then_buried_with_its_error():
    world = world_of(1)
    world.arrive("a", max_attempts=3)
    for attempt in (1, 2, 3):
        assert world.run_of("a").attempt == attempt
        world.end("a", TaskFailed("no"))
        world.advance(600.0)
    assert world.dead == [("a", "failed")]
    assert world.ends == {"a": 1}


@pytest.mark.parametrize(
    ("error", "reason"),
    [(InvalidArguments("no"), "invalid_arguments"), (UnknownMethod("no"), "unknown_method")],
)
def test_what_can_never_succeed_is_buried_at_once(error, reason):
    world = world_of(1)
    world.arrive("a")
    world.end("a", error)
    world.flush()
    assert world.dead == [("a", reason)]
    assert world.started == [("a", 1)]


def test_what_cannot_be_understood_is_buried_and_acknowledged():
    world = world_of(1)
    seq = world.malformed("priority: 'high' is no whole number")
    world.flush()
    assert world.dead == [(str(seq), "malformed")]
    assert seq in world.acked


def test_a_message_that_repeats_a_job_in_the_queue_is_acknowledged_and_starts_nothing():
    world = world_of(1)
    world.arrive("a")
    again = world.arrive("a")
    world.flush()
    assert again in world.acked
    world.end("a")
    world.flush()
    assert world.started == [("a", 1)]
    assert world.core.statistics().repeated == 1


def test_a_message_is_not_run_again_when_it_is_delivered_again_before_its_ack_is_confirmed():
    world = world_of(1)
    seq = world.arrive("a")
    world.end("a")
    world.deliver()
    world.pulled -= 1
    world.deliver_again(seq)
    assert world.started == [("a", 1)]
    assert [name for name, _ in world.network] == ["ack a", "ack a"]


def test_a_job_that_ended_before_is_found_and_acknowledged():
    world = world_of(1)
    world.results["i1"] = JobState.DONE
    seq = world.arrive("i1")
    assert not world.started
    world.flush()
    assert seq in world.acked and not world.started


# -- tries ------------------------------------------------------------------------------------------------------------


def test_the_wait_doubles_and_is_jittered_down_to_half():
    world = world_of(1)
    world.arrive("a", backoff_s=1.0, max_attempts=10)
    waits = []
    for draw in (0.0, 0.5, 1.0 - 2**-20, 0.0):
        world.draw = draw
        world.end("a", TaskFailed("no"))
        world.flush()
        waits.append(world.wake_at - world.now)
        world.advance(waits[-1])
    assert waits == pytest.approx([1.0, 1.5, 2.0, 8.0], abs=1e-4)


def test_the_wait_is_bounded():
    world = world_of(1, backoff_s=100.0, backoff_max_s=150.0)
    world.draw = 0.0
    world.arrive("a")
    for _ in range(3):
        world.end("a", TaskFailed("no"))
        world.flush()
        wait_s = world.wake_at - world.now
        world.advance(wait_s)
    assert wait_s == 150.0


def test_the_next_try_waits_until_the_failure_is_noted_however_long_that_takes():
    world = world_of(1)
    world.arrive("a", backoff_s=0.0)
    world.end("a", TaskFailed("no"))
    world.advance(60.0, flush=False)
    assert world.started == [("a", 1)]
    world.flush()
    assert world.started == [("a", 1), ("a", 2)]


def test_a_lost_worker_is_no_reason_to_wait_the_first_time():
    world = world_of(2)
    world.arrive("a", backoff_s=10.0)
    world.kill("a")
    world.flush()
    assert world.run_of("a").attempt == 2
    world.kill("a")
    world.flush()
    assert world.started == [("a", 1), ("a", 2)]
    assert world.core.info("a").next_try_at == pytest.approx(world.now + 15.0)


def test_what_started_nothing_is_not_counted_and_keeps_its_place():
    world = world_of(1)
    world.arrive("a")
    world.arrive("b")
    world.refuse("a", LeaseExpired("no"))
    assert started(world) == ["a", "a"]
    assert world.run_of("a").attempt == 1


def test_what_is_refused_again_and_again_is_offered_less_and_less_often():
    world = world_of(1)
    world.arrive("a")
    times = [world.now]
    for _ in range(8):
        world.refuse("a", NoWorkers("no"))
        world.credit(1)
        while "a" not in {run.job for run in world.runs}:
            world.advance(0.005)
        times.append(world.now)
    waits = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert waits[0] == 0.0
    assert waits == sorted(waits) and waits[-1] == pytest.approx(0.5, abs=0.01)


def test_a_takeover_remembers_the_attempts_and_the_wait():
    world = world_of(1)
    world.arrive("a", backoff_s=100.0, max_attempts=2)
    world.end("a", TaskFailed("no"))
    world.flush()
    world.die()
    world.open()
    world.credit(1)
    world.advance(74.0)
    assert world.started == [("a", 1)]
    world.advance(2.0)
    assert world.started == [("a", 1), ("a", 2)]
    world.end("a", TaskFailed("no"))
    world.flush()
    assert world.dead == [("a", "failed")]


# -- time -------------------------------------------------------------------------------------------------------------


def test_what_is_past_its_deadline_is_buried_unstarted():
    world = world_of()
    world.arrive("late", deadline_at=world.now)
    world.arrive("a", deadline_at=world.now + 5.0)
    world.flush()
    assert world.dead == [("late", "expired")]
    world.advance(5.0)
    assert world.dead == [("late", "expired"), ("a", "expired")]
    assert not world.started


def test_a_deadline_that_passed_unnoticed_is_looked_at_before_anything_starts():
    world = world_of()
    world.arrive("a", deadline_at=world.now + 1.0)
    world.now += 2.0  # no tick came
    world.credit(1)
    assert not world.started


def test_what_runs_past_its_deadline_is_stopped_and_buried_or_done_if_it_was_faster():
    world = world_of(2)
    world.arrive("slow", deadline_at=world.now + 5.0)
    world.arrive("fast", deadline_at=world.now + 5.0)
    world.advance(5.0)
    assert {run.stop for run in world.runs} == {do.Why.EXPIRED}
    world.end("slow")
    world.finish("fast")
    world.flush()
    assert world.dead == [("slow", "expired")]
    assert world.results["fast"] is JobState.DONE


def test_a_try_that_takes_too_long_is_stopped_and_counted():
    world = world_of(1, timeout_s=3.0, max_attempts=2)
    world.arrive("a", backoff_s=0.0)
    for _ in range(2):
        world.advance(3.0)
        assert world.run_of("a").stop is do.Why.TIMED_OUT
        world.end("a")
        world.flush()
    assert world.dead == [("a", "timed_out")]
    assert world.started == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("deadline_s", "timeout_s", "reason"), [(2.0, 5.0, "expired"), (9.0, 1.0, "timed_out"), (2.0, None, "expired")]
)
def test_what_a_worker_ends_by_itself_is_expired_or_timed_out_as_the_clock_says(deadline_s, timeout_s, reason):
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + deadline_s, timeout_s=timeout_s, max_attempts=1)
    world.now += min(deadline_s, timeout_s or 9.0)
    world.end("a", DeadlineExceeded("it was stopped at its deadline", may_have_started=True))
    world.flush()
    assert world.dead == [("a", reason)]


def test_a_try_that_timed_out_just_before_the_deadline_is_expired_only_at_the_deadline():
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + 2.0, timeout_s=1.0)
    world.advance(1.9)
    world.end("a", DeadlineExceeded("it was slow to stop", may_have_started=True))
    world.flush()
    assert not world.dead
    world.advance(0.1)
    assert world.dead == [("a", "expired")]


def test_of_one_that_was_attached_to_the_clock_says_whether_it_was_the_deadline():
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + 60.0, timeout_s=1.0, max_attempts=1)
    world.die()
    world.end("a", DeadlineExceeded("its time-out", may_have_started=True))
    world.open()
    assert world.dead == [("a", "timed_out")]


def test_the_deadline_of_one_that_waits_for_its_next_try_ends_it():
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + 5.0, backoff_s=60.0)
    world.end("a", TaskFailed("no"))
    world.advance(6.0)
    assert world.dead == [("a", "expired")]


# -- schedules --------------------------------------------------------------------------------------------------------


def test_what_is_delayed_or_repeats_is_given_back_to_the_server():
    world = world_of(2)
    world.arrive("later", not_before=world.now + 60.0)
    world.arrive("cron", cron="0 0 3 * * *")
    world.arrive("past", not_before=world.now - 1.0)
    world.flush()
    assert [task.job for task in world.scheduled] == ["later", "cron"]
    assert started(world) == ["past"]
    assert world.core.info("later") is None


@pytest.mark.parametrize(
    ("error", "reason"), [(InvalidSchedule("no"), "malformed"), (NoWorkers("outside"), "impossible")]
)
def test_a_schedule_that_the_server_refuses_is_a_dead_letter(error, reason):
    world = world_of(1)
    seq = world.arrive("a", cron="nonsense")
    world.network.clear()
    world.tell(on.ScheduleRefused, seq=seq, error=error)
    world.flush()
    assert world.dead == [("a", reason)]


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
    for job in ("a", "b"):
        world.arrive(job)
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
    world = world_of(1)
    world.arrive("low")
    world.end("low")
    world.flush()
    world.arrive("busy")
    world.arrive("low2")
    begun = world.now
    while "low2" not in started(world):
        world.arrive(priority=1)
        world.arrive(priority=1)
        world.advance(0.5)
        world.end(next(run.job for run in world.runs if not run.ended))
        world.flush()
        assert world.now - begun < 60.0
    # Those of the first 10 s go before it, which take 10 s more: two come for each that ends.
    assert world.now - begun <= 2 * world.settings.age_step_s + 1.0


def test_an_ordered_key_goes_by_sequence_whatever_the_priorities_and_through_retries():
    world = world_of(4)
    world.arrive("first", key="k", ordered=True, backoff_s=10.0)
    world.arrive("second", key="k", ordered=True, priority=9)
    world.arrive("other", key="k")
    assert started(world) == ["first", "other"]
    world.end("first", TaskFailed("no"))
    world.flush()
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
    for job in ("a", "b", "c"):
        world.arrive(job, key="k")
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
    world.arrive("runs")
    world.arrive("waits")
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


def test_a_task_that_names_a_pool_goes_there_whatever_the_route_says():
    world = world_of(1)
    world.pool("g")
    world.arrive("a", pool="g")
    assert world.wants["g"].slots == 1
    world.credit(1, pool="g")
    assert world.runs[0].pool == "g"


def test_the_shell_hears_of_a_pool_that_a_task_names_even_if_nothing_may_start():
    world = world_of(paused=True)
    world.arrive("a", pool="g")
    assert world.wants["g"].slots == 0
    world.pool("g")
    world.advance(100.0)
    assert not world.dead


def test_attempts_of_an_earlier_life_are_counted_on_and_do_not_count_as_tries():
    world = world_of(per_key=4)
    world.arrive("older", key="k", ordered=True)
    world.arrive("replayed", key="k", ordered=True, attempts=5, max_attempts=2, backoff_s=1.0)
    world.credit(2)
    assert world.started == [("older", 1)]
    world.end("older")
    world.flush()
    for attempt in (6, 7):
        assert world.run_of("replayed").attempt == attempt
        world.end("replayed", TaskFailed("no"))
        world.advance(1.0)
    assert world.dead == [("replayed", "failed")]


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


# -- takeover ---------------------------------------------------------------------------------------------------------


def test_nothing_starts_expires_or_is_cancelled_before_it_is_known_what_runs():
    world = World(explicit=True)
    world.pool()
    world.submit("a", deadline_at=world.now + 1.0)
    world.submit("b")
    world.take()
    world.credit(2)
    world.flush()
    world.tell(on.Cancel, job="b")
    world.advance(5.0)
    assert not world.started and not world.dead and not world.results
    world.recover()
    world.flush()
    assert world.dead == [("a", "expired")]
    assert world.results["b"] is JobState.CANCELLED
    assert not world.started


def test_what_runs_is_attached_to_whether_it_is_told_before_or_after_it_arrives():
    for early in (True, False):
        world = world_of(2, max_running=2)
        world.arrive("a")
        world.arrive("b")
        world.arrive("c")
        world.die()
        world.take()
        if early:
            world.survey()
        world.flush()
        world.recover()
        world.credit(4)
        assert started(world) == ["a", "b"]
        world.end("b")
        world.flush()
        assert started(world) == ["a", "b", "c"]


def test_what_ended_while_nobody_listened_is_asked_for():
    world = world_of(1)
    world.arrive("a")
    world.die()
    world.end("a")
    world.open()
    assert world.results["a"] is JobState.DONE
    assert world.started == [("a", 1)]


def test_what_runs_though_its_end_is_stored_is_stopped_whichever_is_learnt_first():
    for early in (True, False):
        world = world_of(1)
        world.arrive("a")
        world.die()
        world.results["a"] = JobState.CANCELLED  # by its submitter, while nobody had the queue
        world.take()
        if early:
            world.survey()
        world.flush()
        assert world.core.statistics().seen == 1
        world.recover()
        assert world.run_of("a").stop is do.Why.CANCELLED
        world.end("a")
        world.flush()
        assert not world.stream and not world.ends


def test_what_has_ended_and_runs_nowhere_is_forgotten_when_that_is_known():
    world = world_of(1)
    world.arrive("a")
    world.die()
    world.runs.clear()
    world.results["a"] = JobState.CANCELLED
    world.take()
    world.flush()
    assert world.stream
    world.recover()
    world.flush()
    assert not world.stream and world.started == [("a", 1)]


def test_an_attempt_that_is_known_to_have_failed_is_not_attached_to():
    world = world_of(1)
    world.arrive("a", backoff_s=60.0)
    run = world.run_of("a")
    world.end("a", TaskFailed("no"))
    world.flush()
    world.die()
    world.runs = [run]
    world.open()
    assert world.core.info("a").state is JobState.WAITING


def test_of_two_workers_that_have_a_job_the_later_attempt_counts():
    world = world_of(1)
    world.arrive("a")
    world.die()
    world.take()
    world.flush()
    world.tell(on.Adopted, job="a", worker="e.old", attempt=1)
    world.network.clear()
    world.tell(on.Adopted, job="a", worker="e.new", attempt=2)
    world.tell(on.Ended, seq=1, attempt=1, error=TaskFailed("the older one"))
    assert world.core.info("a").state is JobState.RUNNING
    assert world.core.info("a").worker == "e.new"


def test_a_job_that_cannot_be_found_any_more_counts_as_tried():
    world = world_of(1)
    world.arrive("a", backoff_s=0.0)
    world.die()
    world.take()
    world.tell(on.Adopted, job="a", worker="e.gone", attempt=1)
    world.runs.clear()
    world.flush()
    world.recover()
    world.credit(1)
    world.flush()
    assert world.started == [("a", 1), ("a", 2)]


# -- doubt ------------------------------------------------------------------------------------------------------------


def test_while_the_queue_is_in_doubt_nothing_is_begun_and_nothing_is_forgotten():
    world = world_of(2)
    world.arrive("a")
    world.arrive("b")
    world.tell(on.Doubted)
    world.end("a")
    world.end("b", InvalidArguments("no"))
    world.arrive("c")
    world.malformed()
    world.advance(10.0)
    assert world.network == [] and started(world) == ["a", "b"]
    world.tell(on.Sure)
    assert [name.partition(" ")[0] for name, _ in world.network] == ["store", "bury", "bury"]
    assert started(world) == ["a", "b", "c"]


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_running_task_is_cancelled_through_its_worker():
    world = world_of(1)
    world.arrive("a")
    world.tell(on.Cancel, job="a")
    assert world.run_of("a").stop is do.Why.CANCELLED
    assert world.core.info("a").state is JobState.RUNNING
    world.end("a")
    world.flush()
    assert world.results == {"a": JobState.CANCELLED}


def test_a_task_is_cancelled_wherever_it_waits():
    world = world_of(per_key=1)
    world.pool(largest=4, huge=9)
    world.arrive("lined")
    world.arrive("candidate", key="k")
    world.arrive("capped", key="k")
    world.arrive("head", key="o", ordered=True)
    world.arrive("behind", key="o", ordered=True)
    world.arrive("parked", method="huge")
    for job in ("lined", "candidate", "capped", "head", "behind", "parked"):
        world.tell(on.Cancel, job=job)
    world.flush()
    assert set(world.results.values()) == {JobState.CANCELLED} and len(world.results) == 6
    assert not world.stream and not world.started


def test_a_task_that_is_being_looked_up_or_noted_is_cancelled_after_it():
    world = world_of(1)
    world.arrive("i1")
    world.tell(on.Cancel, job="i1")
    assert [name for name, _ in world.network] == ["look i1", "mark i1"]
    world.flush()
    world.arrive("a", backoff_s=60.0)
    world.end("a", TaskFailed("no"))
    world.tell(on.Cancel, job="a")
    assert [name for name, _ in world.network] == ["note a", "mark a"]
    world.flush()
    world.arrive("b", backoff_s=60.0)
    world.end("b", TaskFailed("no"))
    world.flush()
    world.tell(on.Cancel, job="b")
    world.flush()
    assert world.results == {"i1": JobState.CANCELLED, "a": JobState.CANCELLED, "b": JobState.CANCELLED}


def test_a_job_that_has_ended_or_is_unknown_cannot_be_cancelled():
    world = world_of(1)
    world.arrive("a")
    world.end("a")
    world.tell(on.Cancel, job="a")
    world.tell(on.Cancel, job="b")
    world.flush()
    world.arrive("b")
    world.end("b")
    world.flush()
    assert world.results == {"a": JobState.DONE, "b": JobState.DONE}


def test_a_cancellation_is_promised_only_when_a_takeover_would_not_forget_it():
    world = world_of(1)
    world.arrive("a")
    world.tell(on.Cancel, job="a")
    assert not world.core.promised("a")
    world.die()  # nobody was told, and nobody knows
    world.open()
    assert world.run_of("a").stop is do.Why.CANCELLED  # by the dispatcher that died
    world.tell(on.Cancel, job="a")
    world.deliver()
    assert world.core.promised("a")
    world.die()
    world.take()
    world.flush()
    world.runs.clear()
    world.recover()
    world.flush()
    assert world.results == {"a": JobState.CANCELLED}
    assert world.started == [("a", 1)]


def test_one_that_does_not_stop_at_its_deadline_can_still_be_cancelled_and_is_answered():
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + 5.0)
    world.advance(5.0)
    assert world.run_of("a").stop is do.Why.EXPIRED
    world.tell(on.Cancel, job="a")
    world.deliver()
    assert world.core.promised("a")
    world.end("a")
    world.flush()
    assert world.results == {"a": JobState.CANCELLED}


def test_one_that_has_not_started_is_promised_to_be_cancelled_when_its_end_is_stored():
    world = world_of()
    world.arrive("a")
    world.tell(on.Cancel, job="a")
    assert not world.core.promised("a")
    world.deliver()
    assert world.core.promised("a")
    assert world.core.info("a").state is JobState.CANCELLED


# -- the window -------------------------------------------------------------------------------------------------------


def test_all_that_a_predecessor_can_have_had_is_pulled_at_once_and_then_little_by_little():
    settings = DispatcherSettings(node="n", window_tasks=1000)
    for waiting, first in ((None, 1000), (0, AT_ONCE), (700, 700), (5000, 1000)):
        core = QueueCore("e", settings)
        assert [effect.count for effect in core.handle(on.Taken(now=0.0, wall=0.0, waiting=waiting))] == [first]
        core.handle(on.Recovered(now=0.0, wall=0.0))
        pulled = 0
        for seq in range(1, first + 1):
            task = Submission(endpoint="e", method="m", job=f"j{seq}")
            effects = core.handle(on.Arrived(now=0.0, wall=0.0, seq=seq, submission=task, size=1))
            pulled += sum(effect.count for effect in effects if isinstance(effect, do.Pull))
            assert first - seq + pulled <= max(first, AT_ONCE)
        assert pulled <= AT_ONCE


def test_no_more_is_pulled_than_the_window_has_room_for():
    world = World(settings=DispatcherSettings(node="n", window_tasks=64), explicit=True)
    for _ in range(200):
        world.submit()
    world.open()
    assert world.core.statistics().seen == 64
    world.credit(64)
    for run in list(world.runs):
        world.end(run.job)
    world.flush()
    assert world.core.statistics().seen <= 64
    assert world.core.statistics().done == 64


def test_large_messages_are_pulled_few_at_a_time():
    settings = DispatcherSettings(node="n", window_tasks=4096, window_bytes=1 << 20)
    world = World(settings=settings, explicit=True)
    for _ in range(64):
        world.submit(size=100_000)
    world.take()
    pulled = world.pulled
    world.flush()
    world.recover()
    assert pulled <= 1024
    held = world.core.statistics().seen
    world.credit(*[1] * held)
    for _ in range(80):
        for run in [run for run in world.runs if not run.ended]:
            world.end(run.job)
        world.flush()
    assert not world.stream


# -- telling ----------------------------------------------------------------------------------------------------------


def test_a_job_that_asks_for_it_is_told_of_each_change():
    world = world_of(1)
    world.arrive("quiet")
    world.end("quiet")
    world.flush()
    world.arrive("a", events=True, backoff_s=1.0)
    world.end("a", TaskFailed("no"))
    world.advance(1.0)
    world.end("a")
    world.flush()
    states = [(tell.state.value, tell.attempt) for tell in world.told]
    assert states == [("queued", 0), ("running", 1), ("waiting", 1), ("running", 2), ("done", 2)]


def test_what_is_wanted_is_told_as_often_as_it_matters():
    world = world_of()
    wants = []
    for _ in range(100):
        before = world.wants.get("e")
        world.arrive()
        if world.wants.get("e") is not before:
            wants.append(world.wants["e"].slots)
    assert wants == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128]
    world.credit(128)
    assert world.wants["e"].slots == 0


def test_an_ended_that_nobody_waits_for_changes_nothing():
    world = world_of(1)
    seq = world.arrive("a")
    for attempt in (0, 2):
        assert world.core.handle(on.Ended(now=world.now, wall=world.now, seq=seq, attempt=attempt)) == []
    for kind in (on.Noted, on.Stored, on.Buried, on.Scheduled, on.Acked):
        assert world.core.handle(kind(now=world.now, wall=world.now, seq=seq)) == []
    world.core.check()


def test_of_events_told_together_the_order_counts_and_starts_come_after_the_last():
    core = QueueCore("e")
    now = {"now": 0.0, "wall": 0.0}
    route = on.Routed(**now, route=RouteRecord(), explicit=True)
    core.handle(route, on.Taken(**now), on.Recovered(**now), on.Credit(**now, pool="e", free=(1,)))
    low, high = (Submission(endpoint="e", method="m", job=job, priority=number) for number, job in enumerate("ab"))
    effects = core.handle(
        on.Arrived(**now, seq=1, submission=low, size=1), on.Arrived(**now, seq=2, submission=high, size=1)
    )
    assert [effect.job for effect in effects if isinstance(effect, do.Start)] == ["b"]
    effects = core.handle(on.Doubted(**now), on.Ended(**now, seq=2, attempt=1), on.Credit(**now, pool="e", free=(1,)))
    assert not any(isinstance(effect, do.Start | do.Store) for effect in effects)
    effects = core.handle(on.Sure(**now))
    assert [type(effect) for effect in effects][:2] == [do.Store, do.Start]
    core.check()


def test_time_must_not_go_backwards():
    core = QueueCore("e")
    core.handle(on.Tick(now=5.0, wall=5.0))
    with pytest.raises(AssertionError, match="backwards"):
        core.handle(on.Tick(now=4.0, wall=4.0))


# -- cost -------------------------------------------------------------------------------------------------------------


def cost_of(count: int) -> float:
    """CPU seconds of one start and end, with so many tasks waiting, half of them behind their keys."""
    core = QueueCore("e", DispatcherSettings(node="n", window_tasks=1_000_000, window_bytes=1 << 40))
    route = RouteRecord(queue=QueueRules(per_key=1))
    core.handle(on.Routed(now=0.0, wall=0.0, route=route, explicit=True))
    core.handle(on.Taken(now=0.0, wall=0.0))
    core.handle(on.Recovered(now=0.0, wall=0.0))
    for seq in range(1, count + 1):
        key = f"k{seq % 100}" if seq % 2 else None
        submission = Submission(endpoint="e", method="m", job=f"j{seq}", key=key, deadline_at=1e9, published_at=seq)
        core.handle(on.Arrived(now=0.0, wall=0.0, seq=seq, submission=submission, size=100))
    rounds = 300
    begun = time.process_time()
    for _ in range(rounds):
        for effect in core.handle(on.Credit(now=1.0, wall=1.0, pool="e", free=(1,))):
            if isinstance(effect, do.Start):
                core.handle(on.Ended(now=1.0, wall=1.0, seq=effect.seq, attempt=1))
                core.handle(on.Stored(now=1.0, wall=1.0, seq=effect.seq))
                core.handle(on.Acked(now=1.0, wall=1.0, seq=effect.seq))
    cost_s = (time.process_time() - begun) / rounds
    core.check()
    return cost_s


def test_a_start_among_ten_thousand_costs_little_more_than_among_a_hundred():
    few = min(cost_of(500) for _ in range(3))
    many = min(cost_of(20_000) for _ in range(2))
    assert many < 4 * few, (few, many)


def test_errors_that_a_task_was_lost_with_are_shown():
    world = world_of(1)
    world.arrive("a", backoff_s=10.0)
    world.end("a", WorkerLost("w1 vanished"))
    world.flush()
    world.end("a", WorkerLost("w2 vanished"))
    world.flush()
    assert world.core.info("a").error.message == "w2 vanished"
    assert world.core.why("a").obstacles[0].kind == "backoff"
