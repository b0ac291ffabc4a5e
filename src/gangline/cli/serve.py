"""The processes that stay: a worker, a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

from ..bus.port import BucketSettings, Bus, ConnectionEvent
from ..dispatcher.gateway import Gateway
from ..dispatcher.gateway_settings import GatewaySettings
from ..dispatcher.settings import RouterSettings
from ..schemas.errors import Disconnected
from ..worker.pool import Pool
from ..worker.service import Worker
from ..worker.settings import WorkerSettings
from .children import tied_to_parent
from .journal import journal_file
from .options import Connection
from .session import open_bus, telemetry
from .signals import on_signals


async def serve_worker(
    pool: Pool, connection: Connection, settings: WorkerSettings, *, journal: Path | None = None
) -> None:
    """Serve until drained: by a signal, by `gangline drain`, or because another process took the id.

    The first SIGTERM or SIGINT drains, a second one stops at once.

    Raises:
        WorkerIdTaken: another living worker has the id.
        Disconnected: the server closed the connection for good.
        Unavailable: no server, no storage.
    """

    async def life() -> None:
        try:
            await worker.start()
            await worker.wait_closed()
        finally:
            await worker.stop()

    def finish() -> bool:
        if worker.state in ("new", "starting"):
            return False
        worker.begin_drain()
        return True

    with journal_file(journal) as sink:
        async with telemetry("gangline-worker"), open_bus(connection, f"gangline worker {pool.name}") as bus:
            worker = Worker(pool, bus=bus, names=connection.names, settings=settings, journal=sink)
            await run_until_left(bus, life(), finish=finish, stop=lambda: worker.begin_drain(0.0))


async def serve_gateway(connection: Connection, settings: GatewaySettings, router_settings: RouterSettings) -> None:
    """Answer calls until a signal. The first one lets what is under way finish, a second one ends it.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable: no server.
    """
    async with telemetry("gangline-gateway"), open_bus(connection, "gangline gateway") as bus:
        gateway = _gateway(bus, connection, settings, router_settings)
        ends: set[asyncio.Task[None]] = set()

        def end(grace_s: float | None) -> bool:
            ends.add(asyncio.get_running_loop().create_task(gateway.stop() if grace_s == 0 else gateway.drain(grace_s)))
            return True

        async def life() -> None:
            async with gateway:
                await gateway.wait_closed()

        await run_until_left(bus, life(), finish=lambda: end(None), stop=lambda: end(0))
        await asyncio.gather(*ends)


def open_gateway(bus: Bus, connection: Connection) -> Gateway:
    """A gateway on a bus that is open already; for `async with`."""
    return _gateway(bus, connection, GatewaySettings(), RouterSettings())


def _gateway(bus: Bus, connection: Connection, settings: GatewaySettings, router_settings: RouterSettings) -> Gateway:
    return Gateway(
        bus,
        names=connection.names,
        settings=settings,
        router_settings=router_settings,
        bucket=BucketSettings.from_environment(),
    )


async def run_until_left(
    bus: Bus, life: Coroutine[object, object, None], *, finish: Callable[[], bool], stop: Callable[[], object]
) -> None:
    """Run `life` to its end, with signals and the connection's end looked after.

    Args:
        finish: what the first signal does; False: nothing has begun that could finish, so `life` is cancelled.
        stop: what each further signal does.

    Raises:
        Disconnected: the server closed the connection for good.
    """
    task = asyncio.get_running_loop().create_task(life, name="gangline life")
    ended_by: list[str] = []

    def give_up(why: str) -> None:
        ended_by.append(why)
        task.cancel()

    def first() -> None:
        if not finish():
            give_up("signal")

    def connection(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CLOSED:
            give_up("server")

    forget = bus.on_connection(connection)
    try:
        with on_signals(first, stop), tied_to_parent(stop):
            await task
    except asyncio.CancelledError:
        if "server" in ended_by:
            raise Disconnected("the server closed the connection for good; its log says why") from None
        if "signal" not in ended_by:
            raise
    finally:
        forget()
