"""`gangline health`"""

from __future__ import annotations

import click

from ..arguments import duration_option
from ..options import Connection, connection_options


@click.command(short_help="Whether a worker, gateway or dispatcher of this machine answers; for probes.")
@click.option("--node", metavar="NAME", envvar="GANGLINE_NODE", help="Machine to look for. [host name]")
@duration_option("--timeout", "timeout_s", text="Patience.", default="2s")
@connection_options
def command(connection: Connection, node: str | None, timeout_s: float) -> None:
    """Whether a worker, gateway or dispatcher of this machine answers, over the server and back: exit code 0, else 3.

    For the probes of a container, whose host name is its own: HEALTHCHECK CMD gangline health
    """
    import socket

    from ...schemas.errors import NoWorkers
    from ..session import run

    wanted = node or socket.gethostname()
    found = run(_ask(connection, wanted, timeout_s))
    if found is None:
        raise NoWorkers(f"no worker, gateway or dispatcher of node {wanted!r} answered within {timeout_s:g} s")
    click.echo(found)


async def _ask(connection: Connection, node: str, timeout_s: float) -> str | None:
    """The name of the first service of that node that answers, as `nats service ls` would ask them all."""
    import asyncio

    from ...bus.port import Message
    from ...schemas.codec import from_json
    from ...schemas.errors import MalformedMessage
    from ..session import open_bus

    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def look(message: Message) -> None:
        try:
            told = from_json(message.data)
            name, metadata = told["name"], told["metadata"]
            if name.startswith("gangline-") and metadata.get("node") == node and not found.done():
                found.set_result(" ".join([name, *filter(None, (metadata.get("pool"), metadata.get("worker")))]))
        except (MalformedMessage, TypeError, KeyError, AttributeError):
            return  # some other service's answer

    async with open_bus(connection, "gangline health") as bus:
        reply = f"{bus.inbox}.health"
        await bus.subscribe(reply, look)
        bus.publish("$SRV.PING", reply=reply)
        try:
            async with asyncio.timeout(timeout_s):
                return await found
        except TimeoutError:
            return None
