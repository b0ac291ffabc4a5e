"""What shares a message, what becomes of what leaves at once, and asking after very many tasks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.bus.port.bus import Message, NotPermitted
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.transport import exchange as exchange_module
from gangline.dispatcher.transport.channel import InFlightRequest
from gangline.schemas.errors.base import Disconnected, PayloadTooLarge
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import AnswerOp, Load, Reason, RequestOp, encode_answer

from ...support.dispatcher.fakes import FakeWorker, Rig, give_up, obedient, silent, turns


async def test_many_requests_of_a_turn_leave_in_halves(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    before = worker.messages
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(64)]
    await worker.hears(RequestOp.TASK, 64)
    assert worker.messages - before == 3, "16, when that is all there is; 16 of 32; and the 32 that are half of 64"
    more = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(15)]
    await worker.hears(RequestOp.TASK, 64 + 15)
    assert worker.messages - before == 4, "so few share a message"
    await give_up(*calls, *more)


async def test_what_leaves_at_once_is_not_lost_if_the_connection_is(rig: Rig) -> None:
    worker = await rig.known_worker(slots=100)
    worker.behave = silent
    publish = rig.bus.publish

    def fails(*_: object, **__: object) -> None:
        rig.bus.publish = publish  # once, and before the router hears of it
        raise Disconnected("gone for a moment")

    rig.bus.publish = fails
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(16)]
    await worker.hears(RequestOp.TASK, 1 + 16)
    await give_up(*calls)


async def test_more_tasks_than_one_message_may_ask_for_are_asked_for_in_turns(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_CHECKED", 5)
    worker = await rig.worker(behave=silent, slots=12)
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(12)]
    tasks = [frame[1] for frame in await worker.hears(RequestOp.TASK, 12)]
    await worker.hears(RequestOp.CHECK, 3)
    asked = [frame[2] for frame in worker.heard_of(RequestOp.CHECK)[:3]]
    assert [len(ids) for ids in asked] == [5, 5, 2]
    assert sorted(sum(asked, [])) == tasks, "each once before any is asked for again"
    await give_up(*calls)


async def test_frames_that_are_too_large_for_one_message_together_leave_in_several(rig: Rig) -> None:
    worker = await rig.known_worker(slots=100)
    before = worker.messages
    third = b"x" * (rig.hub.max_payload // 3)
    answers = await asyncio.gather(*(rig.client.call("images.echo", third) for _ in range(5)))
    assert answers == [["w1", "echo"]] * 5
    assert worker.messages - before == 3


async def test_frames_share_a_message_only_as_long_as_the_worker_takes_all_their_lists(rig: Rig) -> None:
    worker = await rig.known_worker(slots=10_000)
    before = worker.messages
    points = [[x, x] for x in range(100)]
    answers = await asyncio.gather(*(rig.client.call("images.echo", points) for _ in range(250)))
    assert answers == [["w1", "echo"]] * 250
    assert worker.messages - before >= 250 * len(points) // codec.most_containers


async def test_bytes_share_a_message_whatever_they_look_like(rig: Rig) -> None:
    worker = await rig.known_worker(slots=100)
    before = worker.messages
    picture = b"\x90" * (rig.hub.max_payload // 5)  # as msgpack, each of these bytes is a list
    answers = await asyncio.gather(*(rig.client.call("images.echo", picture) for _ in range(4)))
    assert answers == [["w1", "echo"]] * 4
    assert worker.messages - before == 1


async def test_arguments_with_more_lists_than_a_worker_takes_are_not_sent(rig: Rig) -> None:
    worker = await rig.worker()
    await rig.client.call("images.echo", [[]] * (codec.most_containers - 100))
    before = worker.messages
    with pytest.raises(PayloadTooLarge, match="GANGLINE_MAX_CONTAINERS"):
        await rig.client.call("images.echo", [[]] * codec.most_containers)
    assert worker.messages == before


async def test_a_worker_cannot_answer_in_anothers_place(rig: Rig) -> None:
    asked, liar = await rig.worker("w1", slots=8), await rig.worker("w2", slots=8)
    await asyncio.gather(*(rig.client.call("images.echo") for _ in range(8)))
    asked.behave = liar.behave = silent
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(8)]
    await asyncio.sleep(0.1)
    ids = [frame[1] for frame in asked.heard_of(RequestOp.TASK)[-4:]]
    prefix, _, own = liar.replies[-1].rpartition(".")
    assert asked.replies[-1].startswith(f"{prefix}.") and asked.replies[-1] != liar.replies[-1]
    forged = encode_answer(1, Load(0, 0, 2), [(AnswerOp.OK, id, "FORGED") for id in ids])
    similar = [f"{prefix}.{own[:-1]}{last}" for last in "0123456789abcdef"]
    for guess in (*(f"{prefix}.{number}" for number in range(100)), *similar, f"{prefix}.x.y", f"{prefix}.{own}.x"):
        liar.bus.publish(guess, forged)
    await asyncio.sleep(0.1)
    assert not any(call.done() for call in calls)
    await give_up(*calls)


async def test_what_nobody_hears_after_a_question_whose_answer_is_lost_is_asked_about_anew(rig: Rig) -> None:
    worker, client = await rig.worker(slots=8), rig.client
    answer, told = rig.hub._answer, list[str]()

    def loses(sender: Any, message: Message) -> None:
        """The server's answer to the first question."""
        told.append(message.subject.rpartition(".")[2])
        if told[-1] != "1":
            answer(sender, message)

    rig.hub._answer = loses  # type: ignore[method-assign]
    async with client.choose_worker("images") as first, client.choose_worker("images") as second:
        await worker.die()
        calls = [asyncio.ensure_future(client.dispatch(first, "echo"))]
        await turns()
        assert told[-1] == "1"
        calls.append(asyncio.ensure_future(client.dispatch(second, "echo")))
        await turns()
        assert "2" in told
        await give_up(*calls)
        await client.close()


