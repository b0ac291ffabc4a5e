"""What a task waits for when the units of a limit are with other workers."""

from __future__ import annotations

import asyncio

import pytest

from gangline.board.board_core import Board
from gangline.board.durations import Durations
from gangline.board.outlook import job_outlook
from gangline.board.reasons import job_sentences
from gangline.board.shares import limited_in, share_obstacle, slot_obstacles, why_job
from gangline.schemas.messages.jobs import JobInfo, JobLine, JobWhyReply
from gangline.schemas.names import public_id
from gangline.schemas.records.jobs import JobFailure, JobState
from gangline.schemas.records.workers import (
    LEASE_SLACK_S,
    Heartbeat,
    HeldShare,
    LeaseRecord,
    LimitRecord,
    MethodInfo,
    Registration,
)
from gangline.testing.in_memory import cluster
from gangline.worker.pool.pool import Pool

NOW = 1_790_000_000.0


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


def holding(*leases: tuple[str, int, float], slots: int) -> Board:
    """A worker with leases: owner, slots, and how long each lasts at most."""
    board = Board()
    board.tick(NOW)
    facts = Registration(pool="p", worker="w", epoch=1, instance="i", slots=slots, methods={"work": MethodInfo()})
    board.see_entry("reg.p.w", facts.model_dump_json().encode())
    used = sum(lease[1] for lease in leases)
    beat = Heartbeat(epoch=1, instance="i", running=0, reserved=used, total=slots)
    board.see_entry("alive.p.w", beat.model_dump_json().encode())
    for number, (owner, count, ends_in_s) in enumerate(leases):
        record = LeaseRecord(
            pool="p", worker="w", epoch=1, token=f"~{number}", slots=count, fence=1, single_use=False, owner=owner,
            granted_at=NOW, expires_at=NOW + ends_in_s,
        )  # fmt: skip
        board.see_entry(f"lease.p.w.{number}", record.model_dump_json().encode())
    board.take()
    return board


def test_a_job_is_told_who_has_the_slots_of_its_pool_first_those_that_end_first() -> None:
    line = JobLine(pool="p", method="work")
    board = holding(("etl", 2, 50.0), ("web", 1, 20.0), slots=3)
    assert [(each.text, each.until) for each in slot_obstacles(board, line, NOW)] == [
        ("1 slot of p.w: lease ~1 (web), if it is not renewed", NOW + 20.0 + LEASE_SLACK_S),
        ("2 slots of p.w: lease ~0 (etl), if it is not renewed", NOW + 50.0 + LEASE_SLACK_S),
    ]
    assert not list(slot_obstacles(holding(("etl", 2, 50.0), slots=3), line, NOW)), "one slot is free"
    wide = line.model_copy(update={"slots": 2})
    assert len(list(slot_obstacles(holding(("etl", 2, 50.0), slots=3), wide, NOW))) == 1
    many = holding(*((f"o{number}", 1, 9.0) for number in range(20)), slots=20)
    assert [each.text for each in slot_obstacles(many, line, NOW)][-1] == "12 slots: others"


async def test_why_names_the_lease_that_has_slots_also_where_no_coordinator_knows_of_the_other_ones() -> None:
    pool = Pool("p", slots=2)

    @pool.task
    async def work() -> None:
        pass

    running = cluster(pool, workers=1, dispatcher=True)
    async with running as client, client.lease("p", ttl_s=30.0, ledger="sync"), client.lease("p", ttl_s=30.0) as other:
        job = await client.submit("p.work")
        await asyncio.sleep(1.0)
        ledger = await client.router.ledger()
        (unseen,) = [
            entry for entry in await ledger.entries("lease.>") if entry.key.endswith(public_id(other.token)[1:])
        ]
        await ledger.delete(unseen.key)  # so that its slot is reserved, and nobody knows for whom
        texts = [each.text for each in (await why_job(client, job)).obstacles]
        assert len([text for text in texts if "1 slot of p.w1: lease ~" in text]) == 1, texts


async def test_when_says_that_it_is_not_known_how_long_others_keep_the_units() -> None:
    info = JobInfo(job="p.1", endpoint="p", method="work", state=JobState.WAITING)
    why = JobWhyReply(job=info, position=0, obstacles=(share_obstacle("p", "work", record(1, w1=1)),))
    outlook = job_outlook(Board(), why, Durations({}), 100.0)
    assert any("unknown: p.work declares that at most 1" in each.text for each in outlook.sentences)
