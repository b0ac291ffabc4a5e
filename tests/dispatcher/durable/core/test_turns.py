"""Tenants take turns in one queue, whatever the places of their tasks."""

from __future__ import annotations

from collections import Counter

import pytest

from gangline.dispatcher.routing.wait_queue import TenantTurns
from gangline.schemas.records.routes import QueueRules, RouteRecord
from gangline.schemas.records.workers import TaskPolicy

from ....support.durable.world import World
from ....support.durable.worlds import world_with


def submit(world: World, tenant: str, count: int, **fields: object) -> None:
    for _ in range(count):
        world.arrive(f"{tenant or 'own'}{world.last_seq + 1}", tenant=tenant, **fields)
    world.flush()


def run(world: World, starts: int) -> str:
    """Let the running tasks end one after the other until so many have started; the tenants of these, in order, each by
    its first letter."""
    while len(world.started) < starts:
        before = len(world.started)
        world.settle(next(run.job for run in world.runs if not run.ended))
        assert len(world.started) > before, "nothing starts any more"
    return "".join(job[0] for job, _ in world.started[:starts])


def test_a_tenant_with_many_tasks_delays_the_next_task_of_another_by_one_start():
    world = world_with()
    submit(world, "lab", 50)
    world.credit(1)
    assert run(world, 5) == "lllll"
    submit(world, "shop", 1)
    assert "s" in run(world, 7)[5:]


def test_tenants_alternate_and_our_own_account_takes_its_turn_like_a_tenant():
    world = world_with()
    submit(world, "lab", 15)
    submit(world, "shop", 15)
    submit(world, "", 15)
    world.credit(1)
    starts = run(world, 30)
    assert Counter(starts) == {"l": 10, "s": 10, "o": 10}
    assert all(len(set(starts[at : at + 3])) == 3 for at in range(0, 30, 3)), starts


def test_a_tenants_weight_is_its_share():
    world = world_with("lab:weight=3")
    submit(world, "lab", 35)
    submit(world, "shop", 15)
    world.credit(1)
    assert Counter(run(world, 40)) == {"l": 30, "s": 10}


def test_a_tenant_whose_next_task_comes_when_the_last_has_started_keeps_its_share():
    world = world_with("lab:weight=3")
    submit(world, "lab", 1)
    submit(world, "shop", 15)
    world.credit(1)
    submit(world, "lab", 1)
    for starts in range(2, 42):
        if run(world, starts).endswith("l"):
            submit(world, "lab", 1)
    starts = run(world, 41)[1:]
    for count in range(1, 41):
        lab, shop = starts[:count].count("l"), starts[:count].count("s")
        assert abs(lab / 3 - shop) < 1.5, starts


def test_what_one_tenant_leaves_the_other_uses_and_a_pause_earns_nothing():
    world = world_with()
    submit(world, "lab", 35)
    world.credit(1)
    assert run(world, 20) == "l" * 20
    submit(world, "shop", 15)
    assert Counter(run(world, 40)[20:]) == {"l": 10, "s": 10}


def test_priority_orders_the_tasks_of_a_tenant_and_not_those_of_others():
    world = world_with("priority=1000")
    submit(world, "shop", 3)
    submit(world, "lab", 20)
    submit(world, "lab", 20, priority=1000)
    world.credit(1)
    assert Counter(run(world, 6)) == {"l": 3, "s": 3}
    urgent = {job for job, _ in world.started if job.startswith("lab")}
    assert urgent <= {f"lab{number}" for number in range(24, 44)}


def test_a_task_that_needs_more_slots_takes_more_of_its_tenants_share():
    world = world_with(big=3)
    submit(world, "lab", 20, method="big")
    submit(world, "shop", 40)
    world.credit(3)
    for _ in range(200):
        if world.started and len(world.started) >= 24:
            break
        world.settle_all()
        world.advance(1.0)
    slots = Counter[str]()
    for job, _ in world.started[:24]:
        slots[job[0]] += 3 if job.startswith("l") else 1
    assert abs(slots["l"] - slots["s"]) <= 6, slots


