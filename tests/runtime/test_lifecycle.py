"""Services: started once, stopped once."""

from __future__ import annotations

import asyncio
from enum import StrEnum

import pytest

from gangline.runtime.lifecycle import Service
from gangline.schemas.errors.base import ClosedError, Unavailable


class State(StrEnum):
    NEW = "new"
    STARTING = "starting"
    OPEN = "open"
    CLOSED = "closed"


class Shop(Service[State]):
    """Takes a second to open, and one to close."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__("this shop", State)
        self.fails = fails
        self.opened = self.closed = 0

    async def _start(self) -> None:
        self.opened += 1
        await asyncio.sleep(1)
        if self.fails:
            raise Unavailable("no storage")
        self.state = State.OPEN

    async def _stop(self) -> None:
        await asyncio.sleep(1)
        self.closed += 1

    def give_up(self) -> None:
        self._failure = Unavailable("no more storage")


async def test_it_is_started_once_and_stopped_once():
    shop = Shop()
    async with shop as same:
        assert same is shop and shop.state is State.OPEN
        await shop.start()
    await shop.stop()
    await shop.wait_closed()
    assert (shop.opened, shop.closed) == (1, 1) and shop.state is State.CLOSED
    with pytest.raises(ClosedError, match="this shop was stopped: make a new one"):
        await shop.start()


async def test_a_start_that_fails_is_undone():
    shop = Shop(fails=True)
    with pytest.raises(Unavailable, match="no storage"):
        await shop.start()
    assert shop.closed == 1 and shop.state is State.CLOSED


async def test_a_start_that_is_cancelled_is_undone():
    shop = Shop()
    starting = asyncio.ensure_future(shop.start())
    await asyncio.sleep(0.5)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert shop.closed == 1 and shop.state is State.CLOSED


async def test_to_stop_it_ends_a_start_and_whoever_starts_it_is_not_cancelled():
    shop = Shop()

    async def start() -> str:
        with pytest.raises(ClosedError, match="was stopped while it started"):
            await shop.start()
        await asyncio.sleep(1)
        return "goes on"

    starting = asyncio.ensure_future(start())
    await asyncio.sleep(0.5)
    await shop.stop()
    assert shop.closed == 1 and shop.state is State.CLOSED
    assert await starting == "goes on"
    assert shop.closed == 1


async def test_one_that_is_stopped_and_whose_starter_is_cancelled_too_is_cancelled():
    shop = Shop()
    starting = asyncio.ensure_future(shop.start())
    await asyncio.sleep(0.5)
    starting.cancel()
    await shop.stop()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert shop.closed == 1


async def test_why_it_stopped_by_itself_is_told_to_who_waits():
    shop = Shop()
    await shop.start()
    shop.give_up()
    await shop.stop()
    with pytest.raises(Unavailable, match="no more storage"):
        await shop.wait_closed()
