"""`gangline gang ls|show|acquire|release|events`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ...console.arguments import duration_option, size_argument
from ...console.options import Connection, connection_options, json_option

if TYPE_CHECKING:
    from ....schemas.messages.gangs import GangReply

RELEASE_S: Final = 3600.0
"""Patience with members that take their time to stop."""


@click.group(short_help="Gangs: who holds what, acquire and release by hand, events.")
def command() -> None:
    """Gangs: slots over many workers, granted all or nothing.

    A coordinator must run: 'gangline coordinator'. 'gangline why GANG' tells what a gang waits for.
    """


@command.command(short_help="All gangs that have not ended.")
@click.option("--set", "gangset", metavar="NAME", help="Only those of this standing set.")
@json_option
@connection_options
def ls(connection: Connection, gangset: str | None, as_json: bool) -> None:
    """All gangs that have not ended, oldest first."""
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.gang_follow import list_gangs
    from ...views.gangs import gangs_table

    found = with_client(connection, "gangline gang", lambda client: list_gangs(client, gangset))
    for shard in found.missing:
        click.echo(f"shard {shard} has no leader right now: its gangs are not listed", err=True)
    print_rows(found.gangs, as_json, table=gangs_table, empty="no gangs")


@command.command(short_help="One gang and its members.")
@click.argument("gang")
@click.option("--owner-token", metavar="TOKEN", help="Show the tokens to dispatch with; as `gang acquire` printed it.")
@json_option
@connection_options
def show(connection: Connection, gang: str, owner_token: str | None, as_json: bool) -> None:
    """One gang and its members; also for a minute after it ended. The beginning of its id will do.

    Members have public ids, which begin with ~, in place of the tokens that only the owner is shown.
    """
    from ....schemas.messages.gangs import GangReply, GetRequest
    from ....schemas.messages.operations import parse_request
    from ....schemas.names import GangOperation
    from ...console.session import with_client
    from ...views.gang_follow import ask_of

    asked = parse_request(GetRequest, {"id": gang, "owner_token": owner_token})
    found = with_client(connection, "gangline gang", lambda client: ask_of(client, GangReply, GangOperation.GET, asked))
    _print(found, as_json)


def _labels(ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--label {text!r} is not KEY=VALUE", ctx)
        found[key] = value
    return found


@command.command(short_help="Ask for a gang, and wait until it is formed.")
@click.argument("pool")
@size_argument
@click.option("--slots", type=int, metavar="N", help="Of each member. [1]")
@click.option(
    "--strategy", type=click.Choice(["pack", "spread", "strict_pack", "strict_spread"]), help="Over nodes. [pack]"
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", callback=_labels, help="Workers must have it.")
@click.option("--priority", type=int, metavar="N", help="Higher goes first. [0]")
@click.option("--preempt", is_flag=True, help="Gangs of lower priority may be torn down to make room.")
@click.option(
    "--restart", type=click.Choice(["restart_gang", "restart_member", "fail"]), help="At failures. [restart_gang]"
)
@click.option("--max-restarts", type=int, metavar="N", help="Failures before it ends. [3]")
@duration_option("--deadline", "deadline_s", text="Give up when not formed by then.")
@duration_option("--ttl", "ttl_s", text="It ends when not renewed for so long. [15s]")
@click.option("--owner", metavar="TEXT", help="Who asks and why, for people.")
@click.option("--wait-for-workers", is_flag=True, help="Wait even if too few workers are registered to hold it.")
@click.option("--no-wait", is_flag=True, help="Return as soon as it is queued.")
@click.option("--keep", is_flag=True, help="Stay, renew it, and release it at ctrl-c.")
@json_option
@connection_options
def acquire(
    connection: Connection,
    pool: str,
    size: int | list[int],
    labels: dict[str, str],
    preempt: bool,
    wait_for_workers: bool,
    no_wait: bool,
    keep: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Ask for SIZE members of POOL, and wait until all are granted. SIZE may be a range: 2..8 is formed as soon as 2
    fit, with as many as there is room for, up to 8.

    Prints the members with the tokens to dispatch with, and the owner token to renew and release with. Somebody has to
    renew it: --keep does, or give a long --ttl.
    """
    from ...console.session import run

    body: dict[str, Any] = {
        "pool": pool,
        "size": size,
        **{name: value for name, value in options.items() if value is not None},
    }
    if labels:
        body["labels"] = labels
    if preempt:
        body["preempt"] = True
    if wait_for_workers:
        body["wait_for_workers"] = True
    if no_wait:
        body["wait"] = False
    run(_acquire(connection, body, keep=keep, as_json=as_json))


@command.command(short_help="Give a gang back.")
@click.argument("gang")
@click.option("--owner-token", metavar="TOKEN", help="As `gang acquire` printed it.")
@click.option("--force", is_flag=True, help="As an operator: without the owner's token.")
@click.option("--reason", default="", metavar="TEXT", help="With --force: who ends it and why, told to its owner.")
@json_option
@connection_options
def release(
    connection: Connection, gang: str, owner_token: str | None, force: bool, reason: str, as_json: bool
) -> None:
    """Give a gang back. Returns when its members have stopped and every slot is free again."""
    from ....schemas.messages.gangs import EndRequest, GangReply, OwnedRequest
    from ....schemas.messages.operations import parse_request
    from ....schemas.names import GangOperation
    from ...console.session import with_client
    from ...views.gang_follow import ask_of

    if force == (owner_token is not None):
        raise click.UsageError("give --owner-token, or --force to end the gang of another")
    asked: EndRequest | OwnedRequest
    if force:
        operation, asked = GangOperation.END, parse_request(EndRequest, {"id": gang, "reason": reason})
    else:
        operation, asked = GangOperation.RELEASE, parse_request(OwnedRequest, {"id": gang, "owner_token": owner_token})
    ended = with_client(
        connection, "gangline gang", lambda client: ask_of(client, GangReply, operation, asked, RELEASE_S)
    )
    _print(ended, as_json)


@command.command(short_help="What happens to gangs, as it happens.")
@click.argument("gang", required=False)
@json_option
@connection_options
def events(connection: Connection, gang: str | None, as_json: bool) -> None:
    """What happens to gangs, as it happens; of GANG until it has ended.

    The same as: nats sub 'gangline.event.gang.*'
    """
    from ...console.session import run
    from ...views.gang_follow import follow_events

    run(follow_events(connection, gang, as_json))


async def _acquire(connection: Connection, body: dict[str, Any], *, keep: bool, as_json: bool) -> None:
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
                    click.echo("kept; ctrl-c releases it", err=True)
                await keep_gang(client.router.gangs.desk, gang, stop)
            elif not as_json:
                click.echo(f"ends in {gang.ttl_s:g} s if nobody renews it (--keep, --ttl)", err=True)


def _print(gang: GangReply, as_json: bool) -> None:
    from ...console.output import console, print_json

    if as_json:
        print_json(gang.model_dump(mode="json"))
        return
    from ...views.gangs import seats_table, summary

    click.echo(summary(gang))
    if gang.seats:
        console().print(seats_table(gang))
    if gang.owner_token:
        click.echo(f"owner token {gang.owner_token}")
