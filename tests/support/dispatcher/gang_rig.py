"""A whole system in memory for the tests of gangs: a coordinator, workers, an owner."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.messages.gangs import MemberCause, MemberReport
from gangline.schemas.names import GangOperation, Names
from gangline.worker.context.task_context import current_task
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import until as until

PAIR: Final = {"pool": "train", "size": 2, "strategy": "spread"}
"""A gang of two workers."""


class Probe:
    """What tasks of the pool did, and what they are told to do."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []
        """Generation and rank of each start of `wait`."""
        self.stopped: list[tuple[int, int]] = []
        self.go = asyncio.Event()


def pool_of(probe: Probe, name: str = "train", slots: int = 2) -> Pool:
    pool = Pool(name, slots=slots)

    @pool.task
    async def who(word: str = "") -> list[Any]:
        gang = current_task().gang
        return [gang.rank, gang.world_size, gang.generation, word]

    @pool.task
    async def wait(rank: int | None = None) -> str:
        gang = current_task().gang
        probe.started.append((gang.generation, gang.rank))
        try:
            if rank is None or gang.rank == rank:
                await probe.go.wait()
        finally:
            probe.stopped.append((gang.generation, gang.rank))
        return f"{gang.generation}.{gang.rank}"

    @pool.task
    async def fail_on(rank: int) -> int:
        gang = current_task().gang
        if gang.rank == rank:
            raise ValueError(f"rank {rank} has no luck")
        await asyncio.sleep(1000)
        return rank

    @pool.task
    async def run_of() -> int:
        return current_task().gang.run

    @pool.task
    async def gather(value: Any) -> list[Any]:
        gang = current_task().gang
        await gang.barrier()
        return await gang.all_gather([gang.rank, value])

    @pool.task(idempotent=True)
    async def slow(seconds: float) -> list[Any]:
        gang = current_task().gang
        probe.started.append((gang.generation, gang.rank))
        await asyncio.sleep(seconds)
        return [gang.id, gang.rank]

    @pool.task
    async def once(seconds: float) -> list[Any]:
        gang = current_task().gang
        probe.started.append((gang.generation, gang.rank))
        await asyncio.sleep(seconds)
        return [gang.id, gang.rank]

    @pool.task
    async def count(to: int) -> Any:
        for number in range(to):
            yield [current_task().gang.rank, number]

    return pool


class Load:
    """Callers of a task that never stop; entered as a context."""

    def __init__(self, rig: GangRig, target: str, *arguments: Any, callers: int = 1, pause_s: float = 0.0) -> None:
        self.results: list[Any] = []
        self.errors: list[GanglineError] = []
        self.slowest_s = 0.0
        self._client = rig.client.options(timeout_s=30)
        self._call = (target, *arguments)
        self._callers, self._pause_s = callers, pause_s
        self._tasks: list[asyncio.Task[None]] = []

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_at = loop.time()
            try:
                self.results.append(await self._client.call(*self._call))
            except GanglineError as error:
                self.errors.append(error)
                await asyncio.sleep(0.01)
            self.slowest_s = max(self.slowest_s, loop.time() - began_at)
            await asyncio.sleep(self._pause_s)

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._go_on()) for _ in range(self._callers)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


