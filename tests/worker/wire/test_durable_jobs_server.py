"""Durable jobs of a worker on a real nats-server, with code in a thread and in a child process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import StreamMessage, StreamSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import AnswerOp, TaskFlag
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ...support.worker.rig import Hand, task
from ...waiting import PATIENCE_S

pytestmark = [pytest.mark.server, pytest.mark.processes]

MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")


async def test_a_job_in_a_child_is_attached_to_and_its_progress_can_be_read_later(
    nats_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.syspath_prepend(MODULES)
    import job_samples  # type: ignore[import-not-found]

    names = Names(namespace)
    buses = [await connect(ConnectionSettings.from_url(nats_url), name=name) for name in ("worker", "first", "second")]
    worker_bus, first_bus, second_bus = buses
    settings = WorkerSettings(id="w1")
    stream = await second_bus.stream(names.jobs_stream, StreamSettings(subjects=(names.jobs,)))
    async with Worker(job_samples.pool, bus=worker_bus, names=names, settings=settings) as worker:
        first = await Hand(first_bus, worker, "first").listen()
        meta: dict[str, Any] = {"job": "j1", "endpoint": "work", "attempt": 3}
        first.send(task(1, "in_child", [20, str(tmp_path / "end")], deadline_ms=None, meta=meta))
        await first_bus.flush()
        second = await Hand(second_bus, worker, "second").listen()
        body: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE_S):
            while not body.get("jobs"):
                body, _ = await second.request("jobs", {"endpoint": "work"})
        [listed] = body["jobs"]
        assert {**listed, "job": "j1", "endpoint": "work", "sequence": 0, "attempt": 3, "running": True} == listed
        await first_bus.close()  # whoever started it is gone
        second.send(task(9, "", deadline_ms=None, flags=int(TaskFlag.ATTACH), meta=meta))
        await second_bus.flush()
        (tmp_path / "end").touch()
        assert await second.answer(9) == [AnswerOp.OK, 9, ["j1", "work", 3, 3]]
        assert worker.core.at_rest
        assert worker.statistics().tasks["started"] == 1
        body, _ = await second.request("jobs", {"endpoint": "work"})
        assert [entry["running"] for entry in body["jobs"]] == [False]

        reports: list[Any] = []
        complete = asyncio.Event()

        def read(message: StreamMessage) -> None:
            reports.append(codec.from_json(message.data))
            if reports[-1]["value"] == {"step": 19}:
                complete.set()

        await stream.read(names.job("j1"), read)
        async with asyncio.timeout(PATIENCE_S):
            await complete.wait()
        assert reports[0]["value"] == {"step": 0}
        assert [report["number"] for report in reports] == list(range(1, len(reports) + 1))
        assert {(report["job"], report["attempt"]) for report in reports} == {("j1", 3)}
        worker.core.check()
    for bus in buses:
        await bus.close()
