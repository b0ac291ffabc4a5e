"""Both kinds of bus, so that one suite holds them to the same promises."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

import pytest

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.memory.server import MemoryServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import Bus, ConnectionEvent, Retention, Storage, Stream, StreamMessage, StreamSettings
from gangline.bus.settings.connection import ConnectionSettings

from ..support.opened import opened as opened
from ..support.opened import pytest_pyfunc_call as pytest_pyfunc_call
from ..waiting import PATIENCE_S

T = TypeVar("T")

Connect = Callable[..., Awaitable[Bus]]
ConnectServer = Callable[..., Awaitable[NatsBus]]


class Collected(Generic[T]):
    """A handler that keeps what comes, and can be waited on."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._changed = asyncio.Event()

    def __call__(self, item: T) -> None:
        self.items.append(item)
        self._changed.set()

    async def until(self, enough: Callable[[list[T]], object]) -> list[T]:
        """Wait until `enough(items)`."""
        async with asyncio.timeout(PATIENCE_S):
            while not enough(self.items):
                self._changed.clear()
                await self._changed.wait()
        return self.items

    async def count(self, number: int) -> list[T]:
        return await self.until(lambda items: len(items) >= number)

    def take(self) -> list[T]:
        items, self.items = self.items, []
        return items


def collect() -> Collected[Any]:
    return Collected()


@pytest.fixture
def got() -> Collected[Any]:
    return Collected()


@pytest.fixture
def seen() -> Collected[Any]:
    return Collected()


@pytest.fixture
def lost() -> Collected[Any]:
    return Collected()


@pytest.fixture
def events() -> Collected[Any]:
    return Collected()


async def happens(bus: Bus, event: ConnectionEvent, action: Callable[[], object]) -> None:
    """Do something, and wait until the connection reports `event`."""
    seen: Collected[ConnectionEvent] = Collected()
    stop = bus.on_connection(seen)
    try:
        action()
        await seen.until(lambda events: event in events)
    finally:
        stop()


@contextlib.contextmanager
def impatient(bus: NatsBus) -> Iterator[None]:
    """Storage operations of this connection give up after half a second; others of the test wait as long as ever."""
    patience_s, bus.api.timeout_s = bus.api.timeout_s, 0.5
    yield
    bus.api.timeout_s = patience_s


@pytest.fixture
def never_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers learn by signals alone: silence and the end of a request, after which they look, come too late."""
    for name in ("streams.pull_consumer.SILENCE_S", "jetstream.pull_transport.EXPIRES_S"):
        monkeypatch.setattr(f"gangline.bus.{name}", 3600.0)


@pytest.fixture
def settings_of() -> Callable[..., ConnectionSettings]:
    def make(url: str, **others: Any) -> ConnectionSettings:
        return ConnectionSettings.from_url(url, **{"reconnect_wait_s": 0.02, **others})

    return make


@pytest.fixture
def connect_to(settings_of, opened: AsyncExitStack) -> ConnectServer:
    """Connect to a real server."""

    async def connect(url: str, name: str = "test", **others: Any) -> NatsBus:
        bus = await connect_jetstream(settings_of(url, **others), name=name)
        opened.push_async_callback(bus.close)
        return bus

    return connect


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.server)])
def connect(request: pytest.FixtureRequest, opened: AsyncExitStack) -> Connect:
    """Connections of one kind to one server."""
    hub = MemoryServer() if request.param == "memory" else None
    url = "" if hub else request.getfixturevalue("nats_url")

    async def open_one(name: str = "test") -> Bus:
        bus: Bus
        if hub is not None:
            bus = hub.connect(name)
        else:
            settings = ConnectionSettings.from_url(url, storage_timeout_s=PATIENCE_S)  # long lists on a busy machine
            bus = await connect_jetstream(settings, name=name)
        opened.push_async_callback(bus.close)
        return bus

    return open_one


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()


def stream_settings(namespace: str, **others: Any) -> StreamSettings:
    """A work queue in memory, with room for schedules."""
    return StreamSettings(
        subjects=(f"{namespace}.task.>", f"{namespace}.sched.>"),
        **{"storage": Storage.MEMORY, "retention": Retention.WORK_QUEUE, "schedules": True, **others},
    )


@pytest.fixture
def open_stream(connect: Connect, namespace: str) -> Callable[..., Awaitable[Stream]]:
    """Open this test's stream over a connection of its own."""

    async def open_one(**others: Any) -> Stream:
        return await (await connect()).stream(namespace, stream_settings(namespace, **others))

    return open_one


@pytest.fixture
async def stream(open_stream: Callable[..., Awaitable[Stream]]) -> Stream:
    return await open_stream()


@pytest.fixture
def task(namespace: str) -> Callable[[str], str]:
    """A subject of this test's stream."""
    return lambda rest: f"{namespace}.task.{rest}"


def bodies(messages: list[StreamMessage]) -> list[bytes]:
    return [message.data for message in messages]


async def fill(stream: Stream, subject: str, number: int) -> list[int]:
    """Publish `number` messages; their sequences."""
    published = await asyncio.gather(*(stream.publish(subject, b"%d" % index) for index in range(number)))
    return [one.sequence for one in published]


def holds(stream: Stream, number: int) -> Callable[[], Awaitable[bool]]:
    """Whether there are so many messages."""

    async def check() -> bool:
        return (await stream.state()).messages == number

    return check


@pytest.fixture(scope="session")
def quiet_cluster() -> Iterator[EmbeddedCluster]:
    """Three servers for all tests that kill none of them."""
    with EmbeddedCluster(3) as servers:
        yield servers


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Three servers of this test's own, which it may kill."""
    with EmbeddedCluster(3) as servers:
        yield servers


@pytest.fixture
def secured() -> Iterator[Callable[[str], EmbeddedServer]]:
    """Start servers with a configuration of their own; stopped after the test."""
    started: list[EmbeddedServer] = []

    def start(config: str, **others: Any) -> EmbeddedServer:
        server = EmbeddedServer(config=config, **others)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()
