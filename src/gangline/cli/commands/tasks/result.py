"""`gangline result`"""

from __future__ import annotations

import sys

import click

from ...console.arguments import duration_option, endpoint_option, job_argument
from ...console.options import Connection, connection_options, json_option


@click.command(short_help="The result of a submitted task; waits for it.")
@job_argument
@duration_option("-t", "--timeout", "timeout_s", text="Wait no longer; 0: not at all. [for ever]")
@click.option("--items", is_flag=True, help="Of a task that yields: its items as they come, one JSON value a line.")
@endpoint_option
@json_option
@connection_options
def command(
    connection: Connection, job: str, timeout_s: float | None, items: bool, endpoint: str | None, as_json: bool
) -> None:
    """The result of a submitted task; waits for it.

    JOB is what 'gangline submit' printed; of a task that was published without it, the sequence that the stream
    acknowledged it with. A result that is text is printed bare; with --json everything is printed as JSON, on one line.
    Exit code 1: it is a dead letter, or was cancelled. The same without it: nats kv get GANGLINE_RESULTS result.JOB
    """
    from ...console.session import run

    run(_result(connection, job, endpoint, timeout_s, items=items, as_json=as_json))


async def _result(
    connection: Connection, id: str, endpoint: str | None, timeout_s: float | None, *, items: bool, as_json: bool
) -> None:
    from ...console.output import print_json, print_value
    from ...console.session import open_client
    from ...views.job_watch import result_of

    async with open_client(connection, "gangline result") as client:
        job = client.job(id, endpoint)
        if not items:
            print_value(await result_of(job, timeout_s), as_json)
            return
        async for item in job.items():
            print_json(item, lines=True)
            sys.stdout.flush()
