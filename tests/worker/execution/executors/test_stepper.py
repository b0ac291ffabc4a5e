"""First steps in place: what does not wait costs no asyncio task, and what waits is a task of its own."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from gangline.worker.pool.pool import Pool

from ....support.worker.harness import running
from ....support.worker.stepping import stepping

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


async def test_what_does_not_wait_has_ended_when_step_returns_and_made_no_task_of_its_own():
    async def work() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    before = asyncio.all_tasks()
    stepper, pieces = stepping(work, work, work)
    stepper.step()
    assert [piece.over.is_set() for piece in pieces] == [True] * 3
    assert len(asyncio.all_tasks() - before) == 1  # the carrier, ready for the next
    assert {piece.outcome for piece in pieces} == {pieces[0].carrier}
    assert asyncio.current_task() not in {pieces[0].carrier, None}
    stepper.close()
    await asyncio.sleep(0)


async def test_without_step_they_begin_in_the_next_turn():
    async def work() -> str:
        return "done"

    stepper, (piece,) = stepping(work)
    assert not piece.over.is_set()
    await asyncio.sleep(0)
    assert piece.outcome == "done"
    stepper.close()


async def test_each_that_waits_has_one_current_task_to_its_end_and_none_is_shared():
    async def work() -> list[asyncio.Task[Any] | None]:
        seen = [asyncio.current_task()]
        for _ in range(3):
            await asyncio.sleep(0.01)
            seen.append(asyncio.current_task())
        return seen

    stepper, pieces = stepping(work, work, work)
    stepper.step()
    for piece in pieces:
        await piece.over.wait()
    assert all(set(piece.outcome) == {piece.carrier} for piece in pieces)
    assert len({piece.carrier for piece in pieces}) == 3
    stepper.close()


async def test_time_limits_and_groups_work_from_the_first_step_on():
    async def late() -> None:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(10)

    async def grouped() -> int:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(asyncio.sleep(0.1, number)) for number in (1, 2)]
        return sum(part.result() for part in parts)

    async def quick() -> str:
        async with asyncio.timeout(0.5):  # noqa: ASYNC100
            return "quick"

    stepper, (slow, sums, fast) = stepping(late, grouped, quick)
    stepper.step()
    assert fast.outcome == "quick"
    await sums.over.wait()
    await slow.over.wait()
    assert sums.outcome == 3
    assert isinstance(slow.outcome, TimeoutError)
    stepper.close()


async def test_context_variables_stay_with_their_execution():
    async def work(name: str) -> tuple[str, str, str]:
        before = MARK.get()
        MARK.set(name)
        await asyncio.sleep(0)
        inside = await asyncio.create_task(asyncio.sleep(0, MARK.get()))
        return before, MARK.get(), inside

    async def short(name: str) -> str:
        before = MARK.get()
        MARK.set(name)
        return before

    stepper, pieces = stepping(lambda: work("a"), lambda: short("x"), lambda: short("y"), lambda: work("b"))
    stepper.step()
    for piece in pieces:
        await piece.over.wait()
    assert [piece.outcome for piece in pieces] == [("none", "a", "a"), "none", "none", ("none", "b", "b")]
    assert MARK.get() == "none"
    stepper.close()


async def test_a_cancelled_wait_ends_with_the_cancellation():
    async def work() -> None:
        await asyncio.Event().wait()

    stepper, (piece,) = stepping(work)
    stepper.step()
    await asyncio.sleep(0)
    piece.carrier.cancel()
    await piece.over.wait()
    assert isinstance(piece.outcome, asyncio.CancelledError)
    stepper.close()


@pytest.mark.parametrize("warm", [False, True], ids=["a new carrier", "a carrier that waits"])
async def test_cancelled_in_the_turn_in_which_it_began_it_hears_of_it_at_its_wait(warm):
    heard = []

    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            heard.append("cancelled")
            await asyncio.sleep(0.1)  # and may take its time
            return "cleaned up"
        return "slept"

    stepper, (piece,) = stepping(work)
    if warm:
        await asyncio.sleep(0)
    stepper.step()
    piece.carrier.cancel()
    await piece.over.wait()
    assert (piece.outcome, heard) == ("cleaned up", ["cancelled"])
    stepper.close()


async def test_one_that_cancels_its_own_task_and_ends_does_no_harm_to_the_next():
    async def selfish() -> str:
        asyncio.current_task().cancel()
        return "done"

    async def next_one() -> str:
        await asyncio.sleep(0.1)
        return "slept"

    stepper, (first, second) = stepping(selfish, next_one)
    stepper.step()
    await second.over.wait()
    assert (first.outcome, second.outcome) == ("done", "slept")
    assert first.carrier is not second.carrier
    stepper.close()


async def test_what_it_yields_to_the_loop_is_the_loops_business():
    async def bare() -> str:
        await asyncio.sleep(0)
        return "once more"

    done = asyncio.get_running_loop().create_future()
    done.set_result("ready")

    async def at_once() -> str:
        return await done

    stepper, pieces = stepping(bare, at_once)
    stepper.step()
    for piece in pieces:
        await piece.over.wait()
    assert [piece.outcome for piece in pieces] == ["once more", "ready"]
    stepper.close()


async def test_a_task_of_a_worker_that_waits_goes_by_its_own_name():
    pool = Pool("p")

    @pool.task
    async def work() -> str:
        await asyncio.sleep(0)
        return asyncio.current_task().get_name()

    async with running(pool) as harness:
        assert await harness.value("work") == "p.work"
