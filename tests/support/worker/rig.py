"""Shared by the tests of the worker: a worker on an in-memory server, and a scripted router."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Bus, Message
from gangline.schemas.names import Names, Operation
from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerEnvelope, AnswerOp, RequestOp
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S


class Gates:
    """Tasks of the test pool that wait for the test."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.open = asyncio.Event()


def make_pool(gates: Gates | None = None, slots: int = 2) -> Pool:
    """Tasks echo, double, fail, big, heavy (costs two slots), count (a stream), wait (for the gates, or `seconds`)."""
    pool = Pool("images", slots=slots)
    for declared in _declared_once().tasks.values():
        task = copy.copy(declared)
        task.pool, pool._tasks[task.name] = pool, task
    gates = gates or Gates()

    @pool.task
    async def wait(name: str = "", seconds: float | None = None) -> str:
        gates.started.append(name)
        if seconds is None:
            await gates.open.wait()
        else:
            await asyncio.sleep(seconds)
        return f"{name} done"

    return pool


@functools.cache
def _declared_once() -> Pool:
    """The tasks that need nothing of the test: to resolve annotations and schemas takes longer than most tests."""
    pool = Pool("images", slots=2)

    @pool.task
    async def echo(value: Any = None) -> Any:
        return value

    @pool.task(idempotent=True)
    async def double(x: int) -> int:
        return 2 * x

    @pool.task
    async def fail(text: str = "no luck") -> None:
        raise ValueError(text)

    @pool.task
    async def big(size: int) -> bytes:
        return b"x" * size

    @pool.task(slots=2)
    async def heavy() -> str:
        return "heavy"

    @pool.task
    async def count(n: int, size: int = 0) -> Any:
        for number in range(n):
            yield number if not size else b"x" * size

    for task in pool.tasks.values():
        task.prepare()
        task.info()
    return pool


class Hand:
    """A router's side, driven by the test: frames out, answers in."""

    _numbers = itertools.count(1)

    def __init__(self, bus: Bus, worker: Worker, sender: str = "hand") -> None:
        self.bus = bus
        self.worker = worker
        self.sender = sender
        self.envelopes: list[AnswerEnvelope] = []
        self.messages: list[Message] = []
        self.reply = f"{bus.inbox}.w{next(self._numbers)}"
        self._arrived = asyncio.Event()

    async def listen(self) -> Hand:
        await self.bus.subscribe(self.reply, self._on_message)
        return self

    def _on_message(self, message: Message) -> None:
        self.messages.append(message)
        if not message.headers:
            self.envelopes.append(frames.decode_answer(message.data))
        self._arrived.set()

    @property
    def answers(self) -> list[list[Any]]:
        return [frame for envelope in self.envelopes for frame in envelope.frames]

    def answers_to(self, request_id: int) -> list[list[Any]]:
        return [frame for frame in self.answers if frame[1] == request_id]

    def send(self, *requests: tuple[Any, ...], epoch: int | None = None, reply: str | None = None) -> None:
        epoch = self.worker.core.epoch if epoch is None else epoch
        data = frames.encode_request(epoch, self.sender, list(requests))
        self.send_raw(data, reply=self.reply if reply is None else reply)

    def send_raw(self, data: bytes, *, reply: str) -> None:
        self.bus.publish(self.worker.names.worker(self.worker.id, Operation.FRAMES), data, reply=reply)

    async def answer(self, request_id: int, *, within_s: float = PATIENCE_S) -> list[Any]:
        """Wait for the last answer to a request."""
        async with asyncio.timeout(within_s):
            while not self.answers_to(request_id):
                self._arrived.clear()
                await self._arrived.wait()
        return self.answers_to(request_id)[-1]

    async def ask(self, *request: Any, **options: Any) -> list[Any]:
        self.send(request, **options)
        return await self.answer(request[1])

    async def quiet(self, seconds: float = 0.001) -> None:
        """Let everything in flight arrive."""
        await asyncio.sleep(seconds)

    async def grant(self, request_id: int, **terms: Any) -> str:
        answer = await self.ask(*reserve(request_id, **terms))
        assert answer[0] == AnswerOp.GRANTED, answer
        token = answer[2]
        assert isinstance(token, str)
        return token

    async def request(self, operation: str, body: Any = None, fmt: Format = Format.JSON) -> tuple[Any, dict[str, str]]:
        """A plain request as the `nats` CLI sends it; returns the decoded answer and its headers."""
        data = body if isinstance(body, bytes) else b"" if body is None else codec.encode(body, fmt)
        headers = {codec.CONTENT_TYPE: fmt.value} if fmt is Format.MSGPACK else None
        subject = f"{self.worker.names.namespace}.worker.{self.worker.id}.{operation}"
        message = await self.bus.request(subject, data, timeout_s=PATIENCE_S, headers=headers)
        return codec.decode(message.data, Format.of(message.headers)), dict(message.headers or {})


