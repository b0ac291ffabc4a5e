"""Durable jobs on the frames path of a whole worker: one execution, and everybody hears how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

from gangline.schemas.errors.base import TaskCrashed
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp, TaskFlag
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Outcome
from gangline.worker.service import WorkerState
from gangline.worker.slots.job_table import JobKey
from gangline.worker.wire.durable_jobs import LISTED, MOST_HEARERS

from ...support.worker.rig import Hand, Rig, on_rig, reserve, task

OK, ERROR, GRANTED, REJECTED, ITEM, END = (
    AnswerOp.OK,
    AnswerOp.ERROR,
    AnswerOp.GRANTED,
    AnswerOp.REJECTED,
    AnswerOp.ITEM,
    AnswerOp.END,
)
STREAM, ATTACH = int(TaskFlag.STREAM), int(TaskFlag.ATTACH)


def meta(job: Any = "j1", attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"job": job, "endpoint": "thumbs", "attempt": attempt, **more}


def attach(request_id: int, job: str = "j1", *, flags: int = 0, **more: Any) -> tuple[Any, ...]:
    return task(request_id, "", deadline_ms=None, flags=ATTACH | flags, meta=meta(job, **more))


# -- one execution ----------------------------------------------------------------------------------------------------


@on_rig()
async def test_jobs_of_one_id_at_two_endpoints_are_two(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()), task(2, "wait", ["b"], meta={**meta(), "endpoint": "other"}))
    await rig.hand.quiet()
    assert rig.gates.started == ["a", "b"]
    assert (await rig.hand.ask(*task(3, flags=ATTACH, meta={"job": "j1"})))[0] == REJECTED, "its endpoint is the pool"


@on_rig()
async def test_a_token_is_not_used_up_by_attaching(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()))
    token = await rig.hand.grant(2, flags=1)
    rig.hand.send(task(3, "wait", ["a"], token=token, meta=meta()))
    await rig.hand.quiet()
    assert rig.worker.core.load == Load(1, 1, 2)
    assert await rig.hand.ask(*task(4, "double", [4], token=token)) == [OK, 4, 8]


@on_rig()
async def test_not_everybody_can_hear_of_one_job(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()), *(attach(n) for n in range(2, MOST_HEARERS + 2)))
    assert await rig.hand.answer(MOST_HEARERS + 1) == [REJECTED, MOST_HEARERS + 1, "full"]
    rig.gates.open.set()
    assert await rig.hand.answer(MOST_HEARERS) == [OK, MOST_HEARERS, "a done"]
    assert rig.at_rest()


@on_rig()
async def test_to_attach_to_nothing_is_an_error_and_starts_nothing(rig: Rig):
    for number, wrong in enumerate((None, {}, {"attempt": 2}, {"job": "a b"}, {"job": 7}, {"job": "x" * 129}), 1):
        answer = await rig.hand.ask(*task(number, "wait", flags=ATTACH, meta=wrong))
        assert answer[0] == ERROR, answer
        assert answer[5] is False
    assert (await rig.hand.ask(*task(20, "echo", meta={"job": "ok", "endpoint": "a.b"})))[2] == "invalid_name"
    assert rig.events("start") == []
    assert rig.at_rest()


# -- after its end ----------------------------------------------------------------------------------------------------


@on_rig()
async def test_the_answer_of_an_ended_job_is_kept_for_whoever_asks(rig: Rig, other: Hand):
    assert await rig.hand.ask(*task(1, "double", [4], meta=meta())) == [OK, 1, 8]
    assert await other.ask(*attach(70_000)) == [OK, 70_000, 8]
    assert await other.ask(*task(70_001, "double", [4], meta=meta(attempt=2))) == [OK, 70_001, 8], "never done twice"
    assert rig.events("start") == ["start"]
    await asyncio.sleep(61)
    assert await other.ask(*attach(70_002)) == [REJECTED, 70_002, "unknown_job"]
    assert rig.worker.core.statistics()["jobs"] == 0


@on_rig()
async def test_a_job_with_arguments_that_do_not_fit_never_began(rig: Rig):
    assert (await rig.hand.ask(*task(1, "double", ["x"], meta=meta())))[2] == "invalid_arguments"
    assert await rig.hand.ask(*attach(2)) == [REJECTED, 2, "unknown_job"]
    assert await rig.hand.ask(*task(3, "double", [1], meta=meta())) == [OK, 3, 2]


async def test_an_attempt_that_could_not_begin_may_come_again():
    rig = Rig()
    closed = [True]

    @rig.worker.pool.task(timeout_s=60)  # so that it goes the general way
    async def sometimes() -> str:
        return "it ran"

    async with rig:
        launch = rig.worker._executors.launch

        def no_child(*args: Any, **options: Any) -> Any:
            if closed.pop():
                asyncio.get_running_loop().call_soon(
                    options["on_done"], Outcome(error=TaskCrashed("no child process", may_have_started=False))
                )
                return NeverRan()
            return launch(*args, **options)

        rig.worker._executors.launch = no_child  # type: ignore[method-assign]
        rig.hand.send(task(1, "sometimes", meta=meta()), attach(2))
        assert (await rig.hand.answer(1))[2] == (await rig.hand.answer(2))[2] == "task_crashed"
        closed.append(False)
        assert await rig.hand.ask(*attach(3)) == [REJECTED, 3, "unknown_job"]
        assert await rig.hand.ask(*task(4, "sometimes", meta=meta())) == [OK, 4, "it ran"]
        assert rig.at_rest()


class NeverRan:
    def cancel(self, reason: object) -> None: ...
    def insist(self) -> None: ...
    def credit(self, items: int) -> None: ...


@on_rig(answer_retention_count=1000)
async def test_jobs_are_forgotten_with_their_answers(rig: Rig):
    for number in range(1, 1011):
        rig.hand.send(task(number, "double", [1], meta=meta(f"j{number}")))
    await rig.hand.quiet(1.5)
    assert await rig.hand.ask(*attach(2000, "j1")) == [REJECTED, 2000, "unknown_job"]
    assert await rig.hand.ask(*attach(2001, "j1000")) == [OK, 2001, 2]
    rig.worker.core.check()


# -- cancelling -------------------------------------------------------------------------------------------------------


@on_rig()
async def test_a_request_that_was_withdrawn_before_it_came_attaches_to_nothing(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()), (int(RequestOp.CANCEL), 2), attach(2))
    assert await rig.hand.answer(2) == [REJECTED, 2, "expired"]
    rig.gates.open.set()
    assert await rig.hand.answer(1) == [OK, 1, "a done"]


async def test_a_job_is_answered_when_its_code_has_stopped_and_no_earlier():
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "after all"

    async with Rig(stubborn) as rig:
        rig.hand.send(task(1, "stubborn", deadline_ms=100), task(2, "stubborn", deadline_ms=100, meta=meta()))
        await rig.hand.quiet(1.0)
        assert rig.hand.answers_to(1)[0][2] == "deadline_exceeded", "a caller's time is over"
        assert rig.hand.answers_to(2) == []
        rig.hand.send(task(3, "stubborn", meta=meta(attempt=2)), (int(RequestOp.CANCEL), 2))
        await rig.hand.quiet(1.0)
        assert rig.hand.answers_to(3) == [], "its next attempt does not meet the one before"
        release.set()
        assert await rig.hand.answer(2) == [OK, 2, "after all"]
        assert await rig.hand.answer(3) == [OK, 3, "after all"]
        assert rig.at_rest()


async def test_the_error_of_an_attempt_whose_time_is_over_does_not_blame_the_deadline_of_its_job():
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Rig(slow) as rig:
        rig.hand.send(task(1, "slow", deadline_ms=100), task(2, "slow", deadline_ms=100, meta=meta()))
        told = [(await rig.hand.answer(number))[3] for number in (1, 2)]
        assert told[0].endswith(".slow was stopped at its deadline")
        assert told[1].endswith(".slow was stopped at the time limit of its attempt")


# -- epochs -----------------------------------------------------------------------------------------------------------


@on_rig()
async def test_a_job_outlives_the_epoch_that_it_was_started_in(rig: Rig, other: Hand):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()))
    await rig.hand.quiet()
    old = rig.worker.core.epoch
    assert rig.worker._worker_server is not None
    rig.worker._worker_server.new_epoch("frozen")
    assert await other.ask(*task(1, "wait", ["a"], meta=meta()), epoch=old) == [REJECTED, 1, "stale"]
    other.send(attach(2), epoch=old)
    other.send(attach(3))
    other.send(task(4, "wait", ["a"], meta=meta()))
    await other.quiet()
    assert rig.gates.started == ["a"]
    rig.gates.open.set()
    assert [(await other.answer(n))[0] for n in (2, 3, 4)] == [OK, OK, OK]
    assert rig.at_rest()


@on_rig()
async def test_a_draining_worker_lets_others_hear_of_what_it_runs(rig: Rig):
    rig.hand.send(task(1, "wait", ["a"], meta=meta()))
    await rig.hand.quiet()
    rig.worker.begin_drain(10.0)
    rig.hand.send(task(2, "wait", ["a"], meta=meta()), task(3, "wait", ["b"], meta=meta("j2")))
    assert await rig.hand.answer(3) == [REJECTED, 3, "draining"]
    rig.gates.open.set()
    assert await rig.hand.answer(2) == [OK, 2, "a done"]


# -- streams ----------------------------------------------------------------------------------------------------------


def values(hand: Hand, request_id: int) -> list[tuple[int, Any]]:
    return [(frame[2], frame[3]) for frame in hand.answers_to(request_id) if frame[0] == ITEM]


@on_rig()
async def test_what_is_stored_counts_once_however_often_it_is_told(rig: Rig, other: Hand):
    rig.hand.send(task(1, "count", [10], flags=STREAM, meta=meta(window=4)))
    await rig.hand.quiet()
    for count in (2, 2, 1, 2):
        rig.hand.send((int(RequestOp.STORED), 1, count))
        await rig.hand.quiet()
    assert values(rig.hand, 1) == [(n, n) for n in range(6)], "two are stored, four are on their way"
    other.send(attach(2, flags=STREAM))
    await other.quiet()
    assert values(other, 2) == [(n, n) for n in range(2, 6)], "nothing is forgotten that is not stored"
    rig.hand.send((int(RequestOp.STORED), 1, 6))
    other.send((int(RequestOp.STORED), 2, 2**60))
    await other.quiet()
    assert values(other, 2) == [(n, n) for n in range(2, 10)]
    assert await other.answer(2) == [END, 2, 10]


@on_rig()
async def test_a_new_reader_of_a_stream_misses_nothing_that_was_not_credited(rig: Rig, other: Hand):
    rig.hand.send(task(1, "count", [10], flags=STREAM, meta=meta(window=4)))
    await rig.hand.quiet()
    rig.hand.send((int(RequestOp.CREDIT), 1, 2))
    await rig.hand.quiet()
    assert values(rig.hand, 1) == [(n, n) for n in range(6)], "two are known to be read, four are on their way"
    other.send(attach(2, flags=STREAM, items=3))
    await other.quiet()
    assert values(other, 2) == [(n, n) for n in range(3, 7)], "it has all before number 3: there is room for one more"
    rig.hand.send((int(RequestOp.CREDIT), 1, 4))
    await rig.hand.quiet()
    assert len(values(other, 2)) == 4, "the credit of an earlier reader does not count"
    other.send((int(RequestOp.CREDIT), 2, 4))
    await other.quiet()
    assert values(other, 2) == [(n, n) for n in range(3, 10)]
    assert await other.answer(2) == [END, 2, 10]
    assert (await rig.hand.answer(1))[0] == END
    assert rig.at_rest()


@on_rig()
async def test_a_reader_that_comes_after_the_end_gets_what_nobody_took(rig: Rig, other: Hand):
    rig.hand.send(task(1, "count", [5], flags=STREAM, meta=meta(window=10)))
    assert await rig.hand.answer(1) == [END, 1, 5]
    other.send(attach(2, flags=STREAM, items=2))
    await other.quiet()
    assert other.answers_to(2) == [*([ITEM, 2, n, n] for n in range(2, 5)), [END, 2, 5]]
    assert await other.ask(*attach(3)) == [END, 3, 5], "who reads no items gets the end alone"
    await asyncio.sleep(61)
    rig.worker.core.check()
    assert rig.worker.core.statistics()["jobs"] == 0


@on_rig(answer_retention_bytes=1 << 20, stream_window=3)
async def test_a_reader_is_told_that_items_are_no_longer_kept(rig: Rig, other: Hand):
    rig.worker.core.jobs.keep_items(0)
    rig.hand.send(task(1, "count", [3], flags=STREAM, meta=meta("ended")))
    assert (await rig.hand.answer(1))[0] == END
    answer = await other.ask(*attach(1, "ended", flags=STREAM))
    assert answer[2] == "stream_broken" and "items 0 to 2 are no longer kept" in answer[3]
    assert await other.ask(*attach(2, "ended")) == [END, 2, 3], "who reads none lacks none"
    rig.hand.send(task(2, "count", [9], flags=STREAM, meta=meta("runs")))
    await rig.hand.quiet()
    other.send(attach(3, "runs", flags=STREAM, items=1))
    assert (await other.answer(3))[2] == "stream_broken", "it waited for credit for what nobody can read"
    assert (await rig.hand.answer(2))[2] == "stream_broken"
    assert rig.at_rest()


@on_rig()
async def test_a_job_whose_items_are_lost_starts_anew_at_a_later_attempt(rig: Rig):
    rig.worker.core.jobs.keep_items(0)
    rig.hand.send(task(1, "count", [3], flags=STREAM, meta=meta()))
    assert (await rig.hand.answer(1))[0] == END
    rig.hand.send(task(2, "count", [3], flags=STREAM, meta=meta(attempt=2)))
    assert await rig.hand.answer(2) == [END, 2, 3]
    assert rig.events("start") == ["start", "start"]


@on_rig()
async def test_an_item_too_large_ends_a_job_once_its_code_has_stopped(rig: Rig):
    size = rig.worker_bus.max_payload
    rig.hand.send(task(1, "count", [3, size], flags=STREAM, meta=meta()), attach(2, flags=STREAM))
    assert (await rig.hand.answer(1))[2] == "invalid_result"
    assert (await rig.hand.answer(2))[2] == "invalid_result"
    assert rig.at_rest()


@on_rig()
async def test_a_result_that_just_fits_fits_every_request(rig: Rig, other: Hand):
    most = rig.worker_bus.max_payload - 64 - 16
    assert (await rig.hand.ask(*task(1, "big", [most], meta=meta())))[0] == OK
    assert (await other.ask(*attach(1 << 62)))[0] == OK
    assert (await rig.hand.ask(*task(2, "big", [most + 8])))[0] == OK
    assert (await rig.hand.ask(*task(3, "big", [most + 8], meta=meta("j2"))))[2] == "invalid_result"


# -- ends that are to be stored ---------------------------------------------------------------------------------------


def ack(job: str = "j1", attempt: int = 1, sequence: int = 0, rank: int = 0) -> tuple[Any, ...]:
    return (int(RequestOp.ACK), "thumbs", job, sequence, rank, attempt)


@on_rig()
async def test_an_execution_whose_end_is_of_no_interest_any_more_is_stopped(rig: Rig, other: Hand):
    rig.hand.send(task(1, "count", [10], flags=STREAM, meta=meta(attempt=2, acks=True, window=4)))
    await rig.hand.quiet()
    other.send(ack(attempt=1), ack(attempt=2, sequence=3))
    await other.quiet()
    assert rig.worker.core.load.running == 1, "of an earlier attempt, and of another job"
    other.send(ack(attempt=2))
    await rig.hand.quiet()
    assert rig.hand.answers_to(1)[-1][:3] == [ERROR, 1, "task_cancelled"]
    body, _ = await rig.hand.request("jobs", None)
    assert [(entry["running"], entry["unstored"]) for entry in body["jobs"]] == [(False, False)]
    assert rig.at_rest()


@on_rig()
async def test_a_draining_worker_waits_until_the_end_of_a_job_is_stored(rig: Rig, other: Hand):
    rig.hand.send(task(1, "wait", ["a"], meta=meta(acks=True)))
    await rig.hand.quiet()
    rig.worker.begin_drain(20.0)
    rig.gates.open.set()
    assert await rig.hand.answer(1) == [OK, 1, "a done"]
    await asyncio.sleep(5.0)
    assert rig.worker.state is WorkerState.DRAINING and rig.worker.core.load == Load(0, 0, 2, 1)
    body, _ = await rig.hand.request("jobs", None)
    assert [(entry["running"], entry["unstored"]) for entry in body["jobs"]] == [(False, True)]
    assert await other.ask(*attach(7, acks=True)) == [OK, 7, "a done"]
    other.send(ack(attempt=1, sequence=3))
    await asyncio.sleep(1.0)
    assert rig.worker.state is WorkerState.DRAINING, "that was another job"
    other.send(ack())
    await rig.worker.wait_closed()
    assert "leave" in rig.events("leave")


@on_rig()
async def test_a_draining_worker_waits_for_no_longer_than_its_grace(rig: Rig):
    rig.hand.send(task(1, "double", [4], meta=meta(acks=True)))
    await rig.hand.answer(1)
    now = asyncio.get_running_loop().time()
    await rig.worker.drain(20.0)
    assert 20.0 <= asyncio.get_running_loop().time() - now < 21.0


@on_rig()
async def test_a_draining_worker_does_not_wait_for_who_says_nothing_of_ends(rig: Rig, other: Hand):
    rig.hand.send(task(1, "wait", ["a"], meta=meta(acks=True)), task(2, "double", [4], meta=meta("j2", acks=True)))
    await rig.hand.answer(2)
    assert await other.ask(*attach(1, "j2")) == [OK, 1, 8]
    other.send(attach(2))
    rig.gates.open.set()
    assert await other.answer(2) == [OK, 2, "a done"]
    now = asyncio.get_running_loop().time()
    await rig.worker.drain(20.0)
    assert asyncio.get_running_loop().time() - now < 1.0


@on_rig()
async def test_the_end_of_a_job_is_kept_longer_than_answers_are(rig: Rig):
    await rig.hand.ask(*task(1, "double", [4], meta=meta(acks=True)))
    await rig.hand.ask(*task(2, "double", [4], meta=meta("j2")))
    await asyncio.sleep(300.0)
    assert await rig.hand.ask(*attach(3, acks=True)) == [OK, 3, 8]
    assert (await rig.hand.ask(*attach(4, "j2", acks=True)))[0] == REJECTED
    assert await rig.hand.ask(*task(5, "double", [4], meta=meta(acks=True))) == [OK, 5, 8], "it ended: nothing starts"
    assert await rig.hand.ask(*attach(6)) == [OK, 6, 8], "also to somebody who will not say that it is stored"
    await asyncio.sleep(400.0)
    assert (await rig.hand.ask(*attach(7, acks=True)))[0] == REJECTED
    rig.worker.core.check()


# -- what the worker tells of them ------------------------------------------------------------------------------------


@on_rig()
async def test_the_operation_jobs_lists_what_runs_and_what_ended(rig: Rig):
    rig.hand.send(task(1, "double", [1], meta=meta("done")), task(2, "fail", meta=meta("failed", attempt=3)))
    await rig.hand.answer(2)
    rig.hand.send(
        task(3, "wait", ["a"], meta=meta("runs")), task(4, "wait", ["b"], meta={"job": "other"}), task(5, "echo")
    )
    await rig.hand.quiet()
    body, _ = await rig.hand.request("jobs", {"endpoint": "thumbs"})
    alone = {"rank": 0, "ranks": 0, "pool": "", "unstored": False}
    assert body == {
        "epoch": rig.worker.core.epoch,
        "jobs": [
            {"job": "runs", "endpoint": "thumbs", "sequence": 0, "attempt": 1, "running": True, **alone},
            {"job": "failed", "endpoint": "thumbs", "sequence": 0, "attempt": 3, "running": False, **alone},
            {"job": "done", "endpoint": "thumbs", "sequence": 0, "attempt": 1, "running": False, **alone},
        ],
        "next": None,
    }
    body, _ = await rig.hand.request("jobs", None)
    assert [entry["job"] for entry in body["jobs"]] == ["runs", "other", "failed", "done"]
    body, _ = await rig.hand.request("jobs", {"endpoint": "images"}, Format.MSGPACK)
    assert [entry["job"] for entry in body["jobs"]] == ["other"], "without an endpoint it is the pool's own"
    _, headers = await rig.hand.request("jobs", {"endpoint": 7})
    assert headers["Nats-Service-Error-Code"] == "400"


@on_rig(slots=20)
async def test_a_long_list_of_jobs_comes_in_parts(rig: Rig):
    for number in range(1, LISTED + 101):
        rig.hand.send(task(number, "double", [1], meta=meta(f"job-{number}")))
        if number % 20 == 0:
            await rig.hand.answer(number)
    rig.hand.send(*(task(5000 + n, "wait", meta=meta(f"runs-{n}")) for n in range(20)))
    await rig.hand.quiet()
    found: list[str] = []
    after = None
    for _ in range(4):
        body, _ = await rig.hand.request("jobs", {"endpoint": "thumbs", "after": after})
        found += [entry["job"] for entry in body["jobs"]]
        after = body["next"]
        if after is None:
            break
    assert after is None
    assert found == [f"runs-{n}" for n in range(20)] + [f"job-{n}" for n in range(LISTED + 100, 0, -1)]


async def test_a_task_knows_the_job_that_it_is_an_attempt_of():
    async def facts() -> Any:
        context = current_task()
        return [context.job, context.endpoint, context.attempt, context.fence]

    async with Rig(facts) as rig:
        token = await rig.hand.grant(1, slots=1)
        assert await rig.hand.ask(*task(2, "facts", token=token, meta=meta(attempt=3))) == [
            OK,
            2,
            ["j1", "thumbs", 3, 3],
        ]
        assert await rig.hand.ask(*task(3, "facts", meta={"job": "j2"})) == [OK, 3, ["j2", "images", 1, 1]]
        answer = await rig.hand.ask(*task(4, "facts", token=token, meta={"attempt": 2}))
        assert answer[2][:3] == [None, None, 2]
        assert answer[2][3] > 1000, "of a call it is the lease's"


@on_rig()
async def test_the_journal_names_jobs(rig: Rig):
    rig.hand.send(task(1, "wait", meta=meta(attempt=2)), attach(2), reserve(3), task(4))
    await rig.hand.quiet()
    rig.gates.open.set()
    await rig.hand.answer(1)
    told = [
        (r["event"], r.get("job"), r.get("attempt")) for r in rig.journal if r["event"] in ("start", "end", "attach")
    ]
    assert told == [("start", "j1", 2), ("attach", "j1", 2), ("end", "j1", 2)]
    assert rig.worker.core.jobs.find(JobKey("thumbs", "j1")) is not None
