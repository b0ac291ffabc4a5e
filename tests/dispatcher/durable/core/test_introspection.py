"""What people are told of a queue and of what stands in a job's way."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.core import introspection
from gangline.schemas.errors.base import LeaseExpired, TaskFailed
from gangline.schemas.records.jobs import JobState
from gangline.schemas.records.routes import QueueRules, RouteRecord
from gangline.schemas.records.workers import TaskPolicy

from ....support.durable.world import World
from ....support.durable.worlds import world_of, world_running


def obstacles(world: World, job: str) -> dict[str, str]:
    return {obstacle.kind: obstacle.text for obstacle in world.core.why(job).obstacles}


def test_a_job_in_line_is_told_its_position_and_who_goes_before_it():
    world = world_of()
    world.arrive("a", "b", "c")
    world.arrive("first", priority=1)
    why = world.core.why("b")
    assert why.position == 2
    assert [(obstacle.kind, obstacle.jobs) for obstacle in why.obstacles] == [
        ("position", ("first", "a")),
        ("slots", ()),
    ]


def test_the_first_in_line_waits_for_slots():
    world = world_of()
    world.pool(wide=3)
    world.arrive("a", method="wide")
    world.credit(2)
    assert world.core.why("a").position == 0
    assert obstacles(world, "a") == {
        "slots": "No lease in pool 'e' has 3 slots free for it: its workers are busy with other work."
    }


def test_a_job_is_told_who_has_the_slots_of_a_full_pool_and_until_when_at_most():
    world = world_of(2)
    world.arrive("a", timeout_s=40.0)
    world.arrive("b", timeout_s=20.0)
    world.arrive("c", "me")
    position, slots = world.core.why("me").obstacles
    assert (position.kind, position.jobs) == ("position", ("c",))
    assert slots.text == "No lease in pool 'e' has 1 slot free for it: 2 tasks of this queue run there."
    assert (slots.jobs, slots.until) == (("a", "b"), world.now + 20.0)
    world.arrive("theirs", tenant="lab")
    assert world.core.why("theirs").obstacles[-2].jobs == (), "tenants are not told the ids of others' jobs"


def test_a_method_that_no_worker_has_is_named_and_the_one_that_was_perhaps_meant():
    world = world_of()
    world.tell(on.PoolSeen, pool="e", known=True, workers=1, largest=8, methods=frozenset({"thumbnail"}))
    world.arrive("me", method="thumbnial")
    assert obstacles(world, "me")["no_workers"] == (
        "No worker of pool 'e' has a task 'thumbnial' (did you mean 'thumbnail'?): "
        "it becomes a dead letter at its turn."
    )


def test_the_end_of_a_rate_is_that_of_the_job_and_not_of_the_next_start():
    world = world_of(8, rate_per_s=0.5, burst=1)
    world.arrive("runs", "next", "second", "me")
    until = {job: world.core.why(job).obstacles[0].until for job in ("next", "second", "me")}
    assert until["second"] == until["next"] + 2.0 and until["me"] == until["next"] + 4.0


def test_the_end_of_a_rate_that_its_method_declares_is_that_of_the_job_too():
    world = world_of(8)
    world.pool(policies={"slow": TaskPolicy(rate_per_s=0.5)})
    world.arrive("next", "second", method="slow")
    world.arrive("first", method="slow", priority=1)
    ends = [world.core.why(job).obstacles[0].until - world.now for job in ("first", "next", "second")]
    assert ends == [2.0, 4.0, 6.0]
    assert obstacles(world, "second")["rate"] == "e.slow declares that at most 30 may start per minute."


def test_a_job_behind_slots_is_told_what_runs_what_goes_before_it_and_how_long_each_can_take_at_most():
    world = world_of(2)
    world.pool(policies={"declared": TaskPolicy(timeout_s=9.0, max_attempts=1)})
    world.arrive("long", method="slow", timeout_s=40.0, max_attempts=2)
    world.arrive("free", method="slow")
    world.advance(10.0)
    world.arrive("a", "b", method="declared")
    world.arrive("c", method="slow", timeout_s=20.0, max_attempts=3, deadline_at=world.now + 50.0)
    world.arrive("me", "after", method="slow")
    line = world.core.why("me").line
    assert [(each.seq, each.method, each.at_most_s) for each in line.running] == [(1, "slow", 70.0), (2, "slow", None)]
    assert [(each.method, each.count, each.at_most_s) for each in line.ahead] == [
        ("declared", 2, 9.0),
        ("slow", 1, 50.0),
    ]
    assert [each.once for each in (*line.running, *line.ahead)] == [False, False, True, False], "who may come back"
    assert (line.pool, line.method, line.slots, line.most_running, line.only_slots) == ("e", "slow", 1, None, True)
    assert world.core.why("long").line is None, "it runs"


def test_what_is_far_ahead_is_added_up(monkeypatch):
    monkeypatch.setattr(introspection, "MAX_LINE_TASKS", 20)
    world = world_of()
    for number in range(40):
        world.arrive(f"j{number}", method=f"m{number % 2}", timeout_s=10.0, max_attempts=1)
    world.arrive("me")
    ahead = world.core.why("me").line.ahead
    assert sum(each.count for each in ahead) == 40 and len(ahead) <= 22
    assert {each.at_most_s for each in ahead} == {10.0}
    places = [each.once for each in ahead]
    assert places == [True] * 20 + [False] * (len(ahead) - 20), "those far back are in no order"


def test_of_an_unknown_pool_it_is_told_which_was_perhaps_meant_but_not_to_tenants():
    world = World()
    world.open()
    world.tell(on.PoolSeen, pool="e", known=False, near="ee")
    world.arrive("mine")
    world.arrive("theirs", tenant="lab")
    rest = ": it waits for a worker before it becomes a dead letter"
    assert obstacles(world, "mine")["no_workers"] == f"Pool 'e' does not exist (did you mean 'ee'?){rest}."
    assert obstacles(world, "theirs")["no_workers"] == f"Pool 'e' does not exist{rest}."
    assert [world.core.info(job).reason for job in ("mine", "theirs")] == [
        f"pool 'e' does not exist (did you mean 'ee'?){rest}",
        f"pool 'e' does not exist{rest}",
    ]


@pytest.mark.parametrize(
    ("rules", "kind", "text"),
    [
        ({"max_running": 1}, "slots", "At most 1 of the endpoint's tasks run at once."),
        ({"limits": {"e": 1}}, "pool_limit", "At most 1 of them run in pool 'e'."),
    ],
)
def test_limits_are_named(rules, kind, text):
    world = world_of(4, **rules)
    world.arrive("a", "b")
    assert obstacles(world, "b") == {kind: text}, "and it does not lack slots"


def test_a_key_and_an_order_name_the_jobs_in_the_way():
    world = world_of(4, per_key=1)
    world.arrive("a", "b", key="k")
    world.arrive("c", "d", key="o", ordered=True)
    assert [(each.kind, each.jobs) for each in world.core.why("b").obstacles] == [("key", ("a",))]
    assert [(each.kind, each.jobs) for each in world.core.why("d").obstacles] == [("order", ("c",))]


def test_a_job_behind_a_key_is_told_what_goes_before_it_under_the_key_and_for_slots():
    world = world_of(4, per_key=1)
    world.arrive("a", key="k", method="slow", timeout_s=40.0, max_attempts=1)
    world.arrive("b", "c", "me", key="k", timeout_s=5.0, max_attempts=2)
    world.arrive("later", key="k")
    world.arrive("other", key="o")
    assert world.core.why("b").turn.ahead == (), "it is the next one"
    why = world.core.why("me")
    turn = why.turn
    assert (turn.kind, turn.most_running, turn.turns, turn.last) == ("key", 1, False, True)
    assert [(each.seq, each.method, each.at_most_s, each.once) for each in turn.running] == [(1, "slow", 40.0, True)]
    assert [(each.count, each.at_most_s, each.once) for each in turn.ahead] == [(2, 10.0, False)]
    assert why.line is None and len(turn.line.running) == 2 and turn.line.ahead == turn.ahead
    assert world.core.why("other").turn is None, "it runs"


def test_a_job_behind_a_limit_of_its_method_has_a_turn_and_one_behind_a_rate_has_none():
    world = world_of(4)
    world.pool(policies={"few": TaskPolicy(max_running=2), "slow": TaskPolicy(rate_per_s=0.1)})
    world.arrive("a", "b", "c", "me", method="few")
    turn = world.core.why("me").turn
    assert (turn.kind, turn.most_running, len(turn.running), turn.ahead[0].count) == ("method", 2, 2, 1)
    world.arrive("e", "f", method="slow")
    assert [each.kind for each in world.core.why("f").obstacles] == ["rate"] and world.core.why("f").turn is None


def test_a_wait_says_why_and_until_when():
    world = world_of(1)
    world.draw = 0.0
    world.arrive("a", backoff_s=8.0)
    world.settle("a", TaskFailed("no"))
    (obstacle,) = world.core.why("a").obstacles
    assert (obstacle.kind, obstacle.until) == ("backoff", world.now + 8.0)
    assert obstacle.text == "Attempt 1 failed (task_failed: no); it waits for the next."
    world.advance(8.0)
    for _ in range(2):
        world.refuse("a", LeaseExpired("its time ran out"))
    assert obstacles(world, "a") == {"backoff": "It could not be started: its time ran out"}


def test_a_queue_that_was_just_taken_or_is_in_doubt_says_so():
    world = World(explicit=True)
    world.take()
    world.arrive("a")
    assert "just taken" in obstacles(world, "a")["paused"]
    world.recover()
    world.tell(on.OwnershipDoubted)
    assert "still owns" in obstacles(world, "a")["paused"]


def test_a_job_that_runs_has_no_obstacles_and_one_that_is_not_here_no_answer():
    world = world_running(priority=3, key="k")
    why = world.core.why("a")
    assert (why.position, why.obstacles) == (None, ())
    info = why.job
    assert (info.state, info.attempts, info.priority, info.key, info.sequence) == (JobState.RUNNING, 1, 3, "k", 1)
    assert (info.submitted_at, info.started_at) == (world.now, world.now)
    assert world.core.why("b") is None and world.core.info("b") is None


def test_counts_tell_who_is_where():
    world = world_of(per_key=1)
    world.arrive("old", published_at=world.now - 5.0, key="k")
    world.arrive("capped", key="k")
    world.arrive("lined")
    world.arrive("fails", priority=9)
    world.credit(1)
    world.settle("fails", TaskFailed("no"), keep_slot=False)
    counts = world.core.statistics()
    assert (counts.seen, counts.running, counts.waiting, counts.blocked, counts.startable) == (4, 0, 1, 1, 2)
    assert (counts.oldest_at, counts.started, counts.retried) == (world.now - 5.0, 1, 1)
    world.credit(2, 1)
    assert world.core.statistics().credit == 1
    for job in ("old", "lined"):
        world.end(job)
    world.flush()
    assert world.core.statistics().done == 2


def test_each_task_is_counted_once_by_what_it_waits_for():
    world = world_of(per_key=1)
    world.draw = 0.0
    world.pool(wide=3, largest=2)
    world.arrive("runs", key="k", priority=9)
    world.credit(1)
    world.arrive("capped", key="k")
    world.arrive("first", "behind", key="o", ordered=True)
    world.arrive("wide", method="wide")
    assert world.core.statistics().pending == {"order": 1, "limit": 1, "size": 1, "slots": 1}
    world.settle("runs", TaskFailed("no"), keep_slot=False)
    assert world.core.statistics().pending == {"backoff": 1, "order": 1, "size": 1, "slots": 2}
    world.pool(workers=0)
    assert world.core.statistics().pending["workers"] >= 2
    world.reroute(RouteRecord(queue=QueueRules(paused=True)))
    assert world.core.statistics().pending == {"backoff": 1, "paused": 4}


@pytest.mark.parametrize(
    ("rules", "free", "reason"),
    [
        ({}, 1, "it waits for a slot of pool 'e'"),
        ({"paused": True}, 4, "the route says that the queue is paused"),
        ({"max_running": 1}, 4, "a limit of its route is reached"),
        ({"limits": {"e": 1}}, 4, "a limit of its route is reached"),
        ({"rate_per_s": 0.5}, 4, "a limit of its route is reached"),
        ({"per_key": 1}, 4, "at most 1 of key 'k' run at once"),
    ],
)
def test_a_queued_job_says_in_a_list_what_it_waits_for(rules, free, reason):
    world = world_of(free, **rules)
    world.arrive("a", "b", key="k")
    assert world.core.info("b").state is JobState.QUEUED
    assert world.core.info("b").reason == list(world.core.listed(0))[1].reason == reason


def test_a_list_says_what_is_wrong_with_the_pool_or_goes_before_a_job():
    world = world_of(4)
    world.arrive("c", "d", key="o", ordered=True)
    assert world.core.info("c").reason is None, "it runs"
    assert world.core.info("d").reason == "an older job of key 'o' has not ended"
    world.pool(wide=9)
    world.arrive("wide", method="wide")
    assert "it takes 9 slots, and no worker of pool 'e' has more than" in world.core.info("wide").reason
