"""Runs a worker or a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ...bus.lifecycle import run_service
from ...bus.port.bus import BucketSettings, Bus, StorageUnavailable
from ...dispatcher.gateway.gateway import Gateway, GatewaySettings
from ...dispatcher.routing.settings import RouterSettings
from ...worker.ledger.settings import WorkerSettings
from ...worker.pool.pool import Pool
from ...worker.service import Worker, run_worker
from ..console.children import tied_to_parent
from ..console.options import ConnectionOptions, HealthAddress
from ..console.session import open_bus, open_ledger, telemetry
from .health import observed
from .journal import journal_file


async def serve_workers(
    pools: Sequence[tuple[Pool, WorkerSettings]],
    connection: ConnectionOptions,
    *,
    health: HealthAddress,
    journal: Path | None = None,
) -> None:
    """Serve each pool until drained: by a signal, by `gangline drain`, or because another process took the id.

    The first SIGTERM or SIGINT drains, a second one stops at once.

    Raises:
        WorkerIdTaken: another living worker has the id.
        Disconnected: the server closed the connection for good.
        Unavailable: no server, no storage.
    """
    with journal_file(journal) as sink:
        name = " ".join(["gangline worker", *(pool.name for pool, _ in pools)])
        scraped = health.port is not None
        async with telemetry("gangline-worker", scraped=scraped), open_bus(connection, name) as bus:
            workers = [
                Worker(pool, bus=bus, names=connection.names, settings=settings, journal=sink)
                for pool, settings in pools
            ]

            def stop() -> None:
                for worker in workers:
                    worker.begin_drain(0.0)

            async with observed(health, bus, *workers):
                with tied_to_parent(stop):
                    await run_worker(*workers)


async def serve_gateway(
    connection: ConnectionOptions, settings: GatewaySettings, router_settings: RouterSettings, *, health: HealthAddress
) -> None:
    """Answer calls until a signal. The first one lets running calls finish, a second one stops them.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable: no server, or one without JetStream.
    """
    scraped = health.port is not None
    async with telemetry("gangline-gateway", scraped=scraped), open_bus(connection, "gangline gateway") as bus:
        gateway = _gateway(bus, connection, settings, router_settings)

        async def open_storage() -> None:
            # Storage that does not answer yet will answer later; a server without JetStream never will.
            with contextlib.suppress(StorageUnavailable):
                await open_ledger(bus, connection)

        async with observed(health, bus, gateway):
            await run_service(bus, gateway, before=open_storage, leave=gateway.drain, also=tied_to_parent)


def open_gateway(bus: Bus, connection: ConnectionOptions) -> Gateway:
    """A gateway on an open bus; for `async with`."""
    return _gateway(bus, connection, GatewaySettings(), RouterSettings())


def _gateway(
    bus: Bus, connection: ConnectionOptions, settings: GatewaySettings, router_settings: RouterSettings
) -> Gateway:
    return Gateway(
        bus,
        names=connection.names,
        settings=settings,
        router_settings=router_settings,
        bucket=BucketSettings.from_environment(),
    )
