"""What the core promises to owners and operators, against the model world."""

from __future__ import annotations

import itertools

import pytest

from gangline.coordinator.model import effects as do
from gangline.coordinator.model import events as on
from gangline.coordinator.scheduling import placement
from gangline.coordinator.scheduling.inventory import WorkerFacts
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.errors.base import (
    GangEnded,
    GangFailed,
    GangNotFormed,
    InvalidSettings,
    QueueFull,
)
from gangline.schemas.messages.gangs import AcquireRequest, OwnedRequest
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangState

from ...support.coordinator.world import World, heartbeats, world_of
from ...support.rows import in_rows
from ...work import lines_run


def error_of(world: World, asked: int) -> Exception | None:
    return world.answers[asked].error


# -- forming ----------------------------------------------------------------------------------------------------------


def test_members_parts_and_the_rendezvous_are_told_to_the_owner():
    world = World()
    world.add_worker("c", 1, pool="cpu", node="host1")
    world.add_worker("s", 2, pool="lic", node="host2")
    world.elect(flush=True)
    asked = world.acquire("a", bundles=[{"pool": "cpu", "extras": [{"pool": "lic", "slots": 2}]}], flush=True)
    reply = world.answers[asked].reply
    assert [(seat.rank, seat.part, seat.pool, seat.slots) for seat in reply.seats] == [
        (0, 0, "cpu", 1),
        (0, 1, "lic", 2),
    ]
    assert (reply.rendezvous.host, reply.rendezvous.port) == ("host1", 4711)
    assert reply.fence == world.ledger.revision_of("gang.a")
    assert reply.owner_token == "t-a"
    assert world.core.get("a").owner_token is None


def test_acquire_sent_again_finds_the_same_gang():
    world = world_of(1, 1)
    first = world.acquire("a", 2)
    second = world.acquire("a", 2, flush=True)
    third = world.acquire("a", 2, flush=True)
    fences = {world.answers[asked].reply.fence for asked in (first, second, third)}
    assert len(fences) == 1
    assert len(world.core.gangs()) == 1


def test_acquire_sent_again_renews_the_gang():
    """Its owner, who heard nothing so far, counts from then on."""
    world = world_of(1, 1)
    world.acquire("a", 2, ttl_s=2.0)
    world.advance(1.5)
    world.acquire("a", 2, ttl_s=2.0)
    world.advance(1.9)
    assert world.states() == {"a": "formed"}
    world.advance(0.2)
    assert world.states() == {}


def test_one_that_does_not_wait_is_answered_when_the_ledger_has_its_place():
    world = world_of(1)
    world.acquire("a", 1, flush=True)
    asked = world.acquire("b", 1, wait=False)
    assert asked not in world.answers
    world.flush()
    assert world.answers[asked].reply.state is GangState.QUEUED
    world.elect(flush=True)
    assert world.states() == {"a": "formed", "b": "queued"}


PACKED = {"bundles": [{"pool": "p", "slots": slots} for slots in (3, 5, 7, 4, 9, 12)], "strategy": "spread"}
"""On workers of 8, 16 and 16 slots: all of them, and not by first fit."""


def test_a_gang_that_needs_every_slot_is_queued_and_forms_once_they_are_free():
    world = world_of(8, 16, 16)
    world.acquire("busy", 40)
    world.flush()
    asked = world.acquire("a", **PACKED)
    assert asked not in world.answers
    world.release("busy")
    world.flush()
    assert world.answers[asked].reply.state is GangState.FORMED


def test_what_was_not_proven_impossible_waits_and_is_not_called_so(monkeypatch: pytest.MonkeyPatch):
    world = world_of(8, 16, 16)
    monkeypatch.setattr(placement, "_SEARCH_STEPS", 0)
    asked = world.acquire("a", **PACKED)
    assert asked not in world.answers
    assert set(world.core.waiting_by_obstacle()) == {("p", "slots")}
    [text] = world.core.why("a").lacks
    assert "even if all were free" not in text and "not every combination was tried" in text
    world.release("a")
    world.acquire("never", slots=17, wait_for_workers=True)
    assert set(world.core.waiting_by_obstacle()) == {("p", "impossible")}


