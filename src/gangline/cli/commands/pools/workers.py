"""`gangline workers`"""

from __future__ import annotations

import click

from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="List workers: what they serve and how busy they are.")
@click.argument("pool", required=False)
@json_option
@connection_options
def command(connection: ConnectionOptions, pool: str | None, as_json: bool) -> None:
    """List workers, what they serve and how busy they are: all of them, or those of POOL.

    SLOTS shows running (filled), reserved by leases (hollow) and free (dots) slots. A worker is `lost` when it
    has not been heard from for three seconds.
    """
    from ...console.output import print_rows
    from ...console.session import with_client
    from ...views.workers import WorkerRow, read_workers, workers_table

    rows = with_client(connection, "gangline workers", lambda client: read_workers(client, pool))
    of_pool = "" if pool is None else f" of pool {pool!r}"
    empty = f"no workers{of_pool}: start one with 'gangline worker MODULE:POOL'"
    print_rows(rows, as_json, table=workers_table, empty=empty, to_json=WorkerRow.to_json)
