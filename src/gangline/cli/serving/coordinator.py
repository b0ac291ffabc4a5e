"""Runs a coordinator."""

from __future__ import annotations

from ...bus.lifecycle import run_service
from ...bus.port.bus import BucketSettings, Bus
from ...bus.streams.history_recorder import HistorySettings
from ...coordinator.service import Coordinator
from ...coordinator.settings.settings import CoordinatorSettings, ServiceSettings
from ...coordinator.sharding.shards import WHOLE, Shard
from ..console.children import tied_to_parent
from ..console.options import ConnectionOptions, HealthAddress
from ..console.session import open_bus, telemetry
from .health import observed


async def serve_coordinator(
    connection: ConnectionOptions,
    settings: CoordinatorSettings,
    shell: ServiceSettings,
    shard: Shard = WHOLE,
    *,
    health: HealthAddress,
) -> None:
    """Lead or stand by until a signal; a leader then hands over at once.

    Raises:
        Disconnected: the server closed the connection for good.
        Unavailable: no server, no storage.
        ShardConflict: another shard owns some of the pools.
    """
    scraped = health.port is not None
    async with telemetry("gangline-coordinator", scraped=scraped), open_bus(connection, "gangline coordinator") as bus:
        coordinator = Coordinator(
            bus=bus,
            names=connection.names,
            settings=settings,
            shell=shell,
            shard=shard.name or None,
            pools=shard.pools,
        )
        async with observed(health, bus, coordinator):
            await run_service(bus, coordinator, also=tied_to_parent)


def open_coordinator(bus: Bus, connection: ConnectionOptions) -> Coordinator:
    """A coordinator on an open bus; for `async with`."""
    shell = ServiceSettings(bucket=BucketSettings.from_environment(), history=HistorySettings.from_environment())
    return Coordinator(bus=bus, names=connection.names, shell=shell)
