from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, KeyValue

from ...support.bus.proxy import Proxy
from ..conftest import ConnectServer


@pytest.fixture
async def bus(request: pytest.FixtureRequest, connect_to: ConnectServer) -> NatsBus:
    """A connection to this test's own server if it has one, and to the shared one otherwise."""
    if "nats_server" in request.fixturenames:
        return await connect_to(request.getfixturevalue("nats_server").url)
    return await connect_to(request.getfixturevalue("nats_url"))


@pytest.fixture
async def proxy(nats_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(nats_url) as made:
        yield made


@pytest.fixture
async def bucket(proxy: Proxy, connect_to: ConnectServer, namespace: str) -> KeyValue:
    """Behind the proxy."""
    return await (await connect_to(proxy.url)).bucket(namespace, BucketSettings())


@pytest.fixture
async def other(nats_url: str, connect_to: ConnectServer, namespace: str) -> KeyValue:
    """The same bucket for somebody else, not behind the proxy."""
    return await (await connect_to(nats_url)).bucket(namespace, BucketSettings())