def test_the_queue_has_a_bound():
    world = world_of(1, settings=CoordinatorSettings(max_queued=1))
    world.acquire("a", 1, flush=True)
    world.acquire("b", 1)
    assert isinstance(error_of(world, world.acquire("c", 1)), QueueFull)


# -- owners -----------------------------------------------------------------------------------------------------------


def test_release_is_answered_when_every_slot_is_back_and_again_with_the_same():
    world = world_of(1)
    world.acquire("a", 1, flush=True)
    asked = world.release("a")
    assert asked not in world.answers
    world.flush()
    assert world.answers[asked].reply.state is GangState.ENDED
    assert world.worker("w0").load.ongoing == 0
    assert world.answers[world.release("a")].reply.state is GangState.ENDED
    assert isinstance(error_of(world, world.renew("a")), GangEnded)
    assert isinstance(error_of(world, world.acquire("a", 1)), GangEnded)


def test_a_release_while_the_commit_is_on_its_way_ends_the_gang_after_it():
    world = world_of(1)
    asked = world.acquire("a", 1)
    world.deliver()
    world.deliver()
    assert world.network[0][0] == "commit form a"
    released = world.release("a", flush=True)
    assert world.answers[released].reply.state is GangState.ENDED
    assert asked in world.answers
    assert not world.ledger.members()


def test_a_gang_that_uses_up_its_restarts_ends_and_says_so_to_those_who_wait():
    world = world_of(1)
    world.acquire("a", 1, max_restarts=1, backoff_s=5.0, flush=True)
    world.report(world.worker("w0"), "a", flush=True)
    asked = world.acquire("a", 1)
    world.advance(6.0)
    assert world.answers[asked].reply.generation == 2
    world.report(world.worker("w0"), "a", flush=True)
    assert world.states() == {}
    assert world.core.get("a").reason == "crashed"
    assert not isinstance(error_of(world, asked), GangFailed)


# -- the queue --------------------------------------------------------------------------------------------------------


def test_priority_goes_before_age():
    world = world_of(1)
    world.acquire("first", 1, flush=True)
    world.acquire("old", 1)
    world.advance(0.1)
    world.acquire("high", 1, priority=1)
    world.release("first", flush=True)
    assert world.states() == {"old": "queued", "high": "formed"}


def test_a_gang_that_nobody_asks_for_any_more_leaves_the_queue_and_what_was_kept_for_it_is_free():
    world = world_of(1, 1)
    world.acquire("first", 1, flush=True)
    head = world.acquire("head", 2, ttl_s=3.0)
    world.acquire("behind", 2, ttl_s=60.0)
    world.advance(2.9)
    assert world.states()["head"] == "queued"
    world.advance(0.2)
    assert "head" not in world.states()
    error = world.answers[head].error
    assert isinstance(error, GangNotFormed) and "was not asked for again for its ttl_s of 3 s" in error.message
    world.release("first", flush=True)
    assert world.states()["behind"] == "formed"


def test_a_gang_that_is_asked_for_again_or_renewed_keeps_its_place():
    world = world_of(1, 1)
    world.acquire("first", 1, ttl_s=600.0, flush=True)
    world.acquire("asks", 2, ttl_s=3.0)
    world.acquire("renews", 2, ttl_s=3.0)
    for _ in range(10):
        world.advance(2.0)
        world.acquire("asks", 2, ttl_s=3.0)
        world.renew("renews")
    assert world.states() == {"first": "formed", "asks": "queued", "renews": "queued"}


def test_a_gang_is_renewed_from_its_grant_on_by_whoever_only_waited_for_the_answer():
    world = world_of(1, 1)
    world.acquire("first", 1, flush=True)
    world.acquire("patient", 2, ttl_s=10.0)
    world.advance(9.0)
    world.release("first", flush=True)
    world.advance(9.0)
    assert world.states()["patient"] == "formed"


def test_back_fill_never_takes_what_the_head_waits_for():
    world = world_of(1, 1, 1)
    world.acquire("a", 2, flush=True)
    world.acquire("head", 3)
    world.acquire("small", 1, flush=True)
    assert world.states()["small"] == "queued"
    assert "is ahead and needs it" in world.core.why("small").lacks[0]
    world.release("a", flush=True)
    assert world.states() == {"head": "formed", "small": "queued"}


