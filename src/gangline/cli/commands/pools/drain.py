"""`gangline drain`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import duration_option, reason_option, worker_name
from ...console.completion import workers
from ...console.options import ConnectionOptions, connection_options, json_option
from ...console.output import echo

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client


@click.command(short_help="Drain workers: they finish their work and exit.")
@click.argument("worker", metavar="[POOL.WORKER]", required=False, callback=worker_name, shell_complete=workers)
@click.option("--node", metavar="NAME", help="Drain all workers of this machine.")
@click.option("--pool", metavar="POOL", help="Drain all workers of this pool.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before several workers are drained.")
@duration_option("--grace", text="Cancel tasks still running after this. [the worker's own setting]")
@reason_option
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    worker: str | None,
    node: str | None,
    pool: str | None,
    yes: bool,
    grace: float | None,
    reason: str,
    as_json: bool,
) -> None:
    """Drain a worker: it finishes its work and exits. With --node or --pool, drain all workers of a machine or pool;
    with both, those of the pool on that machine.

    The worker takes no new work, honours the leases it has granted, finishes its tasks, and exits. This command returns
    as soon as the drain has begun.
    """
    from ...console.output import print_json, print_lines
    from ...console.session import as_operator

    if (worker is None) == (node is None and pool is None):
        raise click.UsageError("give POOL.WORKER, or --node or --pool")
    if worker is not None:
        reply = as_operator(connection, "drain", worker, reason, lambda client: client.drain(worker, grace_s=grace))
        print_lines({"worker": worker, **reply.model_dump(mode="json")}, [_told(worker, reply.load.ongoing)], as_json)
        return
    rows = _drain_all(connection, node, pool, yes, grace, reason)
    if as_json:
        print_json(rows)
    for row in () if as_json else rows:
        echo(row.get("error") or _told(row["worker"], row["load"]["ongoing"]))
    if any("error" in row for row in rows):
        raise click.exceptions.Exit(1)


def _told(worker: str, left: int) -> str:
    return f"{worker} is draining: {left} slot{'s'[: left != 1]} still in use" if left else f"{worker} leaves"


def _drain_all(
    connection: ConnectionOptions, node: str | None, pool: str | None, yes: bool, grace: float | None, reason: str
) -> list[dict[str, Any]]:
    """What each worker answered; one that fails does not keep the others."""
    from ....schemas.errors.base import GanglineError, NoWorkers
    from ....schemas.text import count_of, printable
    from ...console.session import audit_of, with_client

    async def drain(client: Client) -> list[dict[str, Any]]:
        found = await client.workers(pool)
        names = [each.name for each in found if node in (None, each.registration.node)]
        where = " ".join(filter(None, (pool and f"of pool {pool!r}", node and f"on node {node!r}")))
        if not names:
            text = f"there are no workers {where}: 'gangline workers' lists them"
            raise NoWorkers(text, details={"pool": pool} if pool else None)
        if not yes:
            question = f"drain {count_of(len(names), 'worker')} {where}: {', '.join(names)}?"
            click.confirm(printable(question), abort=True, err=True)
        rows: list[dict[str, Any]] = []
        for name in names:
            try:
                async with audit_of(client).noted("drain", name, reason):
                    reply = await client.drain(name, grace_s=grace)
                rows.append({"worker": name, **reply.model_dump(mode="json")})
            except GanglineError as error:
                rows.append({"worker": name, "error": f"{name} was not drained: {error.message}"})
        return rows

    return with_client(connection, "gangline drain", drain)
