"""What the core promises of one queue, against the model world."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.core.queue_core import QueueCore
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors.base import (
    DeadlineExceeded,
    InvalidSchedule,
    LeaseExpired,
    NoWorkers,
    TaskFailed,
    WorkerLost,
)
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import JobState
from gangline.schemas.records.routes import QueueRules, RouteRecord

from ....support.durable.worlds import started, world_of, world_running
from ....work import lines_run

# -- one end ----------------------------------------------------------------------------------------------------------


def test_a_task_is_started_stored_and_only_then_acknowledged():
    world = world_of(1)
    seq = world.arrive("a")
    world.end("a")
    assert [name for name, _ in world.network] == ["result a"]
    assert world.core.info("a").state is JobState.RUNNING
    world.deliver()
    assert [name for name, _ in world.network] == ["ack a"]
    assert world.core.info("a").state is JobState.DONE
    world.deliver()
    assert world.core.info("a") is None
    assert seq in world.acked


def test_a_task_that_is_done_is_acknowledged_at_once_if_nobody_keeps_its_result():
    world = world_of(1)
    seq = world.arrive("a", result_ttl_s=0.0)
    world.end("a")
    assert [name for name, _ in world.network] == ["ack a"]
    assert world.core.info("a").state is JobState.DONE
    world.deliver()
    assert seq in world.acked
    assert world.ends == {"a": 1}
    assert world.core.statistics().done == 1


def test_a_message_that_repeats_a_job_in_the_queue_is_acknowledged_and_starts_nothing():
    world = world_running()
    again = world.arrive("a")
    world.flush()
    assert again in world.acked
    world.settle("a")
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


# -- tries ------------------------------------------------------------------------------------------------------------


def test_the_wait_doubles_and_is_jittered_down_to_half():
    world = world_running(backoff_s=1.0, max_attempts=10)
    waits = []
    for draw in (0.0, 0.5, 1.0 - 2**-20, 0.0):
        world.draw = draw
        world.settle("a", TaskFailed("no"))
        waits.append(world.wake_at - world.now)
        world.advance(waits[-1])
    assert waits == pytest.approx([1.0, 1.5, 2.0, 8.0], abs=1e-4)


def test_the_next_try_waits_until_the_failure_is_noted_however_long_that_takes():
    world = world_running(backoff_s=0.0)
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
    world = world_running()
    world.arrive("b")
    world.refuse("a", LeaseExpired("no"))
    assert started(world) == ["a", "a"]
    assert world.run_of("a").attempt == 1


def test_what_is_refused_again_and_again_is_offered_less_and_less_often():
    world = world_running()
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
    world = world_running(backoff_s=100.0, max_attempts=2)
    world.settle("a", TaskFailed("no"))
    world.take_over()
    world.credit(1)
    world.advance(74.0)
    assert world.started == [("a", 1)]
    world.advance(2.0)
    assert world.started == [("a", 1), ("a", 2)]
    world.settle("a", TaskFailed("no"))
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


def test_what_has_less_time_left_than_its_method_needs_is_buried_unstarted_and_the_next_one_starts():
    world = world_running("first")
    for job, deadline_s in (("late", 5.0), ("fits", 60.0), ("quick", 5.0), ("endless", None)):
        deadline_at = None if deadline_s is None else world.now + deadline_s
        world.arrive(job, deadline_at=deadline_at, method="big" if job == "quick" else "run")
    world.advance(4.0)
    world.settle("first")
    assert world.dead == [("late", "expired")]
    assert world.started == [("first", 1), ("fits", 1)]
    why = world.core.why("endless")
    assert why is not None and not any("deadline" in each.text for each in why.obstacles)
    world.arrive("behind", deadline_at=world.now + 60.0)
    obstacle = next(each for each in world.core.why("behind").obstacles if "deadline" in each.text)
    assert obstacle.text == "It must start some time before its deadline: run usually takes up to 6 s."
    assert obstacle.until == world.now + 54.0


def test_what_runs_past_its_deadline_is_stopped_and_buried_or_done_if_it_was_faster():
    world = world_of(2)
    world.arrive("slow", "fast", deadline_at=world.now + 5.0)
    world.advance(5.0)
    assert {run.stop for run in world.runs} == {do.StopReason.EXPIRED}
    world.end("slow")
    world.finish("fast")
    world.flush()
    assert world.dead == [("slow", "expired")]
    assert world.results["fast"] is JobState.DONE


@pytest.mark.parametrize(
    ("deadline_s", "timeout_s", "reason"), [(2.0, 5.0, "expired"), (9.0, 1.0, "timed_out"), (2.0, None, "expired")]
)
def test_what_a_worker_ends_by_itself_is_expired_or_timed_out_as_the_clock_says(deadline_s, timeout_s, reason):
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + deadline_s, timeout_s=timeout_s, max_attempts=1)
    world.now += min(deadline_s, timeout_s or 9.0)
    world.settle("a", DeadlineExceeded("it was stopped at its deadline", may_have_started=True))
    assert world.dead == [("a", reason)]


def test_a_try_that_timed_out_just_before_the_deadline_is_expired_only_at_the_deadline():
    world = world_of(1)
    world.arrive("a", deadline_at=world.now + 2.0, timeout_s=1.0)
    world.advance(1.9)
    world.settle("a", DeadlineExceeded("it was slow to stop", may_have_started=True))
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


def test_one_whose_time_comes_while_it_is_looked_up_gives_way_to_what_its_schedule_has_published():
    world = world_of(2)
    first = world.arrive("i", not_before=world.now + 1.0)
    held = world.network.pop()
    world.advance(2.0)
    second = world.arrive("i")
    world.flush()
    assert world.run_of("i").seq == second
    world.network.append(held)
    world.flush()
    assert first in world.acked and started(world) == ["i"]
    world.settle("i")
    assert second in world.acked and world.ends == {"i": 1}


def test_after_a_takeover_what_a_schedule_has_published_stands_for_the_job():
    """The last owner may have buried it under its own sequence, and died before it stored the end."""
    world = world_of(2)
    first = world.arrive("i", not_before=world.now + 1.0)
    world.network.pop()  # nobody hears that the schedule is stored
    world.advance(2.0)
    second = world.arrive("i")
    world.flush()
    world.take_over()
    world.credit(2)
    world.flush()
    assert world.run_of("i").seq == second and first in world.acked
    world.settle("i")
    assert world.ends == {"i": 1}


def test_after_a_takeover_what_a_schedule_has_published_may_end_before_the_delayed_task_is_looked_up():
    """If nobody keeps its result, a look-up would find none, and the task would run again."""
    world = world_of(2)
    first = world.arrive("i", not_before=world.now + 1.0)
    world.network.pop()
    world.advance(2.0)
    second = world.arrive("i")
    world.flush()
    world.take_over(flush=False)
    assert "look i" not in [name for name, _ in world.network]
    world.flush()
    assert first in world.acked and world.run_of("i").seq == second


@pytest.mark.parametrize("delay_s", [1.0, 100.0])
def test_a_delayed_task_is_looked_up_again_if_somebody_wants_to_cancel_it_meanwhile(delay_s: float):
    """Whoever is told that the job is unknown stores its cancellation."""
    world = world_of(2)
    seq = world.arrive("i", not_before=world.now + delay_s)
    world.network.clear()
    world.die()
    world.now += 2.0
    world.take()
    world.deliver_message()
    world.tell(on.Cancel, job="i")
    while world.network:
        world.deliver()
        world.results["i"] = JobState.CANCELLED
    world.results["i"] = JobState.CANCELLED
    world.recover()
    world.credit(2)
    world.flush()
    assert started(world) == [] and world.acked == {seq} and not world.scheduled


@pytest.mark.parametrize(
    ("error", "reason"), [(InvalidSchedule("no"), "malformed"), (NoWorkers("outside"), "impossible")]
)
def test_a_schedule_that_the_server_refuses_is_a_dead_letter(error, reason):
    world = world_of(1)
    seq = world.arrive("a", cron="nonsense")
    world.network.clear()
    world.tell(on.Persisted, seq=seq, kind=do.RecordKind.SCHEDULE, error=error)
    world.flush()
    assert world.dead == [("a", reason)]


# -- telling ----------------------------------------------------------------------------------------------------------


def test_a_job_that_asks_for_it_is_told_of_each_change():
    world = world_running("quiet")
    world.settle("quiet")
    world.arrive("a", events=True, backoff_s=1.0)
    world.end("a", TaskFailed("no"))
    world.advance(1.0)
    world.settle("a")
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


# -- cost -------------------------------------------------------------------------------------------------------------


def work_of(count: int, rounds: int = 30) -> float:
    """Lines of Python that one start and end execute, with so many tasks waiting, half of them behind their keys."""
    core = QueueCore("e", DispatcherSettings(node="n", window_tasks=1_000_000, window_bytes=1 << 40))
    route = RouteRecord(queue=QueueRules(per_key=1))
    core.handle(on.Routed(now=0.0, wall=0.0, route=route, explicit=True))
    core.handle(on.QueueTaken(now=0.0, wall=0.0))
    core.handle(on.Recovered(now=0.0, wall=0.0))
    for seq in range(1, count + 1):
        key = f"k{seq % 100}" if seq % 2 else None
        submission = Submission(endpoint="e", method="m", job=f"j{seq}", key=key, deadline_at=1e9, published_at=seq)
        core.handle(on.TaskArrived(now=0.0, wall=0.0, seq=seq, submission=submission, size=100))

    def start_and_end() -> None:
        for _ in range(rounds):
            for effect in core.handle(on.SlotsGranted(now=1.0, wall=1.0, pool="e", free=(1,))):
                if isinstance(effect, do.StartAttempt):
                    core.handle(on.AttemptEnded(now=1.0, wall=1.0, seq=effect.seq, attempt=1))
                    core.handle(on.Persisted(now=1.0, wall=1.0, seq=effect.seq, kind=do.RecordKind.RESULT))
                    core.handle(on.Acked(now=1.0, wall=1.0, seqs=[effect.seq]))

    lines = lines_run(start_and_end)
    core.check()
    return lines / rounds


@pytest.mark.long
def test_a_start_is_hardly_more_work_among_thousands_of_tasks_than_among_hundreds():
    few, many = work_of(500), work_of(4_000)
    assert few > 100 and many < 2 * few, (few, many)


def test_errors_that_a_task_was_lost_with_are_shown():
    world = world_running(backoff_s=10.0)
    world.settle("a", WorkerLost("w1 vanished"))
    world.settle("a", WorkerLost("w2 vanished"))
    assert world.core.info("a").error.message == "w2 vanished"
    assert world.core.why("a").obstacles[0].kind == "backoff"
