"""`gangline drain`"""

from __future__ import annotations

import click

from ...console.arguments import duration_option, reason_option, worker_argument
from ...console.options import ConnectionOptions, connection_options, json_option


@click.command(short_help="Drain a worker: it finishes its work and exits.")
@worker_argument
@duration_option("--grace", text="Cancel tasks still running after this. [the worker's own setting]")
@reason_option
@json_option
@connection_options
def command(connection: ConnectionOptions, worker: str, grace: float | None, reason: str, as_json: bool) -> None:
    """Drain a worker: it finishes its work and exits.

    The worker takes no new work, honours the leases it has granted, finishes its tasks, and exits. This command returns
    as soon as the drain has begun.
    """
    from ...console.output import print_lines
    from ...console.session import as_operator

    reply = as_operator(connection, "drain", worker, reason, lambda client: client.drain(worker, grace_s=grace))
    left = reply.load.ongoing
    told = f"{worker} is draining: {left} slot{'s'[: left != 1]} still in use" if left else f"{worker} leaves"
    print_lines({"worker": worker, **reply.model_dump(mode="json")}, [told], as_json)
