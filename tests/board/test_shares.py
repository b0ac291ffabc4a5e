"""What a task waits for when the units of a limit are with other workers."""

from __future__ import annotations

import asyncio

import pytest

from gangline.board.board_core import Board
from gangline.board.durations import Durations
from gangline.board.outlook import job_outlook
from gangline.board.reasons import job_sentences
from gangline.board.shares import limited_in, share_obstacle, why_job
from gangline.schemas.messages.jobs import JobInfo, JobWhyReply
from gangline.schemas.records.jobs import JobFailure, JobState
from gangline.schemas.records.workers import HeldShare, LimitRecord
from gangline.testing.in_memory import cluster
from gangline.worker.pool.pool import Pool


def record(limit: int, waiting: tuple[str, ...] = (), interval_s: float = 0.0, **units: int) -> LimitRecord:
    shares = {name: HeldShare(instance=name, units=count) for name, count in units.items()}
    return LimitRecord(incarnation="i", limit=limit, shares=shares, waiting=waiting, interval_s=interval_s)


def test_it_tells_the_limit_who_has_its_units_and_who_waits_for_one() -> None:
    told = share_obstacle("p", "work", record(4, ("w3",), w1=2, w2=1, w3=0))
    assert told.kind == "method" and told.text == (
        "p.work declares that at most 4 may run at once, over all workers and with calls: "
        "of 4 units, w1 has 2, w2 has 1; 1 is free; w3 waits for one."
    )
    told = share_obstacle("p", "work", record(1, ("a", "b"), interval_s=0.5))
    assert told.kind == "rate" and told.text == (
        "p.work declares that at most 2 may start per second, over all workers and with calls: "
        "of 1 unit, nobody has any; 1 is free; a, b wait for one."
    )


@pytest.mark.parametrize(
    ("code", "position", "pool"), [("lease_busy", 0, "p"), ("lease_busy", None, ""), ("task_failed", 0, "")]
)
def test_only_a_waiting_task_that_a_worker_refused_may_be_held_back(code: str, position: int, pool: str) -> None:
    error = JobFailure(code=code, message="refused", details={"worker": "p.w1"})
    info = JobInfo(job="p.1", endpoint="e", method="work", state=JobState.WAITING, error=error)
    assert limited_in(JobWhyReply(job=info, position=position)) == pool


async def test_why_names_the_worker_whose_calls_use_the_units() -> None:
    pool = Pool("p", slots=4)

    @pool.task(max_running=1)
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    running = cluster(pool, workers=3, dispatcher=True)
    async with running as client:
        call = asyncio.ensure_future(client.call("p.work", 20.0))
        await asyncio.sleep(3.0)
        (holder,) = [each.id.worker for each in running.workers.values() if each.core.tasks]
        job = await client.submit("p.work", 0.0)
        await asyncio.sleep(1.0)
        why = await why_job(client, job)
        (text,) = [each.text for each in why.obstacles if each.kind == "method"]
        assert f"at most 1 may run at once, over all workers and with calls: of 1 unit, {holder} has 1" in text
        assert any(text.rstrip(".") in sentence.text for sentence in job_sentences(why))
        call.cancel()
        await job.result()
        assert await why_job(client, job) == await job.why(), "it does not wait any more"


async def test_when_says_that_it_is_not_known_how_long_others_keep_the_units() -> None:
    info = JobInfo(job="p.1", endpoint="p", method="work", state=JobState.WAITING)
    why = JobWhyReply(job=info, position=0, obstacles=(share_obstacle("p", "work", record(1, w1=1)),))
    outlook = job_outlook(Board(), why, Durations({}), 100.0)
    assert any("unknown: p.work declares that at most 1" in each.text for each in outlook.sentences)
