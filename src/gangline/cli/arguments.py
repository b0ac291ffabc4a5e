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


def _slots(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    if value.isdecimal() and len(value) < 20:
        return int(value)
    if value.startswith("-") and not value[1:].isdecimal():
        raise click.NoSuchOption(value, ctx=ctx)
    raise click.BadParameter(f"{value!r} is not a number of slots: give a whole number from 0", ctx, parameter)


slots_argument = click.argument("slots", callback=_slots)
"""`SLOTS`, 0 included. The command must have SLOTS_CONTEXT."""

SLOTS_CONTEXT = {"ignore_unknown_options": True}
"""Context settings without which click would take -1 for an option, and say that there is none of that name."""
