"""`gangline why`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Connection, connection_options, json_option

if TYPE_CHECKING:
    from ...schemas.gang_messages import WhyReply


@click.command(short_help="What a gang waits for, and who stands in its way.")
@click.argument("gang", metavar="GANG")
@json_option
@connection_options
def command(connection: Connection, gang: str, as_json: bool) -> None:
    """What a gang waits for, and who stands in its way.

    Its place in the queue, what is missing, on which workers it waits, and who holds their slots: gangs, leases with
    the time of their end, tasks.
    """
    from ..output import print_json
    from ..session import run

    why = run(_ask(connection, gang))
    if as_json:
        print_json(why.model_dump(mode="json"))
        return
    from ..gang_tables import why_lines

    for line in why_lines(why):
        click.echo(line)


async def _ask(connection: Connection, gang: str) -> WhyReply:
    from ...schemas.gang_messages import WhyReply
    from ...schemas.names import GangOperation
    from ..gang_requests import ask
    from ..session import open_bus

    async with open_bus(connection, "gangline why") as bus:
        return await ask(bus, connection.names, GangOperation.WHY, {"id": gang}, WhyReply)
