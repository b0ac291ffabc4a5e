"""What both buses promise about messages."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import Bus, ConnectionEvent, NoResponders, RequestTimeout
from gangline.schemas.errors.base import ClosedError, InvalidName, PayloadTooLarge

from ...scale import repetitions
from ...support.rows import in_rows
from ...waiting import PATIENCE_S
from ..conftest import collect


async def test_a_message_arrives_with_its_subject_data_reply_and_headers(connect, namespace, got):
    one, two = await connect("one"), await connect("two")
    await two.subscribe(f"{namespace}.a", got)
    await two.flush()
    one.publish(f"{namespace}.a", b"data", reply="to.me", headers={"K": "v w", "Other": "é"})
    (message,) = await got.count(1)
    assert (message.subject, message.data, message.reply) == (f"{namespace}.a", b"data", "to.me")
    assert dict(message.headers) == {"K": "v w", "Other": "é"}


async def test_a_message_without_headers_has_none(bus, namespace, got):
    await bus.subscribe(f"{namespace}.a", got)
    bus.publish(f"{namespace}.a")
    (message,) = await got.count(1)
    assert message.headers is None
    assert message.data == b""
    assert message.reply == ""


async def test_messages_of_one_sender_arrive_in_order(connect, namespace, got):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.>", got)
    await two.flush()
    for number in range(2000):
        one.publish(f"{namespace}.{number % 7}", str(number).encode())
    await got.count(2000)
    assert [int(message.data) for message in got.items] == list(range(2000))


async def test_wildcards_match_whole_parts(connect, namespace):
    bus, last = await connect(), collect()
    got = {pattern: collect() for pattern in ("a.*", "a.>", "a.b", "*.b", "a.*.c", "a.*.>")}
    for pattern, handler in got.items():
        await bus.subscribe(f"{namespace}.{pattern}", handler)
    await bus.subscribe(f"{namespace}.end", last)
    for subject in ("a", "a.b", "a.c", "a.b.c", "end"):
        bus.publish(f"{namespace}.{subject}")
    await last.count(1)
    matches = {
        pattern: {message.subject.removeprefix(f"{namespace}.") for message in handler.items}
        for pattern, handler in got.items()
    }
    assert matches == {
        "a.*": {"a.b", "a.c"},
        "a.>": {"a.b", "a.c", "a.b.c"},
        "a.b": {"a.b"},
        "*.b": {"a.b"},
        "a.*.c": {"a.b.c"},
        "a.*.>": {"a.b.c"},
    }


async def test_a_queue_group_gets_each_message_once(connect, namespace):
    one, two, sender = await connect(), await connect(), await connect()
    first, second, witness = collect(), collect(), collect()
    await one.subscribe(f"{namespace}.q", first, queue="g")
    await two.subscribe(f"{namespace}.q", second, queue="g")
    await two.subscribe(f"{namespace}.q", witness)
    await one.flush()
    await two.flush()
    for number in range(400):
        sender.publish(f"{namespace}.q", str(number).encode())
    await witness.count(400)
    await one.flush()
    await two.flush()
    numbers = sorted(int(message.data) for message in first.items + second.items)
    assert numbers == list(range(400))
    assert first.items
    assert second.items


async def test_unsubscribing_stops_delivery_at_once_and_twice_is_fine(bus, namespace):
    got, other = collect(), collect()
    subscription = await bus.subscribe(f"{namespace}.a", got)
    await bus.subscribe(f"{namespace}.a", other)
    bus.publish(f"{namespace}.a", b"1")
    await other.count(1)
    before = len(got.items)
    bus.publish(f"{namespace}.a", b"2")
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await other.count(2)
    assert len(got.items) == before == 1


async def test_a_member_of_a_queue_group_that_drains_handles_all_that_was_sent_to_it(connect, namespace):
    leaving, staying, sender = await connect(), await connect(), await connect()
    first, second = collect(), collect()
    subscription = await leaving.subscribe(f"{namespace}.q", first, queue="g")
    await staying.subscribe(f"{namespace}.q", second, queue="g")
    for bus in (leaving, staying):
        await bus.flush()
    for number in range(200):
        sender.publish(f"{namespace}.q", str(number).encode())
    await sender.flush()  # the server has sent about half to each
    await subscription.drain()
    mine = len(first.items)
    for number in range(200, 400):
        sender.publish(f"{namespace}.q", str(number).encode())
    await sender.flush()
    await leaving.flush()
    await staying.flush()
    numbers = sorted(int(message.data) for message in first.items + second.items)
    assert numbers == list(range(400))
    assert len(first.items) == mine > 0
    await subscription.drain()
    await subscription.unsubscribe()


async def test_a_subscription_that_drains_while_the_connection_is_lost_ends(connect, namespace, got):
    bus, sender = await connect(), await connect()
    subscription = await bus.subscribe(f"{namespace}.a", got)
    await bus.flush()
    await bus.close()
    async with asyncio.timeout(PATIENCE_S):
        await subscription.drain()
    sender.publish(f"{namespace}.a", b"late")
    await sender.flush()
    assert got.items == []


async def test_a_handler_that_raises_is_logged_and_nothing_else_is_lost(bus, namespace, caplog, got):

    def handler(message):
        got(message)
        if message.data == b"bad":
            raise ZeroDivisionError("planted")

    await bus.subscribe(f"{namespace}.a", handler)
    bus.publish(f"{namespace}.a", b"bad")
    bus.publish(f"{namespace}.a", b"good")
    await got.count(2)
    assert [message.data for message in got.items] == [b"bad", b"good"]
    assert "planted" in caplog.text
    assert f"{namespace}.a" in caplog.text


async def test_a_handler_may_publish_and_unsubscribe(bus, namespace, got):
    subscriptions = []

    def once(message):
        bus.publish(f"{namespace}.second", message.data)
        asyncio.get_running_loop().create_task(subscriptions[0].unsubscribe())

    subscriptions.append(await bus.subscribe(f"{namespace}.first", once))
    await bus.subscribe(f"{namespace}.second", got)
    bus.publish(f"{namespace}.first", b"x")
    await got.count(1)
    bus.publish(f"{namespace}.first", b"y")
    bus.publish(f"{namespace}.second", b"z")
    await got.count(2)
    assert [message.data for message in got.items] == [b"x", b"z"]


async def serve(bus: Bus, subject: str) -> None:
    await bus.subscribe(subject, lambda message: bus.publish(message.reply, b"re " + message.data))
    await bus.flush()


async def test_a_request_is_answered(connect, namespace):
    one, two = await connect(), await connect()
    await serve(two, f"{namespace}.echo")
    answer = await one.request(f"{namespace}.echo", b"hi", headers={"Secret": "1"}, timeout_s=PATIENCE_S)
    assert (answer.data, answer.headers) == (b"re hi", None)


async def test_many_requests_at_once_get_each_their_own_answer(connect, namespace):
    one, two = await connect(), await connect()
    await serve(two, f"{namespace}.echo")
    count = repetitions(200, whole=500)
    answers = await asyncio.gather(
        *(one.request(f"{namespace}.echo", str(number).encode(), timeout_s=PATIENCE_S) for number in range(count))
    )
    assert [answer.data for answer in answers] == [f"re {number}".encode() for number in range(count)]


async def test_nobody_listening_is_known_at_once(bus, namespace):
    with pytest.raises(NoResponders) as caught:
        async with asyncio.timeout(PATIENCE_S):
            await bus.request(f"{namespace}.nobody", b"", timeout_s=3600)
    assert f"{namespace}.nobody" in str(caught.value)
    assert not caught.value.may_have_started


async def test_no_answer_is_a_timeout_that_says_the_request_may_have_arrived(connect, namespace, got):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.mute", got)
    await two.flush()
    with pytest.raises(RequestTimeout) as caught:
        await one.request(f"{namespace}.mute", b"", timeout_s=0.05)
    assert caught.value.may_have_started
    await got.count(1)


async def test_a_cancelled_request_is_forgotten_and_its_late_answer_dropped(connect, namespace, got):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.slow", got)
    await two.flush()
    request = asyncio.ensure_future(one.request(f"{namespace}.slow", b"", timeout_s=60))
    (message,) = await got.count(1)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    two.publish(message.reply, b"late")
    await serve(two, f"{namespace}.echo")
    assert (await one.request(f"{namespace}.echo", b"x", timeout_s=PATIENCE_S)).data == b"re x"


async def test_two_answers_to_one_request_do_no_harm(connect, namespace):
    one, two = await connect(), await connect()

    def twice(message):
        two.publish(message.reply, b"first")
        two.publish(message.reply, b"second")

    await two.subscribe(f"{namespace}.twice", twice)
    await two.flush()
    answers = [(await one.request(f"{namespace}.twice", b"", timeout_s=PATIENCE_S)).data for _ in range(5)]
    assert answers == [b"first"] * 5


async def test_whoever_asks_is_called_with_the_answer_and_not_before_asking_has_returned(connect, namespace, got):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.echo", lambda m: two.publish(m.reply, m.data[::-1], headers={"K": "v"}))
    await two.flush()
    for number in range(100):
        before = len(got.items)
        one.ask(f"{namespace}.echo", f"{number:02}".encode(), timeout_s=PATIENCE_S, then=got)
        assert len(got.items) == before
    answers = await got.count(100)
    assert sorted(answer.data[::-1] for answer in answers) == [f"{number:02}".encode() for number in range(100)]
    assert dict(answers[0].headers) == {"K": "v"}


async def test_whoever_asks_is_told_that_nobody_listens_or_answers_and_hears_nothing_after_that(bus, namespace, got):
    asked = collect()
    await bus.subscribe(f"{namespace}.mute", asked)
    bus.ask(f"{namespace}.nobody", timeout_s=PATIENCE_S, then=got)
    (error,) = await got.count(1)
    assert isinstance(error, NoResponders)
    bus.ask(f"{namespace}.mute", timeout_s=0.1, then=got)
    _, error = await got.count(2)
    assert isinstance(error, RequestTimeout) and error.may_have_started
    (message,) = await asked.count(1)
    bus.publish(message.reply, b"too late")
    await bus.flush()
    assert len(got.items) == 2


async def test_an_answer_that_cannot_be_asked_for_is_told_as_an_error_too(bus, namespace, got):
    bus.ask(f"{namespace}.a", b"x" * (bus.max_payload + 1), timeout_s=PATIENCE_S, then=got)
    assert not got.items
    await got.count(1)
    bus.ask("no subject", timeout_s=PATIENCE_S, then=got)
    await got.count(2)
    await bus.subscribe(f"{namespace}.mute", lambda _: None)
    bus.ask(f"{namespace}.mute", timeout_s=PATIENCE_S, then=got)
    await bus.close()
    await got.count(3)
    bus.ask(f"{namespace}.mute", timeout_s=PATIENCE_S, then=got)
    assert [type(error) for error in await got.count(4)] == [PayloadTooLarge, InvalidName, ClosedError, ClosedError]


async def test_request_answers_do_not_come_to_subscriptions_one_level_below_the_inbox(connect, namespace):
    one, two = await connect(), await connect()
    own = collect()
    await one.subscribe(f"{one.inbox}.*", own)
    await serve(two, f"{namespace}.echo")
    await one.request(f"{namespace}.echo", b"", timeout_s=PATIENCE_S)
    two.publish(f"{one.inbox}.7", b"frame")
    (message,) = await own.count(1)
    assert message.subject == f"{one.inbox}.7"
    assert len(own.items) == 1


async def test_a_published_message_with_a_reply_comes_back_as_503_when_nobody_listens(bus, namespace, got):
    await bus.subscribe(f"{bus.inbox}.*", got)
    bus.publish(f"{namespace}.nobody", b"frame", reply=f"{bus.inbox}.1")
    (message,) = await got.count(1)
    assert message.subject == f"{bus.inbox}.1"
    assert message.headers["Status"] == "503"
    assert message.data == b""


async def test_inboxes_differ_and_cannot_be_guessed(connect):
    inboxes = {(await connect()).inbox for _ in range(5)}
    assert len(inboxes) == 5
    assert all(len(inbox.rsplit(".", 1)[1]) >= 16 for inbox in inboxes)


async def test_a_body_as_large_as_max_payload_passes_and_one_byte_more_is_refused_before_sending(bus, namespace, got):
    await bus.subscribe(f"{namespace}.big", got)
    bus.publish(f"{namespace}.big", b"x" * bus.max_payload)
    (message,) = await got.count(1)
    assert len(message.data) == bus.max_payload
    with pytest.raises(PayloadTooLarge) as caught:
        bus.publish(f"{namespace}.big", b"x" * (bus.max_payload + 1))
    assert caught.value.details["limit"] == bus.max_payload
    assert bus.connected


async def test_headers_count_against_max_payload(bus, namespace):
    with pytest.raises(PayloadTooLarge):
        bus.publish(f"{namespace}.big", b"x" * bus.max_payload, headers={"A": "b"})
    with pytest.raises(PayloadTooLarge):
        await bus.request(f"{namespace}.big", b"x" * bus.max_payload, headers={"A": "b"}, timeout_s=1)
    await bus.flush()
    assert bus.connected


@in_rows(
    "subject", ["", "a b", "a..b", ".a", "a.", ".", "a.*", "a.>", ">", "\r\nPUB b 0", "a\tb", "a\n", "ä b", "a.ä."]
)
async def test_what_is_no_subject_cannot_be_published_to(bus, subject):
    for sibling in ("b", "a.b"):  # what was checked before does not make its siblings valid
        bus.publish(sibling, b"")
    with pytest.raises(InvalidName):
        bus.publish(subject, b"")
    with pytest.raises(InvalidName):
        await bus.request(subject, b"", timeout_s=1)


@in_rows("subject", ["", ".", "a b", "a..b", ".a", "a.", "a.>.b"])
async def test_what_is_no_subject_cannot_be_subscribed(bus, subject):
    with pytest.raises(InvalidName):
        await bus.subscribe(subject, lambda message: None)


async def test_closing_is_idempotent_sends_what_is_buffered_and_ends_everything(connect, namespace, got, events):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.a", got)
    await two.flush()
    one.on_connection(events)
    for number in range(100):
        one.publish(f"{namespace}.a", str(number).encode())
    await one.close()
    await one.close()
    await got.count(100)
    assert not one.connected
    assert events.items == [ConnectionEvent.CLOSED]
    with pytest.raises(ClosedError):
        one.publish(f"{namespace}.a", b"")
    subject = f"{namespace}.a"
    for refused in (one.request(subject, b"", timeout_s=1), one.subscribe(subject, got), one.flush()):
        with pytest.raises(ClosedError):
            await refused


async def test_closing_ends_requests_that_wait(connect, namespace, got):
    one, two = await connect(), await connect()
    await two.subscribe(f"{namespace}.mute", got)
    await two.flush()
    request = asyncio.ensure_future(one.request(f"{namespace}.mute", b"", timeout_s=60))
    await got.count(1)
    await one.close()
    with pytest.raises(ClosedError):
        await request


async def test_a_listener_of_the_connection_can_be_removed(bus):
    kept, removed = collect(), collect()
    bus.on_connection(kept)
    stop = bus.on_connection(removed)
    stop()
    stop()
    await bus.close()
    assert kept.items == [ConnectionEvent.CLOSED]
    assert removed.items == []


async def test_a_listener_that_raises_does_not_keep_the_others_from_hearing(bus, caplog, events):

    def bad(event):
        raise ZeroDivisionError("planted")

    bus.on_connection(bad)
    bus.on_connection(events)
    await bus.close()
    assert events.items == [ConnectionEvent.CLOSED]
    assert "planted" in caplog.text


async def test_writable_returns_at_once_when_little_is_buffered(bus):
    with pytest.raises(StopIteration):
        bus.writable().send(None)  # it does not wait, not even for the next turn


async def test_the_implementations_fit_the_port(connect):
    bus = await connect("its name")
    assert bus.name == "its name"
    assert bus.max_payload > 1000
    assert bus.connected
    assert "its name" in repr(bus)
