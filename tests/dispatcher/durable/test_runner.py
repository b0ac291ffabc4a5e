"""`run_dispatcher`: signals hand the queues over."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher, DispatcherState, run_dispatcher
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.names import Names
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S, until

pytestmark = pytest.mark.realtime

NAMES = Names("runner")


def _dispatcher(hub: MemoryServer, **settings: float) -> Dispatcher:
    bus = hub.connect("dispatcher")
    return Dispatcher(bus, names=NAMES, settings=DispatcherSettings(**settings), tasks=TaskStorage())


async def _until_running(dispatcher: Dispatcher) -> None:
    await until(lambda: dispatcher.state is DispatcherState.RUNNING)


async def _a_long_task(hub: MemoryServer, dispatcher: Dispatcher) -> Worker:
    """Have the dispatcher run one."""
    pool = Pool("work", slots=1)
    begun = asyncio.Event()

    @pool.task
    async def nap() -> None:
        begun.set()
        await asyncio.sleep(60)

    worker = Worker(pool, bus=hub.connect("worker"), names=NAMES, settings=WorkerSettings(id="w1"))
    await worker.start()
    bus: MemoryBus = hub.connect("client")
    await (await TaskStreams(bus, NAMES, TaskStorage()).tasks()).publish(NAMES.task("work", "nap"), b"")
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
    await bus.close()
    return worker


async def test_a_signal_hands_the_queues_over_and_ends() -> None:
    hub = MemoryServer()
    dispatcher = _dispatcher(hub)
    running = asyncio.create_task(run_dispatcher(dispatcher))
    await _until_running(dispatcher)
    worker = await _a_long_task(hub, dispatcher)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        await running
    assert dispatcher.state is DispatcherState.CLOSED and dispatcher.queues == {}
    assert worker.statistics().load.running == 1, "what runs goes on"
    await worker.stop()


async def test_a_second_signal_ends_the_grace() -> None:
    hub = MemoryServer()
    dispatcher = _dispatcher(hub, grace_s=60.0)
    running = asyncio.create_task(run_dispatcher(dispatcher))
    await _until_running(dispatcher)
    worker = await _a_long_task(hub, dispatcher)
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: dispatcher.state is DispatcherState.CLOSED)
    await asyncio.sleep(0.1)
    assert not running.done(), "it waits for what runs"
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        await running
    await worker.stop()


async def test_cancelling_hands_the_queues_over() -> None:
    dispatcher = _dispatcher(MemoryServer())
    running = asyncio.create_task(run_dispatcher(dispatcher))
    await _until_running(dispatcher)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert dispatcher.state is DispatcherState.CLOSED
    with pytest.raises(Exception, match="make a new one"):
        await dispatcher.start()
