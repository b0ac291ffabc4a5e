"""Gangs that can do with fewer: a range of sizes, and what others in the queue get beside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gangline.coordinator.scheduling.placement import place, place_most
from gangline.schemas.errors.base import GangImpossible
from gangline.schemas.messages.gangs import AcquireRequest, MemberCause
from gangline.schemas.records.gangs import GangSetRecord, GangSpec

from ...scale import repetitions
from ...support.coordinator.world import World, world_of
from ...support.rows import in_rows
from ..scheduling.test_placement import slots_of


def size_of(world: World, gang: str) -> int:
    found = world.core.get(gang)
    assert found is not None and len({seat.rank for seat in found.seats}) == found.size
    return found.size


def test_it_forms_as_soon_as_the_smallest_size_fits_with_as_many_as_are_free():
    world = world_of(1, 1, 1)
    world.acquire("plain", 2, flush=True)
    world.acquire("a", (1, 5), flush=True)
    assert size_of(world, "a") == 1
    world.release("plain")
    world.advance(0.1)
    assert size_of(world, "a") == 1, "a generation stays as it is"
    world.acquire("b", (1, 5), flush=True)
    assert size_of(world, "b") == 2


def test_the_next_generation_is_smaller_or_larger_than_the_one_before():
    world = world_of(2, 2)
    world.acquire("a", (2, 4), backoff_s=0.0, max_restarts=None, flush=True)
    assert size_of(world, "a") == 4
    first, second = world.workers.values()
    world.crash(second, noticed=True)
    world.advance(0.1)
    assert size_of(world, "a") == 2
    world.restart(second)
    world.advance(10.0)
    assert size_of(world, "a") == 2, "it grows at the end of a generation"
    world.report(first, "a", MemberCause.FAILED)
    world.advance(0.1)
    found = world.core.get("a")
    assert found is not None and (found.size, found.sizes, found.generation) == (4, (2, 4), 3)
    assert world.ledger.gangs()["a"].spec.size == 4, "what an older reader takes for the world size"


def test_a_new_leader_knows_the_range():
    world = world_of(1, 1, 1)
    world.acquire("plain", 1)
    world.acquire("a", (1, 3), backoff_s=0.0, flush=True)
    assert size_of(world, "a") == 2
    world.elect(flush=True)
    assert size_of(world, "a") == 2
    world.release("plain", flush=True)
    worker = world.holder("a")
    world.report(worker, "a", MemberCause.FAILED)
    world.advance(0.1)
    assert size_of(world, "a") == 3


def test_only_the_lost_member_is_replaced_where_the_policy_says_so():
    world = world_of(1, 1, 1)
    world.acquire("plain", 1)
    world.acquire("a", (1, 8), restart="restart_member", flush=True)
    world.release("plain")
    world.crash(world.holder("a"), noticed=True)
    world.advance(0.5)
    assert size_of(world, "a") == 2


def test_what_cannot_be_formed_at_its_smallest_is_refused_and_says_so_of_that_size():
    world = world_of(1, 1)
    asked = world.acquire("a", (3, 8))
    error = world.answers[asked].error
    assert isinstance(error, GangImpossible) and "2 of 3 members" in error.message


def test_it_takes_no_more_than_its_smallest_while_another_waits_for_that_pool():
    world = world_of(4)
    world.acquire("all", 4, flush=True)
    world.acquire("a", (1, 4))
    world.acquire("b", 2)
    world.acquire("c", 3)
    world.release("all", flush=True)
    assert world.states() == {"a": "formed", "b": "formed", "c": "queued"}
    assert size_of(world, "a") == 1, "c waits for three, and may need any that is left"


def test_it_leaves_to_others_what_they_take_and_has_the_rest():
    world = world_of(5)
    world.acquire("all", 5, flush=True)
    world.acquire("a", (1, 5))
    world.acquire("b", 2)
    world.release("all", flush=True)
    assert world.states() == {"a": "formed", "b": "formed"} and size_of(world, "a") == 3


def test_it_leaves_alone_what_the_head_of_the_queue_waits_for():
    world = world_of(2, 2, 1)
    first, second, _ = world.workers.values()
    for worker in (first, second):
        worker.plain = 1
        world.heartbeat(worker)
    world.acquire("head", 5)
    world.advance(0.1)
    world.acquire("a", (1, 5), flush=True)
    assert world.states()["a"] == "queued", "the head needs all there is"
    world.release("head", flush=True)
    assert size_of(world, "a") == 3


@given(
    slots=st.lists(st.integers(min_value=1, max_value=4), min_size=1, max_size=4),
    plain=st.lists(st.integers(min_value=0, max_value=2), min_size=4, max_size=4),
    least=st.integers(min_value=1, max_value=3),
    more=st.integers(min_value=1, max_value=8),
    priority=st.integers(min_value=0, max_value=2),
    others=st.lists(
        st.tuples(st.integers(min_value=1, max_value=5), st.integers(min_value=0, max_value=2)), max_size=4
    ),
)
@settings(max_examples=repetitions(2, whole=100), deadline=None)
def test_nobody_who_waits_fares_worse_than_beside_the_smallest_size(slots, plain, least, more, priority, others):
    def played(size: int | tuple[int, int]) -> tuple[dict[str, str], int]:
        world = world_of(*slots)
        for worker, used in zip(world.workers.values(), plain, strict=False):
            worker.plain = min(used, worker.total - 1)
            world.heartbeat(worker)
        free = sum(worker.load.free for worker in world.workers.values())
        world.acquire("blocker", free, priority=9, flush=True)
        world.acquire("a", size, priority=priority, wait_for_workers=True)
        for number, (other, importance) in enumerate(others):
            world.acquire(f"b{number}", other, priority=importance, wait_for_workers=True)
        world.release("blocker", flush=True)
        found = world.core.get("a")
        return world.states(), 0 if found is None or not found.seats else found.size

    with_least, _ = played(least)
    with_range, size = played((least, least + more))
    assert with_range == with_least
    assert size == 0 or least <= size <= least + more


@given(
    slots=st.lists(st.integers(min_value=0, max_value=5), min_size=1, max_size=5),
    least=st.integers(min_value=1, max_value=4),
    more=st.integers(min_value=0, max_value=12),
    strategy=st.sampled_from(["pack", "spread", "strict_pack", "strict_spread"]),
)
@settings(max_examples=repetitions(2, whole=100), deadline=None)
def test_no_larger_size_would_have_fitted(slots, least, more, strategy):
    free = slots_of(*((f"w{number}", f"n{number}", count) for number, count in enumerate(slots)))
    spec = GangSpec.model_validate({"pool": "p", "size": [least, least + more], "strategy": strategy})
    found = place_most(spec, free)
    fits = [size for size in range(least, least + more + 1) if place(spec.sized(size), free) is not None]
    assert (0 if found is None else len(found.seats)) == max(fits, default=0)


@in_rows(
    "wrong",
    [
        {"pool": "p", "size": [3, 2]},
        {"pool": "p", "size": [0, 2]},
        {"pool": "p", "size": [1, 2, 3]},
        {"pool": "p", "size": [1, 901]},
        {"bundles": [{"pool": "p", "min_count": 1}]},
        {"bundles": [{"pool": "p", "min_count": 1, "max_count": 2}, {"pool": "q"}]},
        {"bundles": [{"pool": "p", "count": 3, "min_count": 1, "max_count": 2}]},
    ],
)
def test_a_range_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValidationError):
        AcquireRequest.model_validate(wrong)


def test_a_standing_set_has_gangs_of_one_size():
    with pytest.raises(ValidationError, match="one size"):
        GangSetRecord.model_validate({"gangs": 1, "gang": {"pool": "p", "size": [1, 2]}})


def test_a_request_without_a_range_says_nothing_of_one_to_an_older_coordinator():
    plain = AcquireRequest.model_validate({"pool": "p", "size": [2, 2]}).model_dump(exclude_defaults=True)
    assert plain == {"bundles": ({"pool": "p", "count": 2},)}
    ranged = AcquireRequest.model_validate({"pool": "p", "size": [1, 2]}).model_dump_json(exclude_defaults=True)
    assert AcquireRequest.model_validate_json(ranged).sizes == (1, 2)
