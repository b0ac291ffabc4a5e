"""`gangline workers`"""

from __future__ import annotations

import click

from ...console.options import Connection, connection_options, json_option


@click.command(short_help="Who serves what, and how busy.")
@click.argument("pool", required=False)
@json_option
@connection_options
def command(connection: Connection, pool: str | None, as_json: bool) -> None:
    """Who serves what, and how busy: all workers, or those of POOL.

    SLOTS shows running (filled), reserved by leases (hollow) and free (dots) slots. A worker that is `lost` has not
    been heard of for three seconds.
    """
    from ...console.session import with_client
    from ...views.workers import read_workers, workers_table

    rows = with_client(connection, "gangline workers", lambda client: read_workers(client, pool))
    if as_json:
        from ...console.output import print_json

        print_json([row.to_json() for row in rows])
    elif not rows:
        of_pool = "" if pool is None else f" of pool {pool!r}"
        click.echo(f"no workers{of_pool}: start one with 'gangline worker MODULE:POOL'", err=True)
    else:
        from ...console.output import console

        console().print(workers_table(rows))
