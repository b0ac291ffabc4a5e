"""Coordinators and workers on a real server."""

from __future__ import annotations

from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names

from .rig import CoordinatorSystem


class RealWorkersSystem(CoordinatorSystem):
    """With a connection of its own for each service."""

    def __init__(self, url: str, namespace: str) -> None:
        # A watch that waits longer for a dead leader may miss deletions, which the server forgets after 10 s.
        self.settings = ConnectionSettings.from_url(url, reconnect_wait_s=0.05, storage_timeout_s=5.0)
        super().__init__(self._open_bus, Names(namespace))

    async def _open_bus(self, name: str) -> NatsBus:
        return await connect_bus(self.settings, name=name)
