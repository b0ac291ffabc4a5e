"""`timeout_s` limits one attempt, `deadline_s` the whole; options that apply to submissions only are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.dispatcher.calls.call import CallOptions
from gangline.schemas.errors.base import DeadlineExceeded, InvalidRequest, InvalidSettings, JobDead
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows
from ...waiting import loop_time


class HangingTasks:
    """Tasks whose first attempts hang."""

    def __init__(self) -> None:
        self.pool = pool = Pool("images", slots=4)
        self.began: list[float] = []
        self.cancelled = 0

        async def hang_until(attempts: int) -> int:
            self.began.append(loop_time())
            if len(self.began) < attempts:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    self.cancelled += 1
                    raise
            return len(self.began)

        @pool.task(idempotent=True)
        async def again(attempts: int) -> int:
            return await hang_until(attempts)

        @pool.task
        async def once(attempts: int) -> int:
            return await hang_until(attempts)

        @pool.task
        async def count(numbers: int) -> AsyncIterator[int]:
            for number in range(numbers):
                yield number
                await asyncio.sleep(10)


async def test_an_attempt_that_takes_too_long_is_cancelled_and_followed_by_another() -> None:
    scene = HangingTasks()
    async with cluster(scene.pool, workers=2) as client:
        began = loop_time()
        assert await client.options(timeout_s=2, deadline_s=60).call("images.again", 3) == 3
        assert 4 <= loop_time() - began < 10
        assert scene.cancelled == 2


@in_rows(
    "options, method, attempts, ends_at",
    [
        ({"timeout_s": 2, "deadline_s": 5}, "again", 3, 5),
        ({"timeout_s": 2, "deadline_s": 60}, "once", 1, 2),
        ({"timeout_s": 1, "deadline_s": 60, "max_attempts": 2}, "again", 2, 2),
        ({"timeout_s": 2}, "again", 1, 2),
        ({"deadline_s": 7}, "again", 1, 7),
    ],
)
async def test_a_call_ends_with_its_last_attempt_or_at_its_deadline(
    options: dict[str, Any], method: str, attempts: int, ends_at: float
) -> None:
    scene = HangingTasks()
    async with cluster(scene.pool, workers=2) as client:
        began_at = loop_time()
        with pytest.raises(DeadlineExceeded, match="timeout_s" if method == "once" else None) as caught:
            await client.options(**options).call(f"images.{method}", 100)
        assert ends_at - 0.01 <= loop_time() - began_at < ends_at + 0.5
        assert caught.value.may_have_started and len(scene.began) == attempts
        await asyncio.sleep(1)
        assert scene.cancelled == attempts


async def test_a_stream_ends_at_the_first_of_both() -> None:
    scene = HangingTasks()
    async with cluster(scene.pool) as client:
        for options, last in (({"timeout_s": 15, "deadline_s": 60}, 15), ({"timeout_s": 60, "deadline_s": 25}, 25)):
            began, items = loop_time(), []
            with pytest.raises(DeadlineExceeded):
                async for item in client.options(**options).stream("images.count", 100):
                    items.append(item)
            assert last - 0.01 <= loop_time() - began < last + 0.5
            assert items == list(range(1 + last // 10))


async def test_calls_on_a_lease_and_on_a_selection_have_both_limits() -> None:
    scene = HangingTasks()
    async with cluster(scene.pool) as client:
        bound = client.options(timeout_s=2, deadline_s=60)
        async with bound.lease("images", slots=1) as lease:
            began = loop_time()
            with pytest.raises(DeadlineExceeded, match="timeout_s"):
                await lease.call("once", 100)
            assert 2 <= loop_time() - began < 2.5
        async with bound.choose_worker("images") as selection:
            began = loop_time()
            with pytest.raises(DeadlineExceeded, match="timeout_s"):
                await bound.dispatch(selection, "once", 100)
            assert 2 <= loop_time() - began < 2.5


async def test_a_run_of_a_gang_has_both_limits() -> None:
    scene = HangingTasks()
    async with cluster(scene.pool, coordinator=True) as client, client.gang(pool="images", size=1) as gang:
        began = loop_time()
        with pytest.raises(DeadlineExceeded, match="timeout_s"):
            await gang.options(timeout_s=2, deadline_s=60).run("once", 100)
        assert 2 <= loop_time() - began < 3
        began = loop_time()
        with pytest.raises(DeadlineExceeded):
            await gang.options(deadline_s=4).run("once", 100)
        assert 3.99 <= loop_time() - began < 5


async def test_a_submitted_task_has_both_limits() -> None:
    scene = HangingTasks()
    async with cluster(scene.pool, dispatcher=True) as client:
        job = await client.options(timeout_s=2, deadline_s=60, backoff_s=0.1).submit("images.again", 3)
        assert await job.result() == 3
        scene.began.clear()
        began = loop_time()
        job = await client.options(timeout_s=2, deadline_s=5, backoff_s=0.1).submit("images.again", 100)
        with pytest.raises(JobDead, match="expired"):
            await job.result()
        assert loop_time() - began < 8


@in_rows(
    "options",
    [
        {"delay_s": 5},
        {"cron": "@hourly"},
        {"priority": 3},
        {"events": True},
        {"idempotency_key": "k"},
        {"ordered": True, "key": "k"},
        {"backoff_s": 1},
        {"result_ttl_s": 60},
    ],
)
async def test_an_option_for_submissions_is_refused_by_everything_else(options: dict[str, Any]) -> None:
    scene = HangingTasks()
    name = next(name for name in options if name != "key")
    async with cluster(scene.pool) as client:
        bound = client.options(**options)
        refused = pytest.raises(InvalidRequest, match=f"{name}.*apply to submit only")
        with refused:
            await bound.call("images.once", 1)
        with refused:
            async for _ in bound.stream("images.count", 1):
                pass
        with refused:
            async with bound.lease("images"):
                pass
        with refused:
            async with bound.choose_worker("images"):
                pass
        assert scene.began == []


@in_rows(
    "options",
    [
        {"timeout_s": "5"},
        {"timeout_s": True},
        {"timeout_s": float("nan")},
        {"timeout_s": 0},
        {"deadline_s": "5"},
        {"deadline_s": 0},
        {"deadline_s": float("inf")},
        {"max_attempts": "3"},
        {"max_attempts": 1.5},
        {"delay_s": "5"},
    ],
)
def test_a_limit_that_is_no_number_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=f"{next(iter(options))} is "):
        CallOptions().changed(options)  # type: ignore[arg-type]
