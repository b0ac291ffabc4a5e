"""`gangline leases`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..options import Connection, connection_options, json_option

if TYPE_CHECKING:
    from ...schemas.records import LeaseRecord


@click.command(short_help="Who holds which slots.")
@click.argument("pool", required=False)
@click.option("-w", "--watch", is_flag=True, help="Stay, and show each change.")
@json_option
@connection_options
def command(connection: Connection, pool: str | None, watch: bool, as_json: bool) -> None:
    """Who holds which slots: every lease in the ledger, or those of POOL.

    With --watch on a terminal, a table that follows; else one line for each change. With --json --watch, one JSON
    object a line: {"event": "granted", "renewed" or "gone", "lease": {...}}.
    """
    from ..session import run

    if watch:
        from ..watch import watch_leases

        run(watch_leases(connection, pool or "*", as_json))
        return
    leases = run(_read(connection, pool))
    if as_json:
        from ..output import print_json
        from ..registry import lease_json

        print_json([lease_json(lease) for lease in leases])
    elif not leases:
        of_pool = "" if pool is None else f" of pool {pool!r}"
        click.echo(f"no leases{of_pool} ('gangline gang ls' shows the slots of gangs)", err=True)
    else:
        from ..output import console
        from ..tables import leases_table

        console().print(leases_table(leases))


async def _read(connection: Connection, pool: str | None) -> list[LeaseRecord]:
    from ..session import open_client

    async with open_client(connection, "gangline leases") as client:
        return await client.leases(pool)
