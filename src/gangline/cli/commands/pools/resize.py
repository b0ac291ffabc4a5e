"""`gangline resize`"""

from __future__ import annotations

import click

from ...console.arguments import SLOTS_CONTEXT, reason_option, slots_argument, worker_argument
from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="Change a worker's number of slots while it runs.", context_settings=SLOTS_CONTEXT)
@worker_argument
@slots_argument
@reason_option
@json_option
@connection_options
def command(connection: ConnectionOptions, worker: str, slots: int, reason: str, as_json: bool) -> None:
    """Change a worker's number of slots, live.

    Going below the number in use stops nothing; nothing new is granted until enough slots are free. 0 pauses the
    worker.
    """
    from ....schemas.text import count_of
    from ...console.output import print_lines
    from ...console.session import as_operator

    reply = as_operator(connection, "resize", worker, reason, lambda client: client.resize(worker, slots))
    over = reply.load.ongoing - reply.slots
    rest = f"; {over} more in use finish first" if over > 0 else f", {reply.load.free} free"
    told = f"{worker} has {count_of(reply.slots, 'slot')}{rest}"
    print_lines({"worker": worker, **reply.model_dump(mode="json")}, [told], as_json)
