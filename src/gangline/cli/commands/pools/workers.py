"""`gangline workers`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import Connection, connection_options, json_option

if TYPE_CHECKING:
    from ...stores.registry import WorkerRow


@click.command(short_help="Who serves what, and how busy.")
@click.argument("pool", required=False)
@json_option
@connection_options
def command(connection: Connection, pool: str | None, as_json: bool) -> None:
    """Who serves what, and how busy: all workers, or those of POOL.

    SLOTS shows running (filled), reserved by leases (hollow) and free (dots) slots. A worker that is `lost` has not
    been heard of for three seconds.
    """
    from ...console.session import run

    rows = run(_read(connection, pool))
    if as_json:
        from ...console.output import print_json

        print_json([row.to_json() for row in rows])
    elif not rows:
        of_pool = "" if pool is None else f" of pool {pool!r}"
        click.echo(f"no workers{of_pool}: start one with 'gangline worker MODULE:POOL'", err=True)
    else:
        from ...console.output import console
        from ...views.workers import workers_table

        console().print(workers_table(rows))


async def _read(connection: Connection, pool: str | None) -> list[WorkerRow]:
    from ...console.session import open_bus, open_ledger
    from ...stores.registry import read_workers

    async with open_bus(connection, "gangline workers") as bus:
        return await read_workers(await open_ledger(bus, connection), connection.names, pool or "*")
