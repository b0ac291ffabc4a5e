"""First steps in place: what does not wait needs no turn of the loop, and what waits is a task of its own.

All of this means the same on eager tasks and on what stands in for them below Python 3.12.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gangline.worker.execution.executors.eager_start import EagerStarter

from ....support.rows import in_rows
from ....support.worker.eager import WAYS, Piece, Work

RunLoop = Callable[[Coroutine[Any, Any, Any]], Any]
MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> type[EagerStarter]:
    return request.param


@pytest.fixture
async def starter(request: pytest.FixtureRequest, way: type[EagerStarter]) -> AsyncIterator[EagerStarter]:
    """A new one, or one from an earlier turn of the loop."""
    starter = way(asyncio.get_running_loop())
    if getattr(request, "param", False):
        await asyncio.sleep(0)
    yield starter
    await close(starter)


NEW_AND_OLD = pytest.mark.parametrize("starter", [False, True], indirect=True, ids=["new", "of an earlier turn"])


async def close(starter: EagerStarter) -> None:
    """And let the tasks end that it keeps."""
    starter.close()
    for _ in range(3):
        await asyncio.sleep(0)


def start(starter: EagerStarter, *works: Work) -> list[Piece]:
    """Launch them, and make their first steps."""
    pieces = [Piece(work, keep=True) for work in works]
    for piece in pieces:
        starter.add(piece)
    starter.step()
    return pieces


async def end_of(*pieces: Piece) -> list[Any]:
    """Their outcomes."""
    for piece in pieces:
        await piece.over.wait()
    return [piece.outcome for piece in pieces]


async def nap() -> str:
    await asyncio.sleep(0.001)
    return "slept"


@NEW_AND_OLD
async def test_what_does_not_wait_has_ended_when_step_returns(starter: EagerStarter):
    async def work() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    before, current = asyncio.all_tasks(), asyncio.current_task()
    pieces = start(starter, work, work, work)
    assert [piece.over.is_set() for piece in pieces] == [True] * 3
    assert [piece.waited for piece in pieces] == [False] * 3
    assert not {piece.outcome for piece in pieces} & {current, None}
    assert asyncio.current_task() is current
    assert asyncio.all_tasks() == before


@NEW_AND_OLD
async def test_without_step_they_begin_in_the_next_turn(starter: EagerStarter):
    piece = Piece(nap)
    starter.add(piece)
    await asyncio.sleep(0)
    assert (piece.waited, piece.over.is_set()) == (True, False)
    assert await end_of(piece) == ["slept"]


async def test_what_fails_at_once_has_its_error_and_the_next_runs(starter: EagerStarter):
    async def fail() -> None:
        raise ValueError("no")

    first, second = start(starter, fail, nap)
    assert repr(first.outcome) == "ValueError('no')"
    assert await end_of(second) == ["slept"]


async def test_a_function_that_raises_before_it_gives_a_coroutine_has_failed(starter: EagerStarter):
    def broken() -> Any:
        raise ValueError("no coroutine")

    (piece,) = start(starter, broken)
    assert repr(piece.outcome) == "ValueError('no coroutine')"


@NEW_AND_OLD
async def test_the_starts_of_one_turn_may_come_from_an_execution_itself(starter: EagerStarter):
    inner = Piece(nap, keep=True)

    async def outer() -> tuple[bool, bool]:
        mine = asyncio.current_task()
        starter.add(inner)
        starter.step()
        await asyncio.sleep(0)
        return asyncio.current_task() is mine, inner.task is not mine

    (piece,) = start(starter, outer)
    assert await end_of(piece, inner) == [(True, True), "slept"]


async def test_each_that_waits_has_one_current_task_to_its_end_and_none_is_shared(starter: EagerStarter):
    async def work() -> list[asyncio.Task[Any] | None]:
        seen = [asyncio.current_task()]
        for _ in range(3):
            await asyncio.sleep(0.01)
            seen.append(asyncio.current_task())
        return seen

    pieces = start(starter, work, work, work)
    await end_of(*pieces)
    assert all(set(piece.outcome) == {piece.task} for piece in pieces)
    assert len({piece.task for piece in pieces}) == 3


@in_rows("wait", [True, False])
async def test_its_task_goes_by_its_name_from_the_first_step_on(starter: EagerStarter, wait: bool):
    async def work() -> list[str]:
        names = [asyncio.current_task().get_name()]
        if wait:
            await asyncio.sleep(0.001)
            names.append(asyncio.current_task().get_name())
        return names

    pieces = [Piece(work, name=name) for name in ("p.a", "p.b")]
    for piece in pieces:
        starter.add(piece)
    starter.step()
    times = 2 if wait else 1
    assert await end_of(*pieces) == [["p.a"] * times, ["p.b"] * times]
    await close(starter)
    assert not {task.get_name() for task in asyncio.all_tasks()} & {"p.a", "p.b"}


@NEW_AND_OLD
async def test_context_variables_stay_with_their_execution(starter: EagerStarter):
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

    pieces = start(starter, lambda: work("a"), lambda: short("x"), lambda: short("y"), lambda: work("b"))
    assert await end_of(*pieces) == [("none", "a", "a"), "none", "none", ("none", "b", "b")]
    assert MARK.get() == "none"


async def test_time_limits_and_groups_work_from_the_first_step_on(starter: EagerStarter):
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

    slow, sums, fast = start(starter, late, grouped, quick)
    assert fast.outcome == "quick"
    await end_of(slow, sums)
    assert sums.outcome == 3
    assert isinstance(slow.outcome, TimeoutError)
    await close(starter)


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("fail", [True, False])
async def test_nothing_of_an_execution_lives_on_after_it(starter: EagerStarter, wait: bool, fail: bool):
    class Thing:
        pass

    async def work(thing: Thing) -> Thing:
        if wait:
            await asyncio.sleep(0.001)
        if fail:
            raise ValueError(thing)
        return thing

    gc.disable()  # so that all that comes now is in the youngest generation
    try:
        thing = Thing()
        known = weakref.ref(thing)
        piece = Piece(work, thing)
        starter.add(piece)
        starter.step()
        await piece.over.wait()
        await asyncio.sleep(0)
        piece.outcome = None
        del piece, thing
        if fail:  # an exception and the frames of its traceback refer to each other
            gc.collect(0)
        assert known() is None
    finally:
        gc.enable()


@NEW_AND_OLD
async def test_cancelled_in_the_turn_in_which_it_began_it_hears_of_it_at_its_wait(starter: EagerStarter):
    heard = []

    async def work() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            heard.append("cancelled")
            await asyncio.sleep(0.1)  # and may take its time
            return "cleaned up"
        return "slept"

    (piece,) = start(starter, work)
    piece.task.cancel()
    assert await end_of(piece) == ["cleaned up"]
    assert heard == ["cancelled"]


async def test_a_cancellation_in_the_first_turn_goes_on_to_the_task_that_is_waited_for(starter: EagerStarter):
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

    (piece,) = start(starter, work)
    await asyncio.sleep(0)
    piece.task.cancel()
    (outcome,) = await end_of(piece)
    assert heard == ["inner", "outer"]
    assert isinstance(outcome, asyncio.CancelledError)


async def test_one_that_cancels_itself_before_its_first_wait_hears_of_it_there(starter: EagerStarter):
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

    assert await end_of(*start(starter, work)) == ["cancelled once"]
    assert seen[0] is seen[1]


@in_rows("take_back", [True, False])
async def test_one_that_cancels_itself_and_ends_without_a_wait_has_its_result_and_harms_nobody(
    starter: EagerStarter, take_back: bool
):
    async def selfish() -> str:
        task = asyncio.current_task()
        task.cancel()
        if take_back:
            task.uncancel()
        return "done"

    pieces = start(starter, selfish, nap, selfish, nap)
    assert await end_of(*pieces) == ["done", "slept", "done", "slept"]


@in_rows("run_loop", [asyncio.run, uvloop.run])
def test_it_runs_on_each_loop(run_loop: RunLoop, way: type[EagerStarter]):
    async def work() -> str:
        first = asyncio.current_task()
        await asyncio.sleep(0.001)
        return "the same task" if asyncio.current_task() is first else "another"

    async def life() -> list[Any]:
        starter = way(asyncio.get_running_loop())
        outcomes = await end_of(*start(starter, work, nap))
        starter.close()
        return outcomes

    assert run_loop(life()) == ["the same task", "slept"]


@in_rows("run_loop", [asyncio.run, uvloop.run])
def test_an_execution_that_still_waits_when_the_loop_ends_is_cancelled(run_loop: RunLoop, way: type[EagerStarter]):
    async def life() -> Piece:
        (piece,) = start(way(asyncio.get_running_loop()), asyncio.Event().wait)
        return piece

    assert isinstance(run_loop(life()).outcome, asyncio.CancelledError)
