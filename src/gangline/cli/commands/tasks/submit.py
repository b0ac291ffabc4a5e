"""`gangline submit`"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from ...console.arguments import duration_option, given, moment, parse_arguments, target_argument, task_arguments
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo


@click.command(short_help="Submit a durable task: it runs now or later, even if this process exits.")
@target_argument
@task_arguments
@click.option("--priority", type=int, metavar="N", help="Higher runs first. [0]")
@duration_option("--delay", "delay_s", text="Start after this long.")
@click.option("--at", metavar="MOMENT", callback=moment, help="Start at this time, such as 2030-01-31T12:00:00Z.")
@click.option("--cron", metavar="PATTERN", help="Repeat: '0 3 * * *' or '@every 5m'; six fields have seconds first.")
@click.option("--time-zone", metavar="NAME", help="Time zone of --cron, such as Europe/Berlin. [UTC]")
@duration_option("--deadline", "deadline_s", text="Make it a dead letter if it has not ended by then.")
@click.option("--key", metavar="TEXT", help="Key for limits and ordering; routes may shard by it.")
@click.option("--ordered", is_flag=True, help="Run tasks of the same --key one at a time, in order.")
@click.option("--idempotency-key", metavar="TEXT", help="Submitting again with this key returns the existing job.")
@duration_option("--timeout", "timeout_s", text="Timeout of one attempt.")
@click.option(
    "--max-attempts",
    type=int,
    metavar="N",
    help="Attempts before it becomes a dead letter. [5, or 1 if not idempotent]",
)
@duration_option("--backoff", "backoff_s", text="Wait before the second attempt; doubles each time. [1s]")
@duration_option("--result-ttl", "result_ttl_s", text="How long to keep the result; 0: do not keep it. [1h]")
@click.option("--events", is_flag=True, help="Publish each change of state, for 'gangline status --watch'.")
@click.option("--pool", metavar="NAME", help="Use this pool and ignore the endpoint's route.")
@click.option("--wait", is_flag=True, help="Wait until it has ended, and print its result instead of its id.")
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    target: str,
    arguments: tuple[str, ...],
    at: datetime | None,
    ordered: bool,
    events: bool,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a durable task: it runs now or later, even if this process exits. Prints the job's id once it is stored.

    Arguments are KEY=VALUE, where VALUE is JSON if it can be read as such and else text (KEY:=VALUE: always JSON); or
    one JSON object of named arguments or array of positional ones, which '-' reads from stdin.

    A failed task may be retried. It ends as done, as a dead letter, or cancelled. It needs a running
    'gangline dispatcher', and workers. TIME is 90, 500ms, 5m, 2h or 1d.

    \b
        job=$(gangline submit words.count text="a b c")
        gangline result $job

    \b
    The same with nats:
        nats pub -J gangline.task.words.count '{"text": "a b c"}'
    """
    from ....schemas.names import split_target
    from ...console.session import run

    split_target(target)
    if wait and options["cron"] is not None:
        raise click.UsageError("--wait waits for one result, and --cron has a job for each run: leave one of them out")
    if options["time_zone"] is not None and options["cron"] is None:
        raise click.UsageError("--time-zone is the time zone of --cron: give --cron, too, or leave it out")
    args, kwargs = parse_arguments(arguments)
    wanted = given({**options, "at": at, "ordered": ordered or None, "events": events or None})
    run(_submit(connection, target, args, kwargs, wanted, wait=wait, as_json=as_json))


async def _submit(
    connection: ConnectionOptions,
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
        if wait:
            echo(f"job {job.id}", err=True)
            print_value(await result_of(job), as_json)
        elif as_json:
            print_json({"job": job.id, "endpoint": job.endpoint, "method": job.method, "repeats": job.repeats})
        else:
            echo(job.id)
