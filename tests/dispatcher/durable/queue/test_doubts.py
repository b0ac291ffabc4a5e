"""What a dispatcher reads again after it doubted that a queue is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gangline.dispatcher.durable.persistence.outcome_store import OutcomeStore
from gangline.schemas.records.jobs import JobState, ResultRecord

from ....support.durable.site import Site, simulated

WAITING = 120


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The jobs whose records dispatchers have looked up."""
    jobs: list[str] = []
    look = OutcomeStore._entry

    async def entry(store: OutcomeStore, job: str):  # type: ignore[no-untyped-def]
        jobs.append(job)
        return await look(store, job)

    monkeypatch.setattr(OutcomeStore, "_entry", entry)
    yield jobs


async def _queued(site: Site, seconds: float) -> None:
    await site.serve(workers=1, slots=4)
    await asyncio.sleep(5.0)
    for _ in range(WAITING):
        await site.submit("square", {"x": 1, "seconds": seconds})
    await asyncio.sleep(1.0)


async def _doubt(site: Site, times: int) -> None:
    """As on a machine without time for it: about once a second."""
    for _ in range(times):
        site.holder().dispatcher.queues[site.pool]._context.guard._doubt(0.0)
        await asyncio.sleep(1.0)


@simulated()
async def test_what_was_cancelled_meanwhile_never_starts(site: Site, looked_up: list[str]) -> None:
    await _queued(site, 0.25)
    results, cancelled = await site.streams.results(), {"90", "100", "110"}
    for job in sorted(cancelled):
        await _doubt(site, 1)
        site.holder().dispatcher.queues[site.pool]._context.guard._doubt(0.0)  # its client finds nobody
        record = ResultRecord(job=job, endpoint=site.pool, method="square", state=JobState.CANCELLED, finished_at=1e9)
        await results.put(site.names.result_key(job), record.model_dump_json().encode(), ttl_s=3600.0)
    await site.empty(200.0)
    assert cancelled <= set(looked_up)
    assert {job for job, _, _, _ in site.starts} == {str(job) for job in range(1, WAITING + 1)} - cancelled
