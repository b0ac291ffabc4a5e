"""What both buses promise about the consumers of a stream."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline.bus.port.bus import ConsumerLost, ConsumerSettings, ConsumerTaken, Retention
from gangline.schemas.errors.base import InvalidRequest

from ...waiting import until
from ..conftest import bodies, collect, fill


@pytest.fixture
def consume(stream, task):
    """Open a consumer of this test's stream, and pull so many messages."""

    async def open_one(handler, pull=0, *, on_lost=None, **settings):
        consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>"), **settings), handler, on_lost=on_lost)
        consumer.pull(pull)
        return consumer

    return open_one


async def test_messages_come_in_order_and_never_more_than_were_asked_for(stream, consume, got, task):
    await fill(stream, task("a.x"), 20)
    consumer = await consume(got, 3)
    consumer.pull(4)
    await got.count(7)
    assert consumer.wanted == 0
    assert (await consumer.state()).unacknowledged == 7
    assert (await consumer.state()).pending == 13
    for _ in range(13):
        consumer.pull(1)
    await got.count(20)
    assert bodies(got.items) == [b"%d" % index for index in range(20)]
    assert [message.sequence for message in got.items] == list(range(1, 21))
    assert {message.delivered for message in got.items} == {1}


async def test_pulling_a_little_again_and_again_takes_all(stream, consume, got, task):
    await fill(stream, task("a.x"), 500)
    done = []

    def take(message):
        got(message)
        consumer.ack(message)
        done.append(message)
        consumer.pull(1)

    consumer = await consume(take, 64)
    await got.count(500)
    await consumer.settled()
    assert [message.sequence for message in done] == list(range(1, 501))
    assert (await stream.state()).messages == 0
    assert consumer.wanted == 64


async def test_what_is_acknowledged_goes_and_the_rest_stays(stream, consume, got, task):
    await fill(stream, task("a.x"), 4)
    consumer = await consume(got, 4)
    await got.count(4)
    consumer.ack(got.items[0])
    consumer.ack(got.items[2])
    await consumer.settled()
    assert (await stream.state()).messages == 2
    assert (await consumer.state()).unacknowledged == 2
    assert await stream.get(1) is None
    consumer.ack(got.items[0])  # twice is fine
    await consumer.settled()


async def test_in_a_stream_with_limits_an_acknowledged_message_stays(open_stream, task):
    stream, got = await open_stream(retention=Retention.LIMITS), collect()
    await fill(stream, task("a.x"), 2)
    one = await stream.consume("one", ConsumerSettings(filter=task("a.>")), got)
    one.pull(2)
    await got.count(2)
    one.ack(got.items[0])
    one.ack(got.items[1])
    await one.settled()
    other = await stream.consume("other", ConsumerSettings(filter=task("a.>")), got)
    other.pull(2)
    await got.count(4)
    assert (await stream.state()).messages == 2


async def test_what_is_not_acknowledged_in_time_comes_again(stream, consume, got, task):
    await fill(stream, task("a.x"), 3)
    consumer = await consume(got, 3, ack_wait_s=0.5)
    await got.count(3)
    consumer.ack(got.items[1])
    await consumer.settled()
    consumer.pull(2)
    await got.count(5)
    assert [(message.sequence, message.delivered) for message in got.items[3:]] == [(1, 2), (3, 2)]
    assert bodies(got.items[3:]) == [b"0", b"2"]


async def test_no_more_than_max_pending_are_out_at_once(stream, consume, got, task):
    await fill(stream, task("a.x"), 10)
    consumer = await consume(got, 10, max_pending=3)
    await got.count(3)
    assert (await consumer.state()).unacknowledged == 3
    assert len(got.items) == 3
    consumer.ack(got.items[0])
    await got.count(4)
    assert got.items[3].sequence == 4


async def test_a_work_queue_gives_each_subject_to_one_consumer_only(open_stream, task):
    stream, other, got = await open_stream(), await open_stream(), collect()
    await stream.consume("one", ConsumerSettings(filter=task("a.>")), got)
    for rival in (task("a.>"), task(">"), task("*.x"), task("a.x")):
        with pytest.raises(ConsumerTaken):
            await other.consume("two", ConsumerSettings(filter=rival), got)
    with pytest.raises(ConsumerTaken):
        await other.consume("one", ConsumerSettings(filter=task("b.>")), got)
    await other.consume("two", ConsumerSettings(filter=task("b.>")), got)
    assert {(one.name, one.filter) for one in await stream.consumers()} == {("one", task("a.>")), ("two", task("b.>"))}


async def test_of_many_who_want_the_same_subjects_one_gets_them(open_stream, task, got):
    streams = [await open_stream() for _ in range(4)]
    results = await asyncio.gather(
        *(
            streams[number % 4].consume(f"c-{number}", ConsumerSettings(filter=task("a.>")), got)
            for number in range(12)
        ),
        return_exceptions=True,
    )
    assert sum(1 for result in results if not isinstance(result, BaseException)) == 1
    assert all(isinstance(result, ConsumerTaken) for result in results if isinstance(result, BaseException))


async def test_a_consumer_tells_what_was_written_on_it(stream, consume, got, task):
    await fill(stream, task("a.x"), 2)
    about = {"dispatcher": "d1", "since": "now"}
    consumer = await consume(got, metadata=about)
    assert (await consumer.state()).metadata == about
    (listed,) = await stream.consumers()
    assert (listed.name, listed.filter, listed.pending, listed.unacknowledged) == ("c", task("a.>"), 2, 0)
    assert listed.metadata == about


