"""`gangline route set|ls|rm`"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import pools, rate, reason_option, seconds, whole
from ...console.completion import endpoints
from ...console.options import Command, ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client


@click.group(short_help="Split, mirror, limit or pause an endpoint's traffic.")
def command() -> None:
    """Routes: how an endpoint's traffic is split over pools, which pools get copies, and the rules of its queue.

    An endpoint without a route is the pool of its name. Routes are JSON in the bucket GANGLINE_ROUTES, so 'nats kv
    put' can change them, too. Every client, gateway and dispatcher applies a change within a second.
    """


_RULES: tuple[Callable[[Command], Command], ...] = (
    click.option("--max-running", callback=whole, metavar="N", help="Max. concurrent submitted tasks."),
    click.option("--per-key", callback=whole, metavar="N", help="Max. concurrent tasks per key."),
    click.option("--ordered/--no-ordered", default=None, help="Run tasks of one key one at a time, in order."),
    click.option("--rate", callback=rate, metavar="N/s", help="Rate limit of starts: 100/s, 30/m, 5/h."),
    click.option("--burst", callback=whole, metavar="N", help="Burst size of the rate limit. [1]"),
    click.option("--max-attempts", callback=whole, metavar="N", help="Attempts before a dead letter. [5]"),
    click.option(
        "--backoff", callback=seconds, metavar="TIME", help="Wait before the second attempt; doubles each time. [1s]"
    ),
    click.option("--backoff-max", callback=seconds, metavar="TIME", help="Longest wait between attempts. [5m]"),
    click.option("--timeout", callback=seconds, metavar="TIME", help="Timeout of one attempt."),
    click.option("--result-ttl", callback=seconds, metavar="TIME", help="How long to keep results. [1h]"),
    click.option("--pause/--resume", "paused", default=None, help="Pause: start nothing, keep accepting tasks."),
)


def _rule_options(function: Command) -> Command:
    for option in reversed(_RULES):
        function = option(function)
    return function


@command.command("set", short_help="Create or change a route.")
@click.argument("endpoint", shell_complete=endpoints)
@click.option(
    "--to", multiple=True, callback=pools, metavar="POOL=WEIGHT", help="Where requests go; replaces the whole list."
)
@click.option(
    "--shadow", multiple=True, callback=pools, metavar="POOL=PERCENT", help="Pools that get copies of requests."
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=pools,
    metavar="POOL=N",
    help="Max. concurrent requests of one client in that pool.",
)
@click.option("--by-key/--no-by-key", default=None, help="Keep each key in one pool. [by-key]")
@_rule_options
@click.option("--replace", is_flag=True, help="Drop settings that are not given, instead of keeping them.")
@reason_option
@json_option
@connection_options
def set_(connection: ConnectionOptions, endpoint: str, replace: bool, reason: str, as_json: bool, **given: Any) -> None:
    """Create the route of ENDPOINT, or change the given settings. 'none' removes a setting: --shadow none.

    \b
        gangline route set resize --to resize-v1=90 --to resize-v2=10 --shadow resize-v3=5
        gangline route set resize --per-key 3 --rate 100/s --burst 10

    \b
    The same with nats:
        nats kv put GANGLINE_ROUTES resize '{"to": {"resize-v1": 9, "resize-v2": 1}}'
    """
    from ....schemas.names import check_name
    from ...console.output import print_lines
    from ...console.session import as_operator
    from ...views.routes import RouteChange, change_route, route_lines

    check_name(endpoint, "endpoint")
    wanted = RouteChange.of(given, replace=replace)
    if not (wanted.route or wanted.queue or replace):
        raise click.UsageError("give at least one setting, such as --to POOL=WEIGHT", click.get_current_context())
    before, record, idle = as_operator(
        connection, "route set", endpoint, reason, lambda client: change_route(client, endpoint, wanted)
    )
    told = {"endpoint": endpoint, "route": record.model_dump(mode="json", exclude_defaults=True)}
    print_lines(told, route_lines(endpoint, record, "created" if before is None else "changed"), as_json)
    copied = [pool for pool in idle if pool in record.shadow]
    if shares := [pool for pool in idle if pool not in record.shadow]:
        echo(f"no worker serves {', '.join(shares)} now: requests go to the other pools, if any", err=True)
    if copied:
        echo(f"no worker serves {', '.join(copied)} now: nothing is copied there", err=True)


@command.command(short_help="List all routes, or show one.")
@click.argument("endpoint", required=False, shell_complete=endpoints)
@json_option
@connection_options
def ls(connection: ConnectionOptions, endpoint: str | None, as_json: bool) -> None:
    """List all routes, or show that of ENDPOINT; invalid routes are shown with the reason."""
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.routes import RouteRow, read_routes, routes_table

    found = with_client(connection, "gangline route", lambda client: read_routes(client, endpoint))
    empty = "no routes: every endpoint is the pool of its name"
    print_rows(found, as_json, table=routes_table, empty=empty, to_json=RouteRow.to_json)


@command.command(short_help="Remove a route; the endpoint is the pool of its name again.")
@click.argument("endpoint", shell_complete=endpoints)
@reason_option
@json_option
@connection_options
def rm(connection: ConnectionOptions, endpoint: str, reason: str, as_json: bool) -> None:
    """Remove a route. Its endpoint is the pool of its name again, and waiting requests move there."""
    from ....schemas.names import check_name
    from ...console.output import print_lines
    from ...console.session import as_operator
    from ...views.routes import read_routes

    async def delete(client: Client) -> None:
        await read_routes(client, endpoint)
        await client.delete_route(endpoint)

    check_name(endpoint, "endpoint")
    as_operator(connection, "route rm", endpoint, reason, delete)
    told = f"{endpoint} no longer has a route: it is the pool of its name"
    print_lines({"endpoint": endpoint, "change": "deleted"}, [told], as_json)
