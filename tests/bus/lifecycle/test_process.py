"""What ends a process that lives on one connection: its own end, signals, or the connection's end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, cast

import pytest

from gangline.bus.lifecycle import on_signals, run_service, run_until_left, settled_memory
from gangline.bus.port.bus import Bus, ConnectionEvent
from gangline.runtime.lifecycle import Service
from gangline.schemas.errors.base import ClosedError, Disconnected

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A collection of all that the suite has imported costs a quarter of a second, and what pytest hides from the
    collector stays hidden."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    gc.unfreeze()
    yield
    gc.freeze()


class Life:
    """Lives until it is told to go; `bus` is itself, as far as connection events go."""

    def __init__(self, *, begun: bool = True) -> None:
        self.begun = begun
        self.log: list[str] = []
        self.listeners: list[Callable[[ConnectionEvent], None]] = []
        self.lives = asyncio.Event()
        self.asked = asyncio.Event()
        self._go = asyncio.Event()

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def live(self) -> None:
        self.lives.set()
        try:
            await self._go.wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        finally:
            self.log.append("cleaned up")

    def finish(self) -> bool:
        self.log.append("finish")
        self.asked.set()
        return self.begun

    def stop(self) -> None:
        self.log.append("stop")
        self._go.set()

    def run(self) -> asyncio.Task[None]:
        running = run_until_left(cast(Bus, self), self.live(), finish=self.finish, stop=self.stop)
        return asyncio.create_task(cast(Any, running))


async def test_a_terminal_that_goes_away_drains_and_does_not_under_nohup():
    life = Life()
    running = life.run()
    await life.lives.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    await life.asked.wait()
    life.stop()
    await running
    assert life.log == ["finish", "stop", "cleaned up"]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_signals(lambda: None, lambda: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_connection_that_is_closed_for_good_is_an_error_and_one_that_is_lost_is_not():
    life = Life()
    running = life.run()
    await life.lives.wait()
    for event in (ConnectionEvent.DISCONNECTED, ConnectionEvent.RECONNECTED):
        life.listeners[0](event)
    await asyncio.sleep(0)
    assert not running.done()
    life.listeners[0](ConnectionEvent.CLOSED)
    with pytest.raises(Disconnected, match="closed the connection for good"):
        await running
    assert life.log == ["cancelled", "cleaned up"]


async def test_what_was_there_before_is_out_of_the_collectors_way_while_it_lives():
    life = Life()
    before = gc.get_freeze_count()
    running = life.run()
    await life.lives.wait()
    assert gc.get_freeze_count() > before + 1000
    life.stop()
    await running
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("first", "meanwhile"), [(700, 2000), (5000, 5000), (0, 0)])
def test_new_objects_are_collected_less_often_while_it_lives_unless_the_program_chose_how_often(first, meanwhile):
    before = gc.get_threshold()
    try:
        gc.set_threshold(first, 11, 12)
        with settled_memory():
            assert gc.get_threshold()[0] == meanwhile
        assert gc.get_threshold() == (first, 11, 12)
    finally:
        gc.set_threshold(*before)


class State(StrEnum):
    NEW = "new"
    STARTING = "starting"
    OPEN = "open"
    CLOSED = "closed"


class Shop(Service[State]):
    """Opens when it is let."""

    def __init__(self) -> None:
        super().__init__("this shop", State)
        self.log: list[str] = []
        self.may_open, self.is_open, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.life = Life()

    async def prepare(self) -> None:
        self.log.append("prepare")
        self.life.lives.set()
        await self.life.asked.wait()

    async def leave(self) -> None:
        self.log.append("leave")
        self.asked.set()

    async def _start(self) -> None:
        self.life.lives.set()
        await self.may_open.wait()
        self.state = State.OPEN
        self.is_open.set()

    async def _stop(self) -> None:
        self.log.append("stop")

    def run(self, **more: Any) -> asyncio.Task[None]:
        return asyncio.create_task(cast(Any, run_service(cast(Bus, self.life), self, **more)))


async def test_a_service_is_stopped_by_a_signal():
    shop = Shop()
    shop.may_open.set()
    running = shop.run()
    await shop.is_open.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert shop.log == ["stop"] and shop.state is State.CLOSED and shop.life.listeners == []


async def test_a_service_leaves_at_the_first_signal_and_stops_at_the_second():
    shop = Shop()
    shop.may_open.set()
    running = shop.run(leave=shop.leave)
    await shop.is_open.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await shop.asked.wait()
    assert not running.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert shop.log == ["leave", "stop"]


async def test_a_signal_while_a_service_starts_ends_it_without_an_error():
    shop = Shop()
    running = shop.run()
    await shop.life.lives.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert shop.log == ["stop"] and shop.state is State.CLOSED and not shop.is_open.is_set()


async def test_a_signal_before_a_service_starts_ends_what_is_done_before_it():
    shop = Shop()
    running = shop.run(before=shop.prepare)
    await shop.life.lives.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert shop.log == ["prepare"] and shop.state is State.NEW


async def test_what_else_may_stop_a_service_does():
    shop = Shop()
    shop.may_open.set()
    stops: list[Callable[[], object]] = []

    @contextmanager
    def parent(stop: Callable[[], object]) -> Iterator[None]:
        stops.append(stop)
        yield
        shop.log.append("parent is let go")

    running = shop.run(also=parent)
    await shop.is_open.wait()
    stops[0]()
    await running
    assert shop.log == ["stop", "parent is let go"]


async def test_a_service_that_somebody_else_has_stopped_before_is_an_error():
    shop = Shop()
    await shop.stop()
    with pytest.raises(ClosedError, match="this shop was stopped"):
        await shop.run()
