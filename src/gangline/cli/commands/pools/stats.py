"""`gangline stats`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.arguments import worker_argument
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....schemas.messages.operations import StatsReply


@click.command(short_help="Show one worker's slots, leases and counters.")
@worker_argument
@json_option
@connection_options
def command(connection: ConnectionOptions, worker: str, as_json: bool) -> None:
    """Show one worker's slots, leases and counters, as the worker itself reports them."""
    from ...console.output import print_json
    from ...console.session import with_client

    reply = with_client(connection, "gangline stats", lambda client: client.stats(worker))
    if as_json:
        print_json(reply.model_dump(mode="json"))
    else:
        _show(reply)


def _show(stats: StatsReply) -> None:
    from ....schemas.names import public_id
    from ...console.output import Listing, console, duration, slots_bar

    load = stats.load
    out = console()
    state = "draining" if load.draining else "serving"
    out.print(f"[bold]{stats.pool}.{stats.worker}[/]  epoch {stats.epoch}  {state}")
    out.print(f"slots   {slots_bar(load.running, load.reserved, load.total)}  ({load.free} free)")
    out.print(f"tasks   {_counts(stats.tasks)}")
    out.print(f"ledger  {_counts(stats.ledger)}")
    if stats.leases:
        rows = [
            (public_id(lease.token), str(lease.slots), str(lease.running), lease.owner, duration(lease.expires_in_s))
            for lease in stats.leases
        ]
        out.print(Listing(("LEASE", "SLOTS", "RUNNING", "OWNER", "EXPIRES IN"), rows, right=("SLOTS", "RUNNING")))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items()) or "none"
