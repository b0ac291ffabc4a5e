"""Gangs of a worker on a real nats-server: commits that are fenced by the registration, children, threads, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from gangline.schemas.wire.frames import AnswerOp

from ...support.worker.gang_rig import Leader
from ...support.worker.on_server import WorkerOnServer
from ...support.worker.rig import task

pytestmark = pytest.mark.server

OK, ERROR = AnswerOp.OK, AnswerOp.ERROR
MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(MODULES)
    import gang_samples  # type: ignore[import-not-found]

    return cast(ModuleType, gang_samples)


class Real(WorkerOnServer):
    """With a leader, in a pool of samples."""

    leader: Leader


Start = Callable[[], AbstractAsyncContextManager[Real]]


@pytest.fixture
def real(nats_url: str, namespace: str, samples: ModuleType) -> Start:
    @asynccontextmanager
    async def start() -> AsyncIterator[Real]:
        async with Real.started(nats_url, namespace, samples.pool) as rig:
            rig.leader = await Leader(rig).listen()
            rig.leader.hold_s = 60.0
            yield rig

    return start


async def test_threads_and_their_own_loops_make_collective_calls(real: Start):
    async with real() as rig:
        seats = await rig.leader.gang(ranks=2)
        for run, method in enumerate(("gather_in_thread", "gather_in_own_loop"), start=1):
            for seat in seats:
                sent = task(run * 10 + seat.rank, method, [seat.rank + 5], token=seat.token, meta={"run": run})
                rig.hand.send(sent)
            for seat in seats:
                assert (await rig.hand.answer(run * 10 + seat.rank))[::2] == [OK, [5, [5, 6]]]


async def test_child_processes_make_collective_calls(real: Start):
    async with real() as rig:
        seats = await rig.leader.gang(ranks=2)
        for seat in seats:
            rig.hand.send(task(seat.rank, "gather_in_child", [seat.rank + 5], token=seat.token, meta={"run": 1}))
        for seat in seats:
            answer = await rig.hand.answer(seat.rank)
            assert answer[::2] == [OK, [seat.rank, ["10.0.0.1", 4000], 6, [5, 6]]]
        for seat in seats:
            sent = task(10 + seat.rank, "gather_in_child_async", [seat.rank], token=seat.token, meta={"run": 2})
            rig.hand.send(sent)
        for seat in seats:
            assert (await rig.hand.answer(10 + seat.rank))[::2] == [OK, [0, [0, 1]]]


async def test_a_collective_call_outside_a_gang_fails_in_a_child_too(real: Start):
    async with real() as rig:
        answer = await rig.hand.ask(*task(1, "meet_in_child"))
        assert answer[0] == ERROR and "does not run in a gang" in answer[3]


async def test_a_child_may_declare_its_member_failed(real: Start):
    async with real() as rig:
        (seat,) = await rig.leader.gang()
        rig.hand.send(task(1, "fail_in_child", token=seat.token))
        report = await rig.leader.report()
        assert (report["cause"], report["detail"]) == ("failed", "no memory in the child")


async def test_a_child_that_dies_fails_its_member(real: Start):
    async with real() as rig:
        _, seat = await rig.leader.gang(ranks=2)
        assert (await rig.hand.ask(*task(1, "die", token=seat.token)))[2] == "task_crashed"
        report = await rig.leader.report()
        assert (report["rank"], report["cause"]) == (1, "crashed") and "SIGKILL" in report["detail"]


async def test_a_teardown_kills_what_hangs_in_a_child_and_is_no_failure(real: Start):
    async with real() as rig:
        (seat,) = await rig.leader.gang()
        rig.hand.send(task(1, "hang", token=seat.token))
        await rig.until_load(1, 0)
        assert (await rig.leader.teardown())["stopped"]
        assert rig.load == (0, 0) and rig.leader.reports == []


async def test_code_in_a_thread_keeps_its_slot_and_its_teardown_waits_for_it(real: Start, samples: ModuleType):
    async with real() as rig:
        (seat,) = await rig.leader.gang()
        samples.let_go.clear()
        try:
            rig.hand.send(task(1, "dawdle", token=seat.token))
            await rig.until_load(1, 0)
            stopping = asyncio.ensure_future(rig.leader.teardown(grace_s=0.2))
            assert (await rig.hand.answer(1))[2] == "task_cancelled"
            await asyncio.sleep(0.4)
            assert rig.load == (1, 0) and not stopping.done()
            assert (await rig.leader.hold("next", ranks=4))["reason"] == "full"
        finally:
            samples.let_go.set()
        assert (await stopping)["stopped"]
        assert rig.load == (0, 0)
