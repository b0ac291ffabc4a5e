"""Dispatchers and workers as processes on a virtual loop, with an in-memory server (`Site`). Each may be killed or
frozen at any moment, and others started. Tasks record each start and end, so that double starts are found.
`ServerSite` has them on a real server."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import gangline
from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.bus.port.bus import NoResponders, RequestTimeout, Stream, StreamMessage
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.schemas.names import Names, QueueOperation
from gangline.schemas.records.jobs import ResultRecord
from gangline.schemas.wire import headers
from gangline.testing.loop import VirtualLoop
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import until
from ..dispatcher.server_rig import ServerRig

WALL = 1_700_000_000.0

Check = Callable[[], bool | Awaitable[bool]]


class Node:
    """One process: runs `main` until it is killed or `main` ends."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.name = name
        self.bus: MemoryBus = site.hub.connect(name)
        self.task: asyncio.Task[None] | None = None

    def run(self, main: Awaitable[None]) -> None:
        async def body() -> None:
            await main

        self.task = self.site.loop.spawn(self.name, body(), name=f"main of {self.name}")

    def kill(self) -> None:
        """Like SIGKILL: actions later in this turn have no effect either."""
        self.site.loop.crash(self.name)
        self.site.hub.kill(self.bus)

    def freeze(self) -> None:
        self.site.loop.freeze(self.name)

    def thaw(self) -> None:
        self.site.loop.thaw(self.name)


class DispatcherNode(Node):
    dispatcher: Dispatcher


class WorkerNode(Node):
    worker: Worker


async def is_empty(stream: Stream) -> bool:
    return (await stream.state()).messages == 0


class StoredTasks:
    """What stands in storage of submitted tasks."""

    names: Names
    streams: TaskStreams

    async def result(self, job: str) -> ResultRecord | None:
        results = await self.streams.results()
        entry = await results.get(self.names.result_key(job))
        return None if entry is None else ResultRecord.model_validate_json(entry.value)

    async def dead(self) -> list[StreamMessage]:
        stream, found, sequence = await self.streams.dead(), [], 1
        while (message := await stream.next(self.names.all_dead, sequence)) is not None:
            found.append(message)
            sequence = message.sequence + 1
        return found

    async def tries(self) -> list[str]:
        """Keys of recorded attempts."""
        return [entry.key for entry in await (await self.streams.results()).entries(self.names.tries_of())]

    async def eventually(self, check: Check, within_s: float = 60.0) -> None:
        """Wait until a condition holds."""
        raise NotImplementedError

    async def ended(self, job: str | int, within_s: float = 60.0) -> ResultRecord:
        """Wait for the end of a job."""
        found: list[ResultRecord] = []

        async def look() -> bool:
            record = await self.result(str(job))
            found.extend([] if record is None else [record])
            return bool(found)

        await self.eventually(look, within_s)
        return found[0]

    async def empty(self, within_s: float = 60.0) -> None:
        """Wait until the task stream is empty."""
        stream = await self.streams.tasks()
        await self.eventually(lambda: is_empty(stream), within_s)

    async def forgotten_tries(self, within_s: float = 60.0) -> None:
        """Wait until no attempt is recorded any more."""

        async def forgotten() -> bool:
            return not await self.tries()

        await self.eventually(forgotten, within_s)


