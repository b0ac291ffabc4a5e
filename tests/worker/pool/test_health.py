"""Health checks: what fails often enough makes the worker leave, and its gangs restart elsewhere."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from gangline.schemas.errors.base import GangFailed, InvalidSettings, WorkerUnhealthy
from gangline.worker.context.task_context import GangContext
from gangline.worker.pool.pool import Pool
from gangline.worker.service import WorkerState

from ...support.dispatcher.gang_rig import GangRig, on_gang_rig, pool_of, until
from ...support.logs import records_of
from ...support.rows import in_rows
from ...support.worker.rig import Rig, make_pool, task


def with_check(pool: Pool, answers: list[Any], **options: Any) -> list[float]:
    """Give the pool a health check that takes its answers from the list: an exception, seconds to hang, or what to
    return. Gives when it was asked."""
    asked: list[float] = []

    @pool.health_check(**options)
    async def gpu() -> Any:
        asked.append(asyncio.get_running_loop().time())
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer

    return asked


async def test_a_worker_whose_check_fails_as_often_as_it_may_drains_and_says_why(caplog):
    bad: list[Any] = [OSError("no gpu"), None, False, 60.0, OSError("no gpu")]
    logging.getLogger("somebody.else").warning("what others log in this process does not matter")
    rig = Rig()
    asked = with_check(rig.worker.pool, bad, period_s=2.0, timeout_s=1.0)
    async with rig:
        began = asyncio.get_running_loop().time()
        rig.hand.send(task(1, "wait", kwargs={"name": "long", "seconds": 20.0}, deadline_ms=60_000))
        with pytest.raises(WorkerUnhealthy, match="health check gpu failed 3 times in a row: OSError: no gpu"):
            await rig.worker.wait_closed()
        assert (await rig.hand.answer(1))[2] == "long done"
    assert [round(at - began, 1) for at in asked] == [2.0, 4.0, 6.0, 8.0, 11.0], "one good answer counts from anew"
    said = [record for record in records_of(caplog, "gangline.worker") if record.action == "health.failed"]
    assert [record.message.partition(": ")[2] for record in said] == [
        "OSError: no gpu",
        "RuntimeError: it returned False",
        "no answer within 1 s",
        "OSError: no gpu",
    ]
    assert [bool(record.exc_info) for record in said] == [1, 1, 0, 1]


async def test_a_healthy_worker_goes_on_and_checks_no_more_when_it_has_left():
    rig = Rig()
    asked = with_check(rig.worker.pool, [], period_s=1.0)
    async with rig:
        await asyncio.sleep(10.5)
        assert (len(asked), rig.worker.state) == (10, WorkerState.SERVING)
    await asyncio.sleep(5)
    assert len(asked) == 10


@pytest.mark.realtime
async def test_a_plain_check_that_hangs_in_its_thread_is_not_started_again_beside_itself():
    rig, started, go = Rig(), [], threading.Event()

    @rig.worker.pool.health_check(period_s=0.01, timeout_s=0.01, failures=3)
    def disk() -> None:
        started.append(1)
        go.wait()

    try:
        async with rig:
            with pytest.raises(WorkerUnhealthy, match="disk failed 3 times in a row: no answer within"):
                await rig.worker.wait_closed()
        assert started == [1]
    finally:
        go.set()


@in_rows(
    "options, complaint",
    [
        ({"period_s": 0}, "period_s must be above 0"),
        ({"timeout_s": "1"}, "timeout_s must be above 0"),
        ({"timeout_s": True}, "timeout_s must be above 0"),
        ({"failures": 0}, "failures must be a whole number, at least 1"),
    ],
)
def test_a_wrong_setting_of_a_check_is_refused_where_it_is_declared(options, complaint):
    with pytest.raises(InvalidSettings, match=complaint):
        with_check(make_pool(), [], **options)


def test_a_check_may_be_declared_without_parentheses():
    pool = make_pool()

    @pool.health_check
    def fine() -> bool:
        return True

    assert [(check.name, check.failures) for check in pool.health_checks] == [("fine", 3)]


@on_gang_rig("w2")
async def test_a_gang_with_a_member_on_an_unhealthy_worker_restarts_elsewhere(rig: GangRig) -> None:
    pool, sick = pool_of(rig.probe), asyncio.Event()

    @pool.health_check(period_s=1.0, failures=1)
    async def gpu() -> bool:
        return not sick.is_set()

    @pool.gang_start
    async def started(context: GangContext) -> None:
        return

    await rig.worker("w1", pool)
    await rig.worker("w3")
    async with rig.client.gang(pool="train", size=4, strategy="spread", backoff_s=0.1) as gang:
        if "train.w1" not in {member.worker for member in gang.members}:
            pytest.fail("the gang is spread over all workers")
        sick.set()
        await until(lambda: gang.generation > 1)
        assert "train.w1" not in {member.worker for member in gang.members}
        assert gang.restarts == 1
    rig.workers.pop("w1")


@on_gang_rig()
async def test_a_gang_is_ready_when_the_first_health_check_of_each_member_has_passed(rig: GangRig) -> None:
    healthy, asked = asyncio.Event(), []
    for name in ("w1", "w2"):
        pool = pool_of(rig.probe, slots=1)

        @pool.health_check(period_s=1000.0, timeout_s=100.0)
        async def gpu(name: str = name) -> None:
            asked.append(name)
            await healthy.wait()

        await rig.worker(name, pool)
    async with rig.client.gang(pool="train", size=2) as gang:
        ready = asyncio.ensure_future(gang.ready())
        running = asyncio.ensure_future(gang.run("who"))
        await asyncio.sleep(50)
        assert sorted(asked) == ["w1", "w2"] and not ready.done() and not running.done()
        healthy.set()
        assert await ready == 1 and len(await running) == 2


@on_gang_rig()
async def test_a_member_whose_first_health_check_fails_has_failed_at_its_start(rig: GangRig) -> None:
    pool = pool_of(rig.probe, slots=1)
    asked = with_check(pool, [False], period_s=5.0, failures=2)
    await rig.worker("w1", pool)
    async with rig.client.gang(pool="train", size=1) as gang:
        assert await gang.ready() == 1 and len(asked) > 1, "the second of two passed"
    other = pool_of(rig.probe, "other", slots=1)
    with_check(other, [OSError("no gpu")], period_s=1000.0, failures=1)
    await rig.worker("w2", other)
    with pytest.raises(GangFailed, match="failed_at_start: health check gpu failed 1 time in a row: OSError: no gpu"):
        async with rig.client.gang(pool="other", size=1, restart="fail") as gang:
            await gang.ready()
