"""Probes over HTTP and notices to systemd, for commands that keep running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...runtime.probes import ProbeServer
from ...runtime.service_manager import ServiceManager
from ...telemetry.setup import scrape
from ..console.options import HealthAddress
from ..console.output import echo

if TYPE_CHECKING:
    from ...bus.port.bus import Bus
    from ...runtime.lifecycle import Service

LOOK_S = 0.25
_SERVING = frozenset({"serving", "running", "standby", "leading"})
"""States of services in which they do what they are for."""


def reasons_against(services: Sequence[Service[Any]], bus: Bus) -> list[str]:
    """Why these services are not ready; nothing if they are. Only reads, so any thread may call it."""
    found = bus.impairments() if bus.connected else ["not connected to a nats-server"]
    return found + [f"{service._what} is {service.state.value}" for service in services if not _serves(service)]


def _serves(service: Service[Any]) -> bool:
    return service.state.value in _SERVING


@asynccontextmanager
async def observed(health: HealthAddress, bus: Bus, *services: Service[Any]) -> AsyncIterator[None]:
    """Answer probes about these services at that address, if it has a port, and tell systemd what becomes of them.

    Raises:
        InvalidSettings: the address cannot be used.
    """
    server: ProbeServer | None = None
    if health.port is not None:
        metrics = scrape()
        server = ProbeServer(health.host, health.port, ready=lambda: reasons_against(services, bus), metrics=metrics)
        server.start()
        echo(f"probes    http://{server.host}:{server.port}/livez, /readyz and /metrics", err=True)
    manager = ServiceManager()
    telling = asyncio.create_task(
        _tell(manager, lambda: reasons_against(services, bus), services), name="gangline systemd"
    )
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        manager.stopping()
        if server is not None:
            server.stop()


async def _tell(manager: ServiceManager, reasons: Callable[[], list[str]], services: Sequence[Service[Any]]) -> None:
    """READY when all are ready for the first time; STOPPING when one drains or has closed; WATCHDOG in between."""
    if not manager:
        return
    period_s = min(LOOK_S, manager.watchdog_s / 3) if manager.watchdog_s is not None else LOOK_S
    ready = stopping = False
    status = ""
    while True:
        why = reasons()
        if not ready and not why:
            ready = True
            manager.ready()
        if ready and not stopping and any(not _serves(service) for service in services):
            stopping = True
            manager.stopping()
        if manager.watchdog_s is not None:
            manager.alive()
        text = "; ".join(why) or "ready"
        if text != status:
            status = text
            manager.status(text)
        await asyncio.sleep(period_s)
