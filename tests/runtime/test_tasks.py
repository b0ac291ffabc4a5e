"""Tasks that end together."""

from __future__ import annotations

import asyncio

import pytest

from gangline.runtime.tasks import TaskSet
from gangline.telemetry.logs import logger_for

from ..support.logs import records_of


async def test_one_that_raises_is_logged_and_the_others_go_on(caplog):
    async def fail() -> None:
        raise ValueError("no")

    chores = TaskSet("test", logger_for("test"))
    chores.start(fail())
    going = chores.start(asyncio.sleep(1, "done"))
    assert await going == "done"
    assert [(record.action, record.getMessage()) for record in records_of(caplog, "gangline.test")] == [
        ("background.failed", "gangline test failed")
    ]


async def test_after_cancel_nothing_is_begun():
    chores = TaskSet("test")
    running = chores.start(asyncio.sleep(9))
    chores.cancel()
    chores.cancel()
    assert chores.start(asyncio.sleep(9)).cancelled()
    assert len(chores) == 1, "it has not ended yet"
    await chores.rest()
    assert running.cancelled() and len(chores) == 0


async def test_to_rest_is_to_wait_until_all_have_ended_those_too_that_they_start_or_so_long():
    loop = asyncio.get_running_loop()
    chores = TaskSet("test")

    async def start_another() -> None:
        await asyncio.sleep(1)
        chores.start(asyncio.sleep(4))

    chores.start(start_another())
    began = loop.time()
    await chores.rest(2)
    assert loop.time() - began == pytest.approx(2) and len(chores) == 1
    await chores.rest()
    assert loop.time() - began == pytest.approx(5) and len(chores) == 0
    await chores.rest()


async def test_one_of_them_may_stop_the_others():
    chores = TaskSet("test")
    other = chores.start(asyncio.sleep(9))

    async def stop() -> str:
        await chores.stop()
        return "stopped"

    assert await chores.start(stop()) == "stopped"
    assert other.cancelled() and len(chores) == 0
