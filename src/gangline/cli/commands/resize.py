"""`gangline resize`"""

from __future__ import annotations

import click

from ..options import Connection, connection_options, json_option


@click.command(short_help="Change a worker's number of slots, live.")
@click.argument("worker", metavar="POOL.WORKER")
@click.argument("slots", type=int)
@json_option
@connection_options
def command(connection: Connection, worker: str, slots: int, as_json: bool) -> None:
    """Change a worker's number of slots, live.

    Fewer slots than are in use stop nothing: nothing new is granted until they fit. 0 pauses the worker.
    """
    from ...schemas.messages import ResizeReply, ResizeRequest, parse_request
    from ...schemas.names import Operation
    from ..ask import ask, parse_worker
    from ..output import print_json
    from ..session import open_bus, run

    target = parse_worker(worker)
    request = parse_request(ResizeRequest, {"slots": slots})

    async def resize() -> ResizeReply:
        async with open_bus(connection, "gangline resize") as bus:
            return await ask(bus, connection.names, target, Operation.RESIZE, request, ResizeReply)

    reply = run(resize())
    if as_json:
        print_json({"worker": str(target), **reply.model_dump(mode="json")})
    else:
        over = reply.load.ongoing - reply.slots
        rest = f"; {over} more in use finish first" if over > 0 else f", {reply.load.free} free"
        click.echo(f"{target} has {reply.slots} slots{rest}")
