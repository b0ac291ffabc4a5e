"""`gangline leases`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....schemas.records.workers import LeaseRecord


@click.command(short_help="List leases: who holds which slots.")
@click.argument("pool", required=False)
@click.option("-w", "--watch", is_flag=True, help="Stay and show each change.")
@click.option("--gangs", is_flag=True, help="Include leases on standing gangs, which are not in the ledger.")
@json_option
@connection_options
def command(connection: ConnectionOptions, pool: str | None, watch: bool, gangs: bool, as_json: bool) -> None:
    """List the leases in the ledger, or those of POOL: who holds which slots.

    With --gangs, each worker is also asked for leases and selections on the members of its gangs.

    With --watch on a terminal, the table is kept up to date; otherwise each change is one line. With --json
    --watch, one JSON object per line: {"event": "granted", "renewed" or "gone", "lease": {...}}.
    """
    if watch and gangs:
        raise click.UsageError("--gangs cannot be combined with --watch")
    from ...console.output import print_rows
    from ...console.session import run, with_client
    from ...views.workers import lease_json, leases_table, watch_leases

    if watch:
        run(watch_leases(connection, pool, as_json))
        return
    leases = with_client(connection, "gangline leases", lambda client: _read(client, pool, gangs))
    of_pool = "" if pool is None else f" of pool {pool!r}"
    empty = f"no leases{of_pool} ('gangline gang ls' shows the slots of gangs)"
    print_rows(leases, as_json, table=leases_table, empty=empty, to_json=lease_json)


async def _read(client: Client, pool: str | None, gangs: bool) -> list[LeaseRecord]:
    from ...views.workers import read_leases

    found = await read_leases(client, pool)
    return [*found, *await _on_seats(client, pool)] if gangs else found


async def _on_seats(client: Client, pool: str | None) -> list[LeaseRecord]:
    """Leases on the seats of gangs, as the workers report them. A worker that does not answer counts as having none,
    with a note."""
    import asyncio
    import time

    from ....schemas.errors.base import GanglineError
    from ....schemas.records.workers import LeaseRecord
    from ...views.workers import read_workers

    workers = [row for row in await read_workers(client, pool) if row.state != "lost"]
    answers = await asyncio.gather(*(client.stats(worker.name) for worker in workers), return_exceptions=True)
    now, found = time.time(), list[LeaseRecord]()
    for worker, stats in zip(workers, answers, strict=True):
        if isinstance(stats, GanglineError):
            echo(f"{worker.name} did not report its leases: {stats.message}", err=True)
            continue
        if isinstance(stats, BaseException):
            raise stats
        found += [
            LeaseRecord(
                pool=stats.pool,
                worker=stats.worker,
                epoch=stats.epoch,
                token=lease.token,
                slots=lease.slots,
                fence=0,
                single_use=lease.single_use,
                owner=f"{lease.owner} on gang {lease.gang}".strip(),
                granted_at=0.0,
                expires_at=now + lease.expires_in_s,
            )
            for lease in stats.leases
            if lease.seat is not None
        ]
    return found
