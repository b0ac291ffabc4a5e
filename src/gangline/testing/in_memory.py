"""`cluster`: workers and a client in one process, without a server, for tests of your own tasks."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from ..bus.memory.server import MemoryServer
from ..coordinator.service import Coordinator
from ..dispatcher.client.client import Client
from ..dispatcher.durable.policies.settings import DispatcherSettings
from ..dispatcher.durable.service import Dispatcher
from ..dispatcher.routing.settings import RouterSettings
from ..runtime.clock import Environment
from ..schemas.errors.base import ClosedError, InvalidSettings
from ..schemas.names import Names
from ..worker.ledger.settings import WorkerSettings
from ..worker.pool.pool import Pool
from ..worker.service import Worker


class Cluster:
    """Made by `cluster`. Entering it gives the client; the rest of it can be reached from here.

    Attributes:
        hub: the server in memory; `hub.stop()`, `hub.disconnect(...)` and others play accidents.
        workers: by `<pool>.<worker>`, from entering on.
        dispatchers: the one asked for, and those that were added.
        names: subjects and keys, for what you want to ask of `hub` directly.
    """

    def __init__(
        self,
        pools: tuple[Pool, ...],
        *,
        workers: int,
        coordinator: bool,
        dispatcher: bool,
        namespace: str,
        worker_settings: WorkerSettings | None,
        router_settings: RouterSettings | None,
        dispatcher_settings: DispatcherSettings | None,
        ambient: Environment | None,
    ) -> None:
        if workers < 0:
            raise InvalidSettings(f"workers is {workers}: give the number of workers of each pool, 0 or more")
        self.names = Names(namespace)
        self.hub = MemoryServer(ambient=ambient)
        self.workers: dict[str, Worker] = {}
        self.dispatchers: list[Dispatcher] = []
        self._pools = pools
        self._count = workers
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._worker_settings = worker_settings or WorkerSettings()
        self._router_settings = router_settings
        self._dispatcher_settings = dispatcher_settings
        self._ambient = ambient
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()
        self._entered = False

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(self.workers) or 'without workers'}>"

    async def add_worker(self, pool: Pool, settings: WorkerSettings | None = None) -> Worker:
        """Start one more worker; it is stopped with the cluster, unless it has left before.

        Args:
            pool: what it serves.
            settings: instead of the cluster's; its `id` is kept if it has one.
        """
        settings = settings or self._worker_settings
        if settings.id is None:
            settings = replace(settings, id=f"w{next(self._numbers)}")
        bus = self.hub.connect(f"worker-{pool.name}-{settings.id}")
        self._stack.push_async_callback(bus.close)
        worker = Worker(pool, bus=bus, names=self.names, settings=settings, ambient=self._ambient)
        await self._stack.enter_async_context(worker)
        self.workers[str(worker.id)] = worker
        return worker

    async def add_dispatcher(self, settings: DispatcherSettings | None = None) -> Dispatcher:
        """Start one more dispatcher of submitted tasks; it is stopped with the cluster.

        Args:
            settings: instead of the cluster's.
        """
        bus = self.hub.connect(f"dispatcher-{len(self.dispatchers) + 1}")
        self._stack.push_async_callback(bus.close)
        settings = settings or self._dispatcher_settings
        dispatcher = Dispatcher(bus, names=self.names, settings=settings, ambient=self._ambient)
        self.dispatchers.append(await self._stack.enter_async_context(dispatcher))
        return dispatcher

    async def __aenter__(self) -> Client:
        if self._entered:
            raise ClosedError("this cluster was used before: make a new one")
        self._entered = True
        try:
            if self._coordinator:
                await self._start_coordinator()
            for pool in self._pools:
                for _ in range(self._count):
                    await self.add_worker(pool)
            if self._dispatcher:
                await self.add_dispatcher()
            bus = self.hub.connect("client")
            self._stack.push_async_callback(bus.close)
            client = Client(bus, names=self.names, settings=self._router_settings, ambient=self._ambient)
            return await self._stack.enter_async_context(client)
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start_coordinator(self) -> None:
        bus = self.hub.connect("coordinator")
        self._stack.push_async_callback(bus.close)
        coordinator = Coordinator(bus=bus, names=self.names, ambient=self._ambient)
        await self._stack.enter_async_context(coordinator)
        await coordinator.wait_leading()


def cluster(
    pool: Pool,
    *pools: Pool,
    workers: int = 1,
    coordinator: bool = False,
    dispatcher: bool = False,
    namespace: str = "gangline",
    worker_settings: WorkerSettings | None = None,
    router_settings: RouterSettings | None = None,
    dispatcher_settings: DispatcherSettings | None = None,
    ambient: Environment | None = None,
) -> Cluster:
    """Workers and a client in one process, over a server in memory: the same code as in production, no server needed.

    ::

        async def test_thumbnails():
            async with cluster(pool, workers=2) as client:
                assert await client.call("images.thumbnail", path="a.png") == {...}

    Works on any asyncio loop, with any pytest plugin. With `gangline.testing.VirtualLoop` sleeps, deadlines and leases
    take no time (`asyncio.Runner(loop_factory=VirtualLoop)`). To reach the workers or to play accidents, keep it::

        running = cluster(pool)
        async with running as client:
            running.hub.stop()

    Args:
        pool, pools: what is served.
        workers: how many workers of each pool; they are named `w1`, `w2`, ...
        coordinator: whether there is one, for gangs and standing sets.
        dispatcher: whether there is one, for submitted tasks.
        namespace: of subjects and keys; only matters to what looks at the bus directly.
        worker_settings: of each worker. Its `id` must be left open with more than one worker.
        router_settings: of the client.
        dispatcher_settings: of each dispatcher.
        ambient: wall clock, randomness and tokens, for tests that must repeat exactly.

    Leaving stops the client, the dispatchers, then the workers; what still runs is cancelled.

    Raises (on entering):
        InvalidSettings: a task cannot be served, or a setting is out of its bounds.
        WorkerIdTaken: `worker_settings` names one id for several workers.
    """
    return Cluster(
        (pool, *pools),
        workers=workers,
        coordinator=coordinator,
        dispatcher=dispatcher,
        namespace=namespace,
        worker_settings=worker_settings,
        router_settings=router_settings,
        dispatcher_settings=dispatcher_settings,
        ambient=ambient,
    )
