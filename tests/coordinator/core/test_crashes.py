"""The leader dies after each thing that it does, on an in-memory server with real workers: whatever it was doing, no
partial gang is ever seen, a gang whose owner was told lives on, and every slot comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.bus.port.bus import KvEntry, Message
from gangline.coordinator.service import Coordinator

from ...scale import repetitions
from ...support.coordinator.rig import CoordinatorSystem
from ...waiting import until

LAST = 60
"""More steps than any of the stories has, pings and renewals included that follow it."""


class Killer:
    """Ends the leader's process after its n-th step: a message that it sent, or a change that it made in the ledger."""

    def __init__(self, system: CoordinatorSystem, hub: Any, step: int) -> None:
        self.hub = hub
        self.left = step
        self.armed = False
        self.victim: Any = None
        self.struck = False
        self.steps: list[str] = []
        hub.tap(on_message=self.sent, on_change=self.changed)

    def arm(self, coordinator: Any) -> None:
        self.victim = coordinator._bus
        self.armed = True

    def sent(self, name: str, message: Message) -> None:
        if self.armed and name == self.victim.name:
            self._step(message.subject)

    def changed(self, _bucket: str, entry: KvEntry) -> None:
        if self.armed and entry.key.split(".")[0] in ("gang", "member", "leader"):
            self._step(entry.key)

    def _step(self, what: str) -> None:
        self.steps.append(what)
        self.left -= 1
        if self.left <= 0 and not self.struck:
            self.struck = True
            asyncio.get_running_loop().call_soon(self.hub.kill, self.victim)


async def two_coordinators(system: CoordinatorSystem, hub: Any, step: int) -> tuple[Coordinator, Killer]:
    """Two workers, a leader that knows them, a standby, and what will kill the leader."""
    for name in ("w0", "w1"):
        await system.serve(name, slots=2, node=name)
    first = await system.lead("first")
    await system.coordinator("second")
    await until(lambda: first.statistics().workers == 2)
    return first, Killer(system, hub, step)


@pytest.mark.parametrize("step", range(1, LAST, repetitions(30, whole=4)))
async def test_a_leader_that_dies_during_a_grant_leaves_all_or_nothing(system, hub, step):
    first, killer = await two_coordinators(system, hub, step)
    killer.arm(first)
    owned = {"id": "mine", "owner_token": "token"}
    gang = await system.insist(
        "acquire", {"pool": "train", "size": 4, "strategy": "spread", "ttl_s": 30, **owned}, timeout_s=2.0
    )
    assert (gang["state"], gang["generation"]) == ("formed", 1), killer.steps
    assert system.slots_in_use == 4
    await asyncio.sleep(8)
    found = await system.insist("renew", owned, timeout_s=2.0)
    assert (found["state"], found["generation"], found["seats"]) == ("formed", 1, gang["seats"]), killer.steps
    await system.insist("release", owned, timeout_s=2.0)
    await until(lambda: system.slots_in_use == 0, within_s=5)
    assert killer.struck


@pytest.mark.parametrize("step", range(1, LAST, repetitions(30, whole=4)))
async def test_a_gang_whose_owner_vanishes_with_the_leader_gives_every_slot_back(system, hub, step):
    first, killer = await two_coordinators(system, hub, step)
    killer.arm(first)
    asked = asyncio.create_task(system.owner.acquire(pool="train", size=4, ttl_s=3))
    await asyncio.sleep(1)
    asked.cancel()
    await asyncio.wait([asked])
    await asyncio.sleep(20)
    assert system.slots_in_use == 0, killer.steps
    again = await system.insist("acquire", {"pool": "train", "size": 4}, timeout_s=2.0)
    assert again["state"] == "formed"
    members = {entry.key for entry in await system.ledger.entries("member.>")}
    assert members == {f"member.train.w{number}.{again['id']}" for number in (0, 1)}
    await system.owner.release(again)


@pytest.mark.parametrize("step", range(1, LAST, repetitions(30, whole=4)))
async def test_a_leader_that_dies_during_a_teardown_and_restart_finishes_neither_twice(system, hub, step):
    first, killer = await two_coordinators(system, hub, step)
    owned = {"id": "mine", "owner_token": "token"}
    await system.insist("acquire", {"pool": "train", "size": 4, "ttl_s": 60, "backoff_s": 0, **owned}, timeout_s=2.0)
    killer.arm(first)
    report = {"gang": "mine", "generation": 1, "rank": 1, "cause": "crashed"}
    await system.insist("report", report, timeout_s=2.0)
    async with asyncio.timeout(30):
        while True:
            found = await system.insist("get", {"id": "mine"}, timeout_s=2.0)
            if (found["state"], found["generation"]) == ("formed", 2):
                break
            if found["generation"] == 1 and killer.struck:
                # As the worker would: the leader died before it wrote.
                await system.insist("report", report, timeout_s=2.0)
            await asyncio.sleep(0.2)
    assert system.slots_in_use == 4
    await asyncio.sleep(8)
    assert (await system.insist("get", {"id": "mine"}, timeout_s=2.0))["generation"] == 2, killer.steps
    await system.insist("release", owned, timeout_s=2.0)
    await until(lambda: system.slots_in_use == 0, within_s=5)
