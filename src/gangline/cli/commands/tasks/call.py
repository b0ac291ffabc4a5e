"""`gangline call`"""

from __future__ import annotations

import sys
from typing import Any

import click

from ...console.arguments import duration_option, parse_arguments
from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="Run one task and print its result.")
@click.argument("target", metavar="ENDPOINT.METHOD")
@click.argument("arguments", metavar="[JSON]", required=False)
@duration_option("-t", "--timeout", "timeout_s", text="How long to wait for the answer.", default="30s")
@click.option("--key", metavar="TEXT", help="Calls with the same key go to the same worker while it lives.")
@click.option("--model", metavar="NAME", help="Prefer a worker that has this model loaded.")
@click.option("--idempotent", is_flag=True, help="Safe to run twice: retry when the outcome is unknown.")
@click.option("--stream", is_flag=True, help="Print items as they arrive, one JSON value per line.")
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    target: str,
    arguments: str | None,
    timeout_s: float,
    key: str | None,
    model: str | None,
    idempotent: bool,
    stream: bool,
    as_json: bool,
) -> None:
    """Run one task and print its result.

    JSON is an object of keyword arguments or an array of positional ones; '-' reads it from stdin; default: no
    arguments. A text result is printed without quotes; with --json every result is printed as JSON, on one line. TIME
    is 90, 500ms, 5m, 2h or 1d, here and elsewhere.
    """
    from ....schemas.names import split_target
    from ...console.session import run

    split_target(target)
    args, kwargs = parse_arguments(arguments)
    options = {"timeout_s": timeout_s, "key": key, "model": model}
    if idempotent:
        options["idempotent"] = True
    run(_call(connection, target, args, kwargs, options, stream=stream, as_json=as_json))


async def _call(
    connection: ConnectionOptions,
    target: str,
    args: list[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    *,
    stream: bool,
    as_json: bool,
) -> None:
    from ...console.output import print_json, print_value
    from ...console.session import open_client, telemetry

    async with telemetry("gangline-call"), open_client(connection, "gangline call") as client:
        bound = client.options(**options)
        if stream:
            async for item in bound.stream(target, *args, **kwargs):
                print_json(item, lines=True)
                sys.stdout.flush()
            return
        result = await bound.call(target, *args, **kwargs)
    print_value(result, as_json)
