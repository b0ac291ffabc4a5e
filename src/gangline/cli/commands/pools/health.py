"""`gangline health`"""

from __future__ import annotations

import click

from ...console.arguments import duration_option
from ...console.options import ConnectionOptions, connection_options
from ...console.output import echo


@click.command(short_help="Check that a process on this machine, or one worker, answers; for probes.")
@click.option("--node", metavar="NAME", envvar="GANGLINE_NODE", help="Machine to check. [host name]")
@click.option("--worker", metavar="POOL.WORKER", help="Check this worker, wherever it runs.")
@click.option(
    "--id", "id", metavar="ID", help="Check the process with this id, as 'nats service ls' or a log shows it."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    envvar="GANGLINE_HEALTH_PORT",
    metavar="PORT",
    help="Ask the health port of a process here.",
)
@duration_option("--timeout", "timeout_s", text="How long to wait for an answer.", default="2s")
@connection_options
def command(
    connection: ConnectionOptions,
    node: str | None,
    worker: str | None,
    id: str | None,
    port: int | None,
    timeout_s: float,
) -> None:
    """Check, over the server, that a worker, gateway, dispatcher or coordinator on this machine answers. Exit code: 0
    if one does, else 3.

    With --port, ask a process that was started with --health-port whether it is ready: registered, connected, not
    draining. That needs no connection to NATS. Where GANGLINE_HEALTH_PORT is set it is the default.

    For containers, which have their own host name: HEALTHCHECK CMD gangline health. If several processes share a node
    name, an answer from any of them is enough; use --worker POOL.WORKER or --id to check one of them.
    """
    import socket

    from ....schemas.errors.base import NoWorkers
    from ...console.session import run

    if port is not None and node is None and worker is None and id is None:
        echo(_ask_port(port, timeout_s))
        return
    wanted = node or socket.gethostname()
    if id is not None:
        found = run(_ask(connection, {}, timeout_s, id=id))
    elif worker is not None:
        pool, dot, name = worker.partition(".")
        if not (pool and dot and name):
            raise click.UsageError(f"--worker {worker!r} is not POOL.WORKER, as 'gangline workers' shows it")
        found = run(_ask(connection, {"pool": pool, "worker": name}, timeout_s))
    else:
        found = run(_ask(connection, {"node": wanted}, timeout_s))
    if found is None:
        who = f"worker {worker} did not answer" if worker else f"nothing on node {wanted!r} answered"
        who = f"no process with id {id!r} answered" if id is not None else who
        raise NoWorkers(f"{who} within {timeout_s:g} s")
    echo(found)


def _ask_port(port: int, timeout_s: float) -> str:
    """What the process says.

    Raises:
        Unavailable: it is not ready, or nothing answers.
    """
    from ....schemas.errors.base import Unavailable
    from ...serving.probe import NotReady, ask_readiness

    try:
        ask_readiness(port, timeout_s)
    except NotReady as error:
        raise Unavailable(str(error)) from error
    return "ready"


async def _ask(
    connection: ConnectionOptions, wanted: dict[str, str], timeout_s: float, *, id: str | None = None
) -> str | None:
    """The name of the first such service that answers a ping of `nats service`.

    Raises:
        NotPermitted: this user may not send that.
        Unavailable: only such answer as are not ready.
    """
    import asyncio

    from ....bus.port.bus import Message
    from ....bus.rpc.micro_service import NOT_READY
    from ....schemas.errors.base import MalformedMessage, Unavailable
    from ....schemas.wire.codec import from_json
    from ...console.session import open_bus

    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    unready: list[str] = []
    wanted = {"namespace": connection.names.namespace, **wanted}

    def look(message: Message) -> None:
        try:
            ping = from_json(message.data)
            name, metadata = ping["name"], ping["metadata"]
            # Older workers do not send their namespace.
            told = {"namespace": connection.names.namespace, **metadata}
            right = all(told.get(key) == value for key, value in wanted.items()) and id in (None, ping.get("id"))
            if name.startswith("gangline-") and right and not found.done():
                who = " ".join([name, *filter(None, (metadata.get("pool"), metadata.get("worker")))])
                if NOT_READY in metadata:
                    unready.append(f"{who} is not ready: {metadata[NOT_READY]}")
                else:
                    found.set_result(who)
        except (MalformedMessage, TypeError, KeyError, AttributeError):
            return  # the answer of another service

    async with open_bus(connection, "gangline health") as bus:
        reply = f"{bus.inbox}.health"
        await bus.subscribe(reply, look)
        bus.publish("$SRV.PING", reply=reply)
        try:
            async with asyncio.timeout(timeout_s):
                return await found
        except TimeoutError:
            if unready:
                raise Unavailable("; ".join(unready)) from None
            bus.publish("$SRV.PING", reply=reply)  # raises if the server has refused the first one
            return None
