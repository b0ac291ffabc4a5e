"""`gangline result`"""

from __future__ import annotations

import sys

import click

from ...console.arguments import duration_option, endpoint_option, job_argument
from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="Wait for the result of a submitted task and print it.")
@job_argument
@duration_option("-t", "--timeout", "timeout_s", text="How long to wait; 0: do not wait. [forever]")
@click.option("--items", is_flag=True, help="Print the items of a task that yields, one JSON value per line.")
@endpoint_option
@json_option
@connection_options
def command(
    connection: ConnectionOptions, job: str, timeout_s: float | None, items: bool, endpoint: str | None, as_json: bool
) -> None:
    """Wait for the result of a submitted task and print it.

    JOB is the id printed by 'gangline submit'; for a task published in another way, the sequence in the publish ack. A
    text result is printed without quotes; with --json every result is printed as JSON, on one line. The result of a
    task that yields is the list of its items. Exit code 1: it is a dead letter, or was cancelled.

    \b
    The same with nats:
        nats kv get GANGLINE_RESULTS result.JOB
    """
    from ...console.session import run

    run(_result(connection, job, endpoint, timeout_s, items=items, as_json=as_json))


async def _result(
    connection: ConnectionOptions, id: str, endpoint: str | None, timeout_s: float | None, *, items: bool, as_json: bool
) -> None:
    from ...console.output import print_json, print_value
    from ...console.session import open_client
    from ...views.job_watch import find, result_of

    async with open_client(connection, "gangline result") as client:
        job = await find(client, id, endpoint)
        if not items:
            print_value(await result_of(job, timeout_s), as_json)
            return
        async for item in job.items():
            print_json(item, lines=True)
            sys.stdout.flush()
