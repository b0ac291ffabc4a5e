"""Waiting for a submitted task, and saying what it waits for when that takes long."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import click

from ...schemas.errors.base import DeadlineExceeded, GanglineError
from ...schemas.records.jobs import JobState
from .jobs import why_lines

if TYPE_CHECKING:
    from ...dispatcher.jobs.job import Job

LONG_S: Final = 2.0
"""Whoever has waited so long is told why, once, unless the task runs."""


async def result_of(job: Job, timeout_s: float | None = None) -> Any:
    """See Job.result. What a task waits for that does not run is told on stderr.

    Raises:
        DeadlineExceeded: not in time; says what it waits for.
    """
    telling = asyncio.ensure_future(_tell(job))
    try:
        return await job.result(timeout_s)
    except DeadlineExceeded as error:
        waits = await _waits_for(job) if timeout_s else ""
        if not waits:
            raise
        text = f"{error.message.removesuffix('; it goes on')}: {waits}"
        raise DeadlineExceeded(text, details=error.details, may_have_started=False) from error
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _tell(job: Job) -> None:
    await asyncio.sleep(LONG_S)
    waits = await _waits_for(job)
    if waits:
        click.echo(f"waits: {waits}", err=True)


async def _waits_for(job: Job) -> str:
    """What a task that does not run waits for; empty if it runs or that is not known."""
    with contextlib.suppress(GanglineError):
        why = await job.why()
        if why.job.state is not JobState.RUNNING:
            first, *rest = why_lines(why)
            return "; ".join([first, *(line.removeprefix("- ") for line in rest)])
    return ""
