"""`run_worker` in a process of its own: signals, a freeze, a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.jetstream import connect
from gangline.bus.port import BucketSettings, Message
from gangline.bus.settings import ConnectionSettings
from gangline.schemas import codec, frames
from gangline.schemas.frames import Answer
from gangline.schemas.names import Names, Operation, WorkerId

from .rig import reserve, task

pytestmark = [pytest.mark.server, pytest.mark.processes]

PROGRAM = """
import asyncio, json, os, sys, time
from gangline.bus.jetstream import connect
from gangline.bus.settings import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.pool import Pool
from gangline.worker.runner import run_worker
from gangline.worker.service import Worker
from gangline.worker.settings import WorkerSettings

pool = Pool("images", slots=4)

@pool.task
async def wait(seconds: float) -> str:
    print(json.dumps({"ran": seconds}), flush=True)
    await asyncio.sleep(seconds)
    return "done"

async def main(url, namespace):
    bus = await connect(ConnectionSettings.from_url(url), name="worker")
    worker = Worker(pool, bus=bus, names=Names(namespace), settings=WorkerSettings(id="w1", drain_grace_s=20.0))
    running = asyncio.create_task(run_worker(worker))
    while worker.state == "new" or worker.state == "starting":
        await asyncio.sleep(0.01)
    print(json.dumps({"ready": worker.core.epoch}), flush=True)
    await running
    await bus.close()

asyncio.run(main(*sys.argv[1:]))
"""


class Other:
    """The worker's process, and a router's end to it."""

    def __init__(self, process: asyncio.subprocess.Process, bus: Any, names: Names) -> None:
        self.process = process
        self.bus = bus
        self.names = names
        self.id = WorkerId("images", "w1")
        self.epoch = 0
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.answers: dict[int, list[Any]] = {}
        self.arrived = asyncio.Event()
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.put_nowait(json.loads(line))

    def on_answer(self, message: Message) -> None:
        for frame in frames.decode_answer(message.data).frames:
            self.answers[frame[1]] = frame
        self.arrived.set()

    def send(self, *requests: Any) -> None:
        self.bus.publish(
            self.names.worker(self.id, Operation.FRAMES),
            frames.encode_request(self.epoch, "hand", list(requests)),
            reply=f"{self.bus.inbox}.1",
        )

    async def answer(self, request_id: int) -> list[Any]:
        async with asyncio.timeout(15):
            while request_id not in self.answers:
                self.arrived.clear()
                await self.arrived.wait()
        return self.answers[request_id]

    async def line(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.lines.get(), 15)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def keys(self) -> list[str]:
        kv = await self.bus.bucket(self.names.ledger_bucket, BucketSettings())
        return [entry.key for entry in await kv.entries(">")]

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 15)


@contextlib.asynccontextmanager
async def other_process(tmp_path: Path, url: str, namespace: str) -> AsyncIterator[Other]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), url, namespace, stdout=asyncio.subprocess.PIPE
    )
    bus = await connect(ConnectionSettings.from_url(url), name="router")
    other = Other(process, bus, Names(namespace))
    try:
        await bus.subscribe(f"{bus.inbox}.*", other.on_answer)
        other.epoch = (await other.line())["ready"]
        yield other
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await other.reader
        await bus.close()


async def test_the_first_sigterm_drains_and_nothing_is_lost(tmp_path: Path, nats_url: str, namespace: str):
    async with other_process(tmp_path, nats_url, namespace) as other:
        other.send(task(1, "wait", [0.7]))
        assert await other.line() == {"ran": 0.7}
        other.signal(signal.SIGTERM)
        while True:
            other.send(reserve(len(other.answers) + 100))
            refused = await other.answer(len(other.answers) + 100)
            if refused[0] == Answer.REJECTED:
                break
        assert refused[2] == "draining"
        assert await other.answer(1) == [Answer.OK, 1, "done"]
        for number, answer in other.answers.items():  # what was granted before the signal came
            if answer[0] == Answer.GRANTED:
                other.send((4, number, None))
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_the_second_sigterm_stops_at_once(tmp_path: Path, nats_url: str, namespace: str):
    async with other_process(tmp_path, nats_url, namespace) as other:
        other.send(task(1, "wait", [60.0]))
        assert await other.line() == {"ran": 60.0}
        other.signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert other.process.returncode is None
        other.signal(signal.SIGTERM)
        assert (await other.answer(1))[2] == "task_cancelled"
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_sigint_of_an_idle_worker_ends_it_cleanly(tmp_path: Path, nats_url: str, namespace: str):
    async with other_process(tmp_path, nats_url, namespace) as other:
        other.signal(signal.SIGINT)
        assert await other.exit_code() == 0
        assert await other.keys() == []


async def test_nothing_runs_of_what_piled_up_while_the_process_was_stopped(
    tmp_path: Path, nats_url: str, namespace: str
):
    async with other_process(tmp_path, nats_url, namespace) as other:
        other.send(reserve(1, claim_ms=60_000, ttl_ms=60_000))
        token = (await other.answer(1))[2]
        events: asyncio.Queue[Any] = asyncio.Queue()
        await other.bus.subscribe(
            other.names.worker_event(other.id), lambda message: events.put_nowait(codec.from_json(message.data))
        )
        other.signal(signal.SIGSTOP)
        for number in range(2, 40):
            other.send(task(number, "wait", [0.0], token=token if number % 2 else None, deadline_ms=60_000))
        await asyncio.sleep(2.5)
        other.signal(signal.SIGCONT)
        for number in range(2, 40):
            assert await other.answer(number) == [Answer.REJECTED, number, "stale"]
        assert other.lines.empty(), "none of them ran"
        event = await asyncio.wait_for(events.get(), 5)
        assert event["event"] == "epoch"
        other.epoch = event["epoch"]
        other.send(task(50, "wait", [0.0]))
        assert await other.answer(50) == [Answer.OK, 50, "done"]
        assert (await other.bus.request(f"{namespace}.worker.images.w1.stats", timeout_s=2)).data.count(
            token.encode()
        ) == 0


async def test_a_killed_worker_is_gone_from_the_ledger_when_its_keys_expire(
    tmp_path: Path, nats_url: str, namespace: str
):
    async with other_process(tmp_path, nats_url, namespace) as other:
        other.send(reserve(1, claim_ms=1000))
        await other.answer(1)
        await asyncio.sleep(0.2)
        assert len(await other.keys()) == 3
        other.signal(signal.SIGKILL)
        await other.exit_code()
        await asyncio.sleep(3.6)
        assert await other.keys() == ["reg.images.w1"]
