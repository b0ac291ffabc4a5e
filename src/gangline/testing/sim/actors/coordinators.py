"""Simulated coordinators, and the operator that declares standing sets."""

from __future__ import annotations

import asyncio
import contextlib

from ....bus.memory.server import MemoryBus
from ....bus.port.bus import BucketSettings, KeyValue
from ....bus.streams.history_recorder import HistorySettings
from ....coordinator.service import Coordinator, CoordinatorState
from ....coordinator.settings.settings import CoordinatorSettings, ServiceSettings
from ....schemas.errors.base import GanglineError
from ....schemas.names import Names, WorkerId
from ..plan.gang_plan import SetStep
from ..plan.plan import WorkerPlan
from ..stage.stage import Stage
from .processes import Process

LOOK_S = 0.5
_RETRY_S = 0.2
_LOOK_AGAIN_S = 1.0
_LOOKS = 3
_NEVER = 10**15
"""A revision that no key has."""


class CoordinatorProcess(Process):
    """A coordinator with one name; its processes run one after another."""

    def __init__(self, world: Stage, name: str, starve_after_s: float) -> None:
        super().__init__(world, name)
        self.coordinator: Coordinator | None = None
        self._starve_after_s = starve_after_s
        self._leads_since: float | None = None

    async def _main(self, bus: MemoryBus) -> None:
        world, node = self.world, self.node
        coordinator = Coordinator(
            bus=bus,
            names=world.names,
            settings=CoordinatorSettings(starve_after_s=self._starve_after_s),
            shell=ServiceSettings(node=f"host-{self.name}", history=HistorySettings(enabled=False)),
            ambient=world.ambient(node),
        )
        world.instances[node] = coordinator.instance
        self.coordinator = coordinator
        await coordinator.start()
        world.trace.note(node, "stands by")
        await coordinator.wait_closed()

    @property
    def leads(self) -> bool:
        return self.coordinator is not None and self.coordinator.state is CoordinatorState.LEADING

    @property
    def gangs(self) -> int:
        """Number of gangs that it knows."""
        return 0 if self.coordinator is None else int(self.coordinator.statistics().gangs.get("gangs", 0))

    def look(self) -> None:
        """Check how long requests wait in its queue, unless it has a fault."""
        world, now = self.world, self.world.now()
        if not self.leads or self.frozen or (self.bus is not None and not self.bus.connected):
            self._leads_since = None
            return
        affected = world.troubles.affected(self.name, now - LOOK_S) or world.troubles.delayed(now - LOOK_S)
        if self._leads_since is None or affected:
            self._leads_since = now
        assert self.coordinator is not None and self.coordinator.term is not None
        world.gangs.look_at_queue(self.coordinator.term.core.gangs(), since=self._leads_since)

    def kill(self) -> None:
        self.coordinator = None
        self._leads_since = None
        super().kill()


class Operator:
    """Declares sets over its own connection, and retries failed writes."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._declared: dict[str, SetStep] = {}
        self._bus: MemoryBus | None = None

    @property
    def sets(self) -> list[str]:
        """Sets that are declared now."""
        return [name for name, step in self._declared.items() if step.record is not None]

    @property
    def declared(self) -> list[SetStep]:
        """The latest declaration of each set."""
        return list(self._declared.values())

    @property
    def wanted(self) -> dict[str, int]:
        """The declared number of gangs, by set."""
        return {name: step.gangs for name, step in self._declared.items()}

    def declare(self, step: SetStep) -> None:
        """Replace the declaration of a set."""
        self._declared[step.name] = step
        self._world.loop.spawn("operator", self._write(step), name=f"declare {step.name}")

    def again(self) -> None:
        """Write all declarations again: a restarted server may have lost them."""
        for step in list(self._declared.values()):
            self.declare(step)

    def delete_all(self) -> None:
        """Withdraw all sets."""
        for name in self.sets:
            self.declare(SetStep(at_s=0.0, name=name, gangs=0, record=None))

    def delete_in_vain(self, plan: WorkerPlan) -> None:
        """Try to delete a worker's keys with a condition that is not met."""
        worker = WorkerId(plan.pool, plan.name)
        keys = (self._world.names.alive_key(worker), self._world.names.registration_key(worker))
        self._world.loop.spawn("operator", self._delete_in_vain(keys), name=f"refused deletion of {worker}")

    async def _delete_in_vain(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            with contextlib.suppress(GanglineError):
                await (await self._ledger()).delete(key, revision=_NEVER)

    async def _ledger(self) -> KeyValue:
        if self._bus is None:
            self._bus = self._world.hub.connect("operator")
        return await self._bus.bucket(self._world.names.ledger_bucket, BucketSettings())

    async def _write(self, step: SetStep) -> None:
        """Write until it has lasted for a moment: a leader whose server has lost its memory writes the old declaration
        again, until it has marked the ledger as complete, and may overwrite this one."""
        world, key = self._world, Names.gangset_key(step.name)
        stood = 0
        while self._declared[step.name] is step and stood < _LOOKS:
            try:
                kv = await self._ledger()
                found = await kv.get(key)
                stood += await kv.get(Names.complete_key) is not None
                if (None if found is None else found.value.decode()) != step.record:
                    stood = 0
                    world.trace.note("operator", f"{step.name} is declared: {step.record}")
                    if step.record is None:
                        await kv.delete(key)
                    else:
                        await kv.put(key, step.record.encode())
            except GanglineError as error:
                world.trace.note("operator", f"{step.name} was not declared: {error.code}")
                await asyncio.sleep(_RETRY_S)
            else:
                await asyncio.sleep(_LOOK_AGAIN_S)
