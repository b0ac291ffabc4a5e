"""`gangline drain`"""

from __future__ import annotations

import click

from ..options import Connection, connection_options, json_option


@click.command(short_help="Let a worker finish and leave.")
@click.argument("worker", metavar="POOL.WORKER")
@click.option("--grace", type=float, metavar="SECONDS", help="Cancel what still runs then. [the worker's own setting]")
@json_option
@connection_options
def command(connection: Connection, worker: str, grace: float | None, as_json: bool) -> None:
    """Let a worker finish and leave.

    From now on it is granted nothing new; it honours the leases it granted, finishes its tasks, and its process ends.
    Returns as soon as the worker has begun.
    """
    from ...schemas.messages import DrainReply, DrainRequest, parse_request
    from ...schemas.names import Operation
    from ..ask import ask, parse_worker
    from ..output import print_json
    from ..session import open_bus, run

    target = parse_worker(worker)
    request = parse_request(DrainRequest, {"grace_s": grace})

    async def drain() -> DrainReply:
        async with open_bus(connection, "gangline drain") as bus:
            return await ask(bus, connection.names, target, Operation.DRAIN, request, DrainReply)

    reply = run(drain())
    if as_json:
        print_json({"worker": str(target), **reply.model_dump(mode="json")})
    else:
        left = reply.load.ongoing
        click.echo(f"{target} drains: {left} slot{'s'[: left != 1]} still in use" if left else f"{target} leaves")
