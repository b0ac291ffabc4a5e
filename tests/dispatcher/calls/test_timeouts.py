"""Calls that are to be done in time go the short way too, and end as by the general one."""

from __future__ import annotations

import asyncio

import pytest

from gangline.dispatcher.calls.call import CallOptions
from gangline.schemas.errors.base import DeadlineExceeded, Saturated
from gangline.schemas.wire.frames import AnswerOp, Reason, RequestOp

from ...support.dispatcher.fakes import Rig, cancel_and_wait, silent, turns
from ...waiting import loop_time
from .test_calls import rejects


def timeouts(rig: Rig) -> int:
    """How many calls have a deadline to come."""
    return sum(map(len, rig.router._fast_path._timeouts.values()))


async def test_the_time_that_is_left_travels_with_the_call(rig: Rig) -> None:
    worker = await rig.known_worker()
    flight = rig.router._fast_path.launch("images.echo", (1,), {}, CallOptions(timeout_s=2.5), 0)
    assert flight.timeout_s == 2.5 and timeouts(rig) == 1
    assert (await flight.future)[2] == ["w1", "echo"]
    assert worker.heard[-1][5] == 2500
    assert timeouts(rig) == 0
    kept = dict(rig.router._fast_path._timeouts)
    flight = rig.router._fast_path.launch("images.echo", (2,), {}, CallOptions(timeout_s=2.5), 0)
    assert kept == {2.5: flight.timeouts} == rig.router._fast_path._timeouts
    await flight.future


async def test_at_the_deadline_the_worker_is_told_and_the_slot_counts_until_it_stops(rig: Rig, known: bool) -> None:
    worker = await rig.worker(behave=silent, known=known)
    began_at = loop_time()
    with pytest.raises(DeadlineExceeded, match="may have done some of its work") as caught:
        await rig.client.options(timeout_s=1.5).call("images.echo", 1)
    assert loop_time() - began_at == pytest.approx(1.5)
    assert caught.value.may_have_started and caught.value.details == {"target": "images.echo"}
    await turns()
    [sent] = [frame for frame in worker.heard_of(RequestOp.TASK) if frame[3] == [1]]
    assert [frame[1] for frame in worker.heard_of(RequestOp.CANCEL)] == [sent[1]]
    assert rig.router.pools["images"].core.placed == 1
    worker.answer((AnswerOp.ERROR, sent[1], "task_cancelled", "as you wish", None, True))
    await turns()
    assert timeouts(rig) == 0
    numbers = rig.router.metrics.statistics()
    assert (numbers["requests"], numbers["errors"]) == (1 + known, 1)


async def test_a_refused_call_has_what_is_left_of_its_time_and_no_more(rig: Rig) -> None:
    worker = await rig.known_worker()
    worker.behave = rejects(Reason.FULL)
    began_at = loop_time()
    call = asyncio.ensure_future(rig.client.options(timeout_s=2).call("images.echo", 1))
    await asyncio.sleep(1)
    tries = [frame[5] for frame in worker.heard_of(RequestOp.TASK)[1:]]
    assert tries[0] == 2000 and tries == sorted(tries, reverse=True) and tries[-1] < 1500, tries
    with pytest.raises(Saturated):
        await call
    assert loop_time() - began_at == pytest.approx(2)


async def test_short_and_long_times_do_not_wait_for_each_other(rig: Rig) -> None:
    worker = await rig.known_worker(slots=10)
    worker.behave = silent
    began_at = loop_time()

    async def until_late(timeout_s: float) -> float:
        with pytest.raises(DeadlineExceeded):
            await rig.client.options(timeout_s=timeout_s).call("images.echo")
        return loop_time() - began_at

    ended = await asyncio.gather(*(until_late(timeout_s) for timeout_s in (3, 1, 2)))
    assert ended == [pytest.approx(3), pytest.approx(1), pytest.approx(2)]


async def test_one_that_was_cancelled_is_left_alone_at_its_deadline(rig: Rig) -> None:
    worker = await rig.known_worker()
    worker.behave = silent
    call = asyncio.create_task(rig.client.options(timeout_s=1).call("images.echo", 1))
    [_, sent] = await worker.hears(RequestOp.TASK, 2)
    await cancel_and_wait(call)
    await asyncio.sleep(1.5)
    assert len(worker.heard_of(RequestOp.CANCEL)) == 1
    worker.answer((AnswerOp.OK, sent[1], "too late"))
    await turns()
    assert timeouts(rig) == 0


async def test_so_many_different_times_are_kept_apart_and_the_others_go_the_general_way(rig: Rig) -> None:
    worker = await rig.known_worker(slots=200)
    fast_path, worker.behave = rig.router._fast_path, silent
    flights = [fast_path.launch("images.echo", (), {}, CallOptions(timeout_s=100 + n), 0) for n in range(64)]
    assert None not in flights
    assert fast_path.launch("images.echo", (), {}, CallOptions(timeout_s=99), 0) is None
    [*_, last] = await worker.hears(RequestOp.TASK, 65)
    worker.answer((AnswerOp.OK, last[1], None))
    await flights[-1].future
    other = fast_path.launch("images.echo", (), {}, CallOptions(timeout_s=99), 0)
    assert other is not None, "the times of those that were answered are forgotten"
    [*_, last] = await worker.hears(RequestOp.TASK, 66)
    worker.answer(*((AnswerOp.OK, frame[1], None) for frame in worker.heard_of(RequestOp.TASK)[1:]))
    await turns()
    assert timeouts(rig) == 0
