"""Sharded coordinators and real workers on a real nats-server: plain requests and the client alike."""

from __future__ import annotations

import json

import pytest

from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import InvalidRequest, NoCoordinator, ShardConflict

from ...waiting import PATIENCE_S

pytestmark = pytest.mark.server


async def test_plain_requests_and_the_client_find_the_shard_of_their_pools(open_system, nats_url, namespace):
    system = await open_system(nats_url)
    for pool in ("train", "gpu", "cpu"):
        await system.serve(f"w-{pool}", pool)
    first = await system.lead("first", shard="train", pools=("train",))
    second = await system.lead("second", shard="serve", pools=("gpu", "cpu"))
    standby = await system.coordinator("standby", shard="serve", pools=("gpu", "cpu"))
    request = system.owner.bus.request
    answer = await request(
        f"{namespace}.gang.acquire", b'{"pool": "train", "size": 2, "ttl_s": 600}', timeout_s=PATIENCE_S
    )
    plain = json.loads(answer.data)
    assert (plain["state"], first.statistics().gangs["formed"]) == ("formed", 1)

    client = Client(await system.bus("client"), names=system.names)
    async with client:
        bundles = [{"pool": "gpu"}, {"pool": "cpu"}]
        async with client.gang(bundles=bundles, deadline_s=PATIENCE_S) as gang:
            assert await gang.run("double", 21) == [42, 42]
            assert second.statistics().gangs["formed"] == 1
            await second.stop()
            await standby.wait_leading()
            assert await gang.run("double", 4) == [8, 8]
        with pytest.raises(InvalidRequest, match="in one shard"):
            async with client.gang(bundles=[{"pool": "gpu"}, {"pool": "train"}], deadline_s=PATIENCE_S):
                pass
    await standby.stop()
    with pytest.raises(NoCoordinator, match="shard serve"):
        await system.owner.acquire(pool="gpu", size=1)
    listed = await system.owner.ask("list")
    assert ([gang["id"] for gang in listed["gangs"]], listed["missing"]) == ([plain["id"]], ["serve"])
    with pytest.raises(ShardConflict, match="shard train keeps train"):
        await system.coordinator("late", shard="more", pools=("train", "other"))
    await system.owner.release(plain)
    assert system.slots_in_use == 0
    assert system.watcher.broken == []