class Site(StoredTasks):
    """See the module. `async with` shuts down everything that is still running."""

    def __init__(self, *, pool: str = "work", seed: int = 1, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.names = Names("site")
        self.hub = MemoryServer(ambient=self.ambient("hub", seed))
        self.settings = DispatcherSettings(**{"node": "n", "backoff_s": 0.5, **settings})
        self.pool = pool
        self.seed = seed
        self.starts: list[tuple[str, int, str, float]] = []
        """Job, attempt, worker, time."""
        self.fences: dict[str, list[int]] = {}
        """By job, in the order of starts."""
        self.ends: list[tuple[str, int, str, float]] = []
        self.dispatchers: list[DispatcherNode] = []
        self.workers: list[WorkerNode] = []
        self._numbers = itertools.count(1)
        self.own = self.hub.connect("test")
        self.streams = TaskStreams(self.own, self.names, TaskStorage())

    def ambient(self, name: str, seed: int) -> Environment:
        chance = random.Random(f"{name} {seed}")
        tokens = itertools.count(1)
        return Environment(
            wall=lambda: WALL + self.loop.time(),
            random=chance,
            token=lambda: f"{name}-{next(tokens)}-{chance.getrandbits(32):08x}",
        )

    # -- processes ------------------------------------------------------------------------------------------------

    def dispatcher(self, **settings: Any) -> DispatcherNode:
        """Start another dispatcher."""
        node = DispatcherNode(self, f"d{next(self._numbers)}")
        chosen = DispatcherSettings(**{**self._dict(), **settings})
        node.dispatcher = Dispatcher(
            node.bus, names=self.names, settings=chosen, tasks=TaskStorage(), ambient=self.ambient(node.name, self.seed)
        )

        async def main() -> None:
            await node.dispatcher.start()
            await node.dispatcher.wait_closed()

        node.run(main())
        self.dispatchers.append(node)
        return node

    async def serve(self, *, workers: int = 1, slots: int = 2, **settings: Any) -> DispatcherNode:
        """Start workers and a dispatcher, and wait until it owns the queue."""
        for _ in range(workers):
            self.worker(slots)
        self.dispatcher(**settings)
        return await self.taken()

    def _dict(self) -> dict[str, Any]:
        return {name: getattr(self.settings, name) for name in DispatcherSettings.__dataclass_fields__}

    def worker(self, slots: int = 2, *, pool: str | None = None) -> WorkerNode:
        """Start another worker."""
        name = f"w{next(self._numbers)}"
        node = WorkerNode(self, name)
        node.worker = Worker(
            self._tasks(pool or self.pool, name, slots),
            bus=node.bus,
            names=self.names,
            settings=WorkerSettings(id=name, node="n", send_tracebacks=False),
            ambient=self.ambient(name, self.seed),
        )

        async def main() -> None:
            await node.worker.start()
            await node.worker.wait_closed()

        node.run(main())
        self.workers.append(node)
        return node

    def _tasks(self, name: str, worker: str, slots: int) -> Pool:
        pool = Pool(name, slots=slots)

        def begin() -> gangline.TaskContext:
            task = gangline.current_task()
            assert task.job is not None
            self.starts.append((task.job, task.attempt, worker, self.loop.time()))
            self.fences.setdefault(task.job, []).append(task.fence)
            return task

        def end(task: gangline.TaskContext) -> None:
            assert task.job is not None
            self.ends.append((task.job, task.attempt, worker, self.loop.time()))

        @pool.task(idempotent=True)
        async def square(x: int, seconds: float = 0.0) -> int:
            task = begin()
            await asyncio.sleep(seconds)
            end(task)
            return x * x

        @pool.task(idempotent=True)
        async def fail(times: int) -> str:
            task = begin()
            await asyncio.sleep(0.01)
            end(task)
            if task.attempt <= times:
                raise ValueError(f"attempt {task.attempt}")
            return "at last"

        @pool.task(idempotent=True)
        async def items(count: int, pause_s: float = 0.0) -> AsyncIterator[int]:
            task = begin()
            for number in range(count):
                await asyncio.sleep(pause_s)
                yield number
            end(task)

        @pool.task
        async def root(x: float) -> float:
            """For calls."""
            return float(x**0.5)

        @pool.task(idempotent=True)
        async def large(size: int) -> str:
            task = begin()
            end(task)
            return "x" * size

        return pool

    # -- clients --------------------------------------------------------------------------------------------------

    def client(self) -> Client:
        """Connected while it is used with `async with`."""
        bus = self.hub.connect("client")
        return Client(bus, names=self.names, settings=RouterSettings(node="n"), owns_bus=True)

    async def running(self, method: str, body: Any = None, **given: str) -> str:
        """Publish a task and wait until it starts; returns its id."""
        job = await self.submit(method, body, **given)
        await self.eventually(lambda: bool(self.attempts(job)))
        return job

    async def remove_consumer(self) -> float:
        """Remove the consumer of the queue, as somebody may by mistake; when."""
        stream = await self.streams.tasks()
        (consumer,) = await stream.consumers()
        assert await stream.delete_consumer(consumer.name)
        return self.loop.time()

    async def submit(self, method: str, body: Any = None, *, endpoint: str | None = None, **given: str) -> str:
        """Publish a task; returns its id."""
        stream = await self.streams.tasks()
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in given.items()}
        subject = self.names.task(endpoint or self.pool, method)
        published = await stream.publish(subject, data, headers=named or None)
        return named.get("Gangline-Job", str(published.sequence))

    async def cancel(self, job: str) -> bool:
        """Whether a dispatcher accepted the cancellation."""
        subject = self.names.queue(self.pool, QueueOperation.CANCEL)
        try:
            answer = await self.own.request(subject, json.dumps({"job": job}).encode(), timeout_s=1.0)
        except (NoResponders, RequestTimeout):
            return False
        return not (answer.headers and headers.ERROR in answer.headers)

    async def eventually(self, check: Check, within_s: float = 60.0) -> None:
        """Wait until a condition holds, and look less often as time goes by: looking costs more than anything else."""
        began = self.loop.time()
        async with asyncio.timeout(within_s):
            while True:
                so = check()
                if so if isinstance(so, bool) else await so:
                    return
                await asyncio.sleep(min(0.5, max(0.02, 0.25 * (self.loop.time() - began))))

    # -- checks ---------------------------------------------------------------------------------------------------

    def twice(self) -> list[tuple[str, int]]:
        """Attempts that were started more than once."""
        counted = Counter((job, attempt) for job, attempt, _, _ in self.starts)
        return [try_ for try_, count in counted.items() if count > 1]

    def attempts(self, job: str) -> list[int]:
        return [attempt for each, attempt, _, _ in self.starts if each == job]

    def holder(self) -> DispatcherNode:
        """The dispatcher that owns the queue of the pool; a frozen one may believe that it does, too."""
        nodes = [node for node in self.living() if self.pool in node.dispatcher.queues]
        return max(nodes, key=lambda node: node.dispatcher.queues[self.pool].since)

    def living(self) -> list[DispatcherNode]:
        return [node for node in self.dispatchers if not self.loop.crashed(node.name)]

    async def taken(self, within_s: float = 60.0) -> DispatcherNode:
        """Wait until a dispatcher owns the queue and starts tasks."""
        await self.eventually(
            lambda: any(
                self.pool in node.dispatcher.queues and node.dispatcher.queues[self.pool].core.open
                for node in self.living()
            ),
            within_s,
        )
        return self.holder()

    # -- lifecycle ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Site:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.living():
            node.thaw()
            await self.loop.spawn(node.name, node.dispatcher.stop(), name="stop")
        for worker in self.workers:
            if not self.loop.crashed(worker.name):
                worker.thaw()
                await self.loop.spawn(worker.name, worker.worker.stop(), name="stop")
        for node in (*self.dispatchers, *self.workers):
            if not self.loop.crashed(node.name):
                if node.task is not None:
                    await node.task
                await node.bus.close()
        await self.own.close()


