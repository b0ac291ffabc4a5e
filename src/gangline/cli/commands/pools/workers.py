"""`gangline workers`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import ConnectionOptions, connection_options, json_option, watch_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ...console.watching import Page
    from ...views.workers import TaskRow, WorkerRow


@click.command(short_help="List workers: what they serve and how busy they are.")
@click.argument("pool", required=False)
@click.option("--tasks", is_flag=True, help="List their tasks instead: slots, limits, retries and schedules.")
@watch_option
@json_option
@connection_options
def command(connection: ConnectionOptions, pool: str | None, tasks: bool, watch: bool, as_json: bool) -> None:
    """List workers, what they serve and how busy they are: all of them, or those of POOL.

    SLOTS shows running (filled), reserved by leases (hollow) and free (dots) slots. A worker is `lost` when it
    has not been heard from for three seconds.
    """
    from ...console.watching import ListView, list_rows
    from ...views.workers import TaskRow, WorkerRow, tasks_table, workers_table

    of_pool = "" if pool is None else f" of pool {pool!r}"
    empty = f"no workers{of_pool}: start one with 'gangline worker MODULE:POOL'"
    if tasks:
        tasks_view = ListView(
            item="task", table=tasks_table, empty=empty, key=TaskRow.identity, to_json=TaskRow.to_json
        )
        list_rows(
            connection,
            "gangline workers",
            lambda client: _tasks(client, pool),
            tasks_view,
            watch=watch,
            as_json=as_json,
        )
        return
    view = ListView(item="worker", table=workers_table, empty=empty, key=WorkerRow.identity, to_json=WorkerRow.to_json)
    list_rows(connection, "gangline workers", lambda client: _workers(client, pool), view, watch=watch, as_json=as_json)


async def _workers(client: Client, pool: str | None) -> Page[WorkerRow]:
    from ....schemas.text import nearest_name
    from ...console.watching import Page
    from ...views.workers import read_elsewhere, read_workers

    rows = await read_workers(client, pool)
    known = [] if rows or pool is None else await read_workers(client)
    near = nearest_name(pool or "", sorted({row.registration.pool for row in known}))
    notes = () if near is None else (f"did you mean pool {near!r}?",)
    return Page(rows, notes if rows else (*notes, *await read_elsewhere(client, pool)))


async def _tasks(client: Client, pool: str | None) -> Page[TaskRow]:
    from ...console.watching import Page
    from ...views.workers import read_shares, read_workers, tasks_of

    return Page(tasks_of(await read_workers(client, pool), await read_shares(client, pool)))
