"""What senders of the server's headers may not do is found, with the message that did it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bench.fuzz.permissions import FREE, PASSWORD, SENDERS, Observer, check_permissions, server_configuration
from bench.fuzz.run import NAMESPACE
from bench.fuzz.wire import BareClient
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.schemas.permissions.roles import Permissions, User

from ..scale import repetitions
from ..waiting import PATIENCE_S

pytestmark = pytest.mark.server
NAMES = Names(NAMESPACE)


@asynccontextmanager
async def observing() -> AsyncIterator[tuple[Observer, int]]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EmbeddedServer(config=server_configuration(NAMES)))
        bus = await connect(ConnectionSettings(urls=(server.url,), user=FREE, password=PASSWORD))
        stack.push_async_callback(bus.close)
        wire = await BareClient.connect(server.port, FREE, PASSWORD)
        stack.push_async_callback(wire.close)
        observer = Observer(bus, wire, NAMES)
        await observer.start()
        yield observer, server.port


APP, *_, EVIL = SENDERS
HOLES: list[tuple[str, str, User, str]] = [
    (NAMES.tasks_stream, "allow_atomic", APP, r" is gone .* after app .*Nats-Batch-Id.* the reply subject"),
    (NAMES.jobs_stream, "allow_msg_schedules", EVIL, r"good\.canary\.state (is gone|was written).* after evil .*Nats-"),
    (f"KV_{NAMES.ledger_bucket}", "allow_rollup_hdrs", EVIL, r"x\.canary is gone .* after evil .*Nats-Rollup"),
]


@pytest.mark.parametrize(("stream", "switch", "sender", "expected"), HOLES, ids=["batches", "schedules", "rollup"])
async def test_a_stream_that_obeys_headers_of_others_is_found(
    stream: str, switch: str, sender: User, expected: str
) -> None:
    async with observing() as (observer, port):
        config = (await observer.bus.api.call(f"STREAM.INFO.{stream}", what="look"))["config"]
        await observer.bus.api.call(f"STREAM.UPDATE.{stream}", {**config, switch: True}, what="plant a hole")
        assert ("", f"the configuration of {stream} changed") in await observer.look(Permissions())
        _, found = await check_permissions(observer, port, 1, seconds=PATIENCE_S, most=600, senders=[sender])
        assert found and re.search(expected, found[0]), found


async def test_shipped_permissions_and_streams_hold() -> None:
    async with observing() as (observer, port):
        most = repetitions(60, whole=300)
        assert await check_permissions(observer, port, 1, seconds=PATIENCE_S, most=most) == (most, [])
