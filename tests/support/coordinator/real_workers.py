"""Coordinators and real workers on a real server."""

from __future__ import annotations

from typing import Any

from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.coordinator.service import Coordinator
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from .rig import CoordinatorSystem


class RealWorkersSystem(CoordinatorSystem):
    """With real workers, and a connection of its own for each service."""

    def __init__(self, url: str, namespace: str) -> None:
        # A watch that waits longer for a dead leader may miss deletions, which the server forgets after 10 s.
        self.settings = ConnectionSettings.from_url(url, reconnect_wait_s=0.05, storage_timeout_s=5.0)
        super().__init__(self._open_bus, Names(namespace))
        self.served: list[Worker] = []

    async def _open_bus(self, name: str) -> NatsBus:
        return await connect_bus(self.settings, name=name)

    async def serve(self, name: str = "w1", pool: str = "train", *, slots: int = 4, **settings: Any) -> Worker:
        declared = Pool(pool, slots=slots)

        @declared.task
        async def double(x: int) -> int:
            return 2 * x

        made = Worker(
            declared,
            bus=await self.bus(f"worker {name}"),
            names=self.names,
            settings=WorkerSettings(**{"id": name, "bucket": self.bucket, **settings}),
        )
        self.served.append(made)
        await self.stack.enter_async_context(made)
        return made

    @property
    def slots_in_use(self) -> int:
        return sum(worker.core.load.ongoing for worker in self.served)


async def leading(system: CoordinatorSystem, name: str = "coordinator", **shard: Any) -> Coordinator:
    coordinator = await system.coordinator(name, **shard)
    await coordinator.wait_leading()
    return coordinator
