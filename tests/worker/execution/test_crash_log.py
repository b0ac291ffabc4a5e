"""A child process that dies leaves a line in the worker's log, not only an error at the caller."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import TaskCrashed
from gangline.schemas.names import Names
from gangline.worker.service import Worker
from gangline.worker.settings import WorkerSettings

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
