"""One suite for workers in every language: each test runs against the Python worker and against the one in Go."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

import pytest

from gangline.bus import nats_bus as jetstream
from gangline.bus.port.bus import BucketSettings, Bus, KeyValue, Message
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names, Operation, WorkerId
from gangline.schemas.records.workers import Heartbeat, Registration
from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.codec import CONTENT_TYPE, Format
from gangline.schemas.wire.frames import AnswerEnvelope, AnswerOp, Frame, RequestOp

from ..processes import ForkedProcess, ForkServer
from ..waiting import PATIENCE_S, until
from .go_programs import build

HERE = Path(__file__).parent
LANGUAGES = ("python", pytest.param("go", marks=pytest.mark.long))
"""Go compiles for most of a minute where it has no cache yet: its workers are tested in the whole suite."""

Process = subprocess.Popen[str] | ForkedProcess
Launch = Callable[..., Process]


@pytest.fixture(scope="session")
def go_programs() -> Path:
    """The folder with the Go example's `worker` and `producer`."""
    return build()


def clean_environment(url: str, namespace: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "OTEL_", "GANGLINE_"))}
    return {**kept, "NATS_URL": url, "GANGLINE_NAMESPACE": namespace, "PYTHONUNBUFFERED": "1"}


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def launch(language: str, request: pytest.FixtureRequest, nats_url: str, namespace: str) -> Launch:
    """Start a worker of that name: `launch("w1")`, perhaps with `stdout=...`."""
    environment = clean_environment(nats_url, namespace)
    if language == "go":
        program = request.getfixturevalue("go_programs") / "worker"

        def start_go(name: str, stdout: IO[str] | None = None) -> Process:
            return subprocess.Popen(
                [program],
                env={**environment, "GANGLINE_WORKER": name},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stdout,
                text=True,
            )

        return start_go
    forks: ForkServer = request.getfixturevalue("forks")

    def start_python(name: str, stdout: IO[str] | None = None) -> Process:
        return forks.start(
            ["-m", "gangline.cli", "worker", "shop:pool", "--id", name],
            environment=environment,
            cwd=HERE,
            stdout=stdout,
            stderr=stdout,
        )

    return start_python


