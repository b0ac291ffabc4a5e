"""The gang operations of a worker, asked by hand on the in-memory bus."""

from __future__ import annotations

import asyncio

from gangline.schemas.frames import Answer

from .gang_rig import Leader, load_of
from .rig import Rig, on_rig, task

OK, ERROR, REJECTED = Answer.OK, Answer.ERROR, Answer.REJECTED


@on_rig(slots=4)
async def test_hold_form_dispatch_teardown(rig: Rig):
    leader = await Leader(rig).listen()
    held = await leader.hold(ranks=2)
    assert held["accepted"] and len(held["tokens"]) == 2 and held["port"] > 0
    assert held["reg_revision"] > 0 and held["epoch"] == rig.worker.core.epoch
    assert load_of(rig) == (0, 2)
    seats = leader.seats(held)
    await leader.commit(seats, held)
    assert (await rig.hand.ask(*task(1, token=seats[0].token)))[:1] == [REJECTED], "nothing starts before the commit"
    assert await leader.form(seats) == {"formed": True, "reason": None}
    assert (await rig.hand.ask(*task(2, args=["hello"], token=seats[0].token)))[::2] == [OK, "hello"]
    assert load_of(rig) == (0, 2), "a seat is not used up"
    assert await leader.ping(g=1, other=3) == {"other": 3}
    answer = await leader.teardown()
    assert answer["stopped"] and answer["load"]["reserved"] == 0
    assert load_of(rig) == (0, 0)
    late = await rig.hand.ask(*task(3, token=seats[0].token))
    assert late[0] == ERROR and late[2] == "gang_ended"
    assert await leader.ping(g=1) == {"g": 1}


@on_rig(slots=4)
async def test_a_teardown_is_answered_when_the_last_task_has_stopped(rig: Rig):
    leader = await Leader(rig).listen()
    seats = await leader.gang(ranks=2)
    rig.hand.send(task(1, "wait", token=seats[0].token), task(2, "wait", token=seats[1].token))
    await rig.hand.quiet()
    assert load_of(rig) == (2, 0)
    assert (await leader.teardown(reason="member 1 died"))["stopped"]
    assert load_of(rig) == (0, 0)
    answer = await rig.hand.answer(1)
    assert answer[0] == ERROR and answer[2] == "task_cancelled" and "member 1 died" in answer[3]
    await asyncio.sleep(0)
