from __future__ import annotations

import pytest

from gangline.bus.memory.server import MemoryServer


@pytest.fixture
def hub(opened):
    hub = MemoryServer()

    async def close():
        for bus in hub.connections:
            await bus.close()

    opened.push_async_callback(close)
    return hub
