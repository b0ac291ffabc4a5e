"""A task that raises or dies leaves a line in the worker's log, with its traceback; not only an error at the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import TaskCrashed, TaskFailed
from gangline.schemas.names import Names
from gangline.telemetry.logs import HumanFormatter
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...support.worker.harness import pool_of

pytestmark = pytest.mark.processes

MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")


async def test_a_crashed_child_is_logged_with_the_task_and_how_it_ended(monkeypatch, caplog):
    monkeypatch.syspath_prepend(MODULES)
    import process_samples  # type: ignore[import-not-found]

    hub, names = MemoryServer(), Names("crash")
    async with (
        Worker(process_samples.pool, bus=hub.connect("w"), names=names, settings=WorkerSettings(id="w1")) as worker,
        Client(hub.connect("client"), names=names) as client,
    ):
        with caplog.at_level(logging.WARNING, "gangline.worker"), pytest.raises(TaskCrashed):
            await client.call("samples.end", kind="exit")
        assert worker.statistics().tasks["crashed"] == 1
    (line,) = [record for record in caplog.records if record.__dict__.get("action") == "worker.task_crashed"]
    facts = line.__dict__
    assert (facts["method"], facts["worker"], facts["exit_code"]) == ("end", "w1", 3)
    assert "exited with code 3" in line.getMessage()


def in_this_process() -> Pool:
    async def fail(text: str) -> None:
        raise ValueError(text)

    return pool_of(fail, name="samples")


def in_threads() -> Pool:
    def fail(text: str) -> None:
        raise ValueError(text)

    return pool_of(fail, name="samples")


def in_processes() -> Pool:
    import process_samples

    pool: Pool = process_samples.pool
    return pool


@pytest.mark.parametrize("send_tracebacks", [True, False])
@pytest.mark.parametrize("pool_of", [in_this_process, in_threads, in_processes])
async def test_a_task_that_raises_is_logged_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    pool_of: Callable[[], Pool],
    send_tracebacks: bool,
) -> None:
    monkeypatch.syspath_prepend(MODULES)
    hub, names = MemoryServer(), Names("failures")
    settings = WorkerSettings(id="w1", send_tracebacks=send_tracebacks)
    async with (
        Worker(pool_of(), bus=hub.connect("w"), names=names, settings=settings),
        Client(hub.connect("client"), names=names) as client,
    ):
        with caplog.at_level(logging.WARNING, "gangline.worker"), pytest.raises(TaskFailed) as caught:
            await client.call("samples.fail", "no luck")
    (first,) = [line for line in caplog.records if line.__dict__.get("action") == "worker.task_failed"]
    assert (first.__dict__["method"], first.__dict__["worker"]) == ("fail", "w1")
    written = HumanFormatter().format(first).splitlines()
    assert "samples.fail raised ValueError: no luck" in written[0]
    assert any("raise ValueError(text)" in line for line in written) and written[-1].endswith("ValueError: no luck")
    notes = "".join(getattr(caught.value, "__notes__", ()))
    assert ("raise ValueError(text)" in notes) is send_tracebacks
