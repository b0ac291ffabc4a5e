"""`gangline gang ls|show|acquire|rm|events`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ...console.arguments import duration_option, given, labels_option, size_argument
from ...console.completion import gangs, pools
from ...console.help import renamed
from ...console.options import ConnectionOptions, connection_options, json_option, watch_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....schemas.messages.gangs import GangReply

RELEASE_S: Final = 3600.0
"""How long to wait for members that stop slowly."""


@click.group(short_help="List, acquire, remove and follow gangs.")
def command() -> None:
    """Gangs: slots over many workers, granted all or nothing.

    A coordinator must run: 'gangline coordinator'. 'gangline why GANG' explains what a gang is waiting for.
    """


@command.command(short_help="List gangs that have not ended.")
@click.option("--set", "gangset", metavar="NAME", help="Only gangs of this standing set.")
@watch_option
@json_option
@connection_options
def ls(connection: ConnectionOptions, gangset: str | None, watch: bool, as_json: bool) -> None:
    """List gangs that have not ended, oldest first."""
    from ...console.watching import ListView, Page, list_rows
    from ...views.gang_follow import list_gangs
    from ...views.gangs import gangs_table

    async def read(client: Client) -> Page[GangReply]:
        found = await list_gangs(client, gangset)
        notes = (f"shard {shard} has no leader right now: its gangs are not listed" for shard in found.missing)
        return Page(found.gangs, tuple(notes))

    view = ListView(
        item="gang",
        table=gangs_table,
        empty="no gangs",
        key=lambda gang: gang.id,
        to_json=lambda gang: gang.model_dump(mode="json"),
    )
    list_rows(connection, "gangline gang", read, view, watch=watch, as_json=as_json)


@command.command(short_help="Show one gang and its members.")
@click.argument("gang", shell_complete=gangs)
@click.option(
    "--owner-token", metavar="TOKEN", help="The token that `gang acquire` printed; shows the dispatch tokens."
)
@json_option
@connection_options
def show(connection: ConnectionOptions, gang: str, owner_token: str | None, as_json: bool) -> None:
    """Show one gang and its members, up to a minute after it ended. A unique prefix of its id is enough.

    BUSY is how long tasks have run on the rank in this generation, and WAITING how much of that they waited for other
    ranks. The rank that worked longest is the slowest. Of a generation that has ended, the history has the times.

    Members have public ids, which begin with ~; only the owner sees their tokens.
    """
    from ....board.rank_readings import gang_times
    from ....schemas.messages.gangs import GangReply, GetRequest
    from ....schemas.messages.operations import parse_request
    from ....schemas.names import GangOperation
    from ...console.session import with_client
    from ...views.gang_follow import ask_of

    asked = parse_request(GetRequest, {"id": gang, "owner_token": owner_token})

    async def ask(client: Client) -> tuple[GangReply, dict[str, object]]:
        found = await ask_of(client, GangReply, GangOperation.GET, asked)
        workers = {f"{seat.pool}.{seat.worker}" for seat in found.seats if seat.part == 0}
        return found, await gang_times(client, found.id, found.generation, workers, since=found.created_at)

    found, times = with_client(connection, "gangline gang", ask)
    _print(found, as_json, times)


@command.command(short_help="Request a gang and wait until it is formed.")
@click.argument("pool", shell_complete=pools)
@size_argument
@click.option("--slots", type=int, metavar="N", help="Slots per member. [1]")
@click.option(
    "--strategy",
    type=click.Choice(["pack", "spread", "strict_pack", "strict_spread"]),
    help="How to place members on nodes. [pack]",
)
@labels_option("KEY=VALUE", "Only workers with this label; repeatable.")
@click.option("--priority", type=int, metavar="N", help="Higher runs first. [0]")
@click.option("--preempt", is_flag=True, default=None, help="Tear down gangs of lower priority to make room.")
@click.option(
    "--restart",
    type=click.Choice(["restart_gang", "restart_member", "fail"]),
    help="What to do when a member fails. [restart_gang]",
)
@click.option("--max-restarts", type=int, metavar="N", help="Failures after which the gang ends. [3]")
@duration_option("--deadline", "deadline_s", text="Give up if it is not formed by then.")
@duration_option("--ttl", "ttl_s", text="End the gang if it is not renewed for this long. [15s]")
@click.option("--owner", metavar="TEXT", help="Who requests it and why; shown to people.")
@click.option(
    "--wait-for-workers", is_flag=True, default=None, help="Wait even if too few workers are registered to hold it."
)
@click.option("--no-wait", is_flag=True, help="Return as soon as it is queued.")
@click.option("--keep", is_flag=True, help="Stay, renew it, and release it on Ctrl-C.")
@json_option
@connection_options
def acquire(
    connection: ConnectionOptions,
    pool: str,
    size: int | list[int],
    labels: dict[str, str],
    no_wait: bool,
    keep: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Request SIZE members of POOL and wait until all are granted. SIZE may be a range: 2..8 forms as soon as 2 fit,
    with as many as there is room for, up to 8.

    Prints the members with their dispatch tokens, and the owner token that renews and releases the gang. The gang must
    be renewed: use --keep, or give a long --ttl.
    """
    from ...console.session import run

    wait = False if no_wait else None
    body = {"pool": pool, "size": size, **given({**options, "labels": labels or None, "wait": wait})}
    run(_acquire(connection, body, keep=keep, as_json=as_json))


