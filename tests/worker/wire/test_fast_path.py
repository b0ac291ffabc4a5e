"""Plain tasks are run where their frame is looked at, and are in every other respect like any task."""

from __future__ import annotations

import asyncio
import contextvars
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.schemas.deadline import current_deadline
from gangline.schemas.wire.frames import AnswerOp
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.wire import frame_server as express

from ...support.worker.rig import Rig, on_rig, task

OK, ERROR, REJECTED = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.REJECTED
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@pytest.fixture(autouse=True)
def _unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that spans or times are taken of go the general way, and other tests may have set up either for the whole
    process."""
    monkeypatch.setattr(express, "metrics_enabled", lambda: False)
    monkeypatch.setattr(express, "tracer", SimpleNamespace(on=lambda: False, enabled=False))


@on_rig(slots=2)
async def test_tasks_of_one_message_that_do_not_wait_take_turns_on_the_slots(rig: Rig):
    rig.hand.send(*(task(number, "double", [number]) for number in range(1, 9)))
    await rig.hand.quiet()
    assert rig.hand.answers == [[OK, number, 2 * number] for number in range(1, 9)]
    assert len(rig.hand.messages) == 1
    assert max(record["running"] for record in rig.journal) == 1
    assert rig.events("start", "end") == ["start", "end"] * 8
    assert rig.worker.statistics().tasks["started"] == rig.worker.statistics().tasks["succeeded"] == 8
    assert rig.at_rest()


@on_rig(slots=2)
async def test_they_leave_no_asyncio_task_behind_and_make_none(rig: Rig):
    await rig.hand.ask(*task(1, "double", [1]))
    before = asyncio.all_tasks()
    rig.hand.send(*(task(number, "double", [number]) for number in range(2, 6)))
    await rig.hand.answer(5)
    assert not asyncio.all_tasks() - before


@on_rig(slots=3)
async def test_those_that_wait_one_after_the_other_make_no_asyncio_task_each(rig: Rig):
    def there() -> set[int]:
        return {id(running) for running in asyncio.all_tasks()}  # a task that we hold is not used again

    def three(first: int) -> list[tuple[Any, ...]]:
        return [task(number, "wait", ["x", 0.01]) for number in range(first, first + 3)]

    rig.hand.send(*three(1))
    await rig.hand.answer(3)
    await rig.hand.quiet()
    before = there()
    for first in range(4, 40, 3):
        rig.hand.send(*three(first))
        await rig.hand.answer(first + 2)
    await rig.hand.quiet()
    assert there() == before
    assert rig.at_rest()


@on_rig()
async def test_a_deadline_that_ended_one_does_not_reach_the_next(rig: Rig):
    assert (await rig.hand.ask(*task(1, "wait", deadline_ms=50)))[:3] == [ERROR, 1, "deadline_exceeded"]
    for number in range(2, 6):
        assert await rig.hand.ask(*task(number, "wait", ["x", 0.1])) == [OK, number, "x done"]
    assert rig.at_rest()


@on_rig(slots=3)
async def test_those_that_wait_keep_their_slots_and_hold_up_nobody(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"]), task(2, "double", [2]), task(3, "wait", ["b"]), task(4, "double", [4]))
    await rig.hand.quiet()
    assert rig.hand.answers == [[OK, 2, 4], [OK, 4, 8]]
    assert (rig.worker.core.load.running, rig.gates.started) == (2, ["a", "b"])
    names = {running.get_name() for running in asyncio.all_tasks()}
    assert "images.wait" in names
    rig.gates.open.set()
    assert await rig.hand.answer(1) == [OK, 1, "a done"]
    assert await rig.hand.answer(3) == [OK, 3, "b done"]
    assert rig.at_rest()


async def test_a_task_sees_its_own_context_and_leaves_nothing_in_it():
    seen: list[TaskContext] = []

    async def look() -> list[object]:
        context = current_task()
        seen.append(context)
        before = MARK.get()
        MARK.set("mine")
        left = current_deadline()
        return [context.id, context.method, context.attempt, context.key, before, left is not None, context.cancelled]

    async with Rig(look) as rig:
        first = await rig.hand.ask(*task(1, "look", deadline_ms=5000, meta={"attempt": 3, "key": "k", "model": None}))
        second = await rig.hand.ask(*task(2, "look", deadline_ms=None))
    assert first[2] == ["hand.1", "look", 3, "k", "none", True, False]
    assert second[2] == ["hand.2", "look", 1, None, "none", False, False]
    assert seen[0] is not seen[1]
    assert seen[0]._ended and seen[1]._ended


@on_rig(slots=2)
async def test_jobs_go_the_same_way_and_are_known_afterwards(rig: Rig):
    jobs = [{"job": f"j{number}", "endpoint": "thumbs", "attempt": 1} for number in range(4)]
    await rig.hand.ask(*task(0, "double", [0]))
    before = asyncio.all_tasks()
    rig.hand.send(*(task(number, "double", [number], meta=jobs[number]) for number in range(1, 4)))
    await rig.hand.quiet()
    assert rig.hand.answers[1:] == [[OK, number, 2 * number] for number in range(1, 4)]
    assert asyncio.all_tasks() <= before
    assert max(record["running"] for record in rig.journal) == 1
    assert [record.get("job") for record in rig.journal if record["event"] == "end"] == [None, "j1", "j2", "j3"]
    again = task(7, "double", [9], meta={**jobs[2], "attempt": 2})
    assert await rig.hand.ask(*again) == [OK, 7, 4], "it was done, and is not done again"
    rig.worker.core.check()
    assert rig.at_rest()
