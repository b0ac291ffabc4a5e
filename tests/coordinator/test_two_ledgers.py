"""One namespace over two JetStream domains: a hub and a leaf node with storage of their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import Bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.coordinator import service
from gangline.coordinator.service import Coordinator
from gangline.schemas.errors.base import ServerUnsupported
from gangline.schemas.names import Names

from ..waiting import PATIENCE_S, until

pytestmark = pytest.mark.server


@pytest.fixture
def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def _connected(config: str, storage: Path | None, name: str) -> AsyncIterator[Bus]:
    """A server of this name, which is also its JetStream domain, and a connection to it."""
    domain = "" if storage is None else f'\njetstream {{ domain: {name}, store_dir: "{storage / name}" }}'
    async with EmbeddedServer(name=name, config=config + domain, jetstream=False) as server:
        bus = await connect(ConnectionSettings.from_url(server.url), name=name)
        try:
            yield bus
        finally:
            await bus.close()


async def test_coordinators_of_a_hub_and_its_leaf_say_that_they_have_two_ledgers(
    tmp_path: Path,
    free_port: int,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "_COMPARE_S", 0.2)
    names = Names(namespace)
    at = f"127.0.0.1:{free_port}"
    async with (
        _connected(f'leafnodes {{ listen: "{at}" }}', tmp_path, "hub") as hub,
        _connected(f'leafnodes {{ remotes: [{{ url: "nats-leaf://{at}" }}] }}', tmp_path, "leaf") as leaf,
        Coordinator(bus=hub, names=names),
        Coordinator(bus=hub, names=names),
        asyncio.timeout(PATIENCE_S),
    ):
        created = [each.getMessage() for each in caplog.records if each.action == "bus.ledger_created"]
        assert len(created) == 1 and "server 'hub' of JetStream domain 'hub'" in created[0]

        def errors() -> list[str]:
            return [each.getMessage() for each in caplog.records if each.action == "coordinator.other_ledger"]

        async with Coordinator(bus=leaf, names=names):
            await until(lambda: len(errors()) >= 3)
            await asyncio.sleep(1.0)
        assert len(errors()) == 3  # each coordinator, once
        assert sum("at server 'leaf' of JetStream domain 'leaf', has another ledger" in line for line in errors()) == 2
        assert [each.levelname for each in caplog.records if each.action == "bus.ledger_created"] == ["WARNING"] * 2


async def test_at_a_leaf_without_storage_the_hub_is_named(tmp_path: Path, free_port: int, namespace: str) -> None:
    at = f"127.0.0.1:{free_port}"
    async with (
        _connected(f'leafnodes {{ listen: "{at}" }}', tmp_path, "hub"),
        _connected(f'leafnodes {{ remotes: [{{ url: "nats-leaf://{at}" }}] }}', None, "leaf") as leaf,
    ):
        with pytest.raises(ServerUnsupported, match=r"leaf node.*connect to the hub"):
            await Coordinator(bus=leaf, names=Names(namespace)).start()