def rejects_as(worker: FakeWorker, epoch: int, task: int) -> None:
    """As a process of its id that is in that epoch."""
    frames = [(AnswerOp.REJECTED, task, str(Reason.STALE))]
    worker.bus.publish(worker.replies[-1], encode_answer(epoch, worker.current_load, frames))


async def test_that_nothing_started_is_believed_only_of_the_process_that_was_asked(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, epoch=5)
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    [task] = await worker.hears(RequestOp.TASK)
    for epoch in (4, 9):  # the process before it, and one that nobody has heard of
        rejects_as(worker, epoch, task[1])
    await asyncio.sleep(0.1)
    assert not call.done() and len(worker.heard_of(RequestOp.TASK)) == 1
    worker.answer((AnswerOp.OK, task[1], "done"))
    assert await call == "done"

    await worker.beat()
    worker.behave = obedient
    assert await rig.client.call("images.echo") == ["w1", "echo"]
    assert worker.epochs[-1] == 5, "its heartbeat says in which epoch it is"


async def test_what_came_between_two_absences_is_not_sent_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await rig.worker(behave=silent, slots=10)
    exchange = rig.client.router.exchange
    on_unheard = exchange._on_unheard
    # As if it had been back for the first CHECK, and gone again before its answer left.
    monkeypatch.setattr(exchange, "_on_unheard", lambda channel, check: check == "1" or on_unheard(channel, check))
    calls = []
    for what in ("away", "here", "away again"):
        if what != "here":
            await worker._subscription.unsubscribe()
        calls.append(asyncio.ensure_future(rig.client.call("images.echo", what)))
        await asyncio.sleep(0.01)
        if what != "here":
            await worker.listen()
        await worker.beat()
        await asyncio.sleep(0.01)
    assert [frame[3] for frame in worker.heard_of(RequestOp.TASK)] == [["here"]]
    await give_up(*calls)


class DurableFlight(InFlightRequest):
    durable = True

    def lose(self, fate: TryOutcome) -> None:
        raise AssertionError(fate)


async def test_what_was_sent_before_a_right_was_lost_may_have_started_and_durable_tasks_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    exchange = rig.client.router.exchange
    sent = asyncio.ensure_future(rig.client.options(idempotent=False).call("images.echo"))
    await worker.hears(RequestOp.TASK)
    entry = next(iter(exchange.flights.values())).worker
    durable = DurableFlight(exchange.new_id(), entry)
    exchange.launch(durable, (RequestOp.TASK, durable.id, "echo", None, None, None, None, None, 0, None))
    await worker.hears(RequestOp.TASK, 2)

    def forbidden(*_: object, **__: object) -> None:
        raise NotPermitted("the server forbids it")

    with monkeypatch.context() as lost:
        lost.setattr(rig.bus, "publish", forbidden)
        unsent = asyncio.ensure_future(rig.client.options(idempotent=False).call("images.echo"))
        for call, started in ((unsent, False), (sent, True)):
            with pytest.raises(NotPermitted) as raised:
                await call
            assert raised.value.may_have_started is started
    assert exchange.is_open(durable)
    exchange.forget(durable)