def test_a_gang_is_told_only_of_gangs_ahead_that_wait_for_slots_of_its_pools():
    world = world_of(1)
    world.add_worker("x", 1, pool="q")
    world.flush()
    world.acquire("a", 1, flush=True)
    world.acquire("b", 1, pool="q", flush=True)
    world.acquire("head", 1)
    world.acquire("its", 1, pool="q")
    world.acquire("me", 1, pool="q", flush=True)
    why = world.core.why("me")
    assert [ahead.id for ahead in why.ahead] == ["its"]
    assert not any("head" in lack for lack in why.lacks)


def test_back_fill_uses_what_the_head_does_not_wait_for():
    world = world_of(1, 1, 1)
    world.add_worker("x", 1, pool="q")
    world.flush()
    world.acquire("a", 2, flush=True)
    world.acquire("head", 2, strategy="strict_spread")
    world.acquire("other", 1, pool="q", flush=True)
    assert world.states() == {"a": "formed", "head": "queued", "other": "formed"}


def test_slots_that_are_kept_are_not_said_to_be_in_use_by_tasks():
    world = world_of(2)
    worker = world.worker("w0")
    worker.plain = 1
    heartbeats(world)
    world.acquire("head", 2)
    world.advance(6.0)
    world.heartbeat(worker)
    world.flush()
    world.acquire("next", 1, flush=True)
    head, after = world.core.why("head"), world.core.why("next")
    assert (worker.kept, head.kept) == ({"head": 1}, {"p.w0": 1})
    assert [(item.holder, item.slots) for item in head.obstacles] == [("tasks", 1)]
    kept, tasks = after.obstacles
    assert "gang head (kept for it" in kept.holder and kept.slots == tasks.slots == 1


def test_the_head_of_the_queue_is_not_among_its_own_obstacles():
    world = world_of(3)
    worker = world.worker("w0")
    world.acquire("before", 1, flush=True)
    worker.plain = 1
    world.heartbeat(worker)
    world.flush()
    world.acquire("head", 1, slots=3)
    world.advance(6.0)
    world.heartbeat(worker)
    world.flush()
    head = world.core.why("head")
    assert (worker.kept, head.kept) == ({"head": 1}, {"p.w0": 1})
    assert [(item.holder, item.slots) for item in head.obstacles] == [("gang before", 1), ("tasks", 1)]
    assert head.lacks == ("no worker of pool 'p' has 3 slots at once: the most is 1",), "what is kept for it is its own"


def test_the_head_may_give_up_in_the_very_moment_in_which_its_keeps_are_renewed():
    world = world_of(2)
    worker = world.worker("w0")
    worker.plain = 1
    heartbeats(world)
    settings = world.settings
    world.acquire("a", 2, deadline_s=settings.starve_after_s + 2 * settings.keep_renew_s - 0.01)
    world.advance(settings.starve_after_s + settings.keep_renew_s + 0.1)
    assert worker.kept == {"a": 1}
    world.now += 1.0  # stood still for a while: the deadline and the renewal are due together
    world.to_leader(on.SchedulerTick)
    world.flush()
    assert not worker.kept and "ended" in world.kinds("a")


def test_only_lower_priority_is_preempted_and_only_what_is_needed():
    world = world_of(1, 1, 1, 1)
    for number in range(4):
        world.acquire(f"low{number}", 1, priority=number)
        world.advance(0.01)
    world.acquire("high", 2, priority=2, preempt=True, flush=True)
    states = world.states()
    assert states["high"] == "formed"
    assert [gang for gang, step in states.items() if step == "queued"] == ["low0", "low1"]
    low = world.core.get("low0")
    assert (low.restarts, low.failures) == (1, 0), "it was planned"
    world.acquire("in-vain", 2, priority=2, preempt=True, flush=True)
    assert [gang for gang, step in world.states().items() if step == "queued"] == ["low0", "low1", "in-vain"]


