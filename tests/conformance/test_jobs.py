"""Durable tasks at a worker: one execution of each, and whoever asks hears how it ends."""

from __future__ import annotations

import pytest

from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskFlag, TaskState

from ..waiting import until
from .conftest import Router, Subject, task

pytestmark = [pytest.mark.server, pytest.mark.processes]

ATTACH = TaskFlag.ATTACH


async def test_while_a_job_runs_another_task_of_it_starts_nothing_and_gets_the_same_answer(subject: Subject):
    first, second = await subject.router(), await subject.router()
    first.send(task(1, "pause", 0.6, job="j1", endpoint="shop", attempt=1))
    await until(subject.running)
    second.send(task(7, "pause", 0.6, job="j1", endpoint="shop", attempt=2))
    assert await first.answer(1) == [AnswerOp.OK, 1, 0.6]
    assert await second.answer(7) == [AnswerOp.OK, 7, 0.6]
    assert (await subject.request("stats"))["tasks"]["started"] == 1


async def test_a_job_that_ended_well_is_not_run_again_and_one_that_failed_is_in_a_later_attempt(
    subject: Subject, router: Router
):
    assert (await router.ask(task(1, "count", "a b", job="j1", attempt=1)))[2] == 2
    assert (await router.ask(task(2, "count", "a b c", job="j1", attempt=2)))[2] == 2
    assert (await router.ask(task(3, "fail", "once", job="j2", attempt=1)))[2] == "task_failed"
    assert (await router.ask(task(4, "count", "a", job="j2", attempt=1)))[2] == "task_failed"
    assert (await router.ask(task(5, "count", "a", job="j2", attempt=2)))[2] == 1
    assert (await subject.request("stats"))["tasks"]["started"] == 3


async def test_the_same_id_at_another_place_in_the_stream_is_another_job(subject: Subject, router: Router):
    assert (await router.ask(task(1, "count", "a b", job="j1", sequence=7, attempt=1)))[2] == 2
    assert (await router.ask(task(2, "count", "a b c", job="j1", sequence=8, attempt=1)))[2] == 3
    assert (await router.ask(task(3, "count", flags=ATTACH, job="j1", sequence=7, attempt=1)))[2] == 2
    reply = await subject.request("jobs")
    assert sorted(job["sequence"] for job in reply["jobs"]) == [7, 8]


async def test_attaching_starts_nothing_and_says_so_when_the_job_is_not_known(subject: Subject, router: Router):
    assert (await router.ask(task(1, "count", flags=ATTACH, job="j1", attempt=1)))[2] == "unknown_job"
    await router.ask(task(2, "count", "a b", job="j1", attempt=1))
    attached = await router.ask(task(3, "count", flags=ATTACH, job="j1", attempt=9), epoch=router.epoch + 1)
    assert attached[2] == 2, "in any epoch"
    assert (await subject.request("stats"))["tasks"]["started"] == 1


async def test_attaching_takes_no_slot(subject: Subject, router: Router):
    router.send(task(1, "pause", 1.0, job="j1", attempt=1), task(2, "pause", 1.0, job="j2", attempt=1))
    router.send(task(3, "pause", flags=ATTACH, job="j1", attempt=1))
    assert (await router.answer(3))[2] == 1.0
    assert (await subject.load())["running"] <= 2


async def test_whoever_attached_can_cancel_the_job(subject: Subject):
    first, second = await subject.router(), await subject.router()
    first.send(task(1, "pause", 60.0, job="j1", attempt=1))
    await until(subject.running)
    second.send(task(7, "pause", flags=ATTACH, job="j1", attempt=1))
    second.send((RequestOp.CANCEL, 7))
    assert (await first.answer(1))[2] == "task_cancelled"
    assert (await second.answer(7))[2] == "task_cancelled"


async def test_a_reader_that_attaches_gets_the_items_that_nobody_took(subject: Subject):
    first, second = await subject.router(), await subject.router()
    first.send(task(1, "upto", 10, flags=TaskFlag.STREAM, window=4, job="j1", attempt=1))
    for _ in range(4):
        await first.answer(1, AnswerOp.ITEM)
    second.send(task(7, "upto", flags=TaskFlag.STREAM | ATTACH, job="j1", attempt=1, items=2))
    assert [(await second.answer(7, AnswerOp.ITEM))[2] for _ in range(4)] == [2, 3, 4, 5]
    second.send((RequestOp.CREDIT, 7, 4))
    assert [(await second.answer(7, AnswerOp.ITEM))[2] for _ in range(4)] == [6, 7, 8, 9]
    assert await second.answer(7) == [AnswerOp.END, 7, 10]


async def test_it_lists_the_jobs_that_run_and_those_that_ended_a_moment_ago(subject: Subject, router: Router):
    await router.ask(task(1, "count", "a", job="done", endpoint="shop", attempt=1))
    router.send(task(2, "pause", 60.0, job="on", endpoint="other", attempt=3))
    await until(subject.running)
    reply = await subject.request("jobs", {"endpoint": None})
    found = {job["job"]: (job["endpoint"], job["attempt"], job["running"]) for job in reply["jobs"]}
    assert found == {"done": ("shop", 1, False), "on": ("other", 3, True)}
    assert reply["epoch"] == router.epoch
    of_one = await subject.request("jobs", {"endpoint": "other"})
    assert [job["job"] for job in of_one["jobs"]] == ["on"]


async def test_the_answer_of_an_attached_request_can_be_asked_for(router: Router):
    router.send(task(1, "upto", 2, flags=TaskFlag.STREAM, window=1, job="j1", attempt=1))
    await router.answer(1, AnswerOp.ITEM)
    router.send(task(2, "upto", flags=TaskFlag.STREAM | ATTACH, job="j1", attempt=1))
    checked = await router.ask((RequestOp.CHECK, 10, [2]), AnswerOp.CHECKED)
    assert checked[2] == [TaskState.RUNNING]
    router.send((RequestOp.CREDIT, 2, 2))
    assert await router.answer(2, AnswerOp.END) == [AnswerOp.END, 2, 2]
    checked = await router.ask((RequestOp.CHECK, 11, [2]), AnswerOp.CHECKED)
    assert checked[2] == [TaskState.ANSWERED]
    assert await router.answer(2, AnswerOp.END) == [AnswerOp.END, 2, 2], "sent again"
