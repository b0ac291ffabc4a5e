"""Arguments that several commands take."""

from __future__ import annotations

import click


def _worker(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    from ..schemas.errors import InvalidName
    from ..schemas.names import check_name

    pool, dot, worker = value.partition(".")
    if not dot:
        raise click.UsageError(f"{value!r} is not POOL.WORKER; 'gangline workers' shows them", ctx)
    try:
        return f"{check_name(pool, 'pool')}.{check_name(worker, 'worker')}"
    except InvalidName as error:
        raise click.UsageError(str(error), ctx) from None


worker_argument = click.argument("worker", metavar="POOL.WORKER", callback=_worker)
"""`POOL.WORKER`, as `gangline workers` prints it."""
