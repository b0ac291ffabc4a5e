"""`gangline cancel`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.arguments import endpoint_option, job_argument
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....dispatcher.jobs.job import Job
    from ....schemas.messages.jobs import JobInfo

STOP_S = 1.0
"""How long to wait for running code to stop before reporting that it is still running."""
POLL_S = 0.05


@click.command(short_help="Cancel a submitted task, queued or running.")
@job_argument
@endpoint_option
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Why an operator cancels it; records that in the audit trail, see 'gangline audit'.",
)
@json_option
@connection_options
def command(connection: ConnectionOptions, job: str, endpoint: str | None, reason: str, as_json: bool) -> None:
    """Cancel a submitted task, queued or running, or remove a schedule.

    A running task is asked to stop. It may take a while, or even succeed; it is not retried. Exit code 1: it had
    already ended.
    """
    from ...console.session import as_operator, with_client
    from ...views.job_watch import find

    async def cancel(client: Client) -> None:
        await _cancel(await find(client, job, endpoint), as_json)

    if reason:
        as_operator(connection, "cancel", job, reason, cancel)
    else:  # Producers cancel, too; they have no audit trail.
        with_client(connection, "gangline cancel", cancel)


async def _cancel(job: Job, as_json: bool) -> None:
    from ....schemas.errors.base import JobError
    from ...console.output import print_json

    cancelled = await job.cancel()
    running = await _running(job) if cancelled else None
    if as_json:
        print_json({"job": job.id, "cancelled": cancelled, "running": running is not None})
    elif running is not None:
        where = f" on {running.worker}" if running.worker else ""
        echo(
            f"{job.id} was asked to stop and is still running{where}: "
            f"'gangline status {job.id}' shows when it has ended"
        )
    elif cancelled:
        echo(f"{job.id} is cancelled")
    if not cancelled:
        raise JobError(f"job {job.id!r} had already ended: 'gangline status {job.id}' says how")


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
