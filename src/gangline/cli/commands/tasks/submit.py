"""`gangline submit`"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ...console.arguments import duration_option, moment, parse_arguments
from ...console.options import Connection, connection_options, json_option


@click.command(short_help="Have a task run, now or later, whatever becomes of this process.")
@click.argument("target", metavar="ENDPOINT.METHOD")
@click.argument("arguments", metavar="[JSON]", required=False)
@click.option("--priority", type=int, metavar="N", help="Higher goes first. [0]")
@duration_option("--delay", "delay_s", text="Not before so long from now.")
@click.option("--at", metavar="MOMENT", callback=moment, help="Not before then: 2030-01-31T12:00:00Z.")
@click.option("--cron", metavar="PATTERN", help="Again and again: '0 0 3 * * *' (seconds first), '@every 5m'.")
@duration_option("--deadline", "deadline_s", text="Not after so long; then it is a dead letter.")
@click.option("--key", metavar="TEXT", help="For limits and order per key; routes may shard by it.")
@click.option("--ordered", is_flag=True, help="One at a time, in order, among those of the same --key.")
@click.option("--idempotency-key", metavar="TEXT", help="The same again is the same job.")
@duration_option("--timeout", "timeout_s", text="Of one try.")
@click.option("--max-attempts", type=int, metavar="N", help="Starts before it is a dead letter. [5]")
@duration_option("--backoff", "backoff_s", text="Wait before the second try; doubles with each. [1s]")
@duration_option("--result-ttl", "result_ttl_s", text="How long the result is kept; 0: not at all. [1h]")
@click.option("--events", is_flag=True, help="Tell each change of its state, for 'gangline status --watch'.")
@click.option("--pool", metavar="NAME", help="Whatever the endpoint's route says.")
@click.option("--wait", is_flag=True, help="Stay until it has ended, and print its result instead of its id.")
@json_option
@connection_options
def command(
    connection: Connection,
    target: str,
    arguments: str | None,
    at: datetime | None,
    ordered: bool,
    events: bool,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Have a task run, now or later, whatever becomes of this process. Prints the job's id when it is stored.

    JSON is an object of keyword arguments or an array of positional ones; '-' reads it from stdin; nothing is none.
    It is tried again when it fails, and ends as done, dead letter or cancelled. Somebody has to run it: 'gangline
    dispatcher', and workers. TIME is 90, 500ms, 5m, 2h or 1d.

    \b
        job=$(gangline submit words.count '{"text": "a b c"}')
        gangline result $job

    The same without it: nats pub -J gangline.task.words.count '{"text": "a b c"}'
    """
    from ....schemas.names import split_target
    from ...console.session import run

    split_target(target)
    args, kwargs = parse_arguments(arguments)
    given = {name: value for name, value in {**options, "at": at}.items() if value is not None}
    given |= {name: True for name, flag in (("ordered", ordered), ("events", events)) if flag}
    run(_submit(connection, target, args, kwargs, given, wait=wait, as_json=as_json))


async def _submit(
    connection: Connection,
    target: str,
    args: list[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    *,
    wait: bool,
    as_json: bool,
) -> None:
    from ...console.output import print_json, print_value
    from ...console.session import open_client, telemetry
    from ...views.job_watch import result_of

    async with telemetry("gangline-submit"), open_client(connection, "gangline submit") as client:
        job = await client.options(**options).submit(target, *args, **kwargs)
        if wait and not job.repeats:
            click.echo(f"job {job.id}", err=True)
            print_value(await result_of(job), as_json)
        elif as_json:
            print_json({"job": job.id, "endpoint": job.endpoint, "method": job.method, "repeats": job.repeats})
        else:
            click.echo(job.id)
