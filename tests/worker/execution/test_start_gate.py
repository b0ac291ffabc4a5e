"""Tasks on a gang's seat that take their slots and wait for the word, asked by hand on the in-memory bus."""

from __future__ import annotations

from typing import Any

from gangline.schemas.wire.frames import AnswerOp, RequestOp
from gangline.worker.context.task_context import current_task
from gangline.worker.execution.runner import HOLD_S
from gangline.worker.gangs.member_tasks import EARLY_S
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows
from ...support.worker.gang_rig import Leader, load_of
from ...support.worker.rig import Gates, Rig, on_rig, task

OK, ERROR, HELD = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.HELD


def begin(request_id: int) -> tuple[int, int]:
    return (int(RequestOp.BEGIN), request_id)


@on_rig()
async def test_a_held_task_has_its_slot_and_begins_at_the_word(rig: Rig, leader: Leader):
    seats = await leader.gang()
    rig.hand.send(task(1, args=["hello"], token=seats[0].token, meta={"hold": True}))
    await rig.hand.quiet(0.5)
    assert rig.hand.answers_to(1) == [[HELD, 1]]
    assert load_of(rig) == (1, 0)
    busy = await rig.hand.ask(*task(2, token=seats[0].token))
    assert (busy[0], busy[2], busy[5]) == (ERROR, "lease_busy", False)
    rig.hand.send(begin(1), begin(1), begin(99))
    await rig.hand.quiet()
    assert rig.hand.answers_to(1)[1:] == [[OK, 1, "hello"]]
    assert load_of(rig) == (0, 1)


@on_rig()
async def test_without_the_word_it_ends_and_has_not_started(rig: Rig, leader: Leader):
    seats = await leader.gang()
    rig.hand.send(task(1, token=seats[0].token, meta={"hold": True}))
    await rig.hand.quiet(HOLD_S - 0.1)
    assert load_of(rig) == (1, 0)
    await rig.hand.quiet(0.2)
    assert load_of(rig) == (0, 1)
    _, answer = rig.hand.answers_to(1)
    assert (answer[0], answer[2], answer[5]) == (ERROR, "task_cancelled", False)
    rig.hand.send(begin(1))
    await rig.hand.quiet()
    assert len(rig.hand.answers_to(1)) == 2


@in_rows("how", ["cancel", "teardown", "deadline"])
@on_rig()
async def test_what_is_held_ends_at_once_with_its_call_its_gang_and_its_deadline(rig: Rig, how, leader: Leader):
    seats = await leader.gang(ranks=1)
    rig.hand.send(task(1, token=seats[0].token, meta={"hold": True}, deadline_ms=1000))
    await rig.hand.quiet()
    if how == "cancel":
        rig.hand.send((int(RequestOp.CANCEL), 1))
    elif how == "teardown":
        assert (await leader.teardown())["stopped"]
    await rig.hand.quiet(1.1 if how == "deadline" else 0.001)
    assert load_of(rig) == (0, 0 if how == "teardown" else 1)
    answer = rig.hand.answers_to(1)[-1]
    assert answer[0] == ERROR and answer[2] == ("deadline_exceeded" if how == "deadline" else "task_cancelled")
    assert how == "deadline" or answer[5] is False, answer


@on_rig()
async def test_off_the_seats_of_gangs_nothing_is_held(rig: Rig):
    assert (await rig.hand.ask(*task(1, args=["now"], meta={"hold": True})))[::2] == [OK, "now"]
    rig.hand.send(begin(1), begin(7))
    await rig.hand.quiet()
    assert rig.hand.answers_to(1) == [[OK, 1, "now"]]


def asking_pool(_gates: Gates) -> Pool:
    pool = Pool("images", slots=4)

    @pool.task
    async def whose() -> list[Any]:
        gang = current_task().gang
        return [gang.generation, gang.run]

    return pool


@on_rig(pool=asking_pool)
async def test_a_task_of_a_generation_that_the_worker_was_not_told_of_waits_for_the_news(rig: Rig, leader: Leader):
    """The gang's owner may be told sooner, by another way."""
    seats = await leader.gang(ranks=2)
    rig.hand.send(task(1, "whose", token=seats[0].token, meta={"generation": 2, "run": 3}))
    rig.hand.send(task(2, "whose", token=seats[1].token, meta={"generation": 2, "run": 4}))
    rig.hand.send((int(RequestOp.CANCEL), 2))
    await rig.hand.quiet(0.5)
    assert rig.hand.answers_to(1) == []
    (cancelled,) = rig.hand.answers_to(2)
    assert (cancelled[0], cancelled[2], cancelled[5]) == (ERROR, "task_cancelled", False)
    assert (await leader.form(seats, generation=2))["formed"]
    assert (await rig.hand.answer(1))[::2] == [OK, [2, 3]]


@on_rig()
async def test_without_the_news_such_a_task_ends_and_has_not_started(rig: Rig, leader: Leader):
    seats = await leader.gang()
    rig.hand.send(task(1, token=seats[0].token, meta={"generation": 2}))
    await rig.hand.quiet(EARLY_S + 0.1)
    (answer,) = rig.hand.answers_to(1)
    assert (answer[0], answer[2], answer[5]) == (ERROR, "stale_generation", False)
    assert load_of(rig) == (0, 1)
