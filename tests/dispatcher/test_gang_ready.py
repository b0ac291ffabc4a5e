"""Gangs whose members take time to start, fail or hang: readiness, as owners see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.schemas.errors import InvalidRequest
from gangline.schemas.gang_errors import GangEnded, GangFailed, GangNotFormed
from gangline.schemas.names import GangOperation
from gangline.worker.pool import Pool

from .gang_rig import GangRig, on_gang_rig, pool_of, until


class Starts:
    """What start hooks do, by generation; counts who began."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.fails: set[int] = set()
        """Generations in which rank 1 raises."""
        self.began: list[tuple[int, int]] = []

    def pool(self, rig: GangRig) -> Pool:
        pool = pool_of(rig.probe)

        @pool.gang_start
        async def start(gang: Any) -> None:
            self.began.append((gang.generation, gang.rank))
            await asyncio.sleep(self.takes_s)
            if gang.rank == 1 and gang.generation in self.fails:
                raise RuntimeError("no weights")

        return pool

    async def workers(self, rig: GangRig, *names: str) -> Starts:
        pool = self.pool(rig)
        for name in names:
            await rig.worker(name, pool)
        return self


@on_gang_rig()
async def test_a_gang_is_ready_when_the_start_hooks_of_all_its_members_have_ended(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 3.0
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with rig.client.gang(pool="train", size=2, strategy="spread") as gang:
        assert loop.time() - began < 1.0, "formed, and not ready"
        reply = await rig.client.router.gangs.desk.ask(GangOperation.RENEW, gang._owner._owned, 1.0)
        assert (reply.step, reply.ready) == ("formed", False)
        assert await gang.ready() == 1
        assert 3.0 <= loop.time() - began < 3.5
        assert await gang.ready() == 1
        reply = await rig.client.router.gangs.desk.ask(GangOperation.RENEW, gang._owner._owned, 1.0)
        assert reply.ready


@on_gang_rig("w1", "w2")
async def test_a_gang_without_start_hooks_is_ready_at_once(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2) as gang:
        assert await gang.options(timeout_s=1.0).ready() == 1


@on_gang_rig()
async def test_ready_waits_over_a_failed_start_for_the_next_generation(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s, starts.fails = 1.0, {1}
    async with rig.client.gang(pool="train", size=2, backoff_s=0.1) as gang:
        assert await gang.ready() == 2
        assert gang.restarts == 1


@on_gang_rig()
async def test_ready_raises_what_ended_the_gang(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s, starts.fails = 1.0, {1, 2}
    with pytest.raises((GangFailed, GangEnded), match="no weights"):
        async with rig.client.gang(pool="train", size=2, max_restarts=1, backoff_s=0.1) as gang:
            await gang.ready()


@on_gang_rig()
async def test_ready_is_waited_for_until_the_deadline(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 60.0
    async with rig.client.gang(pool="train", size=2) as gang:
        with pytest.raises(GangNotFormed, match="not ready"):
            await gang.options(timeout_s=2.0).ready()
        assert gang.lost is None


@on_gang_rig()
async def test_a_start_hook_that_hangs_fails_its_member_after_start_timeout_s(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 1e6
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises((GangFailed, GangEnded), match=r"start_timeout_s \(5 s\)"):
        async with rig.client.gang(pool="train", size=2, restart="fail", start_timeout_s=5.0) as gang:
            await gang.ready()
    assert 5.0 <= loop.time() - began < 7.0
    await until(lambda: rig.free("w1") == rig.free("w2") == 2)
    with pytest.raises(InvalidRequest, match="start_timeout_s"):
        rig.client.gang(pool="train", size=2, start_timeout_s=0)


@on_gang_rig()
async def test_a_new_leader_learns_that_a_gang_is_ready(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 5.0
    async with rig.client.gang(pool="train", size=2) as gang:
        assert rig.coordinator is not None
        await rig.coordinator.stop()
        await rig.start_coordinator("another")
        assert await gang.ready() == 1
        await rig.coordinator.stop()
        await asyncio.sleep(5.0)
        await rig.start_coordinator("third")
        desk = rig.client.router.gangs.desk
        await asyncio.sleep(1.0)
        assert (await desk.ask(GangOperation.RENEW, gang._owner._owned, 1.0)).ready
