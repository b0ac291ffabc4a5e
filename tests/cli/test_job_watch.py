"""Following a submitted task: order, and what is said where no states are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gangline.cli.views.job_watch import Told, in_order
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
