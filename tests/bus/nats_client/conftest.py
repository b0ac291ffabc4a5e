from __future__ import annotations

import pytest

from gangline.bus.nats_bus import NatsBus

from ..conftest import ConnectServer


@pytest.fixture
async def bus(request: pytest.FixtureRequest, connect_to: ConnectServer) -> NatsBus:
    """A connection to this test's own server if it has one, and to the shared one otherwise."""
    if "nats_server" in request.fixturenames:
        return await connect_to(request.getfixturevalue("nats_server").url)
    return await connect_to(request.getfixturevalue("nats_url"))
