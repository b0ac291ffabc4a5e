"""A worker on a real nats-server, and what a test needs to drive and watch it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import until
from .rig import Hand


class WorkerOnServer:
    """One worker and one hand, each on a connection of its own."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.worker: Worker
        self.hand: Hand
        self._stack = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, url: str, namespace: str, pool: Pool) -> AsyncIterator[Self]:
        rig = cls(url, namespace)
        async with rig._stack:
            bus = await rig.connect("worker")
            rig.worker = Worker(pool, bus=bus, names=rig.names, settings=WorkerSettings(id="w1"))
            rig._stack.push_async_callback(rig.worker.stop)
            await rig.worker.start()
            rig.hand = await Hand(await rig.connect("router"), rig.worker).listen()
            yield rig

    async def connect(self, name: str) -> Any:
        bus = await connect(ConnectionSettings.from_url(self.url), name=name)
        self._stack.push_async_callback(bus.close)
        return bus

    @property
    def load(self) -> tuple[int, int]:
        """Running and reserved slots; the accounting is checked as well."""
        self.worker.core.check()
        return self.worker.core.load.running, self.worker.core.load.reserved

    async def until_load(self, running: int, reserved: int) -> None:
        await until(lambda: self.load == (running, reserved))
