"""Two rigs for submitted jobs, in memory: a client with a scripted dispatcher beside it (`JobsRig`); and the whole
system, with a pool whose tasks note what they do (`ImagesSystem`)."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from inspect import Parameter, signature
from typing import Any, cast

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Bus, ConsumerSettings, KeyValue, Message, Stream, StreamMessage
from gangline.bus.rpc.responder import listen
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.messages.entry import read_message
from gangline.dispatcher.durable.persistence.records import schedule_of
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import DoNotRetry, GanglineError, UnknownJob
from gangline.schemas.messages.jobs import CancelReply, JobInfo, JobWhyReply, QueueStats
from gangline.schemas.names import JobFeed, Names, QueueOperation
from gangline.schemas.records.jobs import JobEvent, JobItem, JobProgress, JobState, ResultRecord
from gangline.schemas.wire import codec, headers
from gangline.testing.in_memory import Cluster, cluster
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...waiting import PATIENCE_S

STORAGE = TaskStorage()


class JobsRig:
    """The client's side of a test. The dispatcher's side is scripted."""

    def __init__(
        self, names: Names, client: Client, bus: Bus, hub: MemoryServer, ambient: Environment | None = None
    ) -> None:
        self.names = names
        self.client = client
        self.bus = bus
        """The dispatcher's connection."""
        self.hub = hub
        self.wall = (ambient or Environment()).wall
        """Unix time, by the clock that client and server use."""
        self.streams = TaskStreams(bus, names, STORAGE)

    async def tasks(self) -> Stream:
        return await self.streams.tasks()

    async def results(self) -> KeyValue:
        return await self.streams.results()

    async def schedule_all(self, endpoint: str = "images") -> None:
        """As a dispatcher: take what is delayed or repeats out of the queue, and hand it to the server's clock."""
        tasks, schedules = await self.tasks(), await self.streams.schedules()
        for message in await self.stored(endpoint):
            submission, _ = cast("Any", read_message(self.names, message))
            if submission.cron is not None or submission.not_before is not None:
                subject, given = schedule_of(self.names, message, submission, wall=self.wall())
                await schedules.publish(subject, message.data, headers=given)
                await tasks.delete(message.sequence)

    async def stored(self, endpoint: str = "images") -> list[StreamMessage]:
        """Tasks in the stream."""
        tasks, found, place = await self.tasks(), [], 1
        while (message := await tasks.next(self.names.tasks_of(endpoint), place)) is not None:
            found.append(message)
            place = message.sequence + 1
        return found

    async def arrivals(self, count: int, endpoint: str = "images") -> list[StreamMessage]:
        """Wait until this many tasks have arrived, and leave them in the stream."""
        came: list[StreamMessage] = []
        enough = asyncio.Event()

        def take(message: StreamMessage) -> None:
            came.append(message)
            if len(came) >= count:
                enough.set()

        settings = ConsumerSettings(filter=self.names.tasks_of(endpoint))
        consumer = await (await self.tasks()).consume("arrivals", settings, take)
        consumer.pull(count)
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
        await consumer.close(delete=True)
        return came

    async def end(self, job: str, *, revision: int | None = 0, **fields: Any) -> None:
        """Write the outcome of a job."""
        given = {"endpoint": "images", "method": "echo", "state": JobState.DONE, "attempts": 1, **fields}
        value = ResultRecord(job=job, **given).model_dump_json().encode()
        await (await self.results()).put(self.names.result_key(job), value, revision=revision)

    async def tell(self, told: JobEvent | JobProgress | JobItem) -> None:
        """Publish a message in a job's feed."""
        kinds = {JobEvent: JobFeed.STATE, JobProgress: JobFeed.PROGRESS, JobItem: JobFeed.ITEM}
        subject = self.names.job(told.job, kinds[type(told)])
        await (await self.streams.jobs()).publish(subject, told.model_dump_json().encode())

    async def bury(self, job: str, *, body: bytes = b"{}", **fields: str) -> None:
        """Publish a dead letter."""
        given = {
            headers.JOB: job,
            headers.SUBJECT: self.names.task("images", "echo"),
            headers.DEAD_REASON: "failed",
            headers.DEAD_ERROR: '{"code": "task_failed", "message": "no such file", "details": {"type": "OSError"}}',
            headers.DEAD_AT: "2030-01-31T12:00:00Z",
            headers.ATTEMPTS: "5",
            **{name.replace("_", "-"): value for name, value in fields.items()},
        }
        await (await self.streams.dead()).publish(self.names.dead("images", "echo"), body, headers=given)

    async def take_queue(self, endpoint: str = "images") -> FakeDispatcher:
        """Act as the dispatcher that owns an endpoint's queue."""
        played = FakeDispatcher(self, endpoint)
        await played.start()
        return played