class GangRig:
    """Created and entered by `on_gang_rig`."""

    def __init__(self, **settings: Any) -> None:
        self.hub = MemoryServer()
        self.names = Names("test")
        self.probe = Probe()
        self.pool = pool_of(self.probe)
        """Served by every worker that is given no other: to describe its tasks takes longer than to start one."""
        self.workers: dict[str, Worker] = {}
        self.buses: dict[str, Any] = {}
        self.killed: set[str] = set()
        self.coordinator: Coordinator | None = None
        self.bus = self.hub.connect("client")
        self.client = Client(
            self.bus, names=self.names, settings=RouterSettings(**{"node": "", "zone": "", **settings})
        )

    async def start(self) -> None:
        await self.start_coordinator()
        await self.client.start()

    async def start_coordinator(self, name: str = "coordinator") -> Coordinator:
        bus = self.hub.connect(name)
        self.buses[name] = bus
        self.coordinator = Coordinator(bus=bus, names=self.names)
        await self.coordinator.start()
        await self.coordinator.wait_leading()
        return self.coordinator

    async def worker(self, name: str, pool: Pool | None = None, **settings: Any) -> Worker:
        pool = pool or self.pool
        bus = self.hub.connect(name)
        self.buses[name] = bus
        worker = Worker(pool, bus=bus, names=self.names, settings=WorkerSettings(id=name, **settings))
        await worker.start()
        self.workers[name] = worker
        coordinator = self.coordinator
        if coordinator is not None:
            await until(lambda: coordinator.statistics().workers == len(self.workers))
        return worker

    async def declare(self, name: str, **fields: Any) -> None:
        """Write a standing set as `nats kv put` would; without `fields`, delete it."""
        bucket = await self.bus.bucket(self.names.ledger_bucket, BucketSettings())
        if fields:
            await bucket.put(self.names.gangset_key(name), json.dumps(fields).encode())
        else:
            await bucket.delete(self.names.gangset_key(name))

    def gangs(self, name: str) -> list[str]:
        """Gangs of a set that the client may send to."""
        routed = self.client.router.sets._sets.get(name)
        if routed is None:
            return []
        return [worker.id.worker for worker in routed.pool.core.view.workers.values() if worker.eligible]

    async def stand(self, name: str, gangs: int, **fields: Any) -> None:
        """Declare a set, and wait until the client knows so many gangs of it."""
        await self.declare(name, gangs=gangs, **fields)
        await self.ready(name, gangs, **fields)

    async def ready(self, name: str, gangs: int, route: str | None = None, **_: Any) -> None:
        coordinator, sets = self.coordinator, self.client.router.sets
        await until(lambda: coordinator is not None and coordinator.statistics().gangs.get("formed") == gangs)
        await sets.find(name, None)
        await until(lambda: len(self.gangs(name)) == gangs and route in (None, sets._sets[name].record.route.value))

    async def report(self, gang: str, rank: int, generation: int = 1) -> None:
        """Say that a member failed, as its worker would: the generation is torn down."""
        said = MemberReport(
            gang=gang, generation=generation, rank=rank, cause=MemberCause.FAILED, detail="for the test"
        )
        await self.bus.request(self.names.gang(GangOperation.REPORT), said.model_dump_json().encode(), timeout_s=5)

    async def settled(self, name: str, client: Client | None = None) -> None:
        """Nothing of a set is held or placed any more, at the router and at the workers."""
        router = (client or self.client).router
        core = router.sets._sets[name].pool.core
        core.check()
        assert core.placed == 0 and core.waiting == 0, core
        assert all(worker.own == 0 for worker in core.view.workers.values())
        assert router.metrics.statistics()["reserved_slots"] == 0
        assert router.statistics()["holds"] == 0
        workers = [worker.core for known, worker in self.workers.items() if known not in self.killed]
        for worker_core in workers:
            worker_core.check()
        await until(lambda: not any(core.load.running or any(s.busy for s in core.leases.values()) for core in workers))
        await until(lambda: self.subleases() == 0)

    def subleases(self) -> int:
        """Slots that are held of seats now, on all workers that live."""
        workers = [worker.core for known, worker in self.workers.items() if known not in self.killed]
        return sum(sub.slots for core in workers for lease in core.leases.values() for sub in lease.subleases)

    def cut(self, name: str) -> None:
        """Remove that process, as after SIGKILL."""
        self.killed.add(name)
        self.hub.kill(self.buses[name])

    async def stop(self) -> None:
        """The workers like a crash: to leave in order, one after the other, would tear gangs down and form others."""
        await self.client.close()
        if self.coordinator is not None:
            await self.coordinator.stop()
        for worker in self.workers.values():
            await worker.abort()
        for bus in self.buses.values():
            await bus.close()

    def free(self, name: str) -> int:
        return self.workers[name].core.load.free


def on_gang_rig(
    *workers: str, **settings: Any
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., Coroutine[Any, Any, None]]]:
    """Pass a running GangRig with these workers (of 2 slots each) to a test as its first argument, before
    parameters. In the end nothing of any set is held."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        async def run(**parameters: Any) -> None:
            rig = GangRig(**settings)
            await rig.start()
            try:
                for name in workers:
                    await rig.worker(name)
                await test(rig, **parameters)
                for name in rig.client.router.sets.statistics():
                    await rig.settled(name)
            finally:
                await rig.stop()

        functools.update_wrapper(run, test)
        # Otherwise pytest would treat `rig` as a fixture.
        others = list(inspect.signature(test).parameters.values())[1:]
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return run

    return decorate
