"""`gangline drain`"""

from __future__ import annotations

import click

from ...console.arguments import duration_option, worker_argument
from ...console.options import Connection, connection_options, json_option


@click.command(short_help="Let a worker finish and leave.")
@worker_argument
@duration_option("--grace", text="Cancel what still runs then. [the worker's own setting]")
@json_option
@connection_options
def command(connection: Connection, worker: str, grace: float | None, as_json: bool) -> None:
    """Let a worker finish and leave.

    From now on it is granted nothing new; it honours the leases it granted, finishes its tasks, and its process ends.
    Returns as soon as the worker has begun.
    """
    from ...console.output import print_lines
    from ...console.session import with_client

    reply = with_client(connection, "gangline drain", lambda client: client.drain(worker, grace_s=grace))
    left = reply.load.ongoing
    told = f"{worker} drains: {left} slot{'s'[: left != 1]} still in use" if left else f"{worker} leaves"
    print_lines({"worker": worker, **reply.model_dump(mode="json")}, [told], as_json)
