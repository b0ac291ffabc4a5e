"""The gateway that answers the measured plain requests, with defaults."""

from __future__ import annotations

import time
from typing import Any

from ..bus.lifecycle import settled_memory
from ..bus.nats_bus import connect
from ..bus.settings.connection import ConnectionSettings
from ..dispatcher.gateway.gateway import Gateway
from .child import main, serve


async def life(url: str) -> None:
    async def cpu() -> dict[str, Any]:
        return {"cpu_s": time.process_time()}

    bus = await connect(ConnectionSettings.from_url(url), name="bench gateway")
    async with Gateway(bus):
        with settled_memory():  # as `gangline gateway` does
            await serve({"cpu": cpu})
    await bus.close()


if __name__ == "__main__":
    main(life)
