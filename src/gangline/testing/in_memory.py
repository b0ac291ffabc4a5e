"""`cluster`: workers and a client in one process, without a server, for tests of your own tasks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol, TypedDict, TypeVar, Unpack

from ..bus.memory.server import MemoryBus, MemoryServer
from ..bus.streams.history_recorder import HistorySettings
from ..coordinator.service import Coordinator
from ..coordinator.settings.settings import ServiceSettings
from ..dispatcher.client.client import Client
from ..dispatcher.durable.policies.settings import DispatcherSettings
from ..dispatcher.durable.service import Dispatcher
from ..dispatcher.routing.settings import RouterSettings
from ..runtime.clock import Environment
from ..schemas.errors.base import ClosedError, InvalidRequest, InvalidSettings
from ..schemas.names import Names
from ..worker.ledger.settings import WorkerSettings
from ..worker.pool.pool import Pool
from ..worker.service import Worker
from .loop import VirtualLoop, node_context

T = TypeVar("T")
_CLUSTERS: Final = itertools.count(1)
_NO_HISTORY: Final = HistorySettings(enabled=False)


class Service(Protocol):
    """A worker, a dispatcher or a coordinator."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Process:
    """One process of the cluster, as far as accidents go."""

    def __init__(self, name: str, node: str, bus: MemoryBus, service: Service | None) -> None:
        self.name = name
        self.node = node
        """Of the virtual loop; several clusters may share one."""
        self.bus = bus
        self.service = service
        self.killed = False


