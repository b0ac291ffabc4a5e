"""A worker that drains waits until it hears that the ends it keeps are stored. What tells it so may get lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.worker.wire.durable_jobs import DurableJobServer

from ....support.durable.site import Site, simulated


def _loses(patch: pytest.MonkeyPatch, lost: int) -> list[Any]:
    """The first of what tells workers that ends are stored gets lost. Returns a list of all that came."""
    original, came = DurableJobServer.stored, list[Any]()

    def stored(self: DurableJobServer, frame: Any, now: float) -> None:
        came.append(frame)
        if len(came) > lost:
            original(self, frame, now)

    patch.setattr(DurableJobServer, "stored", stored)
    return came


@pytest.mark.parametrize(("method", "later_s"), [("square", 0.0), ("square", 30.0), ("fail", 0.0)])
@simulated(backoff_s=5.0)
async def test_a_drain_does_not_wait_out_its_grace_for_an_acknowledgement_that_got_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch, method: str, later_s: float
) -> None:
    worker = site.worker()
    site.dispatcher()
    await site.taken()
    came = _loses(monkeypatch, 2)
    if method == "square":
        jobs = [await site.submit("square", {"x": x}) for x in range(2)]
        for job in jobs:
            await site.ended(job)
    else:  # a failure that is stored as well, and is followed by another try elsewhere
        for _ in range(2):
            await site.submit("fail", {"times": 1})
    await site.eventually(lambda: len(came) == 2)
    assert worker.worker.core.jobs.unstored == 2
    if method == "square":
        await asyncio.sleep(later_s)
    began_at = site.loop.time()
    await site.loop.spawn(worker.name, worker.worker.drain(60.0), name="drain")
    assert site.loop.time() - began_at < 3.0
    site.worker()
    await site.empty()


@simulated()
async def test_an_end_that_is_not_stored_yet_is_not_acknowledged(site: Site) -> None:
    worker = site.worker()
    site.dispatcher()
    await site.taken()
    await site.ended(await site.submit("square", {"x": 1}))
    job = await site.submit("square", {"x": 2, "seconds": 1.0})
    await site.eventually(lambda: len(site.starts) == 2)
    site.hub.storage_down()
    await site.eventually(lambda: len(site.ends) == 2)
    drain = site.loop.spawn(worker.name, worker.worker.drain(60.0), name="drain")
    await asyncio.sleep(8.0)
    assert worker.worker.core.jobs.unstored == 1 and not drain.done()
    site.hub.storage_back()
    began_at = site.loop.time()
    assert (await site.ended(job)).state == "done"
    await drain
    assert site.loop.time() - began_at < 5.0 and site.attempts(job) == [1]
