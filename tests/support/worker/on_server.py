"""A worker on a real nats-server, and what a test needs to drive and watch it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings, KeyValue
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import until
from .rig import Gates, Hand, make_pool


class WorkerOnServer:
    """One worker, one hand and one reader of the ledger, each on a connection of its own."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.gates = Gates()
        self.worker: Worker
        self.hand: Hand
        self.kv: KeyValue
        self._stack = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls, url: str, namespace: str, pool: Pool | None = None, *, slots: int = 2, **settings: Any
    ) -> AsyncIterator[Self]:
        """Without a pool, that of `make_pool` with so many slots."""
        rig = cls(url, namespace)
        async with rig._stack:
            rig.kv = await (await rig.connect("reader")).bucket(rig.names.ledger_bucket, BucketSettings())
            rig.worker = await rig.new_worker(pool or make_pool(rig.gates, slots), **settings)
            await rig.worker.start()
            rig.hand = await rig.new_hand()
            yield rig

    async def connect(self, name: str) -> Any:
        bus = await connect(ConnectionSettings.from_url(self.url), name=name)
        self._stack.push_async_callback(bus.close)
        return bus

    async def new_worker(self, pool: Pool | None = None, **settings: Any) -> Worker:
        worker = Worker(
            pool or make_pool(self.gates),
            bus=await self.connect("worker"),
            names=self.names,
            settings=WorkerSettings(**{"id": "w1", **settings}),
        )
        self._stack.push_async_callback(worker.stop)
        return worker

    async def new_hand(self, sender: str = "hand") -> Hand:
        return await Hand(await self.connect("router"), self.worker, sender).listen()

    async def keys(self, pattern: str = "lease.*.*.*") -> list[str]:
        return [entry.key for entry in await self.kv.entries(pattern)]

    def has_leases(self, count: int) -> Callable[[], Any]:
        async def look() -> bool:
            return len(await self.keys()) == count

        return look

    async def at_rest(self) -> bool:
        self.worker.core.check()
        return self.worker.core.at_rest and not await self.keys()

    @property
    def load(self) -> tuple[int, int]:
        """Running and reserved slots; the accounting is checked as well."""
        self.worker.core.check()
        return self.worker.core.load.running, self.worker.core.load.reserved

    async def until_load(self, running: int, reserved: int) -> None:
        await until(lambda: self.load == (running, reserved))
