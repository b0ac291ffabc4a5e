"""The first signal asks to finish, the next ones insist; an orphan ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import warnings

import pytest

from gangline.cli.console.children import TIED, end, ended, how_it_ended, tied_to_parent
from gangline.cli.console.session import run

pytestmark = pytest.mark.processes


@pytest.fixture
async def stubborn() -> asyncio.subprocess.Process:
    """A child that does not heed SIGTERM."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def test_a_child_that_does_not_heed_sigterm_is_killed(stubborn):
    assert await ended(stubborn, 0.05) is None
    await end(stubborn, 0.05)
    assert stubborn.returncode == -signal.SIGKILL
    await end(stubborn, 0.05)


async def test_a_cancelled_wait_kills_the_child_instead_of_leaving_it(stubborn):
    waiting = asyncio.ensure_future(end(stubborn, 60))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await stubborn.wait() == -signal.SIGKILL


async def test_only_a_tied_child_looks_after_its_parent(monkeypatch):
    monkeypatch.delenv(TIED, raising=False)
    with tied_to_parent(lambda: pytest.fail("nobody is gone")):
        pass
    monkeypatch.setenv(TIED, "1")
    gone = asyncio.Event()
    reading, writing = os.pipe()
    keep = os.dup(0)
    os.dup2(reading, 0)
    try:
        with tied_to_parent(gone.set):
            assert TIED not in os.environ, "its own children are not tied to its parent"
            os.close(writing)
            await gone.wait()
    finally:
        os.dup2(keep, 0)
        os.close(keep)
        os.close(reading)


def test_the_end_of_a_process_is_told_in_words():
    assert how_it_ended(0).endswith("has exited with code 0")
    assert how_it_ended(-9).endswith("was killed by SIGKILL")
    assert how_it_ended(-15).endswith("was killed by SIGTERM")
    assert how_it_ended(-77).endswith("signal 77")


def test_an_interrupt_before_the_command_has_begun_leaves_no_warning(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    async def work():
        raise AssertionError("it never begins")

    monkeypatch.setattr("gangline.cli.console.session.loop_factory", interrupted)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(KeyboardInterrupt):
        warnings.simplefilter("always")
        run(work())
    assert caught == []