def task(
    request_id: int,
    method: str = "echo",
    args: list[Any] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    deadline_ms: int | None = 10_000,
    token: str | None = None,
    flags: int = 0,
    meta: dict[str, Any] | None = None,
    trace: str | None = None,
) -> tuple[Any, ...]:
    return (int(RequestOp.TASK), request_id, method, args, kwargs, deadline_ms, token, trace, flags, meta)


def reserve(
    request_id: int,
    *,
    slots: int = 1,
    ttl_ms: int = 5000,
    claim_ms: int = 2000,
    flags: int = 0,
    deadline_ms: int | None = None,
    meta: dict[str, Any] | None = None,
) -> tuple[Any, ...]:
    return (int(RequestOp.RESERVE), request_id, slots, ttl_ms, claim_ms, flags, deadline_ms, meta)


class Rig:
    """One worker on its own hub."""

    def __init__(
        self,
        *tasks: Callable[..., Any],
        slots: int = 2,
        pool: Pool | Callable[[Gates], Pool] | None = None,
        **settings: Any,
    ) -> None:
        """A worker of that pool (None: of `make_pool`), which has these tasks as well."""
        self.hub = MemoryServer()
        self.gates = Gates()
        self.journal: list[dict[str, Any]] = []
        self.names = Names("rig")
        self.hand: Hand
        self.worker_bus: Any
        self._buses: list[Bus] = []
        self._slots = slots
        self.worker = self.make_worker(pool(self.gates) if callable(pool) else pool, **settings)
        for function in tasks:
            self.worker.pool.task(function)

    def make_worker(self, pool: Pool | None = None, **settings: Any) -> Worker:
        """Add another worker; its id is "w1" by default."""
        self.worker_bus = self.connect("worker")
        return Worker(
            pool or make_pool(self.gates, self._slots),
            bus=self.worker_bus,
            names=self.names,
            settings=WorkerSettings(**{"id": "w1", **settings}),
            journal=self.journal.append,
        )

    def connect(self, name: str) -> Any:
        bus = self.hub.connect(name)
        self._buses.append(bus)
        return bus

    async def new_hand(self, sender: str = "hand") -> Hand:
        return await Hand(self.connect("router"), self.worker, sender).listen()

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of the ledger now."""
        return [e.key for e in self.hub.peek(self.names.ledger_bucket) if e.key.startswith(prefix)]

    def value(self, key: str) -> Any:
        return next(codec.from_json(e.value) for e in self.hub.peek(self.names.ledger_bucket) if e.key == key)

    def events(self, *names: str) -> list[str]:
        return [record["event"] for record in self.journal if not names or record["event"] in names]

    def at_rest(self) -> bool:
        """L12: limiter, gauges and ledger agree that nothing is held."""
        self.worker.core.check()
        return self.worker.core.at_rest and self.worker.core.load[:2] == (0, 0) and not self.keys("lease.")

    async def __aenter__(self) -> Rig:
        await self.worker.start()
        self.hand = await self.new_hand()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.worker.stop()
        for bus in self._buses:
            await bus.close()


Test = Callable[..., Coroutine[Any, Any, None]]


def on_rig(**options: Any) -> Callable[[Test], Test]:
    """Pass a started `rig` to a test, and what else it names: a second `other` hand, a listening `leader`. The rig is
    closed before the test ends, so that no test leaves a task behind."""
    from .gang_rig import Leader

    async def other(rig: Rig) -> Hand:
        return await rig.new_hand("other")

    async def leader(rig: Rig) -> Leader:
        return await Leader(rig).listen()

    made = {"other": other, "leader": leader}

    def wrap(test: Test) -> Test:
        parameters = inspect.signature(test).parameters

        @functools.wraps(test)
        async def with_rig(**rest: Any) -> None:
            async with Rig(**options) as rig:
                await test(
                    rig=rig, **{name: await make(rig) for name, make in made.items() if name in parameters}, **rest
                )

        others = [parameter for name, parameter in parameters.items() if name != "rig" and name not in made]
        with_rig.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return with_rig

    return wrap
