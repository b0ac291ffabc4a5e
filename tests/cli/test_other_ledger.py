"""Workers that are registered in another ledger than that of whoever looks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.cli.commands.pools.workers import _workers
from gangline.dispatcher.client.client import Client
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ..coordinator.test_two_ledgers import _connected
from ..coordinator.test_two_ledgers import free_port as free_port

pytestmark = pytest.mark.server


async def test_a_worker_at_a_leaf_with_a_ledger_of_its_own_is_named_where_it_is_not_registered(
    tmp_path: Path, free_port: int, namespace: str
) -> None:
    names, at, seen = Names(namespace), f"127.0.0.1:{free_port}", WorkerSettings(id="seen")
    async with (
        _connected(f'leafnodes {{ listen: "{at}" }}', tmp_path, "hub") as hub,
        _connected(f'leafnodes {{ remotes: [{{ url: "nats-leaf://{at}" }}] }}', tmp_path, "leaf") as leaf,
        Client(hub, names=names) as client,
        Worker(Pool("video"), bus=hub, names=names, settings=seen),
        Worker(Pool("images"), bus=leaf, names=names, settings=WorkerSettings(id="unseen")),
    ):
        assert [row.name for row in (await _workers(client, "video")).rows] == ["video.seen"]
        page = await _workers(client, "images")
        assert page.rows == []
        (note,) = page.notes
        assert "worker images.unseen serves at server 'leaf' of JetStream domain 'leaf', which has a ledger" in note
        assert (await _workers(client, "nothing")).notes == ()
