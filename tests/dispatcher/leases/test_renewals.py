"""Selections and leases: every path gives the slot back once, and nothing is sent on a right that may be gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline import errors
from gangline.runtime.timers import CLOCKS_DIFFER, margin_s
from gangline.schemas.wire.frames import AnswerOp, Frame, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, cancel_and_wait, mute, obedient, refuses, turns
from ...support.rows import in_rows
from ...waiting import loop_time


async def test_a_selection_tells_who_was_chosen(rig: Rig) -> None:
    await rig.worker(node="n1", zone="z1", address="10.0.0.1:80", labels={"gpu": "yes"})
    async with rig.client.choose_worker("images") as selection:
        assert (selection.worker, selection.pool, selection.node, selection.zone) == ("images.w1", "images", "n1", "z1")
        assert (selection.address, dict(selection.labels)) == ("10.0.0.1:80", {"gpu": "yes"})
        assert (selection.token, selection.epoch, selection.fence, selection.slots) == ("w1-t1", 1, 7, 1)
        assert await rig.client.dispatch(selection, "echo", 5) == ["w1", "echo"]


async def test_leaving_without_a_dispatch_releases_once(rig: Rig, known: bool) -> None:
    worker = await rig.worker(known=known)
    async with rig.client.choose_worker("images"):
        assert rig.router.metrics.statistics()["reserved_slots"] == 1
    await turns()
    [reserve] = worker.heard_of(RequestOp.RESERVE)
    assert worker.heard_of(RequestOp.RELEASE) == [[RequestOp.RELEASE, reserve[1], "w1-t1"]]


@pytest.mark.parametrize("connected", [True, False])
async def test_an_error_inside_the_block_releases_and_is_not_masked(rig: Rig, connected: bool) -> None:
    worker = await rig.worker()
    with pytest.raises(KeyError, match="mine"):
        async with rig.client.choose_worker("images"):
            if not connected:
                rig.hub.disconnect(rig.bus)
            raise KeyError("mine")
    rig.balanced()
    if not connected:
        rig.hub.reconnect(rig.bus)
    await worker.hears(RequestOp.RELEASE)


async def test_a_selection_dispatches_once_also_if_asked_several_times_at_once(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.choose_worker("images") as selection:
        dispatches = [rig.client.dispatch(selection, "echo") for _ in range(3)]
        results = await asyncio.gather(*dispatches, return_exceptions=True)
        assert sum(isinstance(result, errors.SelectionUsed) for result in results) == 2
    with pytest.raises(errors.SelectionUsed):
        await rig.client.dispatch(selection, "echo")
    assert len(worker.heard_of(RequestOp.TASK)) == 1


async def test_a_closed_selection_and_another_pool_are_refused_before_sending(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.choose_worker("images") as selection:
        with pytest.raises(errors.WrongPool):
            await rig.client.dispatch(selection, "sounds.echo")
    with pytest.raises(errors.SelectionClosed):
        await rig.client.dispatch(selection, "echo")
    assert worker.heard_of(RequestOp.TASK) == []


async def test_a_dispatch_that_has_not_begun_when_the_block_ends_is_safe(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.choose_worker("images") as selection:
        late = asyncio.ensure_future(rig.client.dispatch(selection, "echo"))
    with pytest.raises(errors.SelectionClosed):
        await late
    await turns()
    assert worker.heard_of(RequestOp.TASK) == [] and len(worker.heard_of(RequestOp.RELEASE)) == 1


async def test_leaving_while_the_task_runs_is_safe(rig: Rig) -> None:
    worker = await rig.worker(behave=mute(RequestOp.TASK))
    async with rig.client.choose_worker("images") as selection:
        running = asyncio.ensure_future(rig.client.dispatch(selection, "echo"))
        [task] = await worker.hears(RequestOp.TASK)
    worker.answer((AnswerOp.OK, task[1], "done"))
    assert await running == "done"
    assert worker.heard_of(RequestOp.RELEASE) == []


async def test_bad_arguments_leave_the_selection_usable(rig: Rig, known: bool) -> None:
    await rig.worker(known=known)
    async with rig.client.choose_worker("images") as selection:
        with pytest.raises(errors.InvalidRequest):
            await rig.client.dispatch(selection, "echo", object())
        assert await rig.client.dispatch(selection, "echo") == ["w1", "echo"]


async def test_the_tasks_own_error_comes_through(rig: Rig, known: bool) -> None:
    worker = await rig.worker(behave=refuses("task_failed", started=True), known=known)
    with pytest.raises(errors.TaskFailed, match="no"):
        async with rig.client.choose_worker("images") as selection:
            await rig.client.dispatch(selection, "echo")
    await turns()
    assert worker.heard_of(RequestOp.RELEASE) == []
    numbers = rig.router.metrics.statistics()
    assert (numbers["requests"], numbers["errors"]) == (1 + known, 1)


async def test_holding_what_a_task_costs(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.choose_worker("images.heavy") as selection:
        assert selection.slots == 2
        await rig.client.dispatch(selection, "heavy")
    async with rig.client.choose_worker("images", slots=2) as selection:
        assert selection.slots == 2
    assert [frame[2] for frame in worker.heard_of(RequestOp.RESERVE)] == [2, 2]


# -- cancellation at every await ----------------------------------------------------------------------------------


async def test_cancelled_while_the_answer_is_on_its_way(rig: Rig, known: bool) -> None:
    worker = await rig.worker(behave=mute(RequestOp.RESERVE), known=known)
    entering = asyncio.ensure_future(rig.client.choose_worker("images").__aenter__())
    [reserve] = await worker.hears(RequestOp.RESERVE)
    entering.cancel()
    await turns()
    assert worker.heard_of(RequestOp.RELEASE) == [[RequestOp.RELEASE, reserve[1], None]]
    worker.answer(worker.grant(reserve))  # too late; nobody takes it, and it is not released twice
    await turns()
    assert len(worker.heard_of(RequestOp.RELEASE)) == 1


async def test_a_cancelled_dispatch_cancels_the_task_and_gives_the_token_back(rig: Rig, known: bool) -> None:
    worker = await rig.worker(behave=mute(RequestOp.TASK), known=known)
    async with rig.client.choose_worker("images") as selection:
        dispatch = asyncio.create_task(rig.client.dispatch(selection, "echo"))
        [task] = await worker.hears(RequestOp.TASK)
        await cancel_and_wait(dispatch)
    [cancel] = await worker.hears(RequestOp.CANCEL)
    # The task may not have arrived: then only this frees the slot. If it has, the token is used up, and it is a no-op.
    [release] = await worker.hears(RequestOp.RELEASE)
    assert (cancel[1], release[2]) == (task[1], "w1-t1")


# -- lost answers -------------------------------------------------------------------------------------------------


async def test_a_reserve_without_an_answer_is_released_and_tried_elsewhere(rig: Rig, known: bool) -> None:
    slow = await rig.worker("w1", mute(RequestOp.RESERVE), known=known)
    task = asyncio.ensure_future(rig.client.choose_worker("images").__aenter__())
    [reserve] = await slow.hears(RequestOp.RESERVE)
    began = loop_time()
    await rig.worker("w2")
    selection = await task
    assert selection.worker == "images.w2"
    assert loop_time() - began == pytest.approx(0.1, abs=0.05)
    await turns()
    assert slow.heard_of(RequestOp.RELEASE) == [[RequestOp.RELEASE, reserve[1], None]]
    selection.close()


async def test_the_probe_deadline_doubles_to_one_second(rig: Rig) -> None:
    worker = await rig.worker(behave=mute(RequestOp.RESERVE))
    times: list[float] = []

    def note(worker: FakeWorker, frame: Frame) -> None:
        if frame[0] == RequestOp.RESERVE:
            times.append(loop_time())

    worker.behave = note
    with pytest.raises(errors.Saturated):
        async with rig.client.options(timeout_s=10).choose_worker("images"):
            pass
    waits = [later - sooner for sooner, later in zip(times, times[1:], strict=False)]
    assert waits[0] < 0.2 < waits[2] and all(1.0 <= wait <= 1.6 for wait in waits[4:]), waits
    await turns()
    assert len(worker.heard_of(RequestOp.RELEASE)) == len(worker.heard_of(RequestOp.RESERVE)) == len(times)


# -- renewal and trust --------------------------------------------------------------------------------------------


async def test_a_selection_that_is_held_long_is_renewed(rig: Rig, known: bool) -> None:
    worker = await rig.worker(known=known)
    async with rig.client.choose_worker("images") as selection:
        await asyncio.sleep(60)
        assert await rig.client.dispatch(selection, "echo") == ["w1", "echo"]
    renewals = worker.heard_of(RequestOp.RENEW)
    assert 85 <= len(renewals) <= 95  # every third of the claim timeout
    assert all(frame[2] == selection.token for frame in renewals)
    await asyncio.sleep(60)
    assert len(worker.heard_of(RequestOp.RENEW)) == len(renewals)


async def test_a_lease_that_could_not_be_renewed_is_not_trusted_before_the_worker_gives_it_up(rig: Rig) -> None:
    worker = await rig.worker(behave=mute(RequestOp.RENEW))
    async with rig.client.choose_worker("images") as selection:
        granted_at = loop_time()
        await asyncio.sleep(2.0)  # the claim timeout
        assert selection.hold.trusted_until < granted_at + 2.0
        with pytest.raises(errors.LeaseExpired):
            await rig.client.dispatch(selection, "echo")
    assert worker.heard_of(RequestOp.TASK) == []


async def test_a_refused_renewal_is_the_reason_given_later(rig: Rig) -> None:
    await rig.worker(behave=refuses("lease_expired", of=RequestOp.RENEW))
    async with rig.client.lease("images", ttl_s=15) as lease:
        await asyncio.sleep(1)
        assert isinstance(lease.lost, errors.LeaseExpired)
        with pytest.raises(errors.LeaseExpired, match="no"):
            await lease.call("echo")


def test_the_margin_is_never_more_than_a_quarter() -> None:
    assert margin_s(0.1) == pytest.approx(0.025)
    assert margin_s(2.0) == pytest.approx(0.45)
    assert margin_s(15.0) == pytest.approx(3.05)


@in_rows("ttl_s", [0.1, 1.0, 15.0, 3600.0])
def test_the_margin_bears_clocks_that_differ_by_as_much_as_is_promised(ttl_s: float) -> None:
    slow, fast = 1 - CLOCKS_DIFFER, 1.0
    trusted_for_s, lives_for_s = (ttl_s - margin_s(ttl_s)) / slow, ttl_s / fast
    assert trusted_for_s < lives_for_s


# -- guaranteed dispatch ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits_s", [0, 5], ids=["dead", "known to be dead"])
async def test_when_the_chosen_worker_died_before_the_task_it_runs_elsewhere(rig: Rig, waits_s: int) -> None:
    dead = await rig.worker("w1")
    async with rig.client.choose_worker("images") as selection:
        await dead.die()
        await asyncio.sleep(waits_s)
        await rig.worker("w2")
        assert await rig.client.dispatch(selection, "echo") == ["w2", "echo"]


async def test_when_the_chosen_worker_refuses_the_epoch_it_runs_again(rig: Rig) -> None:
    worker = await rig.worker("w1")

    def frozen_since(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] == RequestOp.TASK and frame[6] is not None:
            return [(AnswerOp.REJECTED, frame[1], "stale")]
        return obedient(worker, frame)

    async with rig.client.choose_worker("images") as selection:
        worker.epoch, worker.behave = 2, frozen_since
        assert await rig.client.dispatch(selection, "echo") == ["w1", "echo"]


async def test_when_the_token_is_unknown_nothing_started_and_it_runs_again(rig: Rig, known: bool) -> None:
    def forgetful(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] == RequestOp.TASK and frame[6] is not None:
            return [(AnswerOp.ERROR, frame[1], "unknown_token", "who?", None, False)]
        return obedient(worker, frame)

    worker = await rig.worker(behave=forgetful, known=known)
    async with rig.client.choose_worker("images") as selection:
        assert await rig.client.dispatch(selection, "echo") == ["w1", "echo"]
    assert [frame[6] for frame in worker.heard_of(RequestOp.TASK)] == ["w1-t1", None]


async def test_when_the_chosen_worker_dies_with_the_task_the_outcome_is_unknown(rig: Rig, known: bool) -> None:
    worker = await rig.worker("w1", mute(RequestOp.TASK), known=known)
    async with rig.client.choose_worker("images") as selection:
        await rig.worker("w2")
        dispatch = asyncio.ensure_future(rig.client.dispatch(selection, "echo"))
        await worker.hears(RequestOp.TASK)
        await worker.die()
        with pytest.raises(errors.WorkerLost) as caught:
            await dispatch
        assert caught.value.may_have_started


async def test_an_idempotent_task_of_the_chosen_worker_runs_elsewhere(rig: Rig) -> None:
    await rig.worker("w1", mute(RequestOp.TASK))
    async with rig.client.choose_worker("images") as selection:
        dispatch = asyncio.ensure_future(rig.client.dispatch(selection, "again"))
        await rig.workers[0].hears(RequestOp.TASK)
        await rig.worker("w2")
        await rig.workers[0].die()
        assert await dispatch == ["w2", "again"]
