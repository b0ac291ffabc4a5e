"""Reservations and leases whose worker goes, or comes back, meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from gangline.schemas.errors.base import LeaseExpired, WorkerLost
from gangline.schemas.wire.frames import AnswerOp, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, silent
from ...waiting import loop_time


async def replace(rig: Rig, worker: FakeWorker) -> FakeWorker:
    """Another process takes the worker's name, as after a crash."""
    await worker.die()
    successor = FakeWorker(rig, worker.name, instance=f"{worker.name}-2", epoch=2)
    rig.workers.append(successor)
    return await successor.start()


@pytest.mark.router(probe_first_s=1.0)
@pytest.mark.parametrize("asked", ["a selection", "a lease"])
async def test_a_reservation_lost_with_its_worker_is_made_elsewhere(rig: Rig, asked: str) -> None:
    doomed = await rig.worker("w1", behave=silent)
    client = rig.client.options(timeout_s=10)
    context = client.lease("images", slots=2) if asked == "a lease" else client.choose_worker("images")
    asking = asyncio.ensure_future(context.__aenter__())
    await doomed.hears(RequestOp.RESERVE)
    successor = await replace(rig, doomed)
    assert (await asking).epoch == 2 and len(successor.heard_of(RequestOp.RESERVE)) == 1
    await context.__aexit__(None, None, None)


async def test_a_lease_waits_for_a_worker_that_comes_back_later_than_we_do(rig: Rig) -> None:
    worker = await rig.worker("w1")
    loop = asyncio.get_running_loop()
    async with rig.client.lease("images", ttl_s=30) as lease:
        rig.hub.disconnect(worker.bus)
        rig.hub.disconnect(rig.bus)
        await asyncio.sleep(0.2)
        rig.hub.reconnect(rig.bus)
        loop.call_later(1, rig.hub.reconnect, worker.bus)
        before = loop.time()
        assert await lease.call("echo") == ["w1", "echo"]
        assert 1 <= loop.time() - before < 1.5
        worker.behave = lambda w, f: [(AnswerOp.END, f[1], 0)] if f[0] == RequestOp.TASK else None
        rig.hub.disconnect(worker.bus)
        loop.call_later(1, rig.hub.reconnect, worker.bus)
        assert [item async for item in lease.stream("items")] == []


async def test_a_lease_does_not_wait_for_a_worker_that_does_not_come_back(rig: Rig) -> None:
    worker = await rig.worker("w1")
    async with rig.client.lease("images", ttl_s=30) as lease:
        await worker.die()
        with pytest.raises(WorkerLost, match="nothing started"):
            await lease.call("echo")
        rig.hub.disconnect(rig.bus)
        rig.hub.reconnect(rig.bus)
        before = loop_time()
        with pytest.raises((WorkerLost, LeaseExpired), match="nothing started|nothing was sent") as lost:
            await lease.call("echo")
        assert loop_time() - before < 3.6 and not lost.value.may_have_started
