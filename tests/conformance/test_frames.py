"""Tasks as routers send them."""

from __future__ import annotations

import asyncio
import signal

import pytest

from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskFlag, TaskState

from ..waiting import PATIENCE_S, until
from .conftest import Router, Subject, reserve, task

pytestmark = [pytest.mark.server, pytest.mark.processes]


async def test_tasks_are_answered_with_their_results_and_the_load(router: Router):
    assert await router.ask(task(1, "count", "lease before you send")) == [AnswerOp.OK, 1, 4]
    assert router.loads[-1].total == 2
    named = (RequestOp.TASK, 2, "count", None, {"text": "a b"}, None, None, None, 0, None)
    assert (await router.ask(named))[2] == 2
    router.send(task(3, "count", "a"), task(4, "count", "a b"))
    assert [(await router.answer(id))[2] for id in (3, 4)] == [1, 2], "of one message"
    assert (await router.ask(task(5, "upto", 3)))[2] == [0, 1, 2], "a stream without a reader"


async def test_a_full_worker_rejects_and_starts_nothing(subject: Subject, router: Router):
    router.send(task(1, "pause", 60.0), task(2, "pause", 60.0))
    assert await router.ask(task(3, "count", "a")) == [AnswerOp.REJECTED, 3, "full"]
    assert (await subject.load())["running"] == 2


async def test_the_same_id_again_gets_the_same_answer_and_runs_once(subject: Subject, router: Router):
    assert (await router.ask(task(1, "count", "a b")))[2] == 2
    assert (await router.ask(task(1, "count", "a b c")))[2] == 2
    assert (await subject.request("stats"))["tasks"]["started"] == 1


async def test_an_envelope_of_another_epoch_starts_and_grants_nothing(subject: Subject, router: Router):
    assert (await router.ask(task(1, "count", "a"), epoch=router.epoch - 1))[2] == "stale"
    assert (await router.ask(reserve(2), epoch=router.epoch + 1))[2] == "stale"
    assert (await subject.load())["ongoing"] == 0


async def test_a_deadline_that_has_passed_is_refused_and_one_that_passes_cancels(subject: Subject, router: Router):
    assert (await router.ask(task(1, "count", "a", deadline_ms=-5)))[2] == "expired"
    late = await router.ask(task(2, "pause", 60.0, deadline_ms=100))
    assert late[0] == AnswerOp.ERROR and late[2] == "deadline_exceeded" and late[5] is True
    await until(subject.idle)


async def test_a_cancelled_task_stops_and_its_slot_comes_back(subject: Subject, router: Router):
    router.send(task(1, "pause", 60.0))
    router.send((RequestOp.CANCEL, 1))
    assert (await router.answer(1))[2] == "task_cancelled"
    await until(subject.idle)


async def test_a_cancel_that_overtakes_its_task_refuses_it(router: Router):
    router.send((RequestOp.CANCEL, 1))
    assert (await router.ask(task(1, "count", "a")))[2] == "expired"


async def test_check_tells_what_became_of_tasks_and_refuses_those_never_seen(router: Router):
    await router.ask(task(1, "count", "a"))
    router.send(task(2, "pause", 60.0))
    checked = await router.ask((RequestOp.CHECK, 10, [1, 2, 3]), AnswerOp.CHECKED)
    assert checked[2] == [TaskState.ANSWERED, TaskState.RUNNING, TaskState.UNKNOWN]
    assert await router.answer(1) == [AnswerOp.OK, 1, 1]  # sent again
    assert (await router.ask(task(3, "count", "a")))[2] == "expired"


async def test_what_cannot_be_run_is_answered_with_an_error(subject: Subject, router: Router):
    for frame, code in (
        (task(1, "cuont", "a"), "unknown_method"),
        (task(2, "count", 3), "invalid_arguments"),
        (task(3, "fail", "no paper"), "task_failed"),
    ):
        answer = await router.ask(frame)
        assert answer[0] == AnswerOp.ERROR and answer[2] == code
        assert answer[5] is (code == "task_failed"), code
        if code == "task_failed":
            assert "no paper" in answer[3]
        await until(subject.idle, code)


async def test_a_malformed_envelope_is_refused_whole_and_the_worker_goes_on(subject: Subject, router: Router):
    for id, data in enumerate((b"", b"\xc1", b"\x93\x01\x02\x03", b'{"json": true}')):
        answer = await subject.bus.request(router.subject, data, timeout_s=PATIENCE_S)
        assert answer.headers is not None and "Nats-Service-Error" in answer.headers, data
        assert (await router.ask(task(id, "count", "a")))[2] == 1, data


async def test_items_of_a_stream_stay_within_the_credit(router: Router):
    router.send(task(1, "upto", 10, flags=TaskFlag.STREAM, window=3))
    assert [(await router.answer(1, AnswerOp.ITEM))[2:] for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]
    await router.silence()
    router.send((RequestOp.CREDIT, 1, 100))  # no more than were sent: the window cannot be talked larger
    assert [(await router.answer(1, AnswerOp.ITEM))[3] for _ in range(3)] == [3, 4, 5]
    await router.silence()
    router.send((RequestOp.CREDIT, 1, 3))
    assert [(await router.answer(1, AnswerOp.ITEM))[3] for _ in range(3)] == [6, 7, 8]
    router.send((RequestOp.CREDIT, 1, 3))
    assert (await router.answer(1, AnswerOp.ITEM))[3] == 9
    assert await router.answer(1) == [AnswerOp.END, 1, 10]


async def test_after_a_freeze_what_piled_up_is_refused_and_what_ran_goes_on(subject: Subject, router: Router):
    router.send(task(1, "pause", 3.0))
    lease = await router.ask(reserve(2))
    subject.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.6)  # the freeze itself is what is tested
    router.send(task(3, "count", "a"), task(4, "count", "a", token=lease[2]))
    await subject.bus.flush()
    subject.process.send_signal(signal.SIGCONT)
    assert [(await router.answer(id))[2] for id in (3, 4)] == ["stale", "stale"]
    assert (await router.answer(1))[0] == AnswerOp.OK

    async def newer() -> bool:
        return (await subject.registration()).epoch > router.epoch

    await until(newer)
