"""Shared by the dispatcher's tests: an in-memory hub, a router, and workers scripted by the test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.bus.port.bus import BucketSettings, KeyValue, Message
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.workers import Heartbeat, MethodInfo, Registration
from gangline.schemas.wire.frames import (
    AnswerOp,
    Frame,
    Load,
    LoadFlag,
    Reason,
    RequestOp,
    decode_request,
    encode_answer,
)

Behaviour = Callable[["FakeWorker", Frame], Sequence[Frame] | None]

METHODS = {
    "echo": MethodInfo(),
    "again": MethodInfo(idempotent=True),
    "heavy": MethodInfo(slots=2),
    "items": MethodInfo(streams=True),
}


def obedient(worker: FakeWorker, frame: Frame) -> Sequence[Frame] | None:
    """Grants and runs everything at once; a task's result is `[worker's name, method]`."""
    if frame[0] == RequestOp.TASK:
        return [(AnswerOp.OK, frame[1], [worker.name, frame[2]])]
    if frame[0] == RequestOp.RESERVE:
        return [worker.grant(frame)]
    if frame[0] == RequestOp.RENEW:
        return [(AnswerOp.RENEWED, frame[1], frame[3])]
    return None


def silent(worker: FakeWorker, frame: Frame) -> None:
    """Receives everything and answers nothing."""


def mute(*operations: RequestOp) -> Any:
    """Answers, except to some operations."""

    def behave(worker: FakeWorker, frame: Frame) -> Any:
        return None if frame[0] in operations else obedient(worker, frame)

    return behave


def rejects(reason: Reason, times: int = 1_000_000) -> Any:
    left = [times]

    def behave(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] in (RequestOp.TASK, RequestOp.RESERVE) and left[0] > 0:
            left[0] -= 1
            return [(AnswerOp.REJECTED, frame[1], str(reason))]
        return obedient(worker, frame)

    return behave


def refuses(code: str, *, of: RequestOp = RequestOp.TASK, started: bool = False) -> Any:
    """Answers what is asked of one kind with an error."""

    def behave(worker: FakeWorker, frame: Frame) -> Any:
        return [(AnswerOp.ERROR, frame[1], code, "no", None, started)] if frame[0] == of else obedient(worker, frame)

    return behave


class FakeWorker:
    """Speaks frames as scripted by `behave`; records what it receives."""

    def __init__(self, rig: Rig, name: str, **facts: Any) -> None:
        self.rig = rig
        self.name = name
        self.id = WorkerId(facts.pop("pool", "images"), name)
        self.instance = facts.pop("instance", f"{name}-1")
        self.epoch = facts.pop("epoch", 1)
        self.slots = facts.pop("slots", 2)
        self.methods = facts.pop("methods", METHODS)
        self.facts = facts
        self.behave: Behaviour = obedient
        self.heard: list[Frame] = []
        self.senders: list[str] = []
        self.replies: list[str] = []
        self.epochs: list[int] = []
        self.messages = 0
        self.load: Load | None = None
        self.draining = False
        self.models: tuple[str, ...] = ()
        self.tokens = itertools.count(1)
        self.bus: MemoryBus = rig.hub.connect(name)
        self._beats: asyncio.Task[None] | None = None
        self._subscription: Any = None
        self._news = asyncio.Event()

    # -- presence -------------------------------------------------------------------------------------------------

    async def start(self) -> FakeWorker:
        await self.listen()
        await self.register()
        self._beats = asyncio.get_running_loop().create_task(self._beat_on())
        return self

    async def listen(self) -> None:
        self._subscription = await self.bus.subscribe(self.rig.names.worker_operations(self.id), self._take)

    async def register(self) -> None:
        kv = self.rig.kv
        record = Registration(
            pool=self.id.pool,
            worker=self.name,
            epoch=self.epoch,
            instance=self.instance,
            state="draining" if self.draining else "serving",
            slots=self.slots,
            methods=self.methods,
            models=self.models,
            **self.facts,
        )
        await kv.put(self.rig.names.registration_key(self.id), record.model_dump_json().encode())
        await self.beat()

    async def beat(self) -> None:
        load = self.current_load
        beat = Heartbeat(
            epoch=self.epoch, instance=self.instance, running=load.running, reserved=load.reserved, total=load.total,
            draining=self.draining, models=self.models,
        )  # fmt: skip
        await self.rig.kv.put(self.rig.names.alive_key(self.id), beat.model_dump_json().encode(), ttl_s=3)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self.beat()

    def stop_beating(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None

    async def die(self) -> None:
        """As after SIGKILL: the subscription ends at once, the heartbeat key expires later."""
        self.stop_beating()
        await self._subscription.unsubscribe()

    async def leave(self) -> None:
        """As after a drain."""
        await self.die()
        await self.rig.kv.delete(self.rig.names.alive_key(self.id))
        await self.rig.kv.delete(self.rig.names.registration_key(self.id))

    # -- frames ---------------------------------------------------------------------------------------------------

    @property
    def current_load(self) -> Load:
        return self.load or Load(0, 0, self.slots, LoadFlag.DRAINING if self.draining else 0)

    def grant(self, frame: Frame) -> Frame:
        return (AnswerOp.GRANTED, frame[1], f"{self.name}-t{next(self.tokens)}", 7, frame[3])

    def heard_of(self, operation: RequestOp) -> list[Frame]:
        return [frame for frame in self.heard if frame[0] == operation]

    async def hears(self, operation: RequestOp, count: int = 1) -> list[Frame]:
        """Wait until this many frames of a kind have arrived."""
        async with asyncio.timeout(60):
            while len(found := self.heard_of(operation)) < count:
                self._news.clear()
                await self._news.wait()
        return found

    def answer(self, *frames: Frame, reply: str | None = None) -> None:
        self.bus.publish(reply or self.replies[-1], encode_answer(self.epoch, self.current_load, list(frames)))

    def let_go(self) -> None:
        """Stop all tasks that were cancelled."""
        if cancelled := self.heard_of(RequestOp.CANCEL):
            self.answer(*((AnswerOp.ERROR, frame[1], "task_cancelled", "stopped", None, True) for frame in cancelled))

    def _take(self, message: Message) -> None:
        envelope = decode_request(message.data)
        self.messages += 1
        self.epochs.append(envelope.epoch)
        self.senders.append(envelope.sender)
        if message.reply:
            self.replies.append(message.reply)
        answers: list[Frame] = []
        for frame in envelope.frames:
            self.heard.append(frame)
            answers.extend(self.behave(self, frame) or ())
        self._news.set()
        if answers:
            self.answer(*answers, reply=message.reply)


class Rig:
    """A hub, a ledger, a client; `worker()` adds workers."""

    def __init__(self, **settings: Any) -> None:
        self.hub = MemoryServer()
        self.names = Names("test")
        self.kv: KeyValue = None  # type: ignore[assignment]
        self.settings = RouterSettings(**{"node": "", "zone": "", **settings})
        self.workers: list[FakeWorker] = []
        self.bus = self.hub.connect("client")
        # Seeded: otherwise tests that count shares would sometimes fail.
        ambient = Environment(random=random.Random(7))
        self.client = Client(self.bus, names=self.names, settings=self.settings, ambient=ambient)

    async def start(self) -> None:
        self.kv = await self.hub.connect("operator").bucket(self.names.ledger_bucket, BucketSettings())
        await self.client.start()

    async def stop(self) -> None:
        await self.client.close()
        for worker in self.workers:
            worker.stop_beating()
        for bus in self.hub.connections:
            await bus.close()

    async def stop_at_rest(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None and self.router.running:
                await turns()
                for worker in self.workers:
                    worker.let_go()
                await turns()
                for pool in self.router.pools:
                    self.balanced(pool)
        finally:
            await self.stop()

    async def worker(
        self, name: str = "w1", behave: Behaviour = obedient, *, known: bool = False, **facts: Any
    ) -> FakeWorker:
        """
        Args:
            known: the client has called it before, so that it takes the short ways.
        """
        worker = FakeWorker(self, name, **facts)
        self.workers.append(worker)
        await worker.start()
        if known:
            await self.client.call(f"{worker.id.pool}.echo")
            worker.heard.clear()
        worker.behave = behave
        return worker

    async def full_worker(self, **facts: Any) -> FakeWorker:
        """A worker that rejects everything, and says that all its slots are taken."""
        worker = await self.worker(behave=rejects(Reason.FULL), **facts)
        worker.load = Load(worker.slots, 0, worker.slots)
        return worker

    async def known_worker(self, *which: Any, **facts: Any) -> FakeWorker:
        """A worker that the client has called once: the short ways are of pools that are known."""
        worker = await self.worker(*which, **facts)
        await self.client.call("images.echo")
        return worker

    async def held_call(
        self, target: str = "images.echo", *arguments: Any, known: bool = False
    ) -> tuple[FakeWorker, asyncio.Task[Any], Frame]:
        """A worker that answers nothing, a call that waits for it, and the frame of that call."""
        worker = await self.worker(behave=silent, known=known)
        call = asyncio.create_task(self.client.call(target, *arguments))
        return worker, call, (await worker.hears(RequestOp.TASK))[0]

    @property
    def router(self) -> Any:
        return self.client.router

    def balanced(self, pool: str = "images") -> None:
        """Assert that the router holds nothing."""
        core = self.router.pools[pool].core
        core.check()
        assert core.placed == 0 and core.waiting == 0, core
        assert all(worker.own == 0 for worker in core.view.workers.values()), core.view.workers
        assert self.router.metrics.statistics()["reserved_slots"] == 0
        assert self.router.metrics.statistics()["queue_size"] == 0
        assert self.router.statistics()["holds"] == 0
        assert not self.router._held_express.probes and not self.router._reserving._holds._brief


@pytest.fixture
async def rig(request: pytest.FixtureRequest, opened: contextlib.AsyncExitStack) -> Rig:
    """A running Rig, with the settings in `@pytest.mark.router(...)`. When the test ends, its router holds nothing."""
    marker = request.node.get_closest_marker("router")
    rig = Rig(**marker.kwargs if marker else {})
    await rig.start()
    opened.push_async_exit(rig.stop_at_rest)
    return rig


@pytest.fixture(params=[False, True], ids=["general", "short"])
def known(request: pytest.FixtureRequest) -> bool:
    """Whether the client has called the worker before: then it takes the short ways, which come to the same."""
    return bool(request.param)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel it, and see that it ends so."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def give_up(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them, and wait until all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def turns(count: int = 20) -> None:
    """Run everything that is ready."""
    for _ in range(count):
        await asyncio.sleep(0)
