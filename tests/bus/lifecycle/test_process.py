"""What ends a process that lives on one connection: its own end, signals, or the connection's end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from gangline.bus.lifecycle.process import run_until_left
from gangline.bus.port.bus import Bus, ConnectionEvent
from gangline.schemas.errors.base import Disconnected

pytestmark = pytest.mark.processes


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


async def test_the_first_signal_finishes_and_the_second_stops():
    life = Life()
    running = life.run()
    await life.lives.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await life.asked.wait()
    assert not running.done()
    os.kill(os.getpid(), signal.SIGINT)
    await running
    assert life.log == ["finish", "stop", "cleaned up"]
    assert life.listeners == []


async def test_a_signal_before_anything_has_begun_ends_it_without_an_error():
    life = Life(begun=False)
    running = life.run()
    await life.lives.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    assert life.log == ["finish", "cancelled", "cleaned up"]


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


async def test_who_cancels_it_cancels_the_life_in_it():
    life = Life()
    running = life.run()
    await life.lives.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert life.log == ["cancelled", "cleaned up"] and life.listeners == []


async def test_what_was_there_before_is_out_of_the_collectors_way_while_it_lives():
    life = Life()
    before = gc.get_freeze_count()
    running = life.run()
    await life.lives.wait()
    assert gc.get_freeze_count() > before + 1000
    life.stop()
    await running
    assert gc.get_freeze_count() == 0
