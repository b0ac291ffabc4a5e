"""What a durable task says of how far it is, wherever it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.schemas.errors.base import InvalidResult, PayloadTooLarge
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import AnswerOp
from gangline.worker.context.progress import INTERVAL_S, MAX_BYTES
from gangline.worker.context.task_context import TaskContext, current_task
from gangline.worker.service import Worker

from ...support.worker.rig import Hand, Rig, task

MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")
OK, ERROR = AnswerOp.OK, AnswerOp.ERROR
JOB = {"job": "j1", "endpoint": "thumbs", "attempt": 2}


class Feed(Rig):
    """A rig whose feed of the job is listened to."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[dict[str, Any]] = []
        self.times: list[float] = []

    async def __aenter__(self) -> Feed:
        await super().__aenter__()
        loop = asyncio.get_running_loop()

        def heard(message: Any) -> None:
            self.reports.append(codec.from_json(message.data))
            self.times.append(loop.time())

        await self.connect("listener").subscribe(self.names.job("j1", "progress"), heard)
        return self

    @property
    def values(self) -> list[Any]:
        return [report["value"] for report in self.reports]


@asynccontextmanager
async def feed_of(function: Any) -> AsyncIterator[Feed]:
    rig = Feed()
    rig.worker.pool.task(name="work")(function)
    async with rig:
        yield rig


async def test_reports_reach_the_jobs_feed_with_job_attempt_and_number():
    async def work() -> str:
        for part in range(3):
            await current_task().progress({"part": part, "of": 3})
            await asyncio.sleep(0.1)
        return "done"

    async with feed_of(work) as rig:
        assert await rig.hand.ask(*task(1, "work", meta=JOB)) == [OK, 1, "done"]
        assert [(r["job"], r["attempt"], r["number"], r["value"]) for r in rig.reports] == [
            ("j1", 2, number, {"part": number - 1, "of": 3}) for number in (1, 2, 3)
        ]
        assert all(report["at"] > 0 for report in rig.reports)


async def test_the_first_goes_out_at_once_then_the_newest_of_each_interval_and_the_last_before_the_answer():
    async def work() -> None:
        for number in range(120):
            await current_task().progress(number)
            await asyncio.sleep(0.001)

    async with feed_of(work) as rig:
        began = asyncio.get_running_loop().time()
        rig.hand.send(task(1, "work", meta=JOB))
        await rig.hand.answer(1)
        assert rig.values[0] == 0
        assert rig.values[-1] == 119
        assert len(rig.values) == 4, "at 0 ms, 50 ms, 100 ms, and at the end"
        assert rig.times[0] - began < 0.01
        assert all(b - a > INTERVAL_S * 0.9 for a, b in zip(rig.times[:-1], rig.times[1:-1], strict=False))
        await asyncio.sleep(1)
        assert len(rig.values) == 4, "nothing comes after the answer"


async def test_a_thread_says_how_far_it_is():
    def work() -> str:
        current_task().progress_blocking(1)
        current_task().progress_blocking(b"bytes")
        return threading.current_thread().name

    async with feed_of(work) as rig:
        assert (await rig.hand.ask(*task(1, "work", meta=JOB)))[2].startswith("gangline-")
        assert rig.values == [1, "Ynl0ZXM="]


async def test_a_call_may_say_so_too_and_nothing_happens():
    async def work() -> str:
        await current_task().progress(1)
        return "done"

    async with feed_of(work) as rig:
        assert await rig.hand.ask(*task(1, "work")) == [OK, 1, "done"]
        assert await rig.hand.ask(*task(2, "work", meta={"attempt": 1})) == [OK, 2, "done"]
        await rig.hand.quiet(1)
        assert rig.reports == []


async def test_what_cannot_be_sent_is_an_error_where_it_was_said():
    async def work(what: str) -> list[str]:
        values: dict[str, Any] = {"large": "x" * MAX_BYTES, "strange": object(), "fits": "x" * (MAX_BYTES - 2)}
        try:
            await current_task().progress(values[what])
        except (PayloadTooLarge, InvalidResult) as error:
            return [error.code, error.message]
        return []

    async with feed_of(work) as rig:
        too_large = (await rig.hand.ask(*task(1, "work", ["large"], meta=JOB)))[2]
        assert too_large[0] == "payload_too_large"
        assert "images.work: a progress value has 65538 bytes" in too_large[1]
        strange = (await rig.hand.ask(*task(2, "work", ["strange"], meta={**JOB, "job": "j2"})))[2]
        assert strange[0] == "invalid_result"
        assert "progress has the type object" in strange[1]
        assert (await rig.hand.ask(*task(3, "work", ["fits"], meta={**JOB, "job": "j1", "attempt": 9})))[2] is not None


async def test_the_newest_report_is_sent_when_the_connection_is_back():
    gate = asyncio.Event()

    async def work() -> None:
        for number in range(10):
            await current_task().progress(number)
            await asyncio.sleep(0.1)
        await gate.wait()

    async with feed_of(work) as rig:
        rig.hand.send(task(1, "work", meta=JOB))
        await rig.hand.quiet(0.05)
        rig.hub.disconnect(rig.worker_bus)
        await rig.hand.quiet(1.5)
        rig.hub.reconnect(rig.worker_bus)
        await rig.hand.quiet(0.5)
        assert rig.values == [0, 9], "before the answer, and not only then"
        gate.set()
        await rig.hand.answer(1)
        assert rig.values == [0, 9]
        assert [report["number"] for report in rig.reports] == [1, 2]


async def test_code_that_outlives_its_task_says_nothing_more():
    left: list[TaskContext] = []

    async def work() -> None:
        left.append(current_task())

    async with feed_of(work) as rig:
        await rig.hand.ask(*task(1, "work", meta=JOB))
        await left[0].progress("late")
        left[0].progress_blocking("late")
        await rig.hand.quiet(1)
        assert rig.reports == []


async def test_what_a_thread_says_while_its_task_ends_does_not_follow_the_answer():
    async def work() -> None:
        thread = threading.Thread(target=current_task().progress_blocking, args=("late",))
        thread.start()
        thread.join()

    async with feed_of(work) as rig:
        await rig.hand.ask(*task(1, "work", meta=JOB))
        await rig.hand.quiet(1)
        assert rig.reports == []


@pytest.mark.processes
async def test_a_child_process_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(MODULES)
    import job_samples  # type: ignore[import-not-found]

    hub = MemoryServer()
    worker_bus, router_bus, listener = hub.connect("worker"), hub.connect("router"), hub.connect("listener")
    async with Worker(job_samples.pool, bus=worker_bus) as worker:
        reports: list[Any] = []
        await listener.subscribe(
            worker.names.jobs, lambda message: reports.append(codec.from_json(message.data)["value"])
        )
        hand = await Hand(router_bus, worker).listen()
        hand.send(task(1, "in_child", [6], deadline_ms=None, meta=JOB))
        assert await hand.answer(1) == [OK, 1, ["j1", "thumbs", 2, 2]]
        assert reports[0] == {"step": 0}
        assert reports[-1] == {"step": 5}
        reports.clear()
        hand.send(task(2, "in_child", [1]), task(3, "in_childs_loop", ["there"], meta={**JOB, "job": "j3"}))
        assert await hand.answer(2) == [OK, 2, [None, None, 1, 0]], "a call: nobody follows it"
        assert (await hand.answer(3))[0] == OK
        assert (await hand.ask(*task(4, "unwritable", meta={**JOB, "job": "j2"})))[2] == "invalid_result"
        assert reports == ["there"]
    for bus in (worker_bus, router_bus, listener):
        await bus.close()