def test_a_gang_that_need_not_go_is_not_preempted_though_its_priority_is_the_lowest():
    world = world_of(1, 2)
    world.acquire("lower", 1, flush=True)
    world.acquire("low", 1, slots=2, priority=1, flush=True)
    world.acquire("high", 1, slots=2, priority=5, preempt=True, flush=True)
    assert world.states() == {"lower": "formed", "low": "queued", "high": "formed"}


# -- workers ----------------------------------------------------------------------------------------------------------


def test_a_form_that_was_lost_is_sent_again():
    world = world_of(1)
    world.acquire("a", 1)
    while not world.network[0][0].startswith("form"):
        world.deliver()
    world.lose()
    worker = world.worker("w0")
    assert "a" not in worker.members
    world.advance(3.0)
    assert worker.members["a"].generation == 1
    assert world.core.get("a").generation == 1


def test_a_worker_that_never_confirms_is_waited_for_no_longer_than_the_grace():
    world = world_of(1, 1)
    world.acquire("a", 2, grace_s=2.0, max_restarts=0, flush=True)
    world.report(world.worker("w0"), "a")
    for _ in range(60):
        world.advance(0.1, flush=False)
        for index in range(len(world.network) - 1, -1, -1):
            what = world.network[index][0]
            if "teardown" in what and "w1" in what:
                world.lose(index)
        world.flush() if not any("teardown" in what and "w1" in what for what, _, _ in world.network) else None
    ended = [event for event in world.events if event.kind.value == "ended"]
    assert ended[0].unconfirmed in (("p.w1",), ())
    assert world.states() == {}


def test_a_repair_that_finds_no_room_becomes_a_restart_of_the_gang():
    world = world_of(1, 1)
    world.acquire("a", 2, restart="restart_member", flush=True)
    world.crash(world.worker("w0"))
    world.advance(2.0)
    assert world.states() == {"a": "repairing"}
    assert "no room for the lost rank" in world.core.why("a").lacks[0]
    world.advance(10.0)
    assert world.states() == {"a": "queued"}
    assert all(not worker.members for worker in world.workers.values())
    world.restart(world.worker("w0"), flush=True)
    assert world.core.get("a").state is GangState.FORMED


@in_rows(
    ("restart", "size", "ranks_lost"),
    itertools.product(["restart_gang", "restart_member"], [1, 3], ["one", "all", "another during the repair"]),
)
def test_a_gang_that_fails_again_and_again_starts_members_no_faster_than_its_back_off(
    restart: str, size: int, ranks_lost: str
) -> None:
    """It is half of 1, 2, 4, 8, 16 s at least. `restart_member` once replaced a member as often as it failed."""
    world = world_of(*[2] * size)
    world.acquire("a", size, restart=restart, strategy="spread", max_restarts=1000, backoff_s=1.0, flush=True)
    for _ in range(300):
        world.advance(0.1)
        gang = world.core.get("a")
        seats = gang.seats
        failing = seats if ranks_lost == "all" else seats[:1]
        if ranks_lost == "another during the repair" and gang.step == "repairing":
            failing = seats[1:2]
        for worker in (world.workers[WorkerId(seat.pool, seat.worker)] for seat in failing):
            if "a" in worker.members:
                world.report(worker, "a")
        world.flush()
    assert 3 <= world.core.get("a").generation <= 9


# -- cost and settings ------------------------------------------------------------------------------------------------


def lines_to_form(workers: int) -> int:
    """Until the holds of a gang of 8 are asked for, the most of ten gangs."""
    world = World()
    world.elect()
    for number in range(workers):
        facts = WorkerFacts(id=WorkerId("p", f"w{number}"), epoch=1, revision=1, total=4, node=f"n{number}")
        world.core.handle(on.WorkerSeen(now=0, worker=facts))
    most = 0
    for number in range(10):
        request = AcquireRequest.model_validate({"pool": "p", "size": 8, "id": f"g{number}", "owner_token": "t"})
        event = on.AcquireAsked(now=0, request=request, reply_to=number, new_id="x", new_token="x")
        effects: list[do.Effect] = []
        most = max(most, lines_run(lambda event=event, effects=effects: effects.extend(world.core.handle(event))))
        holds = [effect for effect in effects if isinstance(effect, do.SendHold)]
        assert len(holds) >= 2
        world.core.handle(
            on.HoldUnanswered(
                now=0,
                worker=holds[0].worker,
                gang=holds[0].request.gang,
                generation=1,
                attempt=holds[0].request.attempt,
                reason="x",
            )
        )
        world.core.handle(on.ReleaseAsked(now=0, request=_owned(f"g{number}"), reply_to=0))
    return most


