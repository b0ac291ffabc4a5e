"""Tasks that carry one execution after the other: nobody can tell them from new ones."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from gangline.worker.execution.executors import stepper as stepper_module
from gangline.worker.execution.executors.stepper import IDLE, Stepper

from ....support.worker.stepping import Piece, Work

RunLoop = Callable[[Coroutine[Any, Any, Any]], Any]
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@asynccontextmanager
async def warm() -> AsyncIterator[Stepper]:
    """A stepper that has been there for a while."""
    stepper = Stepper(asyncio.get_running_loop())
    await asyncio.sleep(0)
    try:
        yield stepper
    finally:
        stepper.close()
        await asyncio.sleep(0)


async def run(stepper: Stepper, work: Work, *args: Any) -> Piece:
    """To its end, and the turn in which its task hears of it."""
    piece = Piece(work, *args)
    stepper.add(piece)
    stepper.step()
    await piece.over.wait()
    await asyncio.sleep(0)
    return piece


async def nap() -> str | None:
    await asyncio.sleep(0.001)
    task = asyncio.current_task()
    return None if task is None else task.get_name()


async def used_again_after(work: Work) -> tuple[bool, Piece]:
    """Whether the task that carried `work` carries the next as well; and how the next ended, which knows nothing."""
    async with warm() as stepper:
        first = await run(stepper, work)
        second = await run(stepper, nap)
    return first.number == second.number, second


# -- again, or not ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_executions_that_wait_one_after_the_other_share_a_task_on_each_loop(
    run_loop: RunLoop,
):
    async def life() -> set[int]:
        async with warm() as stepper:
            return {(await run(stepper, nap)).number for _ in range(5)}

    assert len(run_loop(life())) == 1


async def test_those_that_wait_at_one_time_never_share_one():
    async with warm() as stepper:
        for _ in range(3):
            pieces = [Piece(nap) for _ in range(4)]
            for piece in pieces:
                stepper.add(piece)
            stepper.step()
            await asyncio.gather(*(piece.over.wait() for piece in pieces))
            assert len({piece.number for piece in pieces}) == 4
            await asyncio.sleep(0)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == IDLE]) == 4


async def test_a_cancelled_task_is_not_used_again():
    async with warm() as stepper:
        piece = Piece(asyncio.sleep, 10)
        stepper.add(piece)
        stepper.step()
        task = piece.carrier
        task.cancel()
        await piece.over.wait()
        await asyncio.sleep(0)
        assert task.done()
        assert isinstance(piece.outcome, asyncio.CancelledError)
        assert (await run(stepper, nap)).outcome == "piece"


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

    async with warm() as stepper:
        first = await run(stepper, work)
        assert kept[0].done()
        assert (await run(stepper, nap)).number != first.number


async def test_who_waits_for_the_task_or_asked_to_be_called_hears_of_the_end_of_its_execution():
    heard: list[str] = []

    async def wait_for(task: asyncio.Task[Any]) -> None:
        await task
        heard.append("waited")

    async def work() -> None:
        task = asyncio.current_task()
        task.add_done_callback(lambda _: heard.append("called"))
        waiting.append(asyncio.create_task(wait_for(task)))
        await asyncio.sleep(0.001)

    waiting: list[asyncio.Task[None]] = []
    async with warm() as stepper:
        await run(stepper, work)
        await waiting[0]
    assert sorted(heard) == ["called", "waited"]


async def test_who_only_asked_to_be_called_at_the_end_is_called():
    heard: list[str] = []

    async def work() -> None:
        asyncio.current_task().add_done_callback(lambda _: heard.append("called"))
        await asyncio.sleep(0.001)

    again, _ = await used_again_after(work)
    assert (again, heard) == (False, ["called"])


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_a_task_that_was_given_an_attribute_is_not_used_again(run_loop: RunLoop):
    run_loop(_attributes())


async def test_nor_one_of_a_class_of_its_own_which_has_attributes_anyhow():
    await _attributes()


async def _attributes() -> None:
    async def work() -> None:
        assert not hasattr(asyncio.current_task(), "request")
        asyncio.current_task().request = "mine"
        await asyncio.sleep(0.001)

    async with warm() as stepper:
        assert [(await run(stepper, work)).outcome for _ in range(3)] == [None] * 3


async def test_a_task_that_stands_in_somebodys_table_is_not_used_again():
    table: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()

    async def work() -> None:
        assert asyncio.current_task() not in table
        table[asyncio.current_task()] = "mine"
        await asyncio.sleep(0.001)

    async with warm() as stepper:
        assert [(await run(stepper, work)).outcome for _ in range(3)] == [None] * 3


async def test_no_more_tasks_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(stepper_module, "MOST_IDLE", 2)
    async with warm() as stepper:
        pieces = [Piece(nap) for _ in range(5)]
        for piece in pieces:
            stepper.add(piece)
        stepper.step()
        await asyncio.gather(*(piece.over.wait() for piece in pieces))
        await asyncio.sleep(0)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == IDLE]) == 2


# -- apart --------------------------------------------------------------------------------------------------------


async def test_each_execution_has_its_own_name_and_variables():
    async def work(name: str) -> tuple[str, str, str]:
        before = MARK.get()
        MARK.set(name)
        await asyncio.sleep(0.001)
        return before, MARK.get(), asyncio.current_task().get_name()

    async with warm() as stepper:
        seen, tasks = [], set()
        for name in ("a", "b"):
            piece = Piece(work, name, name=f"p.{name}")
            stepper.add(piece)
            stepper.step()
            await piece.over.wait()
            tasks.add(piece.number)
            await asyncio.sleep(0)
            assert {task.get_name() for task in asyncio.all_tasks()} == {"test", IDLE}
            seen.append(piece.outcome)
    assert seen == [("none", "a", "p.a"), ("none", "b", "p.b")]
    assert len(tasks) == 1


async def test_nothing_of_an_execution_lives_on_in_its_carrier():
    class Thing:
        pass

    async def give_back(thing: Thing, wait: bool) -> Thing:
        if wait:
            await asyncio.sleep(0.001)
        return thing

    async def fail(thing: Thing, wait: bool) -> Thing:
        if wait:
            await asyncio.sleep(0.001)
        raise ValueError(thing)

    async with warm() as stepper:
        for work in (give_back, fail):
            thing = Thing()
            known = weakref.ref(thing)
            piece = await run(stepper, work, thing, True)
            del piece, thing
            gc.collect()
            assert known() is None


# -- cancellation before the first turn is over -------------------------------------------------------------------


@pytest.mark.parametrize("new", [True, False], ids=["a new carrier", "a carrier that rests"])
async def test_a_cancellation_in_the_first_turn_goes_on_to_the_task_that_is_waited_for(new: bool):
    heard: list[str] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            heard.append("inner")
            raise

    async def work() -> None:
        try:
            await asyncio.create_task(inner())
        finally:
            heard.append("outer")

    stepper = Stepper(asyncio.get_running_loop())
    if not new:
        await asyncio.sleep(0)
    piece = Piece(work)
    stepper.add(piece)
    stepper.step()
    await asyncio.sleep(0)
    piece.carrier.cancel()
    await piece.over.wait()
    assert heard == ["inner", "outer"]
    assert isinstance(piece.outcome, asyncio.CancelledError)
    stepper.close()


@pytest.mark.parametrize("new", [True, False], ids=["a new carrier", "a carrier that rests"])
async def test_one_that_cancels_itself_before_its_first_wait_hears_of_it_there(new: bool):
    seen: list[asyncio.Task[Any] | None] = []

    async def work() -> str:
        seen.append(asyncio.current_task())
        asyncio.current_task().cancel()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append(asyncio.current_task())
        await asyncio.sleep(0.001)
        return "cancelled once"

    stepper = Stepper(asyncio.get_running_loop())
    if not new:
        await asyncio.sleep(0)
    piece = await run(stepper, work)
    assert piece.outcome == "cancelled once"
    assert seen[0] is seen[1]
    stepper.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("new", [True, False], ids=["a new carrier", "a carrier that rests"])
async def test_one_that_cancels_itself_and_ends_without_a_wait_harms_nobody(new: bool):
    async def selfish(take_back: bool) -> str:
        task = asyncio.current_task()
        task.cancel()
        if take_back:
            task.uncancel()
        return "done"

    stepper = Stepper(asyncio.get_running_loop())
    if not new:
        await asyncio.sleep(0)
    pieces = [Piece(selfish, False), Piece(nap), *([] if new else [Piece(selfish, True)]), Piece(nap)]
    for piece in pieces:
        stepper.add(piece)
    stepper.step()
    await asyncio.gather(*(piece.over.wait() for piece in pieces))
    assert {piece.outcome for piece in pieces} == {"done", "piece"}
    stepper.close()
    await asyncio.sleep(0)


async def test_a_carrier_that_is_cancelled_while_it_rests_ends_and_others_take_over():
    async with warm() as stepper:
        for piece in [Piece(nap) for _ in range(3)]:
            stepper.add(piece)
        stepper.step()
        await asyncio.sleep(0.01)
        resting = [task for task in asyncio.all_tasks() if task.get_name() in (IDLE, "piece")]
        assert len(resting) == 3
        for task in resting:
            task.cancel()  # as asyncio.run does at its end
        following = [Piece(nap), Piece(nap)]
        for piece in following:
            stepper.add(piece)
        stepper.step()
        await asyncio.gather(*(piece.over.wait() for piece in following))
        assert all(task.done() for task in resting)
        assert [piece.outcome for piece in following] == ["piece", "piece"]


def test_asyncio_run_ends_with_carriers_that_rest():
    async def life() -> None:
        stepper = Stepper(asyncio.get_running_loop())
        await asyncio.sleep(0)
        await run(stepper, nap)

    for run_loop in (asyncio.run, uvloop.run):
        run_loop(life())


# -- odd coroutines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [True, False])
async def test_one_that_raises_what_ends_generators_has_failed_and_the_next_runs(wait: bool):
    async def odd() -> None:
        if wait:
            await asyncio.sleep(0.001)
        raise GeneratorExit("mine")

    async with warm() as stepper:
        piece = await run(stepper, odd)
        assert isinstance(piece.outcome, GeneratorExit)
        assert (await run(stepper, nap)).outcome == "piece"


async def test_whatever_can_be_awaited_will_do():
    class Later:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0.001).__await__()
            return "later"

    async with warm() as stepper:
        assert (await run(stepper, Later)).outcome == "later"


async def test_what_asyncio_refuses_to_wait_for_is_an_error_at_that_wait():
    class Wrong:
        def __await__(self) -> Any:
            yield "nothing to wait for"

    async def work() -> str:
        try:
            await Wrong()
        except RuntimeError as error:
            return str(error)
        return "waited"

    async with warm() as stepper:
        assert "bad yield" in (await run(stepper, work)).outcome
