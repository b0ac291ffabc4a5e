"""`gangline cancel`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.arguments import endpoint_option, job_argument
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.jobs.job import Job
    from ....schemas.messages.jobs import JobInfo

STOP_S = 1.0
"""How long to wait for running code to stop before reporting that it is still running."""
POLL_S = 0.05


@click.command(short_help="Cancel a submitted task, queued or running.")
@job_argument
@endpoint_option
@json_option
@connection_options
def command(connection: ConnectionOptions, job: str, endpoint: str | None, as_json: bool) -> None:
    """Cancel a submitted task, queued or running, or remove a schedule.

    A running task is asked to stop. It may take a while, or even succeed; it is not retried. Exit code 1: it had
    already ended.
    """
    from ....schemas.errors.base import JobError
    from ...console.output import print_json
    from ...console.session import with_client

    cancelled, running = with_client(connection, "gangline cancel", lambda client: _cancel(client.job(job, endpoint)))
    if as_json:
        print_json({"job": job, "cancelled": cancelled, "running": running is not None})
    elif running is not None:
        where = f" on {running.worker}" if running.worker else ""
        click.echo(
            f"{job} was asked to stop and is still running{where}: 'gangline status {job}' shows when it has ended"
        )
    elif cancelled:
        click.echo(f"{job} is cancelled")
    if not cancelled:
        raise JobError(f"job {job!r} had already ended: 'gangline status {job}' says how")


async def _cancel(job: Job) -> tuple[bool, JobInfo | None]:
    """Whether it was cancelled, and its state if it is still running."""
    return (True, await _running(job)) if await job.cancel() else (False, None)


async def _running(job: Job) -> JobInfo | None:
    """Its state while its code is running; None as soon as it has stopped."""
    import asyncio

    from ....schemas.errors.base import GanglineError
    from ....schemas.records.jobs import JobState

    give_up_at = asyncio.get_running_loop().time() + STOP_S
    while True:
        try:
            info = await job.status()
        except GanglineError:
            return None  # a cron schedule, of which nothing remains
        if info.state is not JobState.RUNNING:
            return None
        if asyncio.get_running_loop().time() > give_up_at:
            return info
        await asyncio.sleep(POLL_S)
