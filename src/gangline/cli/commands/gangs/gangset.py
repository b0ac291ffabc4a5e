"""`gangline gangset apply|ls|show|status|scale|rollback|rm`"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import IO, TYPE_CHECKING, TypeVar

import click

from ....schemas.text import count_of
from ...console.arguments import reason_option
from ...console.completion import gangsets
from ...console.help import renamed
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....bus.port.bus import KeyValue
    from ....dispatcher.client.client import Client
    from ....schemas.records.gangs import GangSetRecord, GangSetStatus
    from ...views.gangs import SetRow

T = TypeVar("T")


@click.group(short_help="Declare, scale, roll back and remove sets of standing gangs.")
def command() -> None:
    """Standing sets: a number of identical gangs that are kept running, such as replicas of a sharded model.

    They are declared in the ledger, so they outlive every coordinator; a coordinator must run to form them.
    """


@command.command(short_help="Declare the sets in a file.")
@click.argument("file", type=click.File())
@reason_option
@json_option
@connection_options
def apply(connection: ConnectionOptions, file: IO[str], reason: str, as_json: bool) -> None:
    """Declare the sets in FILE (YAML or JSON; '-' reads stdin): all of them, or none if one is malformed.

    \b
        name: llama
        gangs: 2
        gang: {pool: gpu, size: 4, strategy: strict_spread}

    If the gang of a set has changed, the set is rolled, gang by gang.
    """
    from ....dispatcher.gangs.declarations import declare
    from ...console.output import print_lines
    from ...views.gangset_file import parse_sets

    sets = parse_sets(file.read(), file.name)
    changes, led = _changed(connection, "apply", " ".join(sets), reason, lambda ledger: declare(ledger, sets))
    if not led:
        echo("no coordinator leads: start 'gangline coordinator' to form the gangs", err=True)
    told = [{"name": name, "change": change} for name, change in changes.items()]
    print_lines(told, (f"{name} {change}: {_shape(sets[name])}" for name, change in changes.items()), as_json)


@command.command(short_help="List declared sets, and how many of their gangs are formed.")
@json_option
@connection_options
def ls(connection: ConnectionOptions, as_json: bool) -> None:
    """List declared sets, and how many of their gangs are formed."""
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.gangs import set_json, sets_table
    from ...views.gangset_file import read_sets

    sets = with_client(connection, "gangline gangset", read_sets)
    empty = "no sets: declare one with 'gangline gangset apply FILE'"
    print_rows(sets, as_json, table=sets_table, empty=empty, to_json=set_json)


@command.command(short_help="Show whether a set is steady, rolling or failing, and why.")
@click.argument("name", shell_complete=gangsets)
@json_option
@connection_options
def status(connection: ConnectionOptions, name: str, as_json: bool) -> None:
    """Show whether a set is steady, rolling or failing, and why.

    The ledger has the same under `gangset_status.NAME`.
    """
    from ....dispatcher.gangs.declarations import is_led, read_set
    from ...console.output import print_lines
    from ...console.session import with_client
    from ...views.gangs import status_lines

    async def read(client: Client) -> tuple[GangSetRecord, GangSetStatus | None, bool]:
        ledger = await client.router.ledger()
        _, record, told = await read_set(ledger, name)
        return record, told, await is_led(ledger)

    record, told, led = with_client(connection, "gangline gangset", read)
    fields = {} if told is None else told.model_dump(mode="json", exclude={"v"})
    print_lines({"name": name, "led": led, **fields}, status_lines(name, record, told, led=led), as_json)


@command.command(short_help="Show the declaration of a set, and its gangs.")
@click.argument("name", shell_complete=gangsets)
@json_option
@connection_options
def show(connection: ConnectionOptions, name: str, as_json: bool) -> None:
    """Show the declaration of a set, its status, and its gangs.

    The declaration is printed in the form that 'gangline gangset apply' reads. 'gangline why GANG' explains what a gang
    is waiting for.
    """
    from ....dispatcher.gangs.declarations import is_led, read_set
    from ...console.output import console, print_json
    from ...console.session import with_client
    from ...views.gangs import declaration_lines, gangs_table, set_json, status_lines
    from ...views.gangset_file import read_sets

    async def read(client: Client) -> tuple[SetRow, list[str]]:
        ledger = await client.router.ledger()
        _, record, told = await read_set(ledger, name)
        [row] = [each for each in await read_sets(client) if each[0] == name] or [(name, record, None)]
        return row, status_lines(name, record, told, led=await is_led(ledger))

    row, status = with_client(connection, "gangline gangset", read)
    if as_json:
        print_json(set_json(row))
        return
    for line in (*declaration_lines(row), "", *status):
        echo(line)
    if row[2]:
        console().print(gangs_table(row[2]))


@command.command(short_help="Go back to the gang that served before.")
@click.argument("name", shell_complete=gangsets)
@reason_option
@json_option
@connection_options
def rollback(connection: ConnectionOptions, name: str, reason: str, as_json: bool) -> None:
    """Go back to the gang that served before the current one; the rest of the declaration stays."""
    from ....dispatcher.gangs.declarations import roll_back
    from ...console.output import print_lines

    record = _changed(connection, "rollback", name, reason, lambda ledger: roll_back(ledger, name))
    told = {"name": name, "gang": record.gang.model_dump(mode="json", exclude_unset=True)}
    print_lines(told, [f"{name} rolled back: {_shape(record)}"], as_json)


@command.command(short_help="Change the number of gangs of a set.")
@click.argument("name", shell_complete=gangsets)
@click.argument("gangs", type=click.IntRange(min=0, max=10_000))
@reason_option
@json_option
@connection_options
def scale(connection: ConnectionOptions, name: str, gangs: int, reason: str, as_json: bool) -> None:
    """Change the number of gangs in a set: whole gangs are added or retired."""
    from ....dispatcher.gangs import declarations
    from ...console.output import print_lines

    before = _changed(connection, "scale", name, reason, lambda ledger: declarations.scale(ledger, name, gangs))
    told = {"name": name, "gangs": gangs, "before": before}
    print_lines(told, [f"{name}: {before} -> {count_of(gangs, 'gang')}"], as_json)


@command.command(short_help="Remove a set; its gangs end.")
@click.argument("name", shell_complete=gangsets)
@reason_option
@json_option
@connection_options
def rm(connection: ConnectionOptions, name: str, reason: str, as_json: bool) -> None:
    """Remove a set. Its gangs retire and end."""
    from ....dispatcher.gangs import declarations
    from ...console.output import print_lines

    _changed(connection, "rm", name, reason, lambda ledger: declarations.delete(ledger, name))
    print_lines({"name": name, "change": "deleted"}, [f"{name} is removed"], as_json)


renamed(command, "delete", rm)


def _shape(record: GangSetRecord) -> str:
    return f"{count_of(record.gangs, 'gang')} of {record.gang.size}"


def _changed(
    connection: ConnectionOptions,
    change: str,
    target: str,
    reason: str,
    work: Callable[[KeyValue], Coroutine[object, object, T]],
) -> T:
    from ...console.session import as_operator

    async def with_ledger(client: Client) -> T:
        return await work(await client.router.ledger())

    return as_operator(connection, f"gangset {change}", target, reason, with_ledger)
