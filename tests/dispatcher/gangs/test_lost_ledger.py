"""A server with the ledger in memory dies and comes back: nothing is torn down, and no declaration is lost."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.memory.server import MemoryBus
from gangline.coordinator.service import Coordinator

from ...support.dispatcher.gang_rig import PAIR, GangRig, on_gang_rig, until


def keys(rig: GangRig, folder: str) -> list[str]:
    return sorted(e.key for e in rig.hub.peek(rig.names.ledger_bucket) if e.key.startswith(f"{folder}.") and e.value)


async def standby(rig: GangRig, name: str = "second") -> Coordinator:
    rig.buses[name] = rig.hub.connect(name)
    coordinator = Coordinator(bus=rig.buses[name], names=rig.names)
    await coordinator.start()
    return coordinator


async def outage(rig: GangRig, away_s: float, late: str) -> None:
    """The server dies and comes back empty, and one process connects two seconds after the others."""
    rig.hub.stop()
    await asyncio.sleep(away_s)
    rig.hub.start()
    bus: MemoryBus | None = rig.buses.get(late)
    if bus is not None:
        rig.hub.disconnect(bus)
        await asyncio.sleep(2.0)
        rig.hub.reconnect(bus)


@pytest.mark.parametrize("away_s", [6.0, *(pytest.param(away_s, marks=pytest.mark.long) for away_s in (0.2, 1.6))])
@pytest.mark.parametrize("late", ["nobody", "coordinator", pytest.param("w1", marks=pytest.mark.long)])
@on_gang_rig("w1", "w2")
async def test_gangs_and_sets_outlive_a_server_that_loses_the_ledger(rig: GangRig, away_s: float, late: str) -> None:
    second = await standby(rig)
    await rig.declare("llm", gangs=1, gang=PAIR)
    async with rig.client.gang(pool="train", size=2, strategy="spread", ttl_s=20) as gang:
        running = asyncio.create_task(gang.run("wait"))
        await until(lambda: len(keys(rig, "gang")) == 2 and len(rig.probe.started) == 2)
        before = {folder: keys(rig, folder) for folder in ("gang", "member", "gangset", "gangset_status")}
        await outage(rig, away_s, late)
        await asyncio.sleep(20)
        assert {folder: keys(rig, folder) for folder in before} == before
        assert rig.probe.stopped == [] and not running.done()
        assert (gang.generation, gang.lost) == (1, None)
        rig.probe.go.set()
        assert await running == ["1.0", "1.1"]
        assert await rig.client.options(timeout_s=5).call("llm.who", "still") == [0, 2, 1, "still"]
    await second.stop()
