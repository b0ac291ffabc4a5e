"""A queue that changes hands or is in doubt, what is cancelled meanwhile, and how much is pulled."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.core.queue_core import QueueCore
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.policies.start_order import AT_ONCE
from gangline.schemas.errors.base import InvalidArguments, TaskFailed
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import JobState

from ....support.durable.world import World
from ....support.durable.worlds import started, world_of, world_running

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
        world.arrive("a", "b", "c")
        world.die()
        world.take()
        if early:
            world.survey()
        world.flush()
        world.recover()
        world.credit(4)
        assert started(world) == ["a", "b"]
        world.settle("b")
        assert started(world) == ["a", "b", "c"]


def test_what_runs_counts_for_limits_even_if_it_enters_the_queue_only_when_its_result_was_looked_up():
    world = world_of(2, per_key=1)
    world.arrive("a", key="k", not_before=world.now - 1.0)
    world.arrive("b", key="k")
    assert started(world) == ["a"]
    world.take_over(flush=False)
    world.credit(4)
    assert started(world) == ["a"]
    world.flush()
    assert started(world) == ["a"]
    world.settle("a")
    assert started(world) == ["a", "b"]


def test_what_ended_while_nobody_listened_is_asked_for():
    world = world_running()
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
        assert world.run_of("a").stop is do.StopReason.CANCELLED
        world.settle("a")
        assert not world.stream and not world.ends


def test_what_has_ended_and_runs_nowhere_is_forgotten_when_that_is_known():
    world = world_running()
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
    world = world_running(backoff_s=60.0)
    run = world.run_of("a")
    world.settle("a", TaskFailed("no"))
    world.die()
    world.runs = [run]
    world.open()
    assert world.core.info("a").state is JobState.WAITING


def test_of_two_workers_that_have_a_job_the_later_attempt_counts():
    world = world_running()
    world.die()
    world.take()
    world.flush()
    world.tell(on.TaskAdopted, job="a", worker="e.old", attempt=1)
    world.network.clear()
    world.tell(on.TaskAdopted, job="a", worker="e.new", attempt=2)
    world.tell(on.AttemptEnded, seq=1, attempt=1, error=TaskFailed("the older one"))
    assert world.core.info("a").state is JobState.RUNNING
    assert world.core.info("a").worker == "e.new"


def test_a_job_that_cannot_be_found_any_more_counts_as_tried():
    world = world_running(backoff_s=0.0)
    world.die()
    world.take()
    world.tell(on.TaskAdopted, job="a", worker="e.gone", attempt=1)
    world.runs.clear()
    world.flush()
    world.recover()
    world.credit(1)
    world.flush()
    assert world.started == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("has_ended", [True, False])
def test_an_attempt_that_is_lost_while_its_result_is_looked_up_counts_only_if_there_is_none(has_ended):
    world = world_running(backoff_s=0.0)
    world.die()
    world.take()
    world.tell(on.TaskAdopted, job="a", worker="e.gone", attempt=1)
    world.runs.clear()
    if has_ended:
        world.results["a"] = JobState.DONE
    world.deliver_message()
    lost = next(index for index, (name, _) in enumerate(world.network) if name == "lost a")
    world.deliver(lost)
    world.flush()
    world.recover()
    world.credit(1)
    world.flush()
    assert world.started == ([("a", 1)] if has_ended else [("a", 1), ("a", 2)])
    assert bool(world.stream) is not has_ended


# -- doubt ------------------------------------------------------------------------------------------------------------


def test_while_the_queue_is_in_doubt_nothing_is_begun_and_nothing_is_forgotten():
    world = world_of(2)
    world.arrive("a", "b")
    world.tell(on.OwnershipDoubted)
    world.end("a")
    world.end("b", InvalidArguments("no"))
    world.arrive("c")
    world.malformed()
    world.advance(10.0)
    assert world.network == [] and started(world) == ["a", "b"]
    world.tell(on.OwnershipConfirmed)
    assert [name.rpartition(" ")[0] for name, _ in world.network] == ["result", "dead letter", "dead letter"]
    assert started(world) == ["a", "b", "c"]


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_task_is_cancelled_wherever_it_waits():
    world = world_of(per_key=1)
    world.pool(largest=4, huge=9)
    world.arrive("lined")
    world.arrive("candidate", "capped", key="k")
    world.arrive("head", "behind", key="o", ordered=True)
    world.arrive("parked", method="huge")
    for job in ("lined", "candidate", "capped", "head", "behind", "parked"):
        world.tell(on.Cancel, job=job)
    world.flush()
    assert set(world.results.values()) == {JobState.CANCELLED} and len(world.results) == 6
    assert not world.stream and not world.started


def test_a_task_that_is_being_looked_up_or_noted_is_cancelled_after_it():
    world = world_running("i1")
    world.tell(on.Cancel, job="i1")
    assert [name for name, _ in world.network] == ["look i1", "cancellation i1"]
    world.flush()
    world.arrive("a", backoff_s=60.0)
    world.end("a", TaskFailed("no"))
    world.tell(on.Cancel, job="a")
    assert [name for name, _ in world.network] == ["try a", "cancellation a"]
    world.flush()
    world.arrive("b", backoff_s=60.0)
    world.settle("b", TaskFailed("no"))
    world.tell(on.Cancel, job="b")
    world.flush()
    assert world.results == {"i1": JobState.CANCELLED, "a": JobState.CANCELLED, "b": JobState.CANCELLED}


def test_a_job_that_has_ended_or_is_unknown_cannot_be_cancelled():
    world = world_running()
    world.end("a")
    world.tell(on.Cancel, job="a")
    world.tell(on.Cancel, job="b")
    world.flush()
    world.arrive("b")
    world.settle("b")
    assert world.results == {"a": JobState.DONE, "b": JobState.DONE}


def test_a_cancellation_is_promised_only_when_a_takeover_would_not_forget_it():
    world = world_running()
    world.tell(on.Cancel, job="a")
    assert not world.core.promised("a")
    world.die()  # nobody was told, and nobody knows
    world.open()
    assert world.run_of("a").stop is do.StopReason.CANCELLED  # by the dispatcher that died
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
    assert world.run_of("a").stop is do.StopReason.EXPIRED
    world.tell(on.Cancel, job="a")
    world.deliver()
    assert world.core.promised("a")
    world.settle("a")
    assert world.results == {"a": JobState.CANCELLED}


# -- the window -------------------------------------------------------------------------------------------------------


def test_all_that_a_predecessor_can_have_had_is_pulled_at_once_and_then_little_by_little():
    settings = DispatcherSettings(node="n", window_tasks=1000)
    for waiting, first in ((None, 1000), (0, AT_ONCE), (700, 700), (5000, 1000)):
        core = QueueCore("e", settings)
        assert [effect.count for effect in core.handle(on.QueueTaken(now=0.0, wall=0.0, waiting=waiting))] == [first]
        core.handle(on.Recovered(now=0.0, wall=0.0))
        pulled = 0
        for seq in range(1, first + 1):
            task = Submission(endpoint="e", method="m", job=f"j{seq}")
            effects = core.handle(on.TaskArrived(now=0.0, wall=0.0, seq=seq, submission=task, size=1))
            pulled += sum(effect.count for effect in effects if isinstance(effect, do.Fetch))
            assert first - seq + pulled <= max(first, AT_ONCE)
        assert pulled <= AT_ONCE


def test_no_more_is_pulled_than_the_window_has_room_for():
    world = World(settings=DispatcherSettings(node="n", window_tasks=64), explicit=True)
    for _ in range(150):
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
        world.settle_all()
    assert not world.stream