def _owned(gang: str):
    return OwnedRequest(id=gang, owner_token="t")


def test_deciding_on_a_gang_does_not_cost_more_with_more_workers_registered():
    few, many = lines_to_form(10), lines_to_form(1_000)
    assert many <= 1.2 * few


@in_rows(
    "wrong", [{"hold_s": 0.5}, {"keep_s": 1.0}, {"refused_first_s": 0.0}, {"ping_s": -1.0}, {"ping_s": float("nan")}]
)
def test_settings_out_of_their_bounds_are_refused(wrong):
    with pytest.raises(InvalidSettings):
        CoordinatorSettings(**wrong)


# -- while a commit is on its way -------------------------------------------------------------------------------------


def test_a_worker_lost_while_its_commit_is_on_the_way_fails_the_gang_once_it_is_formed():
    world = world_of(1, 1)
    world.acquire("a", 2)
    while world.network[0][0] != "commit form a":
        world.deliver()
    worker = world.worker("w0")
    world.crash(worker, noticed=True)
    world.deliver()
    assert len(world.ledger.members()) == 2, "the batch was on its way already"
    world.flush()
    assert world.kinds("a")[:3] == ["queued", "formed", "torn_down"]
    assert world.core.get("a").reason.startswith("worker_lost")
    assert not world.ledger.members()


def test_an_owner_that_waited_longer_than_its_time_to_live_for_the_commit_has_all_of_it_from_the_answer_on():
    world = world_of(1)
    asked = world.acquire("a", 1, ttl_s=1.0)
    while world.network[0][0] != "commit form a":
        world.deliver()
    world.advance(1.5, flush=False)
    world.flush()
    assert world.answers[asked].reply.state is GangState.FORMED
    world.advance(0.9)
    assert world.states() == {"a": "formed"}
    world.advance(0.2)
    assert world.core.get("a").reason.startswith("owner_lost")


@pytest.mark.parametrize("by", ["renewal", "the same request"])
def test_an_owner_that_is_heard_while_a_repair_is_committed_keeps_its_gang(by):
    world = world_of(1, 1, 1)
    world.acquire("a", 2, ttl_s=1.0, restart="restart_member", flush=True)
    world.crash(world.holder("a"), noticed=True)
    while not world.network[0][0].startswith("commit"):
        world.deliver()
    world.advance(1.5, flush=False)  # its owner is given up, once the commit is answered
    asked = world.renew("a") if by == "renewal" else world.acquire("a", 2, ttl_s=1.0, restart="restart_member")
    world.flush()
    assert world.answers[asked].reply.state is not None
    assert world.states() == {"a": "formed"} and world.core.get("a").generation == 2
    world.advance(1.1)
    assert world.core.get("a").reason.startswith("owner_lost")


def test_a_commit_whose_holds_may_have_ended_meanwhile_is_not_sent():
    world = world_of(1, 1)
    world.acquire("a", 1)
    world.acquire("b", 1)
    while [what for what, _, _ in world.network] != ["commit form a"]:
        world.deliver()
    assert world.states() == {"a": "committing", "b": "committing"}
    world.advance(1.9, flush=False)
    before = len(world.story)
    index = next(index for index, (what, _, _) in enumerate(world.network) if what == "commit form a")
    world.deliver(index)
    world.deliver(next(index for index, (what, _, _) in enumerate(world.network) if what == "acked form a"))
    assert not [line for line in world.story[before:] if "commit form: member" in line and "gang.b" in line]
    assert world.states()["b"] == "queued"
    world.advance(3.0)
    heartbeats(world)
    world.advance(1.0)
    assert world.states() == {"a": "formed", "b": "formed"}
