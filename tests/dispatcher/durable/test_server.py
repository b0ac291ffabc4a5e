"""Durable tasks on a real nats-server: published as any client would, run by a real worker, the result read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from gangline.bus.jetstream import JetStreamBus
from gangline.bus.jetstream import connect as connect_bus
from gangline.bus.port import Bus
from gangline.bus.settings import ConnectionSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.durable.settings import DispatcherSettings
from gangline.dispatcher.durable.task_streams import TaskStorage, TaskStreams
from gangline.schemas.jobs import ResultRecord
from gangline.schemas.names import Names
from gangline.worker.pool import Pool
from gangline.worker.service import Worker
from gangline.worker.settings import WorkerSettings

pytestmark = pytest.mark.server


class System:
    """Dispatchers and workers on one server."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.buses: list[JetStreamBus] = []
        self.ends: list[Callable[[], Any]] = []

    async def bus(self, name: str) -> JetStreamBus:
        bus = await connect_bus(ConnectionSettings.from_url(self.url, reconnect_wait_s=0.05), name=name)
        self.buses.append(bus)
        return bus

    async def __aenter__(self) -> System:
        self.own: Bus = await self.bus("test")
        self.streams = TaskStreams(self.own, self.names, TaskStorage())
        return self

    async def worker(self, pool: Pool, name: str = "w1") -> Worker:
        worker = Worker(
            pool, bus=await self.bus(f"worker {name}"), names=self.names, settings=WorkerSettings(id=name)
        )
        await worker.start()
        self.ends.append(worker.stop)
        return worker

    async def dispatcher(self, **settings: Any) -> Dispatcher:
        made = Dispatcher(
            await self.bus("dispatcher"), names=self.names, settings=DispatcherSettings(**settings), tasks=TaskStorage()
        )
        await made.start()
        self.ends.append(made.stop)
        return made

    async def publish(self, target: str, body: Any = None, **headers: str) -> int:
        endpoint, _, method = target.partition(".")
        stream = await self.streams.tasks()
        data = b"" if body is None else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        published = await stream.publish(self.names.task(endpoint, method), data, headers=given or None)
        return published.sequence

    async def result(self, job: str | int) -> ResultRecord:
        results = await self.streams.results()
        async with asyncio.timeout(20):
            while (entry := await results.get(self.names.result_key(str(job)))) is None:
                await asyncio.sleep(0.01)
        return ResultRecord.model_validate_json(entry.value)

    async def empty(self) -> None:
        """Wait until nothing is in the stream of tasks."""
        stream = await self.streams.tasks()
        async with asyncio.timeout(20):
            while (await stream.state()).messages:
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        for end in reversed(self.ends):
            await end()
        for bus in self.buses:
            await bus.close()


@pytest.fixture
def system(nats_url: str, namespace: str) -> System:
    return System(nats_url, namespace)


def words(slots: int = 4) -> Pool:
    pool = Pool("words", slots=slots)

    @pool.task
    async def count(text: str) -> int:
        return len(text.split())

    return pool


async def test_what_is_published_runs_and_its_result_can_be_read(system: System) -> None:
    async with system:
        await system.worker(words())
        await system.dispatcher()
        job = await system.publish("words.count", {"text": "a b c"})
        record = await system.result(job)
        assert (record.state, record.result, record.attempts, record.worker) == ("done", 3, 1, "words.w1")
        await system.empty()
