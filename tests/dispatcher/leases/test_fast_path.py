"""The short ways of held slots come to the same as the general ones, whatever happens after the sending."""

from __future__ import annotations

import asyncio

import pytest

from gangline import errors
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.runtime.timers import margin_s
from gangline.schemas.wire.frames import AnswerOp, Reason, RequestOp, ReserveFlag

from ...support.dispatcher.fakes import Rig, obedient, refuses, rejects, silent, turns
from ...waiting import loop_time


def short(rig: Rig) -> int:
    """How many holds have no timer of their own so far."""
    return len(rig.router._reserving._holds._brief)


# -- choosing -----------------------------------------------------------------------------------------------------


async def test_a_chosen_slot_is_reserved_on_the_usual_terms_and_used_up(rig: Rig, known: bool) -> None:
    worker = await rig.worker(known=known)
    async with rig.client.choose_worker("images") as selection:
        [asked] = worker.heard_of(RequestOp.RESERVE)
        assert asked[2:7] == [1, 2000, 2000, int(ReserveFlag.SINGLE_USE), 100]
        assert asked[7] == {"owner": "client"}
        assert (selection.worker, selection.token, selection.pool) == ("images.w1", "w1-t1", "images")
        assert (short(rig), rig.router.statistics()["holds"]) == (known, 1)
        assert await rig.client.dispatch(selection, "echo", 1, x=2) == ["w1", "echo"]
        sent = worker.heard[-1]
        assert (sent[3:5], sent[6]) == ([[1], {"x": 2}], "w1-t1")
        with pytest.raises(errors.SelectionUsed):
            await rig.client.dispatch(selection, "echo")
    assert worker.heard_of(RequestOp.RELEASE) == []
    assert rig.router.metrics.statistics()["requests"] == 1 + known


@pytest.mark.parametrize("special", [{}, {"idempotent": False}], ids=["short", "general"])
async def test_what_was_chosen_the_short_way_may_be_used_either_way_and_has_its_time(rig: Rig, special) -> None:
    worker = await rig.known_worker()
    async with rig.client.choose_worker("images") as selection:
        assert selection.hold.charge is None
        assert await rig.client.options(timeout_s=5, **special).dispatch(selection, "echo", 1) == ["w1", "echo"]
    assert worker.heard_of(RequestOp.TASK)[-1][5] == 5000
    rig.balanced()
    began_at = loop_time()
    async with rig.client.choose_worker("images") as selection:
        worker.behave = silent
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await rig.client.options(timeout_s=1, **special).dispatch(selection, "echo", 1)
        assert loop_time() - began_at == pytest.approx(1)
        assert caught.value.may_have_started and caught.value.details == {"target": "images.echo"}
        assert rig.router.pools["images"].core.placed == 1
    await turns()
    [sent] = worker.heard_of(RequestOp.TASK)[2:]
    assert [frame[1] for frame in worker.heard_of(RequestOp.CANCEL)] == [sent[1]]
    assert len(worker.heard_of(RequestOp.RELEASE)) == 1, "the token may still have the slot"


async def test_a_worker_that_grants_for_a_shorter_time_is_trusted_for_that_time_only(rig: Rig) -> None:
    worker = await rig.known_worker()
    worker.behave = lambda worker, frame: (
        [(*worker.grant(frame)[:4], 1000)] if frame[0] == RequestOp.RESERVE else obedient(worker, frame)
    )
    began_at = loop_time()
    async with rig.client.choose_worker("images") as selection:
        assert selection.hold.trusted_until == began_at + 1 - margin_s(1)


# -- leases -------------------------------------------------------------------------------------------------------


async def test_a_failed_call_on_a_lease_is_counted_once_and_leaves_its_slot(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.lease("images") as lease:
        worker.behave = refuses("task_failed", started=True)
        with pytest.raises(errors.TaskFailed):
            await lease.call("echo")
        worker.behave = rejects(Reason.FULL)
        with pytest.raises(errors.LeaseBusy):
            await lease.call("echo")
        assert lease.used == 0
        numbers = rig.router.metrics.statistics()
        assert (numbers["requests"], numbers["errors"]) == (2, 2)


async def test_what_never_reached_the_worker_goes_out_on_the_lease_again(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.lease("images") as lease:
        worker.behave = lambda worker, frame: (
            None if frame[0] == RequestOp.TASK and len(worker.heard_of(RequestOp.TASK)) == 1 else
            [(AnswerOp.CHECKED, frame[1], [0] * len(frame[2]))] if frame[0] == RequestOp.CHECK else
            obedient(worker, frame)
        )  # fmt: skip
        assert await lease.call("echo", 1) == ["w1", "echo"]
        assert [frame[9] for frame in worker.heard_of(RequestOp.TASK)] == [None, {"attempt": 2}]


@pytest.mark.parametrize("special", [{}, {"idempotent": False}], ids=["short", "general"])
async def test_a_call_on_a_lease_that_is_late_keeps_its_slot_until_its_worker_has_stopped_it(rig: Rig, special) -> None:
    worker = await rig.worker()
    async with rig.client.options(timeout_s=2, **special).lease("images") as lease:
        assert await lease.call("echo") == ["w1", "echo"]
        worker.behave = silent
        began_at = loop_time()
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await lease.call("echo", 1)
        assert loop_time() - began_at == pytest.approx(2)
        assert caught.value.may_have_started and lease.used == 1
        await turns()
        [first, sent] = worker.heard_of(RequestOp.TASK)
        assert (first[5], sent[5]) == (2000, 2000)
        assert [frame[1] for frame in worker.heard_of(RequestOp.CANCEL)] == [sent[1]]
        worker.answer((AnswerOp.ERROR, sent[1], "task_cancelled", "as you wish", None, True))
        await turns()
        assert lease.used == 0


async def test_a_call_on_a_lease_that_is_sent_again_has_what_is_left_of_its_time(rig: Rig) -> None:
    worker = await rig.worker()
    async with rig.client.options(timeout_s=2).lease("images") as lease:
        await lease.call("echo")
        worker.behave = silent
        call = asyncio.create_task(lease.call("echo", 1))
        [_, sent] = await worker.hears(RequestOp.TASK, 2)
        await asyncio.sleep(0.5)
        worker.behave = obedient
        rig.router.exchange.lose(rig.router.exchange.flights[sent[1]], TryOutcome.UNSEEN)
        assert await call == ["w1", "echo"]
        [*_, again] = worker.heard_of(RequestOp.TASK)
        assert again[5] == 1500 and again[9]["attempt"] == 2
