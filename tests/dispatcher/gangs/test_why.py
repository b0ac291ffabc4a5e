"""What `why` says of gangs that wait behind each other: who has slots, who is ahead, and what is kept for whom."""

from __future__ import annotations

import asyncio

from gangline import Pool
from gangline.coordinator.service import Coordinator
from gangline.testing import cluster

pool = Pool("train", slots=1)


@pool.task
async def idle() -> None:
    pass


async def test_kept_slots_are_told_as_such_and_gangs_ahead_with_their_priority():
    running = cluster(pool, workers=4)
    async with running as client:
        bus = running.hub.connect("coordinator")
        async with Coordinator(bus=bus) as coordinator:
            await coordinator.wait_leading()
            assert coordinator.term is not None
            core = coordinator.term.core
            async with client.gang(pool="train", size=3) as formed:
                waits = [
                    asyncio.ensure_future(client.gang(pool="train", size=size, priority=priority).__aenter__())
                    for size, priority in ((4, 0), (1, 0), (2, 5))
                ]
                await asyncio.sleep(8)
                whys = {gang.size: core.why(gang.id) for gang in core.gangs()}
                ids = {gang.size: gang.id for gang in core.gangs()}
                four, one, two = whys[4], whys[1], whys[2]
                assert four is not None and one is not None and two is not None
                assert (two.place, four.place, one.place) == (0, 1, 2)
                assert [(other.id, other.priority) for other in one.ahead] == [(ids[2], 5), (ids[4], 0)]
                assert two.ahead == () and sum(two.kept.values()) == 1
                kept = f"gang {ids[2]} (kept for it at the head of the queue)"
                assert [obstacle.holder for obstacle in one.obstacles] == [kept]
                assert sorted(obstacle.holder for obstacle in four.obstacles) == sorted(
                    [f"gang {formed.id}"] * 3 + [kept]
                )
                assert {obstacle.holder for obstacle in two.obstacles} == {f"gang {formed.id}"}
                for wait in waits:
                    wait.cancel()
        await bus.close()
