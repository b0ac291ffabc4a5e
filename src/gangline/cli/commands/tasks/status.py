"""`gangline status`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ...console.arguments import endpoint_option, optional_job_argument
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....schemas.messages.jobs import JobInfo
    from ...console.exits import Exit


@click.command(short_help="Show the state of a submitted task.")
@optional_job_argument
@click.option("-w", "--watch", is_flag=True, help="Print past events and follow the job until it ends.")
@endpoint_option
@json_option
@connection_options
def command(connection: ConnectionOptions, job: str | None, watch: bool, endpoint: str | None, as_json: bool) -> None:
    """Show the state of a submitted task: scheduled, queued, waiting for its next attempt, running, done, dead,
    cancelled.

    With --watch, print one line per event, from the beginning: changes of state if the task was submitted with
    --events, its progress, and its end. Exit code 1: it is dead, or was cancelled.
    """
    if job is None:
        raise click.UsageError(
            "give the id of a job ('gangline jobs ls' lists them); 'gangline top' shows the whole system, "
            "and 'gangline health' checks the processes on this machine"
        )
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.jobs import job_lines

    if watch:
        sys.exit(with_client(connection, "gangline status", lambda client: _watch(client, job, endpoint, as_json)))

    async def ask(client: Client) -> JobInfo:
        return await (await client.find_job(job, endpoint)).status()

    info = with_client(connection, "gangline status", ask)
    print_lines(info.model_dump(mode="json"), job_lines(info), as_json)


async def _watch(client: Client, job: str, endpoint: str | None, as_json: bool) -> Exit:
    from ...console.output import print_json
    from ...views.job_watch import Told, watch
    from ...views.jobs import event_line, plain

    def show(event: Told) -> None:
        if as_json:
            print_json(plain(event.model_dump(exclude={"v", "packed"})), lines=True)
        else:
            echo(event_line(event))
        sys.stdout.flush()

    return await watch(await client.find_job(job, endpoint), show)
