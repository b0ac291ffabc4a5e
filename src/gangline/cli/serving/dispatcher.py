"""Runs a dispatcher of durable tasks."""

from __future__ import annotations

from ...bus.lifecycle import run_service
from ...bus.port.bus import BucketSettings, Bus
from ...bus.streams.history_recorder import HistorySettings
from ...dispatcher.durable.policies.settings import DispatcherSettings
from ...dispatcher.durable.service import Dispatcher
from ..console.children import tied_to_parent
from ..console.options import ConnectionOptions, HealthAddress
from ..console.session import open_bus, telemetry
from .health import observed


async def serve_dispatcher(
    connection: ConnectionOptions, settings: DispatcherSettings, *, health: HealthAddress
) -> None:
    """Run tasks until a signal; then hand the queues over.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable: no server, no storage.
    """
    scraped = health.port is not None
    async with telemetry("gangline-dispatcher", scraped=scraped), open_bus(connection, "gangline dispatcher") as bus:
        dispatcher = _dispatcher(bus, connection, settings)
        async with observed(health, bus, dispatcher):
            await run_service(bus, dispatcher, also=tied_to_parent)


def open_dispatcher(bus: Bus, connection: ConnectionOptions) -> Dispatcher:
    """A dispatcher on an open bus; for `async with`."""
    return _dispatcher(bus, connection, DispatcherSettings(history=HistorySettings.from_environment()))


def _dispatcher(bus: Bus, connection: ConnectionOptions, settings: DispatcherSettings) -> Dispatcher:
    return Dispatcher(bus, names=connection.names, settings=settings, bucket=BucketSettings.from_environment())
