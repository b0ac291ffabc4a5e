"""What quotas allow the tasks of a tenant in one queue: nothing that was accepted is refused for what came later."""

from __future__ import annotations

import pytest

from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors.base import InvalidSettings
from gangline.schemas.permissions.quotas import parse_quotas

from ....support.durable.world import World
from ....support.durable.worlds import started, world_with

LAB = "lab"


def take_over(world: World, *quotas: str) -> None:
    """Another dispatcher has the queue, perhaps with other quotas."""
    world.die()
    world.settings = DispatcherSettings(node="n", quotas=parse_quotas(quotas))
    world._boot()
    world.open()


def test_the_error_says_limit_use_and_what_to_do():
    world = world_with("lab:queued_tasks=1")
    world.arrive("a", tenant=LAB)
    seq = world.arrive("b", tenant=LAB)
    error = world.core._state.tasks[seq].error
    assert error is not None
    assert (error.code, error.details) == (
        "quota_exceeded",
        {"tenant": "lab", "quota": "queued_tasks", "limit": 1, "used": 1},
    )
    assert "1 task queued for 'e'" in error.message and "when some have ended" in error.message


def test_tenants_have_a_quota_each_and_our_own_account_has_none():
    world = world_with("queued_tasks=1")
    for number, tenant in enumerate(("lab", "shop", "", "", "lab", "shop")):
        world.arrive(f"j{number}", tenant=tenant)
    world.flush()
    assert world.dead == [("j4", "refused"), ("j5", "refused")]


def test_a_running_task_counts_until_it_has_ended_and_then_makes_room():
    world = world_with("lab:queued_tasks=1", slots=1)
    world.arrive("a", "b", tenant=LAB)
    world.settle("a")
    world.arrive("c", tenant=LAB)
    world.flush()
    assert (world.dead, started(world)) == ([("b", "refused")], ["a", "c"])


def test_bytes_are_limited_and_a_task_that_never_fits_is_no_matter_of_time():
    world = world_with("lab:queued_bytes=250")
    for job, size in (("a", 100), ("b", 100), ("c", 100), ("d", 50), ("e", 251)):
        world.arrive(job, tenant=LAB, size=size)
    codes = [task.error.code for task in world.core._state.tasks.values() if task.error is not None]
    assert codes == ["quota_exceeded", "not_entitled"]
    world.flush()
    assert world.dead == [("c", "refused"), ("e", "refused")]


@pytest.mark.parametrize(("priority", "dead"), [(3, []), (4, [("a", "refused")])])
@pytest.mark.parametrize("delay_s", [None, 60.0])
def test_priority_is_a_right_and_never_changed_silently(priority, dead, delay_s):
    world = world_with("lab:priority=3")
    world.arrive("a", tenant=LAB, priority=priority, not_before=None if delay_s is None else world.now + delay_s)
    world.flush()
    assert world.dead == dead
    if not dead and delay_s is None:
        world.credit(1)
        assert world.stream[1].submission.priority == 3 and started(world) == ["a"]


def test_what_was_accepted_is_accepted_after_a_takeover_in_whatever_order_results_are_looked_up():
    world = world_with("lab:queued_tasks=2")
    world.arrive("a", "b", tenant=LAB)
    world.submit("c", tenant=LAB)
    world.die()
    world._boot()
    world.take()
    while world.pulled and world.next_undelivered() is not None:
        world.deliver_message()
    while world.network:
        world.deliver(len(world.network) - 1)  # the newest first
    world.recover()
    world.flush()
    assert world.dead == [("c", "refused")]
    world.credit(8)
    assert started(world) == ["a", "b"]


def test_a_smaller_quota_ends_nothing_that_runs_and_refuses_the_newest_that_wait():
    world = world_with("lab:queued_tasks=3", slots=1)
    world.arrive("a", "b", "c", tenant=LAB)
    assert started(world) == ["a"]
    take_over(world, "lab:queued_tasks=1")
    assert world.dead == [("b", "refused"), ("c", "refused")]
    world.settle("a")
    assert world.ends == {"a": 1, "b": 1, "c": 1}


def test_a_delayed_task_counts_when_its_time_has_come():
    world = world_with("lab:queued_tasks=1")
    world.arrive("a", tenant=LAB, not_before=world.now + 60.0)
    world.arrive("b", tenant=LAB)
    world.flush()
    assert (world.dead, len(world.scheduled)) == ([], 1)


@pytest.mark.parametrize("quota", ["queued_tasks=5000", "lab:queued_bytes=100000000"])
def test_a_quota_above_what_a_dispatcher_reads_ahead_is_refused_with_what_to_do(quota):
    with pytest.raises(InvalidSettings, match=r"raise window_(tasks|bytes)"):
        DispatcherSettings(quotas=parse_quotas([quota]))


def test_of_refused_runs_of_schedules_one_a_second_is_dead_and_counts_the_others():
    world = world_with("lab:queued_tasks=1")
    world.arrive("first", tenant=LAB)
    for number in range(50):
        world.arrive(f"r{number}", tenant=LAB, schedule="e.s")
    world.flush()
    assert world.dead == [("r0", "refused")]
    assert len(world.acked) == 50
    world.advance(1.5)
    seq = world.arrive("later", tenant=LAB, schedule="e.s")
    error = world.core._state.tasks[seq].error
    assert error is not None
    assert (error.code, error.details["runs"]) == ("quota_exceeded", 49) and "49 other runs" in error.message
    world.arrive("own", tenant=LAB)
    world.flush()
    assert world.dead == [("r0", "refused"), ("later", "refused"), ("own", "refused")], "who submitted it waits for it"


@pytest.mark.parametrize(
    ("quota", "cron", "name"),
    [
        ("lab:schedule_every_s=60", "@every 59s", "schedule_every_s"),
        ("lab:schedule_every_s=60", "*/30 * * * * *", "schedule_every_s"),
        ("lab:schedule_every_s=60", "0 * * * * *", ""),
        ("lab:schedule_every_s=3601", "@hourly", "schedule_every_s"),
        ("lab:schedules=0", "@daily", "schedules"),
        ("lab:schedules=1", "@every 1s", ""),
    ],
)
def test_a_schedule_that_its_tenant_may_not_have_is_refused_at_its_declaration(quota, cron, name):
    world = world_with(quota)
    seq = world.arrive("a", tenant=LAB, cron=cron)
    error = world.core._state.tasks[seq].error
    assert ("" if error is None else error.details["quota"]) == name
    assert name == "" or error is not None and error.code == "not_entitled"
