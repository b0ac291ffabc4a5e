"""`gangline status`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ...console.arguments import endpoint_option, job_argument
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.jobs.job import Job
    from ...console.exits import Exit


@click.command(short_help="Show the state of a submitted task.")
@job_argument
@click.option("-w", "--watch", is_flag=True, help="Print past events and follow the job until it ends.")
@endpoint_option
@json_option
@connection_options
def command(connection: ConnectionOptions, job: str, watch: bool, endpoint: str | None, as_json: bool) -> None:
    """Show the state of a submitted task: scheduled, queued, waiting for its next attempt, running, done, dead,
    cancelled.

    With --watch, print one line per event, from the beginning: changes of state if the task was submitted with
    --events, its progress, and its end. Exit code 1: it is dead, or was cancelled.
    """
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.jobs import job_lines

    if watch:
        sys.exit(with_client(connection, "gangline status", lambda client: _watch(client.job(job, endpoint), as_json)))
    info = with_client(connection, "gangline status", lambda client: client.job(job, endpoint).status())
    print_lines(info.model_dump(mode="json"), job_lines(info), as_json)


async def _watch(job: Job, as_json: bool) -> Exit:
    from ...console.output import print_json
    from ...views.job_watch import Told, watch
    from ...views.jobs import event_line

    def show(event: Told) -> None:
        if as_json:
            print_json(event.model_dump(mode="json", exclude={"v"}), lines=True)
        else:
            click.echo(event_line(event))
        sys.stdout.flush()

    return await watch(job, show)
