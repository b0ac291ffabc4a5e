"""Leaders of several shards on an in-memory server."""

from __future__ import annotations

import asyncio

import pytest

from gangline.coordinator.server.shard_router import ShardRouter
from gangline.schemas.errors.base import InvalidRequest, NoCoordinator
from gangline.schemas.names import Names

from ...support.coordinator.rig import CoordinatorSystem


async def test_the_leader_of_another_shard_is_asked_where_it_listens_also_if_it_is_of_an_earlier_version(
    system: CoordinatorSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pool in ("train", "serve"):
        await system.worker(f"w-{pool}", pool=pool)
    with monkeypatch.context() as earlier:
        earlier.setattr(Names, "both", staticmethod(lambda subject: (subject,)))
        await system.lead("older", shard="serve", pools=("serve",))
    await system.lead("newer", shard="train", pools=("train",))
    await asyncio.sleep(3.0)  # until each knows of the other
    for _ in range(4):  # the server chooses who ushers
        gang = await system.owner.acquire(pool="serve", size=1)
        assert gang["state"] == "formed"
        await system.owner.release(gang)


async def test_requests_on_their_way_to_a_leader_that_leaves_are_answered(system: CoordinatorSystem) -> None:
    leaders = []
    for pool in ("train", "serve"):
        leader = await system.lead(f"leader of {pool}", shard=pool, pools=(pool,))
        leaders.append(leader)
    await asyncio.sleep(3.0)  # until each knows of the other
    staying, leaving = leaders
    # One leader of all answers each of these.
    asked = [asyncio.ensure_future(system.owner.ask("list", timeout_s=10.0)) for _ in range(20)]
    refused = [
        asyncio.ensure_future(system.owner.ask("acquire", {"pool": "nobody's", "size": 1}, timeout_s=10.0))
        for _ in range(20)
    ]
    mine = asyncio.ensure_future(system.owner.ask("acquire", {"pool": "serve", "size": 1, "id": "g"}, timeout_s=10.0))
    await asyncio.sleep(0)  # sent, and not yet delivered
    await leaving.stop()
    assert all(listed["gangs"] == [] for listed in await asyncio.gather(*asked))
    for answer in await asyncio.gather(*refused, return_exceptions=True):
        assert isinstance(answer, InvalidRequest)
    with pytest.raises(NoCoordinator, match="ask again"):
        await mine
    await staying.stop()


async def test_a_leader_that_is_slow_to_answer_another_still_has_the_request(
    system: CoordinatorSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the other leader refused it, the gang would form and nobody would know."""
    for pool in ("train", "serve"):
        await system.worker(f"w-{pool}", pool=pool, slots=1)
    with monkeypatch.context() as slow:
        slow.setattr(ShardRouter, "_peer", lambda *_: None)
        await system.lead("serving", shard="serve", pools=("serve",))
    await system.lead("training", shard="train", pools=("train",))
    await asyncio.sleep(3.0)  # until each knows of the other
    for _ in range(4):  # the server chooses which leader looks after a request
        first = await system.owner.acquire(pool="serve", size=1)
        second = asyncio.ensure_future(system.owner.acquire(pool="serve", size=1))
        await asyncio.sleep(2.0)  # longer than one leader waits for another
        assert not second.done()
        await system.owner.release(first)
        await system.owner.release(await second)