async def test_more_consumers_than_one_page_are_all_listed(stream, got, task):
    for number in range(257):  # a page has 256
        await (await stream.consume(f"c{number}", ConsumerSettings(filter=task(f"e{number}.>")), got)).close()
    assert {one.name for one in await stream.consumers()} == {f"c{number}" for number in range(257)}


async def test_the_same_consumer_may_be_opened_again_by_its_name(open_stream, task):
    stream, again, got, after = await open_stream(), await open_stream(), collect(), collect()
    await fill(stream, task("a.x"), 3)
    settings = ConsumerSettings(filter=task("a.>"))
    first = await stream.consume("c", settings, got)
    first.pull(1)
    await got.count(1)
    first.ack(got.items[0])
    await first.close()
    second = await again.consume("c", settings, after)
    second.pull(5)
    await after.count(2)
    assert bodies(after.items) == [b"1", b"2"]


async def test_deleting_a_consumer_gives_what_is_unacknowledged_to_the_next_at_once_and_in_order(open_stream, task):
    stream, other = await open_stream(), await open_stream()
    got, after, lost = collect(), collect(), collect()
    await fill(stream, task("a.x"), 6)
    first = await stream.consume("one", ConsumerSettings(filter=task("a.>")), got, on_lost=lambda: lost(1))
    first.pull(4)
    await got.count(4)
    first.ack(got.items[1])
    await first.settled()
    assert await other.delete_consumer("one")
    assert not await other.delete_consumer("one")
    second = await other.consume("two", ConsumerSettings(filter=task("a.>")), after)
    second.pull(10)
    await after.count(5)
    assert [message.sequence for message in after.items] == [1, 3, 4, 5, 6]
    assert len(lost.items) <= 1


async def test_a_waiting_consumer_hears_at_once_that_it_is_lost(
    stream, consume, open_stream, task, never_silent, got, lost
):
    other = await open_stream()
    consumer = await consume(got, 1, on_lost=lambda: lost(1))
    await consumer.state()
    await other.delete_consumer("c")
    await lost.count(1)
    with pytest.raises(ConsumerLost):
        await consumer.state()
    consumer.pull(5)
    await stream.publish(task("a.x"), b"1")
    assert got.items == []
    assert len(lost.items) == 1
    await consumer.close()


async def test_who_pulls_or_acknowledges_too_late_hears_that_the_consumer_is_lost(open_stream, task, got, lost):
    stream, other = await open_stream(), await open_stream()
    await fill(stream, task("a.x"), 1)
    await fill(stream, task("b.x"), 1)
    puller = await stream.consume("puller", ConsumerSettings(filter=task("b.>")), got, on_lost=lambda: lost("puller"))
    consumer = await stream.consume("acker", ConsumerSettings(filter=task("a.>")), got, on_lost=lambda: lost("acker"))
    consumer.pull(1)
    await got.count(1)
    await other.delete_consumer("acker")
    await other.delete_consumer("puller")
    puller.pull(1)
    consumer.ack(got.items[0])
    with pytest.raises(ConsumerLost):
        await consumer.settled()
    await lost.count(2)
    assert sorted(lost.items) == ["acker", "puller"]
    assert len(got.items) == 1


async def test_another_consumer_of_the_same_name_is_not_ours(consume, open_stream, task, got, lost):
    other = await open_stream()
    ours = await consume(got, on_lost=lambda: lost(1))
    await other.delete_consumer("c")
    theirs = await other.consume("c", ConsumerSettings(filter=task("a.>")), got)
    with pytest.raises(ConsumerLost):
        await ours.state()
    assert lost.items == [1]
    assert (await theirs.state()).name == "c"


async def test_a_consumer_that_nobody_uses_is_removed_if_that_was_wanted(stream, consume, got):
    consumer = await consume(got, inactive_s=0.5)
    await consumer.close()

    async def removed():
        return await stream.consumers() == []

    await until(removed)


async def test_a_handler_that_raises_loses_nothing_else(stream, consume, got, task):

    def fragile(message):
        got(message)
        if message.data == b"1":
            raise ValueError("on purpose")

    await fill(stream, task("a.x"), 3)
    await consume(fragile, 3)
    await got.count(3)
    assert bodies(got.items) == [b"0", b"1", b"2"]


async def test_a_negative_pull_is_refused(open_stream, task):
    consumer = await (await open_stream()).consume("c", ConsumerSettings(filter=task("a.>")), collect())
    with pytest.raises(InvalidRequest):
        consumer.pull(-1)


async def test_a_heartbeat_tells_the_last_delivery(stream, task):
    """Which is how the loss of the last messages is noticed."""
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), lambda message: None)
    for subject in ("a.x", "b.x", "a.x"):
        await stream.publish(task(subject), b"")
    inbox, got = stream.bus.new_inbox(), collect()
    await stream.bus.subscribe(inbox, got)
    request = {"batch": 5, "expires": 60_000_000_000, "idle_heartbeat": 200_000_000}
    stream.bus.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.c", json.dumps(request).encode(), reply=inbox)
    await got.count(3)
    *_, beat = got.items
    assert {key: beat.headers[key] for key in ("Status", "Nats-Last-Consumer", "Nats-Last-Stream")} == {
        "Status": "100",
        "Nats-Last-Consumer": "2",
        "Nats-Last-Stream": "3",
    }
    await consumer.close()