class Cluster:
    """Made by `cluster`. Entering it gives the client; the rest of it can be reached from here.

    `kill`, `freeze` and `cut` play accidents. They name a process: a worker `POOL.WORKER` (such as `words.w1`),
    `dispatcher-1`, `coordinator` or `client`.

    Attributes:
        hub: the server in memory; `hub.stop()`, `hub.disconnect(...)` and others play accidents of the server.
        workers: by `<pool>.<worker>`, from entering on.
        dispatchers: the one asked for, and those that were added.
        names: subjects and keys, for what you want to ask of `hub` directly.
    """

    def __init__(
        self,
        pools: tuple[Pool, ...],
        *,
        workers: int = 1,
        coordinator: bool = False,
        dispatcher: bool = False,
        namespace: str = "gangline",
        worker_settings: WorkerSettings | None = None,
        router_settings: RouterSettings | None = None,
        dispatcher_settings: DispatcherSettings | None = None,
        ambient: Environment | None = None,
    ) -> None:
        if workers < 0:
            raise InvalidSettings(f"workers is {workers}: give the number of workers of each pool, 0 or more")
        self.names = Names(namespace)
        self._ambient = ambient or Environment(wall=_WallClock())
        self.hub = MemoryServer(ambient=self._ambient)
        self.workers: dict[str, Worker] = {}
        self.dispatchers: list[Dispatcher] = []
        self._pools = pools
        self._count = workers
        self._coordinator = coordinator
        self._dispatcher = dispatcher
        self._worker_settings = worker_settings or WorkerSettings()
        self._router_settings = router_settings
        self._dispatcher_settings = dispatcher_settings
        self._processes: dict[str, _Process] = {}
        self._number = next(_CLUSTERS)
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
        settings = replace(
            settings, id=settings.id or f"w{next(self._numbers)}", history=settings.history or _NO_HISTORY
        )
        bus = self.hub.connect(f"worker-{pool.name}-{settings.id}")
        worker = Worker(pool, bus=bus, names=self.names, settings=settings, ambient=self._ambient)
        await self._run(str(worker.id), bus, worker)
        self.workers[str(worker.id)] = worker
        return worker

    async def add_dispatcher(self, settings: DispatcherSettings | None = None) -> Dispatcher:
        """Start one more dispatcher of submitted tasks; it is stopped with the cluster.

        Args:
            settings: instead of the cluster's.
        """
        name = f"dispatcher-{len(self.dispatchers) + 1}"
        bus = self.hub.connect(name)
        settings = settings or self._dispatcher_settings or DispatcherSettings()
        settings = replace(settings, history=settings.history or _NO_HISTORY)
        dispatcher = Dispatcher(bus, names=self.names, settings=settings, ambient=self._ambient)
        await self._run(name, bus, dispatcher)
        self.dispatchers.append(dispatcher)
        return dispatcher

    # -- accidents ------------------------------------------------------------------------------------------------

    async def kill(self, process: str) -> None:
        """End a process as SIGKILL does: its connection is gone, nobody is told, and what it ran is lost.

        On virtual time nothing of it runs any more, not even a `finally`. On a real loop its tasks are cancelled.

        Raises:
            InvalidRequest: there is no such process.
        """
        killed = self._process(process)
        if killed.killed:
            return
        self.thaw(process)
        killed.killed = True
        self.hub.kill(killed.bus)
        self.workers.pop(process, None)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.crash(killed.node)
        elif isinstance(killed.service, Worker):
            await killed.service.abort()

    def freeze(self, process: str) -> None:
        """Stop a process as SIGSTOP does, until `thaw`: nobody hears of it, and its messages wait.

        On a real loop only its messages wait; its code runs on.

        Raises:
            InvalidRequest: there is no such process.
        """
        frozen = self._process(process)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.freeze(frozen.node)
        else:
            self.hub.partition(frozen.bus)

    def thaw(self, process: str) -> None:
        """Let a frozen process go on. Idempotent.

        Raises:
            InvalidRequest: there is no such process.
        """
        frozen = self._process(process)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.thaw(frozen.node)
        else:
            self.hub.heal(frozen.bus)

    def cut(self, process: str) -> None:
        """Cut the connection of a process, until `restore`: it knows, and tries to reconnect.

        Raises:
            InvalidRequest: there is no such process.
        """
        self.hub.disconnect(self._process(process).bus)

    def restore(self, process: str) -> None:
        """Restore a connection that was cut. Idempotent.

        Raises:
            InvalidRequest: there is no such process.
        """
        self.hub.reconnect(self._process(process).bus)

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass: what is due meanwhile happens, and no time passes on the clock on the wall.

        Raises:
            InvalidRequest: the test does not run on virtual time.
        """
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):
            raise InvalidRequest(
                "advance needs virtual time: @pytest.mark.gangline(virtual_time=True), or "
                "asyncio.Runner(loop_factory=gangline.testing.VirtualLoop)"
            )
        await asyncio.sleep(seconds)

    def _process(self, name: str) -> _Process:
        found = self._processes.get(name)
        if found is None:
            known = ", ".join(self._processes) or "none: the cluster was not entered"
            raise InvalidRequest(f"there is no process {name!r} in this cluster; there are: {known}")
        return found

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
            self._processes["client"] = _Process("client", self._node("client"), bus, None)
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
        coordinator = Coordinator(
            bus=bus, names=self.names, shell=ServiceSettings(history=_NO_HISTORY), ambient=self._ambient
        )
        await self._run("coordinator", bus, coordinator)
        await coordinator.wait_leading()

    def _node(self, name: str) -> str:
        return f"{name} of cluster {self._number}"

    async def _run(self, name: str, bus: MemoryBus, service: Service) -> None:
        """Start a service as a process of its own, and stop it with the cluster."""
        process = _Process(name, self._node(name), bus, service)
        self._stack.push_async_callback(self._stop, process)
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):
            await service.__aenter__()
        else:
            # All that comes of this task can be frozen or dropped.
            await asyncio.get_running_loop().create_task(
                _awaited(service.__aenter__), context=node_context(process.node)
            )
        self._processes[name] = process

    async def _stop(self, process: _Process) -> None:
        if process.killed and isinstance(asyncio.get_running_loop(), VirtualLoop):
            return  # nothing of it runs any more
        if process.name in self._processes:
            self.thaw(process.name)
            self.restore(process.name)
        if process.service is not None:
            await process.service.__aexit__(None, None, None)
        await process.bus.close()


async def _awaited(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


class _WallClock:
    """The system's; on virtual time it goes with that, from when it is first read."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __call__(self) -> float:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, VirtualLoop):
            return time.time()
        if self._began is None:
            self._began = time.time() - loop.true_time
        return self._began + loop.true_time


class ClusterOptions(TypedDict, total=False):
    """What `cluster` and `cluster_sync` take; `cluster` says what it means."""

    workers: int
    coordinator: bool
    dispatcher: bool
    namespace: str
    worker_settings: WorkerSettings | None
    router_settings: RouterSettings | None
    dispatcher_settings: DispatcherSettings | None
    ambient: Environment | None


def cluster(pool: Pool, *pools: Pool, **options: Unpack[ClusterOptions]) -> Cluster:
    """Workers and a client in one process, over a server in memory: the same code as in production, no server needed.

    ```python
    async def test_thumbnails():
        async with cluster(pool, workers=2) as client:
            assert await client.call("images.thumbnail", path="a.png") == {...}
    ```

    Works on any asyncio loop, with any pytest plugin. With `gangline.testing.VirtualLoop` sleeps, deadlines and leases
    take no time (`asyncio.Runner(loop_factory=VirtualLoop)`). To reach the workers or to play accidents, keep it:

    ```python
    running = cluster(pool)
    async with running as client:
        running.hub.stop()
    ```

    Args:
        pool: what is served.
        *pools: further pools.
        workers: how many workers of each pool, 1 by default; they are named `w1`, `w2`, ...
        coordinator: whether there is one, for gangs and standing sets.
        dispatcher: whether there is one, for submitted tasks. Without one they are stored and wait.
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
    return Cluster((pool, *pools), **options)