class FakeDispatcher:
    """Answers requests for one queue as set by the test."""

    def __init__(self, rig: JobsRig, endpoint: str) -> None:
        self.rig = rig
        self.endpoint = endpoint
        self.jobs: dict[str, JobInfo] = {}
        self.cancelled: list[str] = []
        self.asked: list[str] = []
        self.messages: list[StreamMessage] = []
        self.since = 0.0
        """When it took the queue."""
        self.deaf = 0
        """Number of requests that get no answer."""

    async def start(self) -> None:
        await listen(self.rig.bus, self.rig.names.both(self.rig.names.queue(self.endpoint)), self._answer)
        settings = ConsumerSettings(filter=self.rig.names.tasks_of(self.endpoint))
        consumer = await (await self.rig.tasks()).consume(f"q-{self.endpoint}", settings, self.messages.append)
        consumer.pull(100)
        await self.rig.bus.flush()

    def _answer(self, message: Message) -> None:
        operation = message.subject.rpartition(".")[2]
        self.asked.append(operation)
        if self.deaf:
            self.deaf -= 1
            return
        if operation == QueueOperation.STATS:
            self._reply(message, self._stats())
            return
        job = codec.from_json(message.data)["job"]
        info = self.jobs.get(job)
        if info is None:
            error = UnknownJob(f"no {job}")
            told = {headers.ERROR: error.message, headers.ERROR_CODE: str(error.status)}
            self.rig.bus.publish(message.reply, codec.to_json(error.to_wire()), headers=told)
        elif operation == QueueOperation.GET:
            self._reply(message, info)
        elif operation == QueueOperation.WHY:
            self._reply(message, JobWhyReply(job=info, position=3))
        else:
            self.cancelled.append(job)
            self._reply(message, CancelReply(cancelled=True, state=JobState.CANCELLED))

    def _reply(self, message: Message, reply: JobInfo | JobWhyReply | CancelReply | QueueStats) -> None:
        self.rig.bus.publish(message.reply, reply.model_dump_json().encode())

    def _stats(self) -> QueueStats:
        return QueueStats(
            endpoint=self.endpoint, dispatcher="d1", depth=7, seen=7, running=2, waiting=1, blocked=1, credit=1,
            leased=3, oldest_s=4.0, since=self.since,
        )  # fmt: skip


Body = Callable[..., Awaitable[None]]


def in_memory(body: Body) -> Callable[..., Any]:
    """Run a test on an in-memory server: it asks nothing of the server that other tests do not ask of a real one."""

    @functools.wraps(body)
    async def test(namespace: str, **fixtures: Any) -> None:
        loop = asyncio.get_running_loop()
        ambient = Environment(wall=lambda: 1_700_000_000 + loop.time())  # delays pass on virtual time
        names, hub = Names(namespace), MemoryServer(ambient=ambient)
        its = hub.connect("dispatcher")
        try:
            async with Client(
                hub.connect("client"), names=names, tasks=STORAGE, ambient=ambient, owns_bus=True
            ) as client:
                await body(JobsRig(names, client, its, hub, ambient), **fixtures)
        finally:
            await its.close()

    of_test = signature(body)
    _, *fixtures = of_test.parameters.values()
    namespace = Parameter("namespace", Parameter.KEYWORD_ONLY)
    test.__signature__ = of_test.replace(parameters=[*fixtures, namespace])  # type: ignore[attr-defined]
    return test


def failing(error: GanglineError) -> Callable[..., Any]:
    """A method that raises, to replace one of the bus."""

    async def fail(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fail


# -- the whole system in memory -----------------------------------------------------------------------------------


def virtual_cluster(pool: Pool, *, start: str = "2026-06-01T12:00:00Z", **options: Any) -> Cluster:
    """Client, dispatcher and workers. The wall clock shows `start` now, and goes with virtual time."""
    loop = asyncio.get_running_loop()
    offset_s = datetime.fromisoformat(start).timestamp() - loop.time()
    ambient = Environment(wall=lambda: offset_s + loop.time())
    return cluster(pool, ambient=ambient, **{"dispatcher": True, **options})


class CardDeclined(DoNotRetry):
    """A user's own."""


class ImagesSystem:
    """A pool whose tasks note what they do, and clusters that serve it."""

    def __init__(self, slots: int = 2) -> None:
        self.pool = pool = Pool("images", slots=slots)
        self.ran: list[Any] = []
        """Values of `echo` and `nap` as they start."""
        self.attempts: list[int] = []
        """Those of `flaky` and `charge`."""

        @pool.task
        async def echo(value: Any = None) -> Any:
            self.ran.append(value)
            return value

        @pool.task(idempotent=True)
        async def nap(seconds: float, value: Any = None) -> Any:
            self.ran.append(value)
            await asyncio.sleep(seconds)
            return value

        @pool.task
        async def fail() -> None:
            raise ValueError("broken " * 200)

        @pool.task(idempotent=True)
        async def flaky(fails: int) -> int:
            attempt = current_task().attempt
            self.attempts.append(attempt)
            if attempt <= fails:
                raise ValueError(f"attempt {attempt}")
            return attempt

        @pool.task
        async def charge(card: str) -> None:
            self.attempts.append(current_task().attempt)
            raise CardDeclined(card) if card == "stolen" else ValueError(card)

        @pool.task(idempotent=True)
        async def frames(count: int, fails_at: int = -1) -> AsyncIterator[int]:
            for number in range(count):
                if number == fails_at and current_task().attempt == 1:
                    raise ValueError("broken half-way")
                yield number

        @pool.task
        async def steps(count: int) -> str:
            for number in range(count):
                await current_task().progress({"done": number})
            return "all"

    def cluster(self, **options: Any) -> Cluster:
        """See `virtual_cluster`."""
        settings = DispatcherSettings(backoff_s=0.5, look_s=1.0)
        return virtual_cluster(self.pool, **{"dispatcher_settings": settings, **options})


def on_images(slots: int = 2, **options: Any) -> Callable[[Body], Body]:
    """Run a test in such a cluster: it gets the `client`, and the `system` if it has that argument."""

    def decorate(test: Body) -> Body:
        of_test = signature(test)

        @functools.wraps(test)
        async def run(**fixtures: Any) -> None:
            system = ImagesSystem(slots)
            async with system.cluster(**options) as client:
                parts = {"client": client, "system": system}
                await test(**fixtures, **{name: part for name, part in parts.items() if name in of_test.parameters})

        fixtures = [each for name, each in of_test.parameters.items() if name not in ("client", "system")]
        run.__signature__ = of_test.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run

    return decorate
