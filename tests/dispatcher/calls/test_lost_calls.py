"""Calls whose worker is lost, or which are asked after: what may have run, and what the caller hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gangline.bus.memory.faults import SERVER, WriteOutcome
from gangline.bus.port.bus import Conflict
from gangline.schemas.errors.base import InvalidRequest, NoWorkers, ResultLost, WorkerLost
from gangline.schemas.records.workers import Registration
from gangline.schemas.wire.frames import AnswerOp, Frame, RequestOp, TaskState

from ...support.dispatcher.fakes import FakeWorker, Rig, obedient, silent, turns
from ...waiting import loop_time, until


def says_of_all(state: TaskState, then: Any = obedient) -> Any:
    """Answers CHECK with this state of all tasks, and the rest like `then`."""

    def behave(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] == RequestOp.CHECK:
            return [(AnswerOp.CHECKED, frame[1], [int(state)] * len(frame[2]))]
        return then(worker, frame)

    return behave


async def test_a_silent_worker_is_lost_after_three_seconds_and_the_outcome_is_unknown(rig: Rig, known: bool) -> None:
    worker, call, _ = await rig.held_call(known=known)
    began = loop_time()
    worker.stop_beating()
    with pytest.raises(WorkerLost) as caught:
        await call
    assert 2.5 < loop_time() - began < 4
    assert caught.value.may_have_started and caught.value.details["worker"] == "images.w1"


async def test_an_idempotent_task_of_a_lost_worker_runs_elsewhere(rig: Rig, known: bool) -> None:
    worker, call, _ = await rig.held_call("images.again", known=known)
    await rig.worker("w2")
    worker.stop_beating()
    assert await call == ["w2", "again"]
    assert rig.workers[1].heard_of(RequestOp.TASK)[0][9]["attempt"] == 2


async def test_the_caller_may_say_that_a_task_is_idempotent_or_not(rig: Rig) -> None:
    worker = await rig.worker("w1", silent)
    yes = asyncio.ensure_future(rig.client.options(idempotent=True).call("images.echo"))
    no = asyncio.ensure_future(rig.client.options(idempotent=False).call("images.again"))
    await worker.hears(RequestOp.TASK, 2)
    await rig.worker("w2")
    worker.stop_beating()
    assert await yes == ["w2", "echo"]
    with pytest.raises(WorkerLost):
        await no


async def test_a_call_to_a_process_that_was_not_registered_yet_is_not_lost_by_its_registration(rig: Rig) -> None:
    worker, before, _ = await rig.held_call()
    # Another process takes its place. Its answers come at once; what the ledger says of it does not.
    worker.epoch, worker.behave = 9, obedient
    assert await rig.client.call("images.echo") == ["w1", "echo"]
    worker.behave = silent
    since = asyncio.ensure_future(rig.client.call("images.echo"))
    await worker.hears(RequestOp.TASK, 3)
    worker.instance = "w1-2"
    await worker.register()
    with pytest.raises(WorkerLost):
        await before  # its process is no more
    await turns()
    assert not since.done()
    worker.answer((AnswerOp.OK, worker.heard_of(RequestOp.TASK)[2][1], "done"))
    assert await since == "done"


async def test_what_nobody_received_is_sent_elsewhere_at_once(rig: Rig) -> None:
    dead = await rig.known_worker("w1")
    await dead.die()
    await rig.worker("w2")
    await turns()
    began = loop_time()
    for _ in range(10):
        assert await rig.client.call("images.echo") == ["w2", "echo"]
    assert loop_time() - began < 0.5


async def test_what_a_worker_received_before_it_died_is_not_taken_for_unheard(rig: Rig) -> None:
    worker = await rig.worker("w1", silent, slots=3)
    first = asyncio.ensure_future(rig.client.call("images.echo", 1))
    await worker.hears(RequestOp.TASK)
    await worker.die()
    second = asyncio.ensure_future(rig.client.call("images.echo", 2))
    await turns()
    await rig.worker("w2")
    assert await second == ["w2", "echo"]
    with pytest.raises(WorkerLost):
        await first


class SlowToRefuse:
    """ "No responders" takes its time."""

    def message(self, sender: str, receiver: str, subject: str, now: float) -> Sequence[float]:
        return (0.05,) if sender == SERVER and subject.startswith("_INBOX") else (0.0,)

    def storage(self, client: str, now: float) -> WriteOutcome:
        return WriteOutcome(0.0, 0.0)


@pytest.mark.parametrize("answers_first", [0, 1])
async def test_what_nobody_received_is_known_though_the_worker_is_replaced(rig: Rig, answers_first: int) -> None:
    worker = await rig.worker("w1", silent, slots=3)
    received = asyncio.ensure_future(rig.client.call("images.echo", 1))
    await worker.hears(RequestOp.TASK)
    await worker.die()
    rig.hub.faults = SlowToRefuse()
    sent = asyncio.ensure_future(rig.client.call("images.echo", 2))
    channel = rig.router.pools["images"].core.view.workers["w1"].link
    await until(lambda: channel.messages == 2 and channel.unheard >= answers_first)
    worker.instance, worker.epoch = "w1-2", 2
    await worker.register()
    await turns()
    await rig.worker("w2")
    assert await sent == ["w2", "echo"]
    with pytest.raises(WorkerLost):
        await received


async def test_what_a_frozen_worker_may_have_received_is_lost_as_soon_as_it_is_replaced(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    began_at = loop_time()
    worker.instance, worker.epoch = "w1-2", 2
    await worker.register()  # the first process holds its subscription, and says nothing
    with pytest.raises(WorkerLost) as lost:
        await call
    assert lost.value.may_have_started and loop_time() - began_at < 0.1


async def test_a_second_process_that_only_claims_the_id_replaces_nobody(rig: Rig) -> None:
    worker, call, task = await rig.held_call()
    key = rig.names.alive_key(worker.id)
    with pytest.raises(Conflict):  # the write is refused, but whoever observes sees it pass
        await rig.kv.put(key, b'{"epoch": 5, "instance": "w1-2", "running": 0, "reserved": 0, "total": 2}', revision=1)
    record = Registration(pool="images", worker="w1", epoch=5, instance="w1-2", slots=2)
    with pytest.raises(Conflict):
        await rig.kv.put(rig.names.registration_key(worker.id), record.model_dump_json().encode(), revision=99)
    await asyncio.sleep(1)
    worker.answer((AnswerOp.OK, task[1], "done"))
    assert await call == "done"


async def test_when_the_last_worker_is_lost_whoever_waits_is_told(rig: Rig) -> None:
    worker = await rig.worker(slots=1, behave=silent)
    running = asyncio.ensure_future(rig.client.call("images.echo"))
    waiting = asyncio.ensure_future(rig.client.call("images.echo"))
    await worker.hears(RequestOp.TASK)
    await worker.die()
    results = await asyncio.gather(running, waiting, return_exceptions=True)
    assert isinstance(results[0], WorkerLost) and isinstance(results[1], NoWorkers)


# -- CHECK --------------------------------------------------------------------------------------------------------


async def test_a_task_that_the_worker_never_saw_is_sent_again(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    worker.behave = says_of_all(TaskState.UNKNOWN)
    assert await call == ["w1", "echo"]
    assert len(worker.heard_of(RequestOp.CHECK)) == 1


async def test_a_forgotten_answer_is_lost_unless_the_task_is_idempotent(rig: Rig) -> None:
    worker = await rig.worker(behave=silent)
    once = asyncio.ensure_future(rig.client.call("images.echo"))
    often = asyncio.ensure_future(rig.client.call("images.again"))
    await worker.hears(RequestOp.TASK, 2)
    worker.behave = says_of_all(TaskState.FORGOTTEN)
    with pytest.raises(ResultLost):
        await once
    assert await often == ["w1", "again"]


async def test_a_long_task_is_asked_for_less_and_less_often(rig: Rig) -> None:
    worker = await rig.worker(behave=says_of_all(TaskState.RUNNING, silent))
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    [task] = await worker.hears(RequestOp.TASK)
    await asyncio.sleep(120)
    assert 5 <= len(worker.heard_of(RequestOp.CHECK)) <= 11  # after 2, 4, 8, 16, 16, ... seconds
    worker.answer((AnswerOp.OK, task[1], "late"))
    assert await call == "late"


async def test_an_idempotent_task_that_may_have_run_and_finds_no_other_worker_says_so(rig: Rig) -> None:
    worker, call, _ = await rig.held_call("images.again")
    worker.stop_beating()
    with pytest.raises(WorkerLost) as caught:
        await call
    assert caught.value.may_have_started


async def test_a_second_try_that_is_refused_for_good_does_not_hide_that_the_first_may_have_run(rig: Rig) -> None:
    worker, call, _ = await rig.held_call("images.again")
    await rig.worker("w2", lambda _, f: [(AnswerOp.ERROR, f[1], "invalid_arguments", "no", None, False)])
    worker.stop_beating()
    with pytest.raises(InvalidRequest) as caught:
        await call
    assert caught.value.may_have_started


async def test_never_seen_counts_only_from_the_process_that_was_sent_to(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    worker.stop_beating()
    worker.behave, worker.epoch = says_of_all(TaskState.UNKNOWN, silent), 9
    worker.answer()  # now the router knows that epoch, and its next CHECK names it
    with pytest.raises(WorkerLost):
        await call
    assert worker.heard_of(RequestOp.CHECK) and len(worker.heard_of(RequestOp.TASK)) == 1


async def test_never_seen_counts_from_a_later_epoch_of_the_same_process(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    worker.behave, worker.epoch = says_of_all(TaskState.UNKNOWN), 9  # its heartbeats say so
    assert await call == ["w1", "echo"]
