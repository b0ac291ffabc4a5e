from __future__ import annotations

from gangline.coordinator.core.gang_core import SchedulerCore
from gangline.coordinator.model import effects as do
from gangline.coordinator.model import events as on
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.gangs import GangState, HeldSeat, MemberRecord

from ...support.coordinator.world import World, world_of


def test_a_coordinator_that_does_not_lead_does_nothing():
    core = SchedulerCore()
    request = AcquireRequest.model_validate({"pool": "p", "size": 1})
    assert core.handle(on.AcquireAsked(now=0, request=request, reply_to=1, new_id="a", new_token="t")) == []
    assert core.handle(on.SchedulerTick(now=9)) == []
    assert core.handle(on.LeadershipLost(now=9, reason="x")) == []


def test_leadership_lost_drops_everything_and_only_stops():
    world = world_of(1)
    world.acquire("a", 1)
    effects = world.core.handle(on.LeadershipLost(now=world.now, reason="frozen"))
    assert effects == [do.StepDown(reason="frozen")]
    assert world.core.gangs() == []
    world.core.check()


def leak(world: World, gang: str, worker: str) -> str:
    key = Names.member_key(WorkerId("p", worker), gang)
    seat = HeldSeat(rank=0, token="leaked")
    world.ledger.put(key, MemberRecord(gang=gang, generation=1, epoch=1, seats=(seat,)))
    return key


def test_leaked_member_records_are_removed_on_what_was_read():
    world = world_of(1, 1)
    world.acquire("a", 1, flush=True)
    key = leak(world, "ghost", "w0")
    world.to_leader(on.MembersRead, members=tuple(world.ledger.members()))
    world.flush()
    assert key not in world.ledger.keys
    assert len(world.ledger.members()) == 1
    key = leak(world, "ghost", "w0")
    world.elect(flush=True)
    assert key not in world.ledger.keys


def test_a_ledger_that_vanished_is_written_again():
    world = world_of(1, 1)
    world.acquire("a", 2, flush=True)
    kept = dict(world.ledger.keys)
    world.ledger.keys.clear()
    fence = world.ledger.put("leader", kept["leader"][0])
    world.to_leader(on.LedgerVanished, fence=fence)
    world.flush()
    assert set(world.ledger.keys) == {key for key in kept if not key.startswith("reg.")}
    assert world.ledger.gangs()["a"].fence == world.core.get("a").fence


def test_a_gang_that_ends_before_it_could_be_written_again_is_not_granted_in_part():
    """Its members come before its record when they are granted, and after it when they end."""
    world = world_of(2, 2)
    for name in ("a", "b"):
        world.acquire(name, 2, strategy="spread")
    world.flush()
    record, _ = world.ledger.keys["leader"]
    world.ledger.keys.clear()
    world.to_leader(on.LedgerVanished, fence=world.ledger.put("leader", record))
    world.release("b")  # its turn to be written again has not come
    world.flush()  # the ledger checks L7 after every batch
    assert world.core.get("a").state is GangState.FORMED
    assert world.core.get("b").state is GangState.ENDED and world.kinds("b")[-2:] == ["torn_down", "ended"]
    assert {member.gang for _, member in world.ledger.members()} == {"a"}


def test_a_gang_that_retires_in_a_new_ledger_is_written_whole():
    """Its turn may come before that of what writes it again."""
    world = world_of(2, 2)
    world.declare("s", 2, size=2)
    world.advance(1.0)
    world.undeclare("s")  # one is written at once, the other waits for it
    record, _ = world.ledger.keys["leader"]
    world.ledger.keys.clear()
    world.to_leader(on.LedgerVanished, fence=world.ledger.put("leader", record))
    world.advance(10.0)  # the ledger checks L7 after every batch
    assert world.core.gangs() == [] and not world.ledger.members()


def deliver_until(world: World, what: str) -> None:
    while world.network[0][0] != what:
        world.deliver()


def test_a_gang_that_is_being_repaired_when_the_ledger_vanishes_is_written_again_though_the_swap_is_refused():
    world = world_of(1, 1, 1)
    world.acquire("a", 2, restart="restart_member", strategy="spread", flush=True)
    worker = world.holder()
    world.crash(worker, noticed=True)
    deliver_until(world, "commit rejoin a")
    world.lose_the_ledger()
    world.flush()
    assert "a" in world.ledger.gangs(), "nobody would know of the members that go on"
    assert len(world.ledger.members()) == 2
    world.advance(1.0)
    gang = world.core.get("a")
    assert (gang.step, gang.generation) == ("formed", 2)
    assert world.ledger.gangs()["a"].generation == 2


def test_a_member_lost_before_the_ledger_vanishes_counts_once_for_the_next_leader_too():
    world = world_of(1, 1)
    world.acquire("a", 2, restart="restart_member", strategy="spread", max_restarts=1, flush=True)
    world.restart(world.holder())
    deliver_until(world, "commit rejoin a")
    world.lose_the_ledger()
    world.lose()  # the swap
    world.flush()
    assert world.ledger.gangs()["a"].failures == 0, "the ledger has the generation before the loss"
    world.elect()
    assert world.core.get("a").failures == 1
    world.advance(5.0)
    record = world.ledger.gangs()["a"]
    assert (record.state, record.generation, record.failures) == (GangState.FORMED, 2, 1)


def test_a_queued_gang_that_is_being_granted_when_the_ledger_vanishes_keeps_its_place_in_the_new_one():
    world = world_of(1, 1)
    world.acquire("a", 2, wait=False, ttl_s=1000.0)
    deliver_until(world, "commit form a")
    world.lose_the_ledger()
    gone = next(iter(world.workers.values()))
    world.crash(gone, noticed=True)
    world.flush()
    record = world.ledger.gangs()["a"]
    assert record.state is GangState.QUEUED
    world.elect()
    assert world.states() == {"a": "queued"}


def test_a_gang_has_waited_since_its_request_under_the_next_leader_too():
    world = world_of(1)
    world.acquire("holder", 1, ttl_s=1000.0, flush=True)
    for gang in ("first", "second"):
        world.acquire(gang, 1, wait=False, ttl_s=1000.0)
    world.flush()
    world.advance(50.0)
    for _ in range(2):
        [ahead] = world.core.why("second").ahead
        assert ahead.id == "first" and 50.0 <= ahead.waiting_s < 60.0
        assert 50.0 <= world.core.statistics()["oldest_s"] < 60.0
        world.elect()
