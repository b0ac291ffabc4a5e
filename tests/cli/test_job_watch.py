"""Following a submitted task: order, and what is said where no states are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gangline.cli.views.job_watch import Told, in_order, result_of
from gangline.schemas.errors.base import InvalidRequest, StreamBroken
from gangline.schemas.records.jobs import JobEvent, JobProgress, JobState


def state(word: JobState, attempt: int = 1) -> JobEvent:
    return JobEvent(job="j", state=word, attempt=attempt, at=0.0)


def progress(number: int, attempt: int = 1) -> JobProgress:
    return JobProgress(job="j", attempt=attempt, number=number, at=0.0)


async def shown(*told: Told | float) -> tuple[list[Told], int]:
    """What is shown of what is told, with these pauses; and how often the state was looked up."""
    looked_up = 0

    async def events() -> AsyncGenerator[Told, None]:
        for item in told:
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item

    async def stateless() -> None:
        nonlocal looked_up
        looked_up += 1

    return [event async for event in in_order(events(), stateless)], looked_up


async def test_progress_that_overtook_the_start_of_its_attempt_comes_after_it():
    queued, first, second, done = (
        state(JobState.QUEUED, 0),
        state(JobState.RUNNING),
        state(JobState.RUNNING, 2),
        state(JobState.DONE, 2),
    )
    one, two, three = progress(1), progress(2), progress(1, attempt=2)
    told = await shown(queued, one, first, two, 5.0, three, 0.5, second, done)
    assert told == ([queued, first, one, two, second, three, done], 0)


async def test_progress_is_held_back_no_longer_than_a_moment_and_never_lost():
    first, done, one, two = state(JobState.RUNNING), state(JobState.DONE), progress(1), progress(2)
    assert await shown(state(JobState.QUEUED, 0), one, 1.5, two, first, done) == (
        [state(JobState.QUEUED, 0), one, two, first, done],
        0,
    )
    assert await shown(one, done) == ([one, done], 0)


async def test_without_states_the_present_one_is_looked_up_once_and_progress_is_shown_as_it_comes():
    one, two, done = progress(1), progress(1, attempt=2), state(JobState.DONE, 2)
    assert await shown(5.0, one, 5.0, two, 5.0, done) == ([one, two, done], 1)


class EndedJob:
    """A job with this result, whose feed has these items and then maybe an error."""

    def __init__(self, result: Any, items: tuple[Any, ...] = (), error: Exception | None = None) -> None:
        self._result, self._items, self._error = result, items, error

    async def result(self, timeout_s: float | None = None) -> Any:
        return self._result

    async def items(self) -> AsyncGenerator[Any, None]:
        for item in self._items:
            yield item
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("job", "result", "told"),
    [
        (EndedJob(3, ("never read",)), 3, ""),
        (EndedJob(None, ("a", None)), ["a", None], ""),
        (EndedJob(None), [], ""),
        (EndedJob(None, error=InvalidRequest("it yields no items")), None, ""),
        (EndedJob(None, ("a",), StreamBroken("items no longer exist")), None, "items no longer exist\n"),
    ],
)
async def test_the_result_of_a_task_that_yields_is_the_list_of_its_items_while_they_are_kept(job, result, told, capsys):
    assert await result_of(job) == result
    assert capsys.readouterr().err == told
