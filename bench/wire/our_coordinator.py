"""The coordinator that grants the measured gangs, with defaults."""

from __future__ import annotations

from ..bus.lifecycle import settled_memory
from ..bus.nats_bus import connect
from ..bus.settings.connection import ConnectionSettings
from ..coordinator.service import Coordinator
from .child import main, serve


async def life(url: str) -> None:
    bus = await connect(ConnectionSettings.from_url(url), name="bench coordinator")
    async with Coordinator(bus=bus):
        with settled_memory():  # as `gangline coordinator` does
            await serve({})
    await bus.close()


if __name__ == "__main__":
    main(life)
