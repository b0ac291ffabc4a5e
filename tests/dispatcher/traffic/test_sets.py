"""Routes that lead to standing sets: a set is a target like a pool."""

from __future__ import annotations

import asyncio
from collections import Counter

from ...support.dispatcher.gang_rig import PAIR, GangRig, on_gang_rig, until


async def declared(rig: GangRig, *names: str) -> None:
    """A gang of each set stands, and the client knows it."""
    for name in names:
        await rig.declare(name, gangs=1, gang=PAIR)
    await rig.client.router.sets.find(names[0], None)
    await until(lambda: all(len(rig.gangs(name)) == 1 for name in names))


@on_gang_rig("w1", "w2", "w3", "w4")
async def test_a_route_splits_traffic_between_standing_sets(rig: GangRig) -> None:
    await declared(rig, "llm-a", "llm-b")
    await rig.client.set_route("llm", {"to": {"llm-a": 1, "llm-b": 1}})
    results = [await rig.client.call("llm.slow", 0.01) for _ in range(40)]
    counted = Counter(gang for gang, _ in results)
    [first], [second] = rig.gangs("llm-a"), rig.gangs("llm-b")
    assert set(counted) == {first, second} and min(counted.values()) > 8
    assert {rank for _, rank in results} == {0}
    assert [item async for item in rig.client.stream("llm.count", 3)]
    await rig.settled("llm-a")
    await rig.settled("llm-b")
    assert rig.client.statistics()["routes"]["traffic"]["llm"] == {"inside": {}, "waiting": 0}


@on_gang_rig("w1", "w2", "w3", "w4")
async def test_calls_that_wait_for_a_gang_move_to_another_set_with_the_route(rig: GangRig) -> None:
    await declared(rig, "llm-a", "llm-b")
    await rig.client.set_route("llm", {"to": {"llm-a": 1}})
    calls = [asyncio.ensure_future(rig.client.call("llm.slow", 3.0)) for _ in range(6)]
    await asyncio.sleep(1)
    waiting = rig.client.router.sets.pool_of("llm-a").core.waiting
    assert waiting > 0
    await rig.client.set_route("llm", {"to": {"llm-b": 1}})
    results = await asyncio.gather(*calls)
    counted = Counter(gang for gang, _ in results)
    [moved] = rig.gangs("llm-b")
    assert counted[moved] == waiting
