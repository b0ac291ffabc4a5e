"""A nats-server, workers and dispatchers as processes, and a client that submits, for one scenario of durable tasks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.faults.crew import PATIENCE_S, Crew, Process
from bench.faults.notes import Note, read_notes
from gangline.bus.embedded import EmbeddedServer
from gangline.bus.jetstream import JetStreamBus
from gangline.bus.jetstream import connect as connect_bus
from gangline.bus.port import BucketSettings, StorageUnavailable
from gangline.bus.settings import ConnectionSettings
from gangline.dispatcher.client import Client
from gangline.dispatcher.durable.task_streams import TaskStorage, TaskStreams
from gangline.dispatcher.jobs import Job
from gangline.dispatcher.settings import RouterSettings
from gangline.schemas.errors import GanglineError
from gangline.schemas.names import Names

POOL = "bench.faults.work:pool"
SERVED = "work"


class TaskSite(Crew):
    """Made by `task_site`."""

    def __init__(self, url: str, namespace: str, folder: Path, replicas: int) -> None:
        environment = {"NATS_URL": url, "GANGLINE_NAMESPACE": namespace}
        if replicas > 1:
            environment |= {"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": str(replicas)}
        super().__init__(folder, environment)
        self.names = Names(namespace)
        self.workers: dict[int, Process] = {}
        """By process id."""
        self.dispatchers: dict[str, Process] = {}
        self.killed: list[int] = []
        """Process ids of workers that were killed."""
        self.bus: JetStreamBus
        self.client: Client
        self.streams: TaskStreams
        self._numbers = itertools.count(1)

    # -- processes ------------------------------------------------------------------------------------------------

    async def worker(self, *arguments: str) -> Process:
        name = f"w{next(self._numbers)}"
        made = await self.start(name, "gangline.cli", "worker", POOL, "--id", name, *arguments)
        self.workers[made.child.pid] = made
        return made

    async def dispatcher(self) -> Process:
        name = f"d{next(self._numbers)}"
        self.dispatchers[name] = made = await self.start(name, "gangline.cli", "dispatcher", "--log-format", "json")
        return made

    async def kill_worker(self, process: Process) -> float:
        """When it was killed."""
        del self.workers[process.child.pid]
        self.killed.append(process.child.pid)
        at = time.monotonic()
        await self.kill(process)
        return at

    async def holder(self) -> Process:
        """The dispatcher that has the queue."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(GanglineError):
                    for queue in await self.client.queues():
                        for process in self.dispatchers.values():
                            if queue.endpoint == SERVED and f'"{queue.dispatcher}"' in process.log.read_text():
                                return process
                await asyncio.sleep(0.02)

    async def kill_holder(self) -> float:
        process = await self.holder()
        del self.dispatchers[process.name]
        at = time.monotonic()
        await self.kill(process)
        return at

    async def served(self, count: int) -> None:
        """Until so many workers live."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(GanglineError):
                    if len(await self.client.workers(SERVED)) >= count:
                        return
                await asyncio.sleep(0.05)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def squares(self, count: int, seconds: float, first: int = 0) -> list[Job]:
        """Submit so many tasks; all are acknowledged when it returns."""
        given = [{"folder": str(self.folder), "number": first + n, "seconds": seconds} for n in range(count)]
        return await self.client.submit_many(f"{SERVED}.square", given)

    async def check_squares(self, jobs: Sequence[Job], first: int = 0, within_s: float = 120.0) -> list[str]:
        """What is wrong with their results, when all have ended (or the time is over)."""
        wrong: list[str] = []

        async def one(number: int, job: Job) -> None:
            try:
                result = await job.result(timeout_s=within_s)
            except GanglineError as error:
                wrong.append(f"L10: {job.id} (number {number}) ended with {error!r}")
            else:
                if result != number * number:
                    wrong.append(f"{job.id}: the result of {number} is {result}")

        await asyncio.gather(*(one(first + place, job) for place, job in enumerate(jobs)))
        return wrong

    def notes(self) -> list[Note]:
        return read_notes(self.folder)

    async def note_after(self, at: float, event: str = "start", within_s: float = PATIENCE_S) -> float:
        """When the first such note after that time was written."""
        async with asyncio.timeout(within_s):
            while True:
                for note in self.notes():
                    if note.event == event and note.at > at:
                        return note.at
                await asyncio.sleep(0.02)

    async def run_some(self, count: int) -> None:
        """Until so many tasks have ended."""
        await self.until(lambda: sum(note.event == "end" for note in self.notes()) >= count, f"{count} tasks ended")

    async def emptied(self) -> list[str]:
        """What is left in the stream of tasks when all have ended; waits for the last acknowledgements."""
        left = -1
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(100):
                with contextlib.suppress(StorageUnavailable):  # a cluster that lost its leader a moment ago
                    stream = await self.streams.tasks()
                    left = (await stream.state()).messages
                    if left == 0:
                        return []
                await asyncio.sleep(0.05)
        return [f"{left} tasks are left in the stream, although all have ended"]


@asynccontextmanager
async def task_site(
    *, workers: int = 4, dispatchers: int = 1, arguments: tuple[str, ...] = (), url: str = "", replicas: int = 1
) -> AsyncIterator[TaskSite]:
    """A site with processes that serve and dispatch.

    Args:
        arguments: of every worker.
        url: servers of one's own, that may be killed; else an embedded one.
        replicas: of the streams, with servers of a cluster.
    """
    folder = Path(tempfile.mkdtemp(prefix="gangline-faults-"))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if not url:
            url = (await stack.enter_async_context(EmbeddedServer())).url
        namespace = f"faults-{os.getpid()}-{secrets.token_hex(3)}"
        site = TaskSite(url, namespace, folder, replicas)
        stack.push_async_callback(site.close)
        settings = ConnectionSettings.from_url(url, reconnect_wait_s=0.05)
        site.bus = await connect_bus(settings, name="producer")
        ledger = BucketSettings.from_environment(
            {"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": str(replicas)} if replicas > 1 else {}
        )
        storage = TaskStorage(replicas=replicas)
        site.streams = TaskStreams(site.bus, site.names, storage)
        site.client = Client(
            site.bus,
            names=site.names,
            settings=RouterSettings(node="", zone=""),
            bucket=ledger,
            tasks=storage,
            owns_bus=True,
        )
        await stack.enter_async_context(site.client)
        for _ in range(dispatchers):
            await site.dispatcher()
        await asyncio.gather(*(site.worker(*arguments) for _ in range(workers)))
        await site.served(workers)
        yield site
