"""`gangline status`"""

from __future__ import annotations

import sys

import click

from ..arguments import endpoint_option, job_argument
from ..options import Connection, connection_options, json_option


@click.command(short_help="Where a submitted task stands.")
@job_argument
@click.option("-w", "--watch", is_flag=True, help="Tell what happened to it, and what happens, until its end.")
@endpoint_option
@json_option
@connection_options
def command(connection: Connection, job: str, watch: bool, endpoint: str | None, as_json: bool) -> None:
    """Where a submitted task stands: scheduled, queued, waiting for its next try, running, done, dead, cancelled.

    With --watch, one line for each thing that happened, from the beginning: changes of state where the task was
    submitted with --events, what it said of its progress, and its end.
    """
    from ..session import run

    run(_watch(connection, job, endpoint, as_json) if watch else _show(connection, job, endpoint, as_json))


async def _show(connection: Connection, id: str, endpoint: str | None, as_json: bool) -> None:
    from ..job_tables import job_lines
    from ..output import print_json
    from ..session import open_client

    async with open_client(connection, "gangline status") as client:
        info = await client.job(id, endpoint).status()
    if as_json:
        print_json(info.model_dump(mode="json"))
        return
    for line in job_lines(info):
        click.echo(line)


async def _watch(connection: Connection, id: str, endpoint: str | None, as_json: bool) -> None:
    from ..job_tables import event_line
    from ..output import print_json
    from ..session import open_client

    async with open_client(connection, "gangline status") as client:
        async for event in client.job(id, endpoint).events():
            if as_json:
                print_json(event.model_dump(mode="json", exclude={"v"}), lines=True)
            else:
                click.echo(event_line(event))
            sys.stdout.flush()