class ServerSite(ServerRig, StoredTasks):
    """Dispatchers and workers in this process, on a real server. `async with` stops them."""

    async def __aenter__(self) -> ServerSite:
        self.own = await self.bus("test")
        self.streams = TaskStreams(self.own, self.names, TaskStorage())
        return self

    async def dispatcher(self, **settings: Any) -> Dispatcher:
        bus, chosen = await self.bus("dispatcher"), DispatcherSettings(**settings)
        made = Dispatcher(bus, names=self.names, settings=chosen, tasks=TaskStorage())
        return await self.stack.enter_async_context(made)

    async def eventually(self, check: Check, within_s: float = 0.0) -> None:
        """A busy machine may need longer than anybody says."""
        await until(check)

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()


def simulate(story: Coroutine[Any, Any, None]) -> None:
    """Run a story on a loop of its own, on which killed processes may leave tasks behind."""
    loop = VirtualLoop(limit_s=86_400.0)
    try:
        loop.run_until_complete(loop.create_task(story, name="story"))
    finally:
        loop.close()


def simulated(**settings: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test as such a story. Its first argument is a `Site` of these settings and of the test's `seed`."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def story(given: dict[str, Any]) -> None:
            seed = {"seed": given["seed"]} if "seed" in given else {}
            async with Site(**settings, **seed) as site:
                await test(site, **given)

        @functools.wraps(test)
        def run(**given: Any) -> None:
            simulate(story(given))

        _, *parameters = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate
