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
    from ...console.output import Listing, console, duration, echo, slots_bar

    load = stats.load
    state = "draining" if load.draining else "serving"
    echo(f"{stats.pool}.{stats.worker}  epoch {stats.epoch}  {state}")
    echo(f"slots   {slots_bar(load.running, load.reserved, load.total)}  ({load.free} free)")
    echo(f"tasks   {_counts(stats.tasks)}")
    echo(f"ledger  {_counts(stats.ledger)}")
    if stats.leases:
        rows = [
            (public_id(lease.token), str(lease.slots), str(lease.running), lease.owner, duration(lease.expires_in_s))
            for lease in stats.leases
        ]
        console().print(Listing(("LEASE", "SLOTS", "RUNNING", "OWNER", "EXPIRES IN"), rows, right=("SLOTS", "RUNNING")))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items()) or "none"
