"""Leaders of several shards on an in-memory server."""

from __future__ import annotations

import asyncio

import pytest

from gangline.schemas.names import Names

from ...support.coordinator.rig import System


async def test_the_leader_of_another_shard_is_asked_where_it_listens_also_if_it_is_of_an_earlier_version(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pool in ("train", "serve"):
        await system.worker(f"w-{pool}", pool=pool)
    with monkeypatch.context() as earlier:
        earlier.setattr(Names, "both", staticmethod(lambda subject: (subject,)))
        older = await system.coordinator("older", shard="serve", pools=("serve",))
        await older.wait_leading()
    newer = await system.coordinator("newer", shard="train", pools=("train",))
    await newer.wait_leading()
    await asyncio.sleep(3.0)  # until each knows of the other
    for _ in range(8):  # the server chooses who ushers
        gang = await system.owner.acquire(pool="serve", size=1)
        assert gang["state"] == "formed"
        await system.owner.release(gang)
