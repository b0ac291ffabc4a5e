"""Tasks that carry one execution after the other: nobody can tell them from new ones."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from gangline.worker.execution.executors import eager_backport
from gangline.worker.execution.executors.eager_backport import IDLE, Carriers

from ....support.rows import in_rows
from ....support.worker.eager import Piece, Work

RunLoop = Callable[[Coroutine[Any, Any, Any]], Any]
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@asynccontextmanager
async def warm() -> AsyncIterator[Carriers]:
    """Carriers that have been there for a while."""
    carriers = Carriers(asyncio.get_running_loop())
    await asyncio.sleep(0)
    try:
        yield carriers
    finally:
        carriers.close()
        await asyncio.sleep(0)


async def run(carriers: Carriers, work: Work, *args: Any) -> Piece:
    """To its end, and the turn in which its task hears of it."""
    piece = Piece(work, *args)
    await run_all(carriers, [piece])
    await asyncio.sleep(0)
    return piece


async def run_all(carriers: Carriers, pieces: list[Piece]) -> None:
    """Side by side, to the end of each."""
    for piece in pieces:
        carriers.add(piece)
    carriers.step()
    await asyncio.gather(*(piece.over.wait() for piece in pieces))


async def nap() -> str | None:
    await asyncio.sleep(0.001)
    task = asyncio.current_task()
    return None if task is None else task.get_name()


async def used_again_after(work: Work) -> tuple[bool, Piece]:
    """Whether the task that carried `work` carries the next as well; and how the next ended, which knows nothing."""
    async with warm() as carriers:
        first = await run(carriers, work)
        second = await run(carriers, nap)
    return first.number == second.number, second


@in_rows("run_loop", [asyncio.run, uvloop.run])
def test_executions_that_wait_one_after_the_other_share_a_task_on_each_loop(run_loop: RunLoop):
    async def life() -> set[int]:
        async with warm() as carriers:
            return {(await run(carriers, nap)).number for _ in range(5)}

    assert len(run_loop(life())) == 1


async def test_those_that_wait_at_one_time_never_share_one():
    async with warm() as carriers:
        for _ in range(3):
            pieces = [Piece(nap) for _ in range(4)]
            await run_all(carriers, pieces)
            assert len({piece.number for piece in pieces}) == 4
            await asyncio.sleep(0)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == IDLE]) == 4


async def test_a_cancelled_task_is_not_used_again():
    async with warm() as carriers:
        piece = Piece(asyncio.sleep, 10)
        carriers.add(piece)
        carriers.step()
        task = piece.task
        task.cancel()
        await piece.over.wait()
        await asyncio.sleep(0)
        assert task.done()
        assert isinstance(piece.outcome, asyncio.CancelledError)
        assert (await run(carriers, nap)).outcome == "piece"


async def test_one_that_was_cancelled_and_went_on_is_not_used_again():
    async def stubborn() -> None:
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    assert (await used_again_after(stubborn))[0] is False


async def test_a_time_limit_that_was_reached_and_handled_leaves_nothing_behind():
    async def late() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(10)
        except TimeoutError:
            await asyncio.sleep(0)

    again, following = await used_again_after(late)
    assert (again, following.outcome) == (True, "piece")


async def test_a_group_whose_child_failed_leaves_nothing_behind():
    async def fail() -> None:
        raise ValueError("no")

    async def grouped() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(10)
        except* ValueError:
            pass
        await asyncio.sleep(0)

    _, following = await used_again_after(grouped)
    assert following.outcome == "piece"


async def test_a_task_that_somebody_keeps_ends_with_its_execution():
    kept: list[asyncio.Task[Any]] = []

    async def work() -> None:
        kept.append(asyncio.current_task())
        await asyncio.sleep(0.001)

    async with warm() as carriers:
        first = await run(carriers, work)
        assert kept[0].done()
        assert (await run(carriers, nap)).number != first.number


async def test_who_only_asked_to_be_called_at_the_end_is_called():
    heard: list[str] = []

    async def work() -> None:
        asyncio.current_task().add_done_callback(lambda _: heard.append("called"))
        await asyncio.sleep(0.001)

    again, _ = await used_again_after(work)
    assert (again, heard) == (False, ["called"])


@in_rows("run_loop", [asyncio.run, uvloop.run])
def test_a_task_that_was_given_an_attribute_is_not_used_again(run_loop: RunLoop):
    run_loop(_attributes())


async def test_nor_one_of_a_class_of_its_own_which_has_attributes_anyhow():
    await _attributes()


async def _attributes() -> None:
    async def work() -> None:
        assert not hasattr(asyncio.current_task(), "request")
        asyncio.current_task().request = "mine"
        await asyncio.sleep(0.001)

    async with warm() as carriers:
        assert [(await run(carriers, work)).outcome for _ in range(3)] == [None] * 3


async def test_a_task_that_stands_in_somebodys_table_is_not_used_again():
    table: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()

    async def work() -> None:
        assert asyncio.current_task() not in table
        table[asyncio.current_task()] = "mine"
        await asyncio.sleep(0.001)

    async with warm() as carriers:
        assert [(await run(carriers, work)).outcome for _ in range(3)] == [None] * 3


async def test_no_more_tasks_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(eager_backport, "MOST_IDLE", 2)
    async with warm() as carriers:
        pieces = [Piece(nap) for _ in range(5)]
        await run_all(carriers, pieces)
        await asyncio.sleep(0)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == IDLE]) == 2


async def test_a_carrier_that_is_cancelled_while_it_rests_ends_and_others_take_over():
    async with warm() as carriers:
        for piece in [Piece(nap) for _ in range(3)]:
            carriers.add(piece)
        carriers.step()
        await asyncio.sleep(0.01)
        resting = [task for task in asyncio.all_tasks() if task.get_name() in (IDLE, "piece")]
        assert len(resting) == 3
        for task in resting:
            task.cancel()  # as asyncio.run does at its end
        following = [Piece(nap), Piece(nap)]
        await run_all(carriers, following)
        assert all(task.done() for task in resting)
        assert [piece.outcome for piece in following] == ["piece", "piece"]


def test_asyncio_run_ends_with_carriers_that_rest():
    async def life() -> None:
        carriers = Carriers(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await run(carriers, nap)

    for run_loop in (asyncio.run, uvloop.run):
        run_loop(life())
