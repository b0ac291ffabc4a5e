"""`gangline cancel`"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from ....schemas.text import count_of
from ...console import completion
from ...console.arguments import duration_option, optional_job_argument
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo, print_json

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....dispatcher.jobs.job import Job
    from ....schemas.messages.jobs import JobInfo

_STATES: Final = ("scheduled", "queued", "waiting", "running")
_PAGE: Final = 10_000
_AT_A_TIME: Final = 64
STOP_S = 1.0
"""How long to wait for running code to stop before reporting that it is still running."""
POLL_S = 0.05


@click.command(short_help="Cancel submitted tasks, queued or running.")
@optional_job_argument
@click.option("--endpoint", metavar="NAME", help="Endpoint of the task, or only jobs of it.")
@click.option("--all", "everything", is_flag=True, help="Cancel all jobs to which the other options apply.")
@click.option("--key", metavar="TEXT", help="Only jobs submitted with this key.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only jobs in this state; repeatable."
)
@click.option("--schedule", metavar="SCHEDULE", help="Only runs of this schedule.", shell_complete=completion.schedules)
@duration_option("--older-than", "older_than_s", text="Only jobs that were submitted this long ago or earlier.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before jobs are cancelled with --all.")
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Why an operator cancels it; records that in the audit trail, see 'gangline audit'.",
)
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    job: str | None,
    endpoint: str | None,
    everything: bool,
    key: str | None,
    states: tuple[str, ...],
    schedule: str | None,
    older_than_s: float | None,
    yes: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Cancel a submitted task, queued or running, or remove a schedule; or, with --all, all jobs that have not ended
    and to which the other options apply.

    A running task is asked to stop. It may take a while, or even succeed; it is not retried. Exit code 1: it had
    already ended, or, with --all, a job could not be cancelled.

    \b
    gangline cancel thumbnails.jV1StGXR8Z5jdHi6BmyTab
    gangline cancel --all --endpoint thumbnails --older-than 1h --reason 'nobody needs them any more'
    gangline cancel --all --key customer-7 --state queued --yes
    """
    from ...console.session import as_operator, with_client
    from ...views.job_watch import find

    if (job is None) != everything:
        raise click.UsageError("give a job's id, or --all")
    chosen = {"key": key, "state": states, "schedule": schedule, "older-than": older_than_s}
    if job is not None and (narrowed := [name for name, value in chosen.items() if value]):
        raise click.UsageError(f"--{narrowed[0]} needs --all")

    async def cancel(client: Client) -> None:
        if job is not None:
            await _cancel(await find(client, job, endpoint), as_json)
            return
        before = None if older_than_s is None else time.time() - older_than_s
        found = await unfinished(client, states=states, endpoint=endpoint, key=key, schedule=schedule, before=before)
        if found and not yes:
            click.confirm(f"cancel {count_of(len(found), 'job')}?", abort=True, err=True)
        rows = await cancel_each(client, found)
        if as_json:
            print_json(rows)
        else:
            echo(_summary(rows))
        for row in rows:
            if "error" in row and not as_json:
                echo(f"{row['job']} was not cancelled: {row['error']}", err=True)
        if any("error" in row for row in rows):
            raise click.exceptions.Exit(1)

    words = [
        f"--{name} {','.join(value) if isinstance(value, tuple) else value}" for name, value in chosen.items() if value
    ]
    target = job or " ".join([f"all of {endpoint or 'all endpoints'}", *words])
    if reason:
        as_operator(connection, "cancel", target, reason, cancel)
    else:  # Producers cancel, too; they have no audit trail.
        with_client(connection, "gangline cancel", cancel)


async def unfinished(
    client: Client,
    *,
    states: tuple[str, ...] = (),
    endpoint: str | None = None,
    key: str | None = None,
    schedule: str | None = None,
    before: float | None = None,
) -> list[str]:
    """Ids of all jobs that have not ended and to which this applies. `before`: they were submitted then or earlier, a
    Unix time."""
    found, cursor = dict[str, None](), None
    while True:
        page = await client.jobs(
            states=states or _STATES, endpoint=endpoint, key=key, schedule=schedule, limit=_PAGE, cursor=cursor
        )
        for info in page.jobs:
            if before is None or (info.submitted_at is not None and info.submitted_at <= before):
                found[info.job] = None
        cursor = page.next
        if cursor is None:
            return list(found)


async def cancel_each(client: Client, jobs: Sequence[str]) -> list[dict[str, object]]:
    """Cancel them, many at a time. For each, whether it was cancelled, or the error."""
    import asyncio

    from ....schemas.errors.base import GanglineError

    rows: list[dict[str, object]] = []
    left = iter(jobs)

    async def cancel() -> None:
        for id in left:
            try:
                rows.append({"job": id, "cancelled": await client.job(id).cancel()})
            except GanglineError as error:
                rows.append({"job": id, "cancelled": False, "error": error.message})

    await asyncio.gather(*(cancel() for _ in range(_AT_A_TIME)))
    return rows


def _summary(rows: Sequence[Mapping[str, object]]) -> str:
    cancelled = sum(bool(row["cancelled"]) for row in rows)
    failed = sum("error" in row for row in rows)
    ended = len(rows) - cancelled - failed
    parts = [f"{count_of(cancelled, 'job')} cancelled"]
    parts += [f"{ended} had already ended"] * bool(ended) + [f"{failed} failed"] * bool(failed)
    return ", ".join(parts)


async def _cancel(job: Job, as_json: bool) -> None:
    from ....schemas.errors.base import JobError

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
