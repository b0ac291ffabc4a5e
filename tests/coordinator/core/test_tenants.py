"""Quotas of tenants: what waits, what is refused, and that what is in use is counted from what there is."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.coordinator.core.tenants import in_turn
from gangline.coordinator.model.gang import ManagedGang
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.errors.base import NotEntitled, QuotaExceeded
from gangline.schemas.messages.gangs import MemberCause
from gangline.schemas.permissions.quotas import Quota, Quotas
from gangline.schemas.records.gangs import GangSpec

from ...support.coordinator.world import World, formed, world_of
from ...support.rows import in_rows


def world_with(*slots: int, **quotas: Quota) -> World:
    return world_of(*slots, settings=CoordinatorSettings(quotas=Quotas(named=quotas)))


def refusal(world: World, asked: int) -> Any:
    return world.answers[asked].error


@pytest.mark.parametrize("quota", [Quota(gangs=2), Quota(gang_slots=5)])
def test_a_gang_above_the_quota_waits_until_one_of_its_tenant_ends(quota: Quota):
    world = world_with(4, 4, lab=quota)
    for gang in ("a", "b", "c"):
        world.acquire(gang, 2, tenant="lab")
    world.flush()
    assert formed(world) == ["a", "b"]
    why = world.core.why("c")
    assert why is not None and "quota gang" in why.lacks[0]
    world.release("a", flush=True)
    assert formed(world) == ["b", "c"]


def test_a_gang_that_waits_for_its_quota_delays_nobody_else():
    world = world_with(2, 2, lab=Quota(gangs=1))
    world.acquire("a", 1, tenant="lab")
    world.acquire("b", 4, tenant="lab", priority=0)
    world.acquire("c", 1, tenant="shop")
    world.acquire("d", 1, flush=True)
    assert formed(world) == ["a", "c", "d"]


def test_small_gangs_do_not_pass_a_large_one_of_the_same_tenant():
    world = world_with(8, lab=Quota(gang_slots=4))
    world.acquire("a", 2, tenant="lab")
    world.acquire("large", 4, tenant="lab")
    world.acquire("small", 1, tenant="lab", flush=True)
    assert formed(world) == ["a"]
    why = world.core.why("small")
    assert why is not None and "gang large is ahead of it" in why.lacks[0]
    world.release("a", flush=True)
    assert formed(world) == ["large"]


def test_a_gang_behind_the_head_leaves_the_head_its_part_of_the_quota():
    world = world_with(4, 2, lab=Quota(gang_slots=4))
    world.acquire("plain", 1, slots=3, flush=True)
    world.acquire("head", 1, slots=4, tenant="lab")  # waits for the first worker
    world.acquire("small", 1, tenant="lab")
    world.acquire("others", 1, flush=True)
    assert formed(world) == ["others", "plain"]
    world.release("plain")
    world.advance(1.0)
    assert formed(world) == ["head", "others"]


def test_a_gang_with_a_range_of_sizes_grows_up_to_the_quota():
    world = world_with(4, 4, lab=Quota(gang_slots=5))
    world.acquire("a", 2, tenant="lab")
    world.acquire("b", (1, 8), tenant="lab", flush=True)
    found = world.core.get("b")
    assert found is not None and (found.step, found.size) == ("formed", 3)


@in_rows(("quota", "more", "name"), [
    (Quota(), {"priority": 1}, "priority"),
    (Quota(), {"preempt": True}, "preempt"),
    (Quota(gang_slots=3), {"slots": 2}, "gang_slots"),
    (Quota(gangs=0), {}, "gangs"),
    (Quota(pools=frozenset({"q"})), {}, "pools"),
])  # fmt: skip
def test_what_a_tenant_has_no_right_to_is_refused_at_once(quota: Quota, more: dict[str, Any], name: str):
    world = world_with(4, lab=quota)
    asked = world.acquire("a", 2, tenant="lab", **more)
    error = refusal(world, asked)
    assert isinstance(error, NotEntitled) and error.details["quota"] == name and "lab" in error.message
    assert world.core.get("a") is None
    world.acquire("a", 2, **more, flush=True)
    assert formed(world) == ["a"], "our own account has no quotas"


def test_rights_are_given_by_name():
    world = world_with(2, 2, lab=Quota(priority=5, preempt=True))
    world.acquire("low", 4, flush=True)
    world.acquire("high", 4, tenant="lab", priority=5, preempt=True)
    world.advance(10.0)
    assert formed(world) == ["high"]


def test_one_more_than_may_wait_is_refused():
    world = world_with(1, lab=Quota(gangs_waiting=2))
    for gang in ("a", "b", "c"):
        world.acquire(gang, 1, tenant="lab", flush=True)
    error = refusal(world, world.acquire("d", 1, tenant="lab"))
    assert isinstance(error, QuotaExceeded)
    assert error.details == {"tenant": "lab", "quota": "gangs_waiting", "limit": 2, "used": 2}
    world.acquire("e", 1, tenant="shop")
    assert world.core.get("e") is not None
    world.release("a", flush=True)
    world.acquire("d", 1, tenant="lab")
    assert world.core.get("d") is not None


def test_a_new_leader_counts_what_there_is():
    world = world_with(4, 4, lab=Quota(gangs=1))
    world.acquire("a", 2, tenant="lab", ttl_s=10.0, flush=True)
    world.elect(flush=True)
    world.acquire("b", 2, tenant="lab", ttl_s=1000.0, flush=True)
    assert formed(world) == ["a"]
    world.advance(30.0)  # the owner of a does not come back
    assert formed(world) == ["b"]
    world.release("b")
    world.advance(30.0)
    assert not world.core._state.of_tenant


def test_a_gang_that_was_formed_under_a_larger_quota_goes_on():
    world = world_with(4, 4, lab=Quota(gangs=2))
    for gang in ("a", "b"):
        world.acquire(gang, 2, tenant="lab", ttl_s=1000.0)
    world.flush()
    world.settings = CoordinatorSettings(quotas=Quotas(named={"lab": Quota(gangs=1)}))
    world.elect(flush=True)
    assert formed(world) == ["a", "b"]


def test_a_gang_that_waits_before_it_restarts_makes_room_for_others_of_its_tenant():
    world = world_with(2, 2, lab=Quota(gangs=1))
    world.acquire("a", 2, tenant="lab", backoff_s=60.0, ttl_s=1000.0)
    world.acquire("b", 2, tenant="lab", ttl_s=1000.0, flush=True)
    assert formed(world) == ["a"]
    world.report(world.holder("a"), "a", MemberCause.FAILED)
    world.advance(10.0)
    assert formed(world) == ["b"]


def waits_in_turn(*queued: tuple[str, str, int], used: dict[str, int], **quotas: Quota) -> str:
    """Ids in the order in which they are tried; of each: tenant, id, slots."""
    gangs = [
        ManagedGang(
            id=id,
            tenant=tenant,
            spec=GangSpec.model_validate({"pool": "p", "size": 1, "slots": slots}),
            owner_id="~t",
            created_at=float(number),
            queued_at=0.0,
        )
        for number, (tenant, id, slots) in enumerate(queued)
    ]
    of = Quotas(named=quotas).of
    return "".join(gang.id for gang in in_turn(gangs, lambda tenant: used.get(tenant, 0), of))


def test_tenants_take_turns_by_what_they_have_for_their_weight():
    queued = [("lab", id, 1) for id in "abcd"] + [("shop", id, 1) for id in "ABCD"]
    assert waits_in_turn(*queued, used={}) == "aAbBcCdD"
    assert waits_in_turn(*queued, used={"lab": 2}) == "ABaCbDcd"
    assert waits_in_turn(*queued, used={}, shop=Quota(weight=3.0)) == "aABCbDcd"
    assert waits_in_turn(*queued, used={"lab": 1, "shop": 3}, shop=Quota(guaranteed=5)) == "ABabcdCD"
    assert waits_in_turn(("", "x", 1), *queued[:2], ("", "y", 1), used={"": 1}) == "axby"


def test_a_tenant_that_comes_later_gets_the_slots_that_become_free():
    world = world_with(4)
    for number in range(8):
        world.acquire(f"lab{number}", 1, tenant="lab", ttl_s=1000.0)
    for number in range(3):
        world.acquire(f"shop{number}", 1, tenant="shop", ttl_s=1000.0)
    world.flush()
    assert formed(world) == [f"lab{number}" for number in range(4)], "it borrows what others leave"
    for gang in ("lab0", "lab1"):
        world.release(gang, flush=True)
    assert formed(world) == ["lab2", "lab3", "shop0", "shop1"]


def test_borrowed_slots_are_taken_back_in_bounded_time():
    world = world_with(4, shop=Quota(guaranteed=2))
    for number in range(4):
        world.acquire(f"lab{number}", 1, tenant="lab", ttl_s=1000.0, grace_s=1.0)
        world.advance(0.1)
    world.acquire("shop", 2, tenant="shop", ttl_s=1000.0)
    world.advance(4.0)
    assert len([gang for gang in formed(world) if gang.startswith("lab")]) == 4, "the head waits a little first"
    world.advance(world.settings.starve_after_s + 1.0 + world.settings.stop_margin_s)
    assert formed(world) == ["lab0", "lab1", "shop"], "the youngest are taken"
    world.release("shop")
    world.advance(2.0)
    assert formed(world) == ["lab0", "lab1", "lab2", "lab3"], "and restart"


def test_nobody_is_taken_below_its_guarantee_and_none_of_our_own_account():
    world = world_with(2, 2, shop=Quota(guaranteed=4), lab=Quota(guaranteed=2))
    world.acquire("lab", 2, tenant="lab", ttl_s=1000.0)
    world.acquire("own", 2, ttl_s=1000.0, flush=True)
    world.acquire("shop", 2, tenant="shop", ttl_s=1000.0)
    world.advance(60.0)
    assert formed(world) == ["lab", "own"]


def test_what_is_above_the_guarantee_waits_like_others():
    world = world_with(2, 2, shop=Quota(guaranteed=2))
    world.acquire("lab", 4, tenant="lab", ttl_s=1000.0, flush=True)
    world.acquire("shop", 3, tenant="shop", ttl_s=1000.0)
    world.advance(60.0)
    assert formed(world) == ["lab"]
