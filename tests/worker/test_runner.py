"""`run_worker` in a process of its own: signals, a freeze, a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names, Operation, WorkerId
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import AnswerOp, RequestOp

from ..processes import ForkedProcess, ForkServer
from ..processes.state import state_of
from ..support.worker.rig import Hand, reserve, task
from ..waiting import PATIENCE_S, until

pytestmark = [pytest.mark.server, pytest.mark.processes]

FREEZE_AFTER_S = 3.0

PROGRAM = """
import asyncio, json, signal, sys
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool
from gangline.worker.service import run_worker
from gangline.worker.service import Worker
from gangline.worker.ledger.settings import WorkerSettings

pool = Pool("images", slots=4)
gate = asyncio.Event()

@pool.task
async def wait() -> str:
    print(json.dumps({"ran": "wait"}), flush=True)
    await gate.wait()
    return "done"

@pool.task
async def quick() -> str:
    print(json.dumps({"ran": "quick"}), flush=True)
    return "done"

async def main(url, namespace, freeze_after_s):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, gate.set)
    bus = await connect(ConnectionSettings.from_url(url), name="worker")
    settings = WorkerSettings(id="w1", drain_grace_s=600.0, freeze_after_s=float(freeze_after_s))
    worker = Worker(pool, bus=bus, names=Names(namespace), settings=settings)
    running = asyncio.create_task(run_worker(worker))
    while worker.state == "new" or worker.state == "starting":
        await asyncio.sleep(0.01)
    print(json.dumps({"ready": worker.core.epoch}), flush=True)
    await running
    await bus.close()

asyncio.run(main(*sys.argv[1:]))
"""


class Other(Hand):
    """The worker's process, and a router's end to it."""

    def __init__(self, process: ForkedProcess, stdout: asyncio.StreamReader, bus: Any, names: Names) -> None:
        worker: Any = SimpleNamespace(names=names, id=WorkerId("images", "w1"), core=SimpleNamespace(epoch=0))
        super().__init__(bus, worker)
        self.process = process
        self.names = names
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reader = asyncio.create_task(self._read(stdout))

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        async for line in stdout:
            self.lines.put_nowait(json.loads(line))

    async def line(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.lines.get(), PATIENCE_S)

    @property
    def stopped(self) -> bool:
        return state_of(self.process.pid) == "T"

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def keys(self) -> list[str]:
        kv = await self.bus.bucket(self.names.ledger_bucket, BucketSettings())
        return [entry.key for entry in await kv.entries(">")]

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


class Start(Protocol):
    def __call__(self, *, freeze_after_s: float = ...) -> AbstractAsyncContextManager[Other]: ...


@pytest.fixture
def other_process(forks: ForkServer, nats_url: str, namespace: str) -> Start:
    @contextlib.asynccontextmanager
    async def start(*, freeze_after_s: float = 20.0) -> AsyncIterator[Other]:
        ours, theirs = os.pipe()
        try:
            process = forks.start(["-c", PROGRAM, nats_url, namespace, str(freeze_after_s)], stdout=theirs)
        finally:
            os.close(theirs)
        stdout = asyncio.StreamReader()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(ours, "rb")
        )
        bus = await connect(ConnectionSettings.from_url(nats_url), name="router")
        other = Other(process, stdout, bus, Names(namespace))
        try:
            await other.listen()
            other.worker.core.epoch = (await other.line())["ready"]
            yield other
        finally:
            process.kill()
            await other.exit_code()
            await other.reader
            reading.close()
            await bus.close()

    return start


async def drains(other: Other) -> None:
    """Wait until it takes nothing new."""
    while True:
        number = len(other.answers) + 100
        answer = await other.ask(*reserve(number))
        if answer == [AnswerOp.REJECTED, number, "draining"]:
            return
        assert answer[0] == AnswerOp.GRANTED, "the signal has not come yet"
        other.send((int(RequestOp.RELEASE), None, answer[2]))


async def test_the_first_sigterm_drains_and_nothing_is_lost(other_process: Start):
    async with other_process() as other:
        other.send(task(1, "wait"))
        assert await other.line() == {"ran": "wait"}
        other.signal(signal.SIGTERM)
        await drains(other)
        other.signal(signal.SIGUSR1)
        assert await other.answer(1) == [AnswerOp.OK, 1, "done"]
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_the_second_sigterm_stops_at_once(other_process: Start):
    async with other_process() as other:
        other.send(task(1, "wait"))
        assert await other.line() == {"ran": "wait"}
        other.signal(signal.SIGTERM)
        await drains(other)
        assert other.answers_to(1) == [], "it still runs"
        other.signal(signal.SIGTERM)
        assert (await other.answer(1))[2] == "task_cancelled"
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_sigint_of_an_idle_worker_ends_it_cleanly(other_process: Start):
    async with other_process() as other:
        other.signal(signal.SIGINT)
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_nothing_runs_of_what_piled_up_while_the_process_was_stopped(other_process: Start):
    async with other_process(freeze_after_s=FREEZE_AFTER_S) as other:
        token = await other.grant(1, claim_ms=60_000, ttl_ms=60_000)
        events: asyncio.Queue[Any] = asyncio.Queue()
        await other.bus.subscribe(
            other.names.worker_event(other.worker.id), lambda message: events.put_nowait(codec.from_json(message.data))
        )
        other.signal(signal.SIGSTOP)
        await until(lambda: other.stopped, "it is stopped")
        for number in range(2, 40):
            other.send(task(number, "quick", token=token if number % 2 else None, deadline_ms=60_000))
        await other.bus.flush()
        await asyncio.sleep(FREEZE_AFTER_S + 0.5)
        other.signal(signal.SIGCONT)
        for number in range(2, 40):
            assert await other.answer(number) == [AnswerOp.REJECTED, number, "stale"]
        assert other.lines.empty(), "none of them ran"
        event = await asyncio.wait_for(events.get(), PATIENCE_S)
        assert event["event"] == "epoch"
        other.worker.core.epoch = event["epoch"]
        assert await other.ask(*task(50, "quick")) == [AnswerOp.OK, 50, "done"]
        stats = await other.bus.request(other.names.worker(other.worker.id, Operation.STATS), timeout_s=PATIENCE_S)
        assert token.encode() not in stats.data


async def test_a_killed_worker_is_gone_from_the_ledger_when_its_keys_expire(other_process: Start):
    async with other_process() as other:
        kv = await other.bus.bucket(other.names.ledger_bucket, BucketSettings())
        seen: set[str] = set()
        watch = await kv.watch(">", lambda entry: seen.add(entry.key.partition(".")[0]))
        await other.grant(1, claim_ms=1000)
        await until(lambda: seen == {"reg", "alive", "lease"}, "all is written down")
        await watch.unsubscribe()
        other.signal(signal.SIGKILL)
        await other.exit_code()

        async def expired() -> bool:
            return await other.keys() == ["reg.images.w1"]

        await until(expired, "only the registration is left", pause_s=0.1)
