"""What a worker finds out from the ledger about gangs, when nobody tells it: on the in-memory bus, with faults."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import Conflict, KvWrite
from gangline.schemas.names import Names
from gangline.schemas.records.gangs import GangState, Seat
from gangline.schemas.wire.frames import AnswerOp
from gangline.worker.gangs.reconciler import LOST_S, MISSING_S, RETRY_MAX_S

from ...support.worker.gang_rig import Leader, load_of
from ...support.worker.rig import Rig, on_rig, task

OK = AnswerOp.OK


async def write_gang(leader: Leader, seats: list[Seat], state: GangState, generation: int = 1) -> None:
    record = leader.record(seats, generation=generation, state=state).model_copy(update={"reason": "crashed: rank 3"})
    await leader.kv.put(Names.gang_key("g"), record.model_dump_json().encode())


@on_rig()
async def test_a_hold_that_was_not_committed_is_freed_and_its_commit_can_come_no_more(rig: Rig, leader: Leader):
    held = await leader.hold()
    await asyncio.sleep(1.9)
    assert load_of(rig) == (0, 1)
    await asyncio.sleep(0.3)
    assert load_of(rig) == (0, 0)
    with pytest.raises(Conflict):  # the registration was written anew before the hold was freed
        await leader.commit(leader.seats(held), held)
    assert "not held" in (await leader.form(leader.seats(held)))["reason"]


@on_rig()
async def test_a_hold_that_was_committed_forms_without_being_told(rig: Rig, leader: Leader):
    held = await leader.hold()
    seats = leader.seats(held)
    revision = await leader.commit(seats, held)
    await asyncio.sleep(2.5)
    assert await leader.ping(g=1) == {}
    assert (await rig.hand.ask(*task(1, token=seats[0].token)))[0] == OK
    member = rig.worker.core.gangs.members["g"]
    assert member.form.fence == revision and member.form.size == 1
    assert (await leader.form(seats))["formed"], "told at last: the same again"


@on_rig()
async def test_a_committed_hold_whose_gang_was_torn_down_again_is_freed(rig: Rig, leader: Leader):
    seats = await leader.committed()
    await write_gang(leader, seats, GangState.TEARING_DOWN)
    await asyncio.sleep(2.5)
    assert load_of(rig) == (0, 0)


@on_rig()
async def test_a_hold_is_never_freed_while_the_ledger_cannot_be_read(rig: Rig, leader: Leader):
    await leader.committed()
    rig.hub.storage_down()
    await asyncio.sleep(30.0)
    assert load_of(rig) == (0, 1)
    rig.hub.storage_back()
    await asyncio.sleep(3.0)
    assert await leader.ping(g=1) == {}
    assert rig.worker.core.gangs.members["g"].generation == 1


@on_rig()
async def test_a_hold_is_given_up_at_once_when_the_coordinator_says_so_meanwhile(rig: Rig, leader: Leader):
    await leader.hold(attempt=5)
    rig.hub.storage_down()
    await asyncio.sleep(5.0)
    await leader.ask("unhold", gang="g", generation=1, attempt=5)
    assert load_of(rig) == (0, 0)
    rig.hub.storage_back()


@on_rig()
async def test_a_member_goes_on_without_a_coordinator_as_long_as_the_ledger_has_its_gang(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    await asyncio.sleep(120.0)
    assert (await rig.hand.ask(*task(1, token=seat.token)))[0] == OK


@on_rig()
async def test_a_member_whose_gang_is_gone_from_the_ledger_stops_after_its_time_to_live(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "wait", token=seat.token, deadline_ms=None))
    await leader.kv.put(Names.complete_key, b"{}")
    await leader.kv.delete(Names.gang_key("g"))
    await asyncio.sleep(9.0)
    assert load_of(rig) == (1, 0)
    await asyncio.sleep(1.0 + MISSING_S + RETRY_MAX_S)
    assert load_of(rig) == (0, 0)
    assert (await rig.hand.answer(1))[2] == "task_cancelled"
    assert leader.reports == [], "it was ended, it has not failed"
    assert "torn down" in (await leader.form([seat]))["reason"]


@on_rig()
async def test_a_member_whose_ledger_was_lost_waits_for_a_coordinator_to_write_its_gang_back(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    record = await leader.kv.get(Names.gang_key("g"))
    await leader.kv.delete(Names.gang_key("g"))
    await asyncio.sleep(10.0 + LOST_S - RETRY_MAX_S)
    await leader.kv.put(Names.gang_key("g"), record.value)
    await asyncio.sleep(60.0)
    assert (await rig.hand.ask(*task(1, token=seat.token)))[0] == OK
    await leader.kv.delete(Names.gang_key("g"))
    await asyncio.sleep(10.0 + LOST_S + RETRY_MAX_S)
    assert load_of(rig) == (0, 0), "nobody wrote it back"


@on_rig()
async def test_pings_renew_a_member_and_the_ledger_is_not_asked(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    await leader.kv.delete(Names.gang_key("g"))
    for _ in range(8):
        await asyncio.sleep(5.0)
        assert await leader.ping(g=1) == {}
    assert (await rig.hand.ask(*task(1, token=seat.token)))[0] == OK


@on_rig()
async def test_a_ping_that_does_not_name_a_member_makes_it_ask_at_once(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    await leader.ping(other=1)
    await asyncio.sleep(0.1)
    assert load_of(rig) == (0, 1), "the ledger has it"
    await write_gang(leader, [seat], GangState.TEARING_DOWN)
    await leader.ping(other=1)
    await asyncio.sleep(0.1)
    assert load_of(rig) == (0, 0)


@on_rig(slots=3)
async def test_a_generation_that_nobody_told_of_is_formed_from_the_ledger(rig: Rig, leader: Leader):
    (first,) = await leader.gang()
    await leader.replaced(1, first, commit=True)
    await asyncio.sleep(11.0)
    assert await leader.ping(g=2) == {}
    assert load_of(rig) == (0, 2)


@on_rig()
async def test_a_member_whose_place_was_taken_in_a_later_generation_stops(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    moved = seat.model_copy(update={"worker": "elsewhere", "token": "t2"})
    await write_gang(leader, [moved], GangState.FORMED, generation=2)
    await asyncio.sleep(11.0)
    assert load_of(rig) == (0, 0)


@on_rig()
async def test_a_failing_reading_stops_nothing_until_the_member_was_cut_off_for_twice_its_time_to_live(
    rig: Rig, leader: Leader
):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "wait", token=seat.token, deadline_ms=None))
    rig.hub.storage_down()
    await asyncio.sleep(19.0)
    assert load_of(rig) == (1, 0)
    await asyncio.sleep(2.0)
    assert load_of(rig) == (0, 0)
    report = await leader.report()
    assert report["cause"] == "failed" and "cut off" in report["detail"]
    assert rig.worker.statistics().gangs["alone"] == 1
    rig.hub.storage_back()


@on_rig()
async def test_a_hold_at_the_start_of_a_drain_is_looked_up_at_once(rig: Rig, leader: Leader):
    await leader.hold("lost", hold_s=60.0)
    await leader.committed(hold_s=60.0)
    draining = asyncio.ensure_future(rig.worker.drain(20.0))
    await asyncio.sleep(0.5)
    assert load_of(rig) == (0, 1), "the commit had come before the drain"
    assert (await leader.teardown())["stopped"]
    await draining


@on_rig()
async def test_two_members_records_of_one_batch_are_judged_one_by_one(rig: Rig, leader: Leader):
    """A hold of a gang that has a record of another generation is not taken for granted."""
    held = await leader.hold(generation=2)
    seats = leader.seats(held)
    old = leader.record(seats, generation=1)
    await leader.kv.write([KvWrite(key=Names.gang_key("g"), value=old.model_dump_json().encode())])
    await asyncio.sleep(2.5)
    assert load_of(rig) == (0, 0)
