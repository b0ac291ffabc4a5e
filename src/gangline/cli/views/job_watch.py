"""Following a submitted task: what happened to it in its order, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click

from ...schemas.errors.base import GanglineError
from ...schemas.records.jobs import JobEvent, JobProgress, JobState
from ..console.exits import Exit

if TYPE_CHECKING:
    from ...dispatcher.jobs.job import Job

Told = JobEvent | JobProgress
WAIT_S: Final = 1.0
"""Dispatchers tell of states, workers of progress, and neither waits for the other: progress that came before the start
of its attempt is held back for so long. After so long without any state, the present one is looked up."""


async def watch(job: Job, show: Callable[[Told], None]) -> Exit:
    """Show what happens until the end; the exit code says how it ended."""
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
    """The same, with the progress of an attempt after its start. `stateless`: called once if no state is told."""
    held: list[JobProgress] = []
    started = 0
    """The newest attempt whose progress is held back no longer."""
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
        click.echo(
            f"it is {info.state.value}; its changes of state are told only if it was submitted with --events", err=True
        )
