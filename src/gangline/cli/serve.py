"""The processes that stay: a worker, a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..bus.port import Bus, ConnectionEvent
from ..schemas.errors import Disconnected
from ..telemetry.logs import logger_for
from ..telemetry.setup import configure
from ..worker.pool import Pool
from ..worker.service import Worker
from ..worker.settings import WorkerSettings
from .journal import journal_file
from .options import Connection
from .session import open_bus
from .signals import on_signals

_log = logger_for("cli")


@asynccontextmanager
async def telemetry(service: str) -> AsyncIterator[None]:
    """Exporters as the environment asks, flushed at the end."""
    end = configure(service)
    try:
        yield
    finally:
        # Exporters block while they send what is left; nothing else is to be done by now.
        await asyncio.to_thread(end)


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
    with journal_file(journal) as sink:
        async with telemetry("gangline-worker"), open_bus(connection, f"gangline worker {pool.name}") as bus:
            worker = Worker(pool, bus=bus, names=connection.names, settings=settings, journal=sink)
            await _until_left(worker, bus)


async def _until_left(worker: Worker, bus: Bus) -> None:
    life = asyncio.get_running_loop().create_task(_life(worker), name=f"gangline worker {worker.id}")
    ended_by: list[str] = []

    def finish() -> None:
        if worker.state in ("new", "starting"):
            ended_by.append("signal")  # a start under way is given up
            life.cancel()
        else:
            worker.begin_drain()

    def connection(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CLOSED:
            ended_by.append("server")
            life.cancel()

    forget = bus.on_connection(connection)
    try:
        with on_signals(finish, lambda: worker.begin_drain(0.0)):
            await life
    except asyncio.CancelledError:
        if "server" in ended_by:
            raise Disconnected("the server closed the connection for good; its log says why") from None
        if "signal" not in ended_by:
            raise
    finally:
        forget()


async def _life(worker: Worker) -> None:
    try:
        await worker.start()
        await worker.wait_closed()
    finally:
        await worker.stop()