class Router:
    """Speaks frames to one worker, as the protocol's page says, and with nothing of our own router."""

    def __init__(self, bus: Bus, names: Names, worker: WorkerId, sender: str, epoch: int) -> None:
        self.bus = bus
        self.subject = names.worker(worker, Operation.FRAMES)
        self.reply = f"{bus.inbox}.{sender}"
        self.sender = sender
        self.epoch = epoch
        self.answers: list[Frame] = []
        self.loads: list[frames.Load] = []
        self._news = asyncio.Event()

    async def start(self) -> Router:
        await self.bus.subscribe(self.reply, self._on_message)
        await self.bus.flush()
        return self

    def _on_message(self, message: Message) -> None:
        envelope: AnswerEnvelope = frames.decode_answer(message.data)
        self.answers.extend(envelope.frames)
        self.loads.append(envelope.load)
        self._news.set()

    def send(self, *given: Frame, epoch: int | None = None) -> None:
        data = frames.encode_request(self.epoch if epoch is None else epoch, self.sender, list(given))
        self.bus.publish(self.subject, data, reply=self.reply)

    async def answer(self, id: int, *operations: AnswerOp) -> Frame:
        """The first answer to that id that was not taken yet (of these operations, if any are named)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for frame in self.answers:
                    if frame[1] == id and (not operations or frame[0] in operations):
                        self.answers.remove(frame)
                        return frame
                self._news.clear()
                await self._news.wait()

    async def ask(self, frame: Frame, *operations: AnswerOp, epoch: int | None = None) -> Frame:
        self.send(frame, epoch=epoch)
        return await self.answer(frame[1], *operations)

    async def silence(self) -> None:
        """Nothing more comes: a round trip later there is no answer that was not taken."""
        await self.ask((RequestOp.CHECK, 9_999_999, []))
        assert self.answers == []


def task(
    id: int,
    method: str,
    *args: Any,
    token: str | None = None,
    deadline_ms: int | None = None,
    flags: int = 0,
    **meta: Any,
) -> Frame:
    return (RequestOp.TASK, id, method, list(args), None, deadline_ms, token, None, flags, meta or None)


def reserve(
    id: int, slots: int = 1, *, ttl_ms: int = 600_000, claim_ms: int = 300_000, flags: int = 0, deadline_ms: Any = None
) -> Frame:
    """A lease that does not end by itself while a test waits."""
    return (RequestOp.RESERVE, id, slots, ttl_ms, claim_ms, flags, deadline_ms, None)


class Subject:
    """The worker under test: its process, and ways to talk to it."""

    def __init__(self, bus: Bus, names: Names, ledger: KeyValue, process: Process, worker: str) -> None:
        self.bus = bus
        self.names = names
        self.ledger = ledger
        self.process = process
        self.id = WorkerId("shop", worker)
        self._routers = 0

    async def registration(self) -> Registration:
        entry = await self.ledger.get(self.names.registration_key(self.id))
        assert entry is not None
        return Registration.model_validate_json(entry.value)

    async def heartbeat(self) -> Heartbeat:
        entry = await self.ledger.get(self.names.alive_key(self.id))
        assert entry is not None
        return Heartbeat.model_validate_json(entry.value)

    async def router(self) -> Router:
        self._routers += 1
        registration = await self.registration()
        return await Router(
            self.bus, self.names, self.id, f"router-{self._routers}-{self.names.namespace}", registration.epoch
        ).start()

    async def request(
        self, operation: str, body: Any = None, *, fmt: Format = Format.JSON, timeout_s: float = PATIENCE_S
    ) -> Any:
        """One request; an error is raised as it travelled.

        Raises:
            Refusal: the answer has `Nats-Service-Error`.
        """
        data = b"" if body is None else body if isinstance(body, bytes) else codec.encode(body, fmt)
        answer = await self.bus.request(
            f"{self.names.namespace}.worker.{self.id}.{operation}",
            data,
            timeout_s=timeout_s,
            headers={CONTENT_TYPE: fmt.value} if fmt is not Format.JSON else None,
        )
        value = codec.decode(answer.data, Format.of(answer.headers))
        if answer.headers and "Nats-Service-Error" in answer.headers:
            raise Refusal(value["code"], value["message"], int(answer.headers["Nats-Service-Error-Code"]))
        return value

    async def lease_keys(self) -> list[str]:
        return [entry.key for entry in await self.ledger.entries(self.names.leases_of("shop", self.id.worker))]

    async def load(self) -> dict[str, Any]:
        stats = await self.request("stats")
        return dict(stats["load"])

    async def running(self) -> bool:
        return bool((await self.load())["running"])

    async def idle(self) -> bool:
        return (await self.load())["ongoing"] == 0

    async def draining(self) -> bool:
        return (await self.registration()).state == "draining"

    async def none_seen(self) -> bool:
        """The ledger shows no lease."""
        return not await self.lease_keys()

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


class Refusal(Exception):
    """An error as a request's answer carried it."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code} ({status}): {message}")
        self.code = code
        self.status = status


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    connected = await jetstream.connect(ConnectionSettings.from_url(nats_url), name="conformance")
    yield connected
    await connected.close()


@pytest.fixture
async def subject(bus: Bus, namespace: str, launch: Launch) -> AsyncIterator[Subject]:
    """A worker `shop.w1` of two slots, registered."""
    names = Names(namespace)
    ledger = await bus.bucket(names.ledger_bucket, BucketSettings())
    process = launch("w1")
    made = Subject(bus, names, ledger, process, "w1")
    try:

        async def registered() -> bool:
            assert process.poll() is None, "the worker ended"
            return await ledger.get(names.registration_key(made.id)) is not None

        await until(registered)
        yield made
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.fixture
async def router(subject: Subject) -> Router:
    return await subject.router()
