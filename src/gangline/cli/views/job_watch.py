"""Follows a submitted task: shows its events in order, or waits for its result and, if that takes long, says why."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import DeadlineExceeded, GanglineError, InvalidRequest, StreamBroken
from ...schemas.records.jobs import JobEvent, JobProgress, JobState
from ..console.exits import Exit
from ..console.output import echo
from .jobs import why_lines

if TYPE_CHECKING:
    from ...dispatcher.client.client import Client
    from ...dispatcher.jobs.job import Job

Told = JobEvent | JobProgress
WAIT_S: Final = 1.0
"""States come from dispatchers and progress from workers, without any order between them: progress that arrives
before the start of its attempt is held back for this long. If no state arrives for this long, the current state is
looked up."""


async def watch(job: Job, show: Callable[[Told], None]) -> Exit:
    """Show the events until the job ends; returns the exit code for its outcome."""
    events, state = job.events(), None
    async with contextlib.aclosing(events):
        async for event in in_order(events, lambda: _tell_state(job)):
            show(event)
            if isinstance(event, JobEvent):
                state = event.state
    return Exit.FAILED if state in (JobState.DEAD, JobState.CANCELLED) else Exit.OK


async def in_order(
    events: AsyncGenerator[Told, None], stateless: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Told, None]:
    """The events, with the progress of an attempt after its start. `stateless`: called once if no states are
    published."""
    held: list[JobProgress] = []
    started = 0
    """The newest attempt whose progress is no longer held back."""
    stated = quiet = False
    following: asyncio.Future[Told] = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait((following,), timeout=WAIT_S if held or not (stated or quiet) else None)
            if not following.done():
                if not stated:
                    quiet = True
                    await stateless()
                for event in held:
                    started = event.attempt
                    yield event
                held.clear()
                continue
            try:
                told = following.result()
            except StopAsyncIteration:
                break
            following = asyncio.ensure_future(anext(events))
            if isinstance(told, JobProgress):
                if quiet or told.attempt <= started:
                    yield told
                else:
                    held.append(told)
                continue
            stated = True
            if told.state is JobState.RUNNING:
                started = max(started, told.attempt)
                yield told
            if told.state is JobState.RUNNING or told.state.final:
                for event in held:
                    yield event
                held.clear()
            if told.state is not JobState.RUNNING:
                yield told
        for event in held:
            yield event
    finally:
        following.cancel()
        await asyncio.wait((following,))


async def _tell_state(job: Job) -> None:
    with contextlib.suppress(GanglineError):
        info = await job.status()
        echo(f"it is {info.state.value}; its states are published only if it was submitted with --events", err=True)


async def find(client: Client, id: str, endpoint: str | None) -> Job:
    """The job with this id, or whose id begins with it. A complete id costs nothing."""
    return client.job(id, endpoint) if COMPLETE.fullmatch(id) else await client.find_job(id, endpoint)


COMPLETE: Final = re.compile(r"[A-Za-z0-9_-]+\.(j[A-Za-z0-9_-]{22}|i[0-9a-f]{26})|[0-9]+")
"""Ids that `submit` makes, and sequences."""


# -- its result --------------------------------------------------------------------------------------------------------

LONG_S: Final = 2.0
"""After waiting for this long, the reason is shown once, unless the task is running."""


async def result_of(job: Job, timeout_s: float | None = None) -> Any:
    """Wait as Job.result; a list of the items if the task yields, as `gangline call` returns it. If the task is not
    running, the reason is printed on stderr.

    Raises:
        DeadlineExceeded: no result in time; says what the task waits for.
    """
    telling = asyncio.ensure_future(_tell(job))
    try:
        result = await job.result(timeout_s)
    except DeadlineExceeded as error:
        waits = await _waits_for(job) if timeout_s else ""
        if not waits:
            raise
        text = f"{error.message.removesuffix('; it continues')}: {waits}"
        raise DeadlineExceeded(text, details=error.details, may_have_started=False) from error
    finally:
        telling.cancel()
        await asyncio.wait([telling])
    return await _items_of(job) if result is None else result


async def _items_of(job: Job) -> list[Any] | None:
    """The items of a job that has ended without a result; None if its task does not yield."""
    try:
        return [item async for item in job.items()]
    except InvalidRequest:
        return None
    except StreamBroken as error:
        echo(error.message, err=True)
        return None


async def _tell(job: Job) -> None:
    await asyncio.sleep(LONG_S)
    waits = await _waits_for(job)
    if waits:
        echo(f"waits: {waits}", err=True)


async def _waits_for(job: Job) -> str:
    """What a task waits for; empty if it is running or if that is not known."""
    with contextlib.suppress(GanglineError):
        why = await job.why()
        if why.job.state is not JobState.RUNNING:
            first, *rest = why_lines(why)
            return "; ".join([first, *(line.removeprefix("- ") for line in rest)])
    return ""
