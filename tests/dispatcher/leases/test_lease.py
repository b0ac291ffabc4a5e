"""Leases: many tasks on slots that are held, for as long as they may be trusted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.routing.policy import Sticky
from gangline.runtime.timers import margin_s
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp, ReserveFlag

from ...support.dispatcher.fakes import Rig, mute, silent, turns
from ...waiting import loop_time


async def test_no_more_tasks_run_at_once_than_the_lease_has_slots(rig: Rig) -> None:
    worker = await rig.worker(slots=4, behave=mute(RequestOp.TASK))
    async with rig.client.lease("images", slots=2) as lease:
        calls = [asyncio.ensure_future(lease.call("echo", n)) for n in range(4)]
        await worker.hears(RequestOp.TASK, 2)
        await turns()
        assert len(worker.heard_of(RequestOp.TASK)) == 2 and lease.used == 2
        worker.answer((AnswerOp.OK, worker.heard_of(RequestOp.TASK)[0][1], None))
        await worker.hears(RequestOp.TASK, 3)
        assert [frame[3] for frame in worker.heard_of(RequestOp.TASK)] == [[0], [1], [2]]
        assert {frame[6] for frame in worker.heard_of(RequestOp.TASK)} == {lease.token}
        for call in calls:
            call.cancel()
        await turns()
        assert lease.used == 2  # two are still stopping: their slots are not free before the worker says so
        for task in worker.heard_of(RequestOp.TASK)[1:]:
            worker.answer((AnswerOp.ERROR, task[1], "task_cancelled", "stopped", None, True))
        await turns()
        assert lease.used == 0


async def test_a_lease_that_does_not_wait_says_busy(rig: Rig) -> None:
    worker = await rig.worker(slots=4, behave=mute(RequestOp.TASK))
    async with rig.client.lease("images", slots=1, wait=False) as lease:
        first = asyncio.ensure_future(lease.call("echo"))
        await worker.hears(RequestOp.TASK)
        with pytest.raises(errors.LeaseBusy):
            await lease.call("echo")
        with pytest.raises(errors.LeaseBusy, match="2 slots"):
            await lease.call("heavy")
        first.cancel()
        await turns()


async def test_a_lease_is_renewed_and_a_use_counts_as_a_renewal(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.lease("images", ttl_s=3) as lease:
        await asyncio.sleep(30)
        assert lease.lost is None
        assert await lease.call("echo") == ["w1", "echo"]
    assert 25 <= len(worker.heard_of(RequestOp.RENEW)) <= 35
    assert all(frame[3] == 3000 for frame in worker.heard_of(RequestOp.RENEW))


async def test_a_lease_dies_with_its_epoch_and_with_its_worker(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.lease("images") as lease:
        worker.epoch = 2
        await worker.beat()
        await turns()
        with pytest.raises(errors.StaleEpoch):
            await lease.call("echo")
    async with rig.client.lease("images") as lease:
        await worker.die()
        await asyncio.sleep(5)
        with pytest.raises(errors.WorkerLost) as caught:
            await lease.call("echo")
        assert not caught.value.may_have_started
    assert worker.heard_of(RequestOp.TASK) == []


async def test_a_lease_cannot_be_used_after_its_block_and_is_of_one_pool(rig: Rig) -> None:
    await rig.worker()
    async with rig.client.lease("images") as lease:
        with pytest.raises(errors.WrongPool):
            await lease.call("sounds.echo")
        assert await lease.call("images.echo") == ["w1", "echo"]
    with pytest.raises(errors.LeaseExpired, match="released"):
        await lease.call("echo")


async def test_releasing_a_lease_wakes_whoever_waits_for_its_slots(rig: Rig) -> None:
    worker = await rig.worker(behave=mute(RequestOp.TASK))
    async with rig.client.lease("images") as lease:
        running = asyncio.ensure_future(lease.call("echo"))
        waiting = asyncio.ensure_future(lease.call("echo"))
        await worker.hears(RequestOp.TASK)
        lease.release()
        with pytest.raises(errors.LeaseExpired):
            await waiting
        worker.answer((AnswerOp.OK, worker.heard_of(RequestOp.TASK)[0][1], "finished"))
        assert await running == "finished"
    await turns()
    assert len(worker.heard_of(RequestOp.RELEASE)) == 1


async def test_sync_asks_for_the_ledger_first(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.lease("images", ledger="sync"):
        pass
    assert worker.heard_of(RequestOp.RESERVE)[0][5] == ReserveFlag.SYNC


async def test_settings_of_leases_are_checked_before_anything_is_sent(rig: Rig) -> None:
    worker = await rig.worker()
    for bad in ({"slots": 0}, {"slots": -1}, {"ttl_s": 0.5}, {"ttl_s": 1e9}, {"ledger": "later"}):
        with pytest.raises(errors.InvalidSettings):
            rig.client.lease("images", **bad)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSettings):
        rig.client.choose_worker("images", slots=0)
    assert worker.heard == []


@pytest.mark.router(max_queued=0)
async def test_reserves_obey_the_limits_of_waiting(rig: Rig) -> None:
    with pytest.raises(errors.QueueFull):
        async with rig.client.choose_worker("images"):
            pass
    worker = await rig.worker(slots=1)
    await asyncio.sleep(0.1)
    worker.load = Load(1, 0, 1)
    await worker.beat()
    await asyncio.sleep(0.1)
    with pytest.raises(errors.QueueFull):
        async with rig.client.lease("images"):
            pass


async def test_closing_the_client_releases_what_is_held(rig: Rig) -> None:
    worker = await rig.worker(slots=3)
    async with rig.client.choose_worker("images") as selection, rig.client.lease("images") as lease:
        await rig.client.close()
        await turns()
        assert len(worker.heard_of(RequestOp.RELEASE)) == 2
        with pytest.raises(errors.ClosedError):
            await rig.client.dispatch(selection, "echo")
        with pytest.raises((errors.ClosedError, errors.LeaseExpired)):
            await lease.call("echo")
    await turns()
    assert len(worker.heard_of(RequestOp.RELEASE)) == 2


async def test_hooks_of_the_policy_are_paired_on_every_path(rig: Rig) -> None:
    events: list[tuple[str, str]] = []

    class Watching(Sticky):
        def routed(self, worker: Any, request: Any) -> None:
            events.append(("routed", str(worker.id)))

        def completed(self, worker: Any, request: Any) -> None:
            events.append(("completed", str(worker.id)))

        def worker_lost(self, worker: Any) -> None:
            events.append(("lost", str(worker.id)))

    rig.router._following._policy = lambda pool: Watching()
    worker = await rig.known_worker()
    async with rig.client.choose_worker("images") as selection:
        await rig.client.dispatch(selection, "echo")
    async with rig.client.choose_worker("images"):
        pass
    async with rig.client.lease("images") as lease:
        await lease.call("echo")
        await lease.call("echo")
    assert events == [("routed", "images.w1"), ("completed", "images.w1")] * 4
    events.clear()
    worker.behave = silent
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await turns()
    worker.stop_beating()
    with pytest.raises(errors.WorkerLost):
        await call
    assert sorted(events) == [("completed", "images.w1"), ("lost", "images.w1"), ("routed", "images.w1")]


async def test_a_use_is_trusted_for_no_longer_than_a_renewal(rig: Rig) -> None:
    await rig.worker(behave=mute(RequestOp.RENEW))
    async with rig.client.lease("images", ttl_s=10) as lease:
        sent_at = loop_time()
        await lease.call("echo")
        trusted_until = sent_at + 10 - margin_s(10)
        await asyncio.sleep(trusted_until - loop_time() - 0.01)
        assert lease.lost is None
        await asyncio.sleep(0.02)
        assert isinstance(lease.lost, errors.LeaseExpired)
