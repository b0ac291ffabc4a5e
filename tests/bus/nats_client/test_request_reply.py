from __future__ import annotations

import asyncio

import pytest

from gangline.bus.nats_client.request_reply import ReplyMultiplexer
from gangline.bus.port.bus import Message
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import Disconnected


def make() -> ReplyMultiplexer:
    return ReplyMultiplexer("_INBOX.me.r", asyncio.get_running_loop(), Environment().token)


async def test_who_saw_some_reply_subjects_cannot_guess_another():
    replies = make()
    subjects = [replies.expect("a")[0] for _ in range(200)]
    subjects += [replies.call("a", lambda _: None, 1) for _ in range(200)]
    tokens = [subject.removeprefix("_INBOX.me.r.") for subject in subjects]
    assert {len(token) for token in tokens} == {16}
    for place in range(16):
        assert len({token[place] for token in tokens}) > 50, "one of 64, at each place"


async def test_a_503_header_with_a_body_is_an_answer():
    replies = make()
    reply, future = replies.expect("a")
    replies.receive(Message(reply, b"body", headers={"Status": "503"}))
    assert (await replies.wait(reply, future, 1)).data == b"body"


async def test_failing_one_subject_leaves_the_others_waiting():
    replies = make()
    (one, first), (two, second) = replies.expect("forbidden"), replies.expect("allowed")
    assert not replies.fail(lambda _: Disconnected("no"), subject="another")
    assert replies.fail(lambda _: Disconnected("no"), subject="forbidden"), "somebody waited for that one"
    with pytest.raises(Disconnected):
        await replies.wait(one, first, 1)
    replies.receive(Message(two, b"fine"))
    assert (await replies.wait(two, second, 1)).data == b"fine"


async def test_an_answer_and_a_loss_in_one_turn_do_no_harm():
    replies = make()
    reply, future = replies.expect("a")
    replies.receive(Message(reply, b"1"))
    replies.fail(lambda _: Disconnected("no"))
    replies.receive(Message(reply, b"2"))
    assert (await replies.wait(reply, future, 1)).data == b"1"
