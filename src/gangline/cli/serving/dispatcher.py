"""Runs a dispatcher of durable tasks."""

from __future__ import annotations

from ...bus.lifecycle.process import run_service
from ...bus.port.bus import BucketSettings, Bus
from ...dispatcher.durable.policies.settings import DispatcherSettings
from ...dispatcher.durable.service import Dispatcher
from ..console.children import tied_to_parent
from ..console.options import ConnectionOptions
from ..console.session import open_bus, telemetry


async def serve_dispatcher(connection: ConnectionOptions, settings: DispatcherSettings) -> None:
    """Run tasks until a signal; then hand the queues over.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable: no server, no storage.
    """
    async with telemetry("gangline-dispatcher"), open_bus(connection, "gangline dispatcher") as bus:
        dispatcher = _dispatcher(bus, connection, settings)
        await run_service(bus, dispatcher, also=tied_to_parent)


def open_dispatcher(bus: Bus, connection: ConnectionOptions) -> Dispatcher:
    """A dispatcher on an open bus; for `async with`."""
    return _dispatcher(bus, connection, DispatcherSettings())


def _dispatcher(bus: Bus, connection: ConnectionOptions, settings: DispatcherSettings) -> Dispatcher:
    return Dispatcher(bus, names=connection.names, settings=settings, bucket=BucketSettings.from_environment())
