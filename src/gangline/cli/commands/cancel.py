"""`gangline cancel`"""

from __future__ import annotations

import click

from ..arguments import endpoint_option, job_argument
from ..options import Connection, connection_options, json_option


@click.command(short_help="Have a submitted task not run, or stop.")
@job_argument
@endpoint_option
@json_option
@connection_options
def command(connection: Connection, job: str, endpoint: str | None, as_json: bool) -> None:
    """Have a submitted task not run, or stop where it runs; of a schedule, run no more.

    Exit code 1: it had ended already.
    """
    from ...schemas.task_errors import JobError
    from ..output import print_json
    from ..session import run

    cancelled = run(_cancel(connection, job, endpoint))
    if as_json:
        print_json({"job": job, "cancelled": cancelled})
    elif cancelled:
        click.echo(f"{job} is cancelled")
    if not cancelled:
        raise JobError(f"job {job!r} had ended already: 'gangline status {job}' says how")


async def _cancel(connection: Connection, id: str, endpoint: str | None) -> bool:
    from ..session import open_client

    async with open_client(connection, "gangline cancel") as client:
        return await client.job(id, endpoint).cancel()
