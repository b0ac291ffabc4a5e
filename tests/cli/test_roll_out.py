"""A dispatcher and a worker that are replaced at the same time: what ends meanwhile is not started again."""

from __future__ import annotations

import signal

import pytest

pytestmark = [pytest.mark.server, pytest.mark.processes]

POOL = """
import asyncio
import pathlib
import gangline

pool = gangline.Pool("rolls", slots=1)


@pool.task
async def long() -> str:
    with open("starts", "a") as starts:
        starts.write("x")
    pathlib.Path("began").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    pathlib.Path("ended").touch()
    return "well"
"""


@pytest.mark.long
def test_a_task_that_ends_while_both_are_replaced_starts_once(commands):
    (commands.folder / "rolls.py").write_text(POOL)
    dispatcher = commands.start("dispatcher")
    worker = commands.start("worker", "rolls:pool", "--id", "w1")
    job = commands.run("submit", "rolls.long").stdout.strip()
    commands.await_file("began")
    dispatcher.signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    assert dispatcher.wait() == 0
    worker.await_output(r"worker\.drain")
    (commands.folder / "go").touch()
    commands.await_file("ended")
    commands.start("dispatcher")
    commands.started("worker", "rolls:pool", "--id", "w2")
    assert commands.run("result", job).stdout.strip() == "well"
    assert worker.wait() == 0, "it left once its task's end was stored"
    assert "worker.unstored" not in worker.output
    assert (commands.folder / "starts").read_text() == "x"
