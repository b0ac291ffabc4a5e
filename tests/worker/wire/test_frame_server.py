"""The frames path of a whole worker, driven by hand-made frames on an in-memory server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp, ReserveFlag, TaskFlag, TaskState

from ...support.rows import in_rows
from ...support.worker.rig import Rig, on_rig, reserve, task

OK, ERROR, GRANTED, REJECTED = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.GRANTED, AnswerOp.REJECTED


@on_rig()
async def test_answers_of_one_turn_share_a_message_and_carry_the_load(rig: Rig):
    rig.hand.send(task(1, "nope"), task(2, "wait"), reserve(3), task(4, "wait"))
    await rig.hand.quiet()
    assert len(rig.hand.messages) == 1
    envelope = rig.hand.envelopes[0]
    assert [frame[:2] for frame in envelope.frames] == [[ERROR, 1], [GRANTED, 3], [REJECTED, 4]]
    assert envelope.load == Load(1, 1, 2)
    assert envelope.epoch == rig.worker.core.epoch


@on_rig()
async def test_a_full_worker_rejects_and_remembers_that_it_did(rig: Rig):
    rig.hand.send(task(1, "wait"), task(2, "wait"))
    assert await rig.hand.ask(*task(3)) == [REJECTED, 3, "full"]
    rig.gates.open.set()
    await rig.hand.answer(1)
    rig.hand.send(task(3))
    await rig.hand.quiet()
    assert rig.hand.answers_to(3) == [[REJECTED, 3, "full"]] * 2, "its caller went elsewhere: never start it now"


@on_rig(send_tracebacks=False)
async def test_tracebacks_stay_here_when_told_so(rig: Rig):
    answer = await rig.hand.ask(*task(1, "fail"))
    assert "traceback" not in answer[4]
    assert answer[4]["type"] == "ValueError"


@on_rig()
async def test_a_running_task_is_stopped_at_its_deadline_and_its_caller_hears_at_once(rig: Rig):
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await rig.hand.ask(*task(1, "wait", deadline_ms=300))
    assert answer[2] == "deadline_exceeded"
    assert answer[5] is True
    assert loop.time() - began == pytest.approx(0.3, abs=0.01)
    await rig.hand.quiet()
    assert rig.at_rest()
    assert len(rig.hand.answers_to(1)) == 1


@on_rig()
async def test_a_result_that_cannot_be_sent_counts_as_failed(rig: Rig):
    assert (await rig.hand.ask(*task(1, "big", [rig.worker_bus.max_payload])))[2] == "invalid_result"
    token = (await rig.hand.request("reserve", {}))[0]["token"]
    body = {"token": token, "method": "big", "arguments": [rig.worker_bus.max_payload]}
    assert (await rig.hand.request("dispatch", body))[0]["code"] == "invalid_result"
    counts = rig.worker.statistics().tasks
    assert (counts["started"], counts["succeeded"], counts["failed"]) == (2, 0, 2)


@on_rig()
async def test_a_stream_that_nobody_reads_as_one_ends_when_it_is_too_large_to_send(rig: Rig):
    made = 0

    @rig.worker.pool.task
    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * 10_000

    rig.worker.pool.tasks["endless"].prepare()
    assert (await rig.hand.ask(*task(1, "endless")))[2] == "invalid_result"
    assert made == pytest.approx(rig.worker_bus.max_payload / 10_000, abs=2)


@on_rig()
async def test_a_task_that_ignores_its_deadline_does_not_count_as_succeeded(rig: Rig):
    @rig.worker.pool.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "done all the same"

    rig.worker.pool.tasks["stubborn"].prepare()
    assert (await rig.hand.ask(*task(1, "stubborn", deadline_ms=500)))[2] == "deadline_exceeded"
    assert rig.worker.core.load.running == 1
    await asyncio.sleep(2)
    assert rig.worker.core.load.running == 0 and len(rig.hand.answers_to(1)) == 1
    counts = rig.worker.statistics().tasks
    assert (counts["started"], counts["succeeded"], counts["cancelled"]) == (1, 0, 1)


@on_rig()
async def test_two_dispatches_cancelled_before_they_start_leave_both_slots_usable_at_once(rig: Rig):
    tokens = [await rig.hand.grant(number, flags=ReserveFlag.SINGLE_USE) for number in (1, 2)]
    assert await rig.hand.ask(*task(3)) == [REJECTED, 3, "full"]
    rig.hand.send((int(RequestOp.CANCEL), 11), (int(RequestOp.CANCEL), 12))
    rig.hand.send(*(task(10 + number, token=token) for number, token in enumerate(tokens, 1)))
    await rig.hand.answer(12)
    assert await rig.hand.ask(*task(20)) == [OK, 20, None]
    assert await rig.hand.ask(*task(21, "heavy")) == [OK, 21, "heavy"]


@on_rig()
async def test_a_task_costs_the_slots_it_was_declared_with(rig: Rig):
    rig.hand.send(task(1, "wait"))
    assert await rig.hand.ask(*task(2, "heavy")) == [REJECTED, 2, "full"]
    rig.gates.open.set()
    await rig.hand.answer(1)
    assert await rig.hand.ask(*task(3, "heavy")) == [OK, 3, "heavy"]


@on_rig()
async def test_a_task_that_costs_more_than_this_worker_was_given_may_fit_another(rig: Rig):
    rig.worker.resize(1)
    assert await rig.hand.ask(*task(1, "heavy")) == [REJECTED, 1, "full"]


@on_rig(answer_retention_s=1.0)
async def test_an_answer_too_old_to_be_kept_is_called_lost(rig: Rig):
    await rig.hand.ask(*task(5, "double", [4]))
    await asyncio.sleep(2.5)
    checked = await rig.hand.ask(int(RequestOp.CHECK), 9, [5])
    assert checked[2] == [TaskState.FORGOTTEN]
    rig.hand.envelopes.clear()
    answer = await rig.hand.ask(*task(5, "double", [4]))
    assert answer[2] == "result_lost"
    assert answer[5] is True, "it may well have run"
    assert rig.worker.statistics().tasks["started"] == 1


@on_rig()
async def test_a_single_use_token_needs_no_release(rig: Rig):
    token = await rig.hand.grant(1, flags=ReserveFlag.SINGLE_USE)
    await rig.hand.ask(*task(2, token=token))
    await rig.hand.quiet(0.1)
    assert rig.at_rest()
    answer = await rig.hand.ask(*task(3, token=token))
    assert answer[2] == "unknown_token"
    assert answer[5] is False


@in_rows(
    "method, args, deadline_ms",
    [("nope", None, 10_000), ("double", ["x"], 10_000), ("echo", None, 0), ("heavy", None, 10_000)],
)
@on_rig()
async def test_a_single_use_slot_comes_back_when_its_task_cannot_start(rig: Rig, method, args, deadline_ms):
    token = await rig.hand.grant(1, flags=ReserveFlag.SINGLE_USE)
    await rig.hand.ask(*task(2, method, args, deadline_ms=deadline_ms, token=token))
    await rig.hand.quiet(0.1)
    assert rig.at_rest()


@on_rig()
async def test_an_unclaimed_lease_frees_itself_after_the_claim_timeout(rig: Rig):
    await rig.hand.grant(1, claim_ms=500)
    await asyncio.sleep(0.45)
    assert rig.worker.core.load.reserved == 1
    await asyncio.sleep(0.06)
    assert rig.worker.core.load.reserved == 0
    assert rig.events("grant", "expire") == ["grant", "expire"]
    await asyncio.sleep(0.1)
    assert rig.at_rest()


@on_rig()
async def test_a_lease_lives_while_it_is_renewed_and_dies_when_it_is_not(rig: Rig):
    token = await rig.hand.grant(1, ttl_ms=1000)
    for number in range(5):
        await asyncio.sleep(0.8)
        assert await rig.hand.ask(int(RequestOp.RENEW), 10 + number, token, 1000) == [
            AnswerOp.RENEWED,
            10 + number,
            1000,
        ]
    rig.hand.send((int(RequestOp.RENEW), 19, token, 1000), epoch=rig.worker.core.epoch - 1)
    assert await rig.hand.answer(19) == [REJECTED, 19, "stale"]
    await asyncio.sleep(1.1)
    assert (await rig.hand.ask(int(RequestOp.RENEW), 20, token, 1000))[2] == "lease_expired"
    assert (await rig.hand.ask(*task(21, token=token)))[2] == "lease_expired"
    await rig.hand.quiet(0.1)
    assert rig.at_rest()


@on_rig()
async def test_a_task_too_big_for_its_lease_is_told_what_to_reserve(rig: Rig):
    token = await rig.hand.grant(1)
    answer = await rig.hand.ask(*task(2, "heavy", token=token))
    assert answer[2] == "invalid_request"
    assert "costs 2 slots" in answer[3]


@on_rig()
async def test_releases_of_the_unknown_are_silent(rig: Rig):
    rig.hand.send(
        (int(RequestOp.RELEASE), 77, None),
        (int(RequestOp.RELEASE), None, "nobody"),
        (int(RequestOp.RELEASE), None, None),
    )  # noqa: E501
    await rig.hand.quiet()
    assert rig.hand.messages == []


@on_rig()
async def test_a_reserve_for_too_much_or_too_long_is_an_error(rig: Rig):
    assert (await rig.hand.ask(*reserve(1, slots=3)))[2] == "invalid_request"
    answer = await rig.hand.ask(*reserve(2, ttl_ms=3_601_000))
    assert answer[2:4] == ["invalid_request", "ttl of 3601 s: this worker leases for 3600 s at most"]
    answer = await rig.hand.ask(*reserve(3, claim_ms=301_000))
    assert answer[2:4] == ["invalid_request", "claim timeout of 301 s: this worker waits 300 s at most"]
    assert rig.at_rest()


@on_rig()
async def test_what_was_sent_to_an_earlier_process_of_that_name_is_never_called_unknown(rig: Rig):
    epoch = rig.worker.core.epoch
    earlier = await rig.hand.ask(int(RequestOp.CHECK), 9, [1], epoch=epoch - 1)
    assert earlier[2] == [TaskState.FORGOTTEN]
    rig.worker.core.new_epoch(epoch + 1, asyncio.get_running_loop().time())
    same = await rig.hand.ask(int(RequestOp.CHECK), 10, [2], epoch=epoch)
    assert same[2] == [TaskState.UNKNOWN]


@on_rig()
async def test_release_cancel_and_check_are_honoured_in_any_epoch(rig: Rig):
    token = await rig.hand.grant(1)
    rig.hand.send(task(2, "wait"))
    await rig.hand.quiet()
    rig.hand.send(
        (int(RequestOp.RELEASE), None, token), (int(RequestOp.CANCEL), 2), (int(RequestOp.CHECK), 3, [2]), epoch=1
    )
    await rig.hand.answer(3)
    assert (await rig.hand.answer(2))[2] == "task_cancelled"
    await rig.hand.quiet(0.1)
    assert rig.at_rest()


@on_rig()
async def test_an_item_that_fits_no_message_ends_the_stream(rig: Rig):
    rig.hub.max_payload = 10_000
    rig.hand.send(task(1, "count", [3, 20_000], flags=TaskFlag.STREAM))
    answer = await rig.hand.answer(1)
    assert answer[2] == "invalid_result"
    assert "item 0 of images.count is 20" in answer[3]
    await rig.hand.quiet()
    assert rig.at_rest()


@on_rig()
async def test_a_result_that_fits_no_message_is_an_error_with_size_and_limit(rig: Rig):
    rig.hub.max_payload = 10_000
    answer = await rig.hand.ask(*task(1, "big", [20_000]))
    assert answer[2] == "invalid_result"
    assert answer[4] == {"size": 20_006, "limit": 9_936}
    assert answer[5] is True


@on_rig(slots=20)
async def test_answers_that_do_not_fit_one_message_are_split(rig: Rig):
    rig.hub.max_payload = 10_000
    rig.hand.send(*(task(number, "big", [4_000]) for number in range(10)))
    await rig.hand.quiet()
    assert len(rig.hand.answers) == 10
    assert all(len(message.data) <= 10_000 for message in rig.hand.messages)
    assert len(rig.hand.messages) == 5


@on_rig()
async def test_an_error_too_large_for_a_message_is_cut(rig: Rig):
    rig.hub.max_payload = 5_000
    answer = await rig.hand.ask(*task(1, "fail", ["x" * 4_000]))
    assert answer[2] == "task_failed"
    assert answer[4] is None
    assert len(answer[3]) <= 2_000


@on_rig()
async def test_a_frame_that_cannot_be_read_is_refused_alone(rig: Rig):
    pairs = codec.pack([int(RequestOp.TASK), 2, "double", [{(1, 2): 3}], *[None] * 3, None, 0, None])
    many = codec.pack([int(RequestOp.TASK), 5, "double", [[[]] * codec.most_containers], *[None] * 4, 0, None])
    others = [codec.pack(one) for one in ([int(RequestOp.RESERVE), 3], [int(RequestOp.CANCEL), 4, 5], [99, 6])]
    good = [codec.pack(task(1, "double", [1])), codec.pack(task(7, "double", [2]))]
    data = frames.join_request(rig.worker.core.epoch, "s", [good[0], pairs, *others, many, good[1]])
    rig.hand.send_raw(data, reply=rig.hand.reply)
    await rig.hand.quiet()
    answers = {answer[1]: answer for answer in rig.hand.answers}
    assert answers.pop(1) == [OK, 1, 2]
    assert {id: (answer[0], answer[2], answer[5]) for id, answer in answers.items()} == {
        **dict.fromkeys((2, 3, 6), (AnswerOp.ERROR, "malformed_message", False)),
        **dict.fromkeys((5, 7), (AnswerOp.ERROR, "payload_too_large", False)),
    }
    rig.hand.send_raw(frames.join_request(rig.worker.core.epoch, "s", [pairs]), reply=rig.hand.reply)
    await rig.hand.quiet()
    assert rig.hand.answers_to(2) == [answers[2]] * 2, "asked again, it is answered alike"
    assert rig.at_rest()


@on_rig()
async def test_without_a_reply_subject_the_work_is_done_in_silence(rig: Rig):
    rig.hand.send(task(1, "double", [1]), reply="")
    rig.hand.send_raw(b"zz", reply="")
    await rig.hand.quiet()
    assert rig.worker.statistics().tasks["succeeded"] == 1
    assert rig.hand.messages == []


@on_rig()
async def test_a_bug_in_one_frame_does_not_take_the_others_with_it(rig: Rig, monkeypatch, caplog):
    admit = rig.worker.core.admit
    monkeypatch.setattr(
        type(rig.worker.core),
        "admit",
        lambda core, sender, task_id, *rest: 1 / 0 if task_id == 1 else admit(sender, task_id, *rest),
    )  # noqa: E501
    rig.hand.send(task(1), task(2, "double", [3]))
    assert await rig.hand.answer(2) == [OK, 2, 6]
    assert (await rig.hand.answer(1))[2] == "internal"
    assert any(record.__dict__.get("action") == "frame.failed" for record in caplog.records)
    assert rig.at_rest()


@on_rig()
async def test_naming_one_answered_task_many_times_brings_its_answer_once(rig: Rig):
    await rig.hand.ask(*task(1, "echo", ["x" * 1000]))
    rig.hand.send((int(RequestOp.CHECK), 2, [1] * 500), (int(RequestOp.CHECK), 3, [1]), *[task(1) for _ in range(500)])
    await rig.hand.quiet()
    assert rig.hand.answers_to(2) == [[AnswerOp.CHECKED, 2, [TaskState.ANSWERED] * 500]]
    assert rig.hand.answers_to(3) == [[AnswerOp.CHECKED, 3, [TaskState.ANSWERED]]]
    assert len(rig.hand.answers_to(1)) == 2, "its own answer, and once again"


@on_rig(stream_window=2)
async def test_a_stream_is_as_far_ahead_as_its_reader_says(rig: Rig):
    rig.hand.send(task(1, "count", [100], flags=int(TaskFlag.STREAM), meta={"window": 5}))
    rig.hand.send(task(2, "count", [100], flags=int(TaskFlag.STREAM), meta={"window": 10**9}))
    await rig.hand.quiet(0.1)
    assert [len(rig.hand.answers_to(number)) for number in (1, 2)] == [5, 2]


@on_rig(stream_window=2)
async def test_credit_for_more_than_was_sent_makes_no_room(rig: Rig):
    rig.hand.send(task(1, "count", [1000], flags=int(TaskFlag.STREAM)))
    await rig.hand.quiet(0.1)
    rig.hand.send((int(RequestOp.CREDIT), 1, 2**63))
    await rig.hand.quiet(0.1)
    assert len(rig.hand.answers_to(1)) == 4
