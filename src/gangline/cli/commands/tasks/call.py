"""`gangline call`"""

from __future__ import annotations

import sys
from typing import Any

import click

from ...console.arguments import duration_option, parse_arguments, target_argument, task_arguments
from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="Run one task and print its result.")
@target_argument
@task_arguments
@duration_option("-t", "--timeout", "timeout_s", text="Limit of one attempt.", default="30s")
@duration_option("--deadline", "deadline_s", text="Limit of the whole: waiting and all attempts. [that of one attempt]")
@click.option("--key", metavar="TEXT", help="Calls with the same key go to the same worker while it lives.")
@click.option("--model", metavar="NAME", help="Prefer a worker that has this model loaded.")
@click.option("--idempotent", is_flag=True, help="Safe to run twice: retry when the outcome is unknown.")
@click.option("--stream", is_flag=True, help="Print items as they arrive, one JSON value per line.")
@click.option("--gateway", is_flag=True, help="Send it to a gateway, as a user with the role producer must.")
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    target: str,
    arguments: tuple[str, ...],
    timeout_s: float,
    deadline_s: float | None,
    key: str | None,
    model: str | None,
    idempotent: bool,
    stream: bool,
    gateway: bool,
    as_json: bool,
) -> None:
    """Run one task and print its result.

    Arguments are KEY=VALUE, where VALUE is JSON if it can be read as such and else text (KEY:=VALUE: always JSON); or
    one JSON object of named arguments or array of positional ones, which '-' reads from stdin.

    \b
        gangline call images.resize path=a.png width=128 'tags=["new", "small"]'
        gangline call images.resize '{"path": "a.png", "width": 128}'

    A text result is printed without quotes; with --json every result is printed as JSON, on one line. TIME
    is 90, 500ms, 5m, 2h or 1d, here and elsewhere.
    """
    from ....bus.port.bus import NotPermitted
    from ....schemas.names import split_target
    from ...console.session import run

    split_target(target)
    args, kwargs = parse_arguments(arguments)
    options: dict[str, Any] = {"timeout_s": timeout_s, "deadline_s": deadline_s, "key": key, "model": model}
    if idempotent:
        options["idempotent"] = True
    try:
        run(_call(connection, target, args, kwargs, options, stream=stream, gateway=gateway, as_json=as_json))
    except NotPermitted as error:
        if gateway:
            raise
        raise NotPermitted(f"{error}; a producer gives --gateway", details=error.details) from error


async def _call(
    connection: ConnectionOptions,
    target: str,
    args: list[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    *,
    stream: bool,
    gateway: bool,
    as_json: bool,
) -> None:
    from ...console.output import print_json, print_value
    from ...console.session import open_client, telemetry

    async with telemetry("gangline-call"), open_client(connection, "gangline call", gateway=gateway) as client:
        bound = client.options(**options)
        if stream:
            async for item in bound.stream(target, *args, **kwargs):
                print_json(item, lines=True)
                sys.stdout.flush()
            return
        result = await bound.call(target, *args, **kwargs)
    print_value(result, as_json)