@command.command(short_help="Release a gang: its members stop, its slots are free again.")
@click.argument("gang", shell_complete=gangs)
@click.option("--owner-token", metavar="TOKEN", help="The token that `gang acquire` printed.")
@click.option("--force", is_flag=True, help="Release it as an operator, without the owner token.")
@click.option(
    "--reason", default="", metavar="TEXT", help="Who ends it and why, with --force: sent to its owner, and recorded."
)
@json_option
@connection_options
def rm(
    connection: ConnectionOptions, gang: str, owner_token: str | None, force: bool, reason: str, as_json: bool
) -> None:
    """Release a gang. Returns when its members have stopped and every slot is free again."""
    from ....schemas.messages.gangs import EndRequest, GangReply, OwnedRequest
    from ....schemas.messages.operations import parse_request
    from ....schemas.names import GangOperation
    from ...console.session import as_operator, with_client
    from ...views.gang_follow import ask_of

    if force == (owner_token is not None):
        raise click.UsageError("give --owner-token, or --force to end another owner's gang")
    asked: EndRequest | OwnedRequest
    if force:
        operation, asked = GangOperation.END, parse_request(EndRequest, {"id": gang, "reason": reason})
    else:
        operation, asked = GangOperation.RELEASE, parse_request(OwnedRequest, {"id": gang, "owner_token": owner_token})

    async def ask(client: Client) -> GangReply:
        return await ask_of(client, GangReply, operation, asked, RELEASE_S)

    if force:
        ended = as_operator(connection, "gang rm", gang, reason, ask)
    else:
        ended = with_client(connection, "gangline gang", ask)
    _print(ended, as_json)


renamed(command, "release", rm)


@command.command(short_help="Follow events of gangs.")
@click.argument("gang", required=False, shell_complete=gangs)
@json_option
@connection_options
def events(connection: ConnectionOptions, gang: str | None, as_json: bool) -> None:
    """Follow the events of all gangs, or of GANG until it has ended.

    The same as: nats sub 'gangline.event.gang.*'
    """
    from ...console.session import run
    from ...views.gang_follow import follow_events

    run(follow_events(connection, gang, as_json))


async def _acquire(connection: ConnectionOptions, body: dict[str, Any], *, keep: bool, as_json: bool) -> None:
    from ....telemetry.tracing import tracer
    from ...console.session import open_client, telemetry
    from ...console.signals import until_signal
    from ...views.gang_follow import acquire as acquire_gang
    from ...views.gang_follow import keep as keep_gang

    with until_signal() as stop:
        async with telemetry("gangline-gang"), open_client(connection, "gangline gang acquire") as client:
            with tracer.span("gangline gang acquire", kind="client"):
                gang = await acquire_gang(client, body, stop)
            _print(gang, as_json)
            if keep:
                if not as_json:
                    echo("kept; ctrl-c releases it", err=True)
                await keep_gang(client.router.gangs.coordinator_client, gang, stop)
            elif not as_json:
                echo(f"ends in {gang.ttl_s:g} s if nobody renews it (--keep, --ttl)", err=True)


def _print(gang: GangReply, as_json: bool, times: dict[str, object] | None = None) -> None:
    from ...console.output import console, print_json

    if as_json:
        told = {} if times is None else {"times": times}
        print_json({**gang.model_dump(mode="json"), **told})
        return
    from ...views.gangs import seats_table, summary, times_lines, times_table

    echo(summary(gang))
    if gang.seats:
        console().print(seats_table(gang))
    if times is not None and times["ranks"]:
        console().print(times_table(times))
        for line in times_lines(times, gang):
            echo(line)
    if gang.owner_token:
        echo(f"owner token {gang.owner_token}")
