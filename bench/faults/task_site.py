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

from bench.faults.crew import PATIENCE_S, Crew, Launch, Process
from bench.faults.notes import Note, read_notes
from bench.faults.trial import Trial
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, StorageUnavailable
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import Names

POOL = "bench.faults.work:pool"
SERVED = "work"


class TaskSite(Crew):
    """Created by `task_site`."""

    def __init__(self, launch: Launch, url: str, namespace: str, folder: Path, replicas: int) -> None:
        environment = {"NATS_URL": url, "GANGLINE_NAMESPACE": namespace}
        if replicas > 1:
            environment |= {"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": str(replicas)}
        super().__init__(launch, folder, environment)
        self.names = Names(namespace)
        self.workers: dict[int, Process] = {}
        """By process id."""
        self.dispatchers: dict[str, Process] = {}
        self.killed: list[int] = []
        """Process ids of workers that were killed."""
        self.bus: NatsBus
        self.client: Client
        self.streams: TaskStreams
        self._numbers = itertools.count(1)
        self._gate = folder / "gate"

    # -- processes ------------------------------------------------------------------------------------------------

    def worker(self, *arguments: str) -> Process:
        name = f"w{next(self._numbers)}"
        made = self.start(name, "gangline.cli", "worker", POOL, "--id", name, *arguments)
        self.workers[made.child.pid] = made
        return made

    def dispatcher(self) -> Process:
        name = f"d{next(self._numbers)}"
        self.dispatchers[name] = made = self.start(name, "gangline.cli", "dispatcher", "--log-format", "json")
        return made

    async def kill_worker(self, process: Process) -> float:
        """Returns when it was killed."""
        del self.workers[process.child.pid]
        self.killed.append(process.child.pid)
        at = time.monotonic()
        await self.kill(process)
        return at

    async def holder(self) -> Process:
        """The dispatcher that owns the queue."""
        found: list[Process] = []

        async def look() -> bool:
            with contextlib.suppress(GanglineError):
                names = [f'"{queue.dispatcher}"' for queue in await self.client.queues() if queue.endpoint == SERVED]
                for process in self.dispatchers.values():
                    log = process.log.read_text()
                    found.extend(process for name in names if name in log)
            return bool(found)

        await self.until(look, "a dispatcher has the queue")
        return found[0]

    async def kill_holder(self) -> float:
        process = await self.holder()
        del self.dispatchers[process.name]
        at = time.monotonic()
        await self.kill(process)
        return at

    async def served(self, count: int) -> None:
        """Wait until this many workers are alive."""

        async def live() -> bool:
            with contextlib.suppress(GanglineError):
                return len(await self.client.workers(SERVED)) >= count
            return False

        await self.until(live, f"{count} workers live", pause_s=0.05)

    # -- tasks ----------------------------------------------------------------------------------------------------

    async def squares(
        self, count: int, seconds: float, *, first: int = 0, held_from: int | None = None, key: str | None = None
    ) -> list[Job]:
        """Submit this many tasks; all are acknowledged when it returns.

        Args:
            first: the number of the first task.
            held_from: tasks from this index on do not end before `let_go`.
        """
        given = [
            {"folder": str(self.folder), "number": first + n, "seconds": seconds}
            | ({} if held_from is None or n < held_from else {"gate": str(self._gate)})
            for n in range(count)
        ]
        return await self.client.options(key=key).submit_many(f"{SERVED}.square", given)

    def let_go(self) -> None:
        """Let the held tasks end."""
        self._gate.touch()

    async def check_squares(
        self, jobs: Sequence[Job], *, first: int = 0, within_s: float = 2 * PATIENCE_S
    ) -> list[str]:
        """Wrong results, when all tasks have ended (or the time is over)."""
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

    async def note_after(self, at: float, event: str = "start") -> float:
        """Time of the first such record after that time."""
        found: list[float] = []

        def look() -> bool:
            found.extend(note.at for note in self.notes() if note.event == event and note.at > at)
            return bool(found)

        await self.until(look, f"a task's {event}", pause_s=0.05)
        return found[0]

    async def run_some(self, count: int) -> None:
        """Wait until this many tasks have ended."""

        def ended() -> bool:
            return sum(note.event == "end" for note in self.notes()) >= count

        await self.until(ended, f"{count} tasks ended", pause_s=0.05)

    async def emptied(self) -> list[str]:
        """What is left in the task stream when all tasks have ended; waits for the last acknowledgements."""
        left = -1

        async def empty() -> bool:
            nonlocal left
            with contextlib.suppress(StorageUnavailable):  # a cluster that has just lost its leader
                stream = await self.streams.tasks()
                left = (await stream.state()).messages
            return left == 0

        try:
            await self.until(empty, "an empty stream", pause_s=0.05)
        except TimeoutError:
            return [f"{left} tasks are left in the stream, although all have ended"]
        return []


@asynccontextmanager
async def task_site(
    trial: Trial,
    *,
    workers: int = 4,
    dispatchers: int = 1,
    arguments: tuple[str, ...] = (),
    url: str = "",
    replicas: int = 1,
) -> AsyncIterator[TaskSite]:
    """A site with processes that serve and dispatch.

    Args:
        arguments: command-line arguments of every worker.
        url: servers to use instead of the trial's; they may be killed.
        replicas: number of replicas of the streams, in a cluster.
    """
    folder = Path(tempfile.mkdtemp(prefix="gangline-faults-"))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = url or trial.url
        if not url:
            url = (await stack.enter_async_context(EmbeddedServer())).url
        namespace = f"faults-{os.getpid()}-{secrets.token_hex(3)}"
        site = TaskSite(trial.launch, url, namespace, folder, replicas)
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
            site.dispatcher()
        for _ in range(workers):
            site.worker(*arguments)
        await site.served(workers)
        yield site
