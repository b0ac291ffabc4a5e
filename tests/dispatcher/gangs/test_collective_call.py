"""One task on all ranks, without members."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.gangs.collective_call import Arguments, run_on_all, same_for_all
from gangline.dispatcher.gangs.members import Formation, copier
from gangline.schemas.records.gangs import Seat


def formation(size: int = 3) -> Formation:
    seats = [Seat(rank=rank, pool="train", worker=f"w{rank}", token=f"t{rank}", epoch=1) for rank in range(size)]
    return Formation("g", 7, seats, [])


class Ranks:
    """What each rank does: an error to raise, a value to return, or None to wait for ever."""

    def __init__(self, *does: Any) -> None:
        self.does = does
        self.cancelled: list[int] = []

    async def call(self, rank: int, arguments: Arguments) -> Any:
        does = self.does[rank]
        try:
            if does is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            if isinstance(does, BaseException):
                raise does
            return does
        except asyncio.CancelledError:
            self.cancelled.append(rank)
            raise


async def run(ranks: Ranks, *, partial: bool = False) -> list[Any]:
    return await run_on_all(formation(), ranks.call, same_for_all(3, (), {}), partial=partial)


async def test_the_first_failure_cancels_the_others_and_keeps_what_was_done():
    ranks = Ranks("a", errors.TaskFailed("no luck"), None)
    with pytest.raises(errors.GangFailed) as caught:
        await run(ranks)
    error = caught.value
    assert (error.generation, error.rank) == (7, 1) and "train.w1" in str(error)
    assert isinstance(error.__cause__, errors.TaskFailed)
    assert error.results == {0: "a"} and ranks.cancelled == [2]


async def test_the_end_of_the_generation_outweighs_what_a_rank_says():
    with pytest.raises(errors.GangRestarted) as caught:
        await run(Ranks(errors.WorkerLost("gone"), errors.GangRestarted("torn down", details={"generation": 7}), "c"))
    assert caught.value.results == {2: "c"}


async def test_deadlines_and_wrong_requests_are_raised_as_they_are():
    for error in (errors.DeadlineExceeded("late"), errors.InvalidArguments("wrong")):
        with pytest.raises(type(error)):
            await run(Ranks(error, None, None))


async def test_a_bug_is_no_failure_of_a_rank():
    with pytest.raises(ZeroDivisionError):
        await run(Ranks(None, ZeroDivisionError(), None))


async def test_each_waiter_raises_an_error_of_its_own():
    make = copier(errors.GangRestarted("torn down", details={"rank": 1}, may_have_started=False))
    one, two = make(), make()
    assert one is not two and one.details is not two.details
    assert isinstance(one, errors.GangRestarted) and one.rank == 1 and one.may_have_started is False
