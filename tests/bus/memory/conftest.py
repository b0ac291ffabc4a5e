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


@pytest.fixture
def bus(hub):
    return hub.connect()


@pytest.fixture
def server(hub):
    return hub.connect("server")


@pytest.fixture
def client(hub):
    return hub.connect("client")
