"""Reservations whose worker goes while they are on their way."""

from __future__ import annotations

import asyncio

from gangline.schemas.frames import Request

from .fakes import FakeWorker, Rig, on_rig, silent


async def replace(rig: Rig, worker: FakeWorker) -> FakeWorker:
    """Another process takes the worker's name, as after a crash."""
    await worker.die()
    successor = FakeWorker(rig, worker.name, instance=f"{worker.name}-2", epoch=2)
    rig.workers.append(successor)
    return await successor.start()


@on_rig(probe_first_s=1.0)
async def test_a_reservation_lost_with_its_worker_is_made_elsewhere(rig: Rig) -> None:
    doomed = await rig.worker("w1", behave=silent)
    asking = asyncio.ensure_future(rig.client.options(timeout_s=10).choose_worker("images").__aenter__())
    await doomed.hears(Request.RESERVE)
    successor = await replace(rig, doomed)
    selection = await asking
    assert selection.epoch == 2 and len(successor.heard_of(Request.RESERVE)) == 1
    selection.close()
    rig.balanced()


@on_rig(probe_first_s=1.0)
async def test_a_lease_lost_before_it_was_granted_is_made_elsewhere(rig: Rig) -> None:
    doomed = await rig.worker("w1", behave=silent)
    asking = asyncio.ensure_future(rig.client.options(timeout_s=10).lease("images", slots=2).__aenter__())
    await doomed.hears(Request.RESERVE)
    successor = await replace(rig, doomed)
    lease = await asking
    assert lease.epoch == 2 and len(successor.heard_of(Request.RESERVE)) == 1
    lease.release()
    rig.balanced()