@pytest.mark.parametrize("policy", [TaskPolicy(max_running=1), TaskPolicy(rate_per_s=20.0)])
def test_tenants_take_turns_under_a_limit_that_the_task_declares(policy):
    world = world_with(policies={"run": policy})
    world.credit(8)
    submit(world, "lab", 30)
    submit(world, "shop", 30)
    before = len(world.started)
    for _ in range(400):
        if len(world.started) >= before + 40:
            break
        world.advance(0.05)
        for each in [each for each in world.runs if not each.ended][:1]:
            world.end(each.job)
        world.flush()
    counts = Counter(job[0] for job, _ in world.started[before : before + 40])
    assert abs(counts["l"] - counts["s"]) <= 4, counts


def test_tenants_take_turns_across_pools_when_the_route_limits_how_many_run():
    route = RouteRecord(to={"e": 1, "f": 1}, queue=QueueRules(max_running=1))
    world = world_with(route=route)
    world.pool("f")
    submit(world, "lab", 15, pool="e")
    submit(world, "shop", 15, pool="f")
    world.credit(4, pool="e")
    world.credit(4, pool="f")
    counts = Counter(run(world, 20))
    assert abs(counts["l"] - counts["s"]) <= 1, counts


def test_slots_that_a_tenant_alone_used_in_another_pool_cost_it_no_turns_here():
    world = world_with(route=RouteRecord(to={"e": 1, "f": 1}))
    world.pool("f")
    submit(world, "lab", 40, pool="f")
    world.credit(8, pool="f")
    for _ in range(4):
        world.settle_all()
    world.credit(pool="f")
    before = len(world.started)
    submit(world, "lab", 20, pool="e")
    submit(world, "shop", 20, pool="e")
    world.credit(1, pool="e")
    for each in [each for each in world.runs if not each.ended and each.pool == "f"]:
        world.end(each.job, keep_slot=False)
    assert Counter(run(world, before + 20)[before:]) == {"l": 10, "s": 10}


def test_an_ordered_key_of_one_tenant_does_not_hold_back_the_same_key_of_another():
    world = world_with()
    world.credit(8)
    submit(world, "lab", 2, key="a", ordered=True)
    submit(world, "shop", 2, key="a", ordered=True)
    submit(world, "", 2, key="a", ordered=True)
    assert [job for job, _ in world.started] == ["lab1", "shop3", "own5"]


def test_why_counts_the_tasks_of_the_same_tenant_and_says_that_tenants_take_turns():
    world = world_with()
    submit(world, "lab", 10)
    submit(world, "shop", 2)
    why = world.core.why("shop12")
    assert why is not None
    assert why.position == 1
    assert any("tenants take turns" in obstacle.text for obstacle in why.obstacles), why
    assert not any(job.startswith("lab") for obstacle in why.obstacles for job in obstacle.jobs)


@pytest.mark.parametrize("bug", ["nothing is counted", "weights are ignored", "a pause is rewarded"])
def test_a_planted_bug_in_the_turns_is_caught(bug, monkeypatch):
    if bug == "nothing is counted":
        monkeypatch.setattr(TenantTurns, "take", lambda self, tenant, amount: None)
        test = test_tenants_alternate_and_our_own_account_takes_its_turn_like_a_tenant
    elif bug == "weights are ignored":
        original = TenantTurns.take
        monkeypatch.setattr(
            TenantTurns, "take", lambda self, tenant, amount: original(self, tenant, amount * self._weight_of(tenant))
        )
        test = test_a_tenants_weight_is_its_share
    else:
        enter = TenantTurns.enter

        def enter_with_nothing(self: TenantTurns, tenant: str) -> None:
            enter(self, tenant)
            if self._waiting[tenant] == 1:
                self._served[tenant] = 0.0

        monkeypatch.setattr(TenantTurns, "enter", enter_with_nothing)
        test = test_what_one_tenant_leaves_the_other_uses_and_a_pause_earns_nothing
    with pytest.raises(AssertionError):
        test()
