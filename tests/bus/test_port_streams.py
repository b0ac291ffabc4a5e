"""What both buses promise about streams and their consumers."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest

from gangline.bus.port import ConsumerLost, ConsumerSettings, ConsumerTaken, Refused, Retention, Storage, StreamSettings
from gangline.schemas.errors import ClosedError, InvalidName, InvalidRequest, InvalidSettings, PayloadTooLarge

from .conftest import collect, eventually


def settings_of(namespace, **others):
    return StreamSettings(
        subjects=(f"{namespace}.task.>", f"{namespace}.sched.>"),
        **{"storage": Storage.MEMORY, "retention": Retention.WORK_QUEUE, **others},
    )


@pytest.fixture
async def open_stream(connect, namespace):
    """Open this test's stream over a connection of its own."""

    async def open_one(**others):
        return await (await connect()).stream(namespace, settings_of(namespace, **others))

    return open_one


@pytest.fixture
def task(namespace):
    return lambda rest: f"{namespace}.task.{rest}"


def bodies(messages):
    return [message.data for message in messages]


async def fill(stream, subject, number):
    """Publish `number` messages; their sequences."""
    published = await asyncio.gather(*(stream.publish(subject, b"%d" % index) for index in range(number)))
    return [one.sequence for one in published]


def holds(stream, number):
    """Whether there are so many messages."""

    async def check():
        return (await stream.state()).messages == number

    return check


# -- storing ------------------------------------------------------------------------------------------------------


async def test_what_was_published_is_stored_in_order_with_headers_and_time(open_stream, task):
    one, two = await open_stream(), await open_stream()
    first = await one.publish(task("a.x"), b"1", headers={"Key": "value"})
    second = await one.publish(task("a.y"), b"")
    assert (first.sequence, second.sequence, first.duplicate) == (1, 2, False)
    message = await two.get(1)
    assert (message.subject, message.data, message.sequence) == (task("a.x"), b"1", 1)
    assert message.headers == {"Key": "value"}
    assert abs(message.at - time.time()) < 60
    assert (await two.get(2)).data == b""
    assert await two.get(3) is None


async def test_many_at_once_are_all_stored(open_stream, task):
    stream = await open_stream()
    sequences = await fill(stream, task("a.x"), 300)
    assert sequences == list(range(1, 301))
    state = await stream.state()
    assert (state.messages, state.first_sequence, state.last_sequence, dict(state.subjects)) == (300, 1, 300, {})
    assert state.bytes > 300


async def test_the_state_counts_the_subjects_that_match(open_stream, task):
    stream = await open_stream()
    assert (await stream.state(">")).messages == 0
    await fill(stream, task("a.x"), 3)
    await fill(stream, task("a.y"), 2)
    await fill(stream, task("b.x"), 1)
    assert (await stream.state(task("a.*"))).subjects == {task("a.x"): 3, task("a.y"): 2}
    assert (await stream.state(task("c.>"))).subjects == {}
    assert (await stream.state(">")).messages == 6


async def test_plain_publications_to_its_subjects_are_stored_and_requests_acknowledged(connect, open_stream, task):
    stream, bus = await open_stream(), await connect()
    bus.publish(task("a.x"), b"plain", headers={"Key": "value"})
    answer = await bus.request(task("a.x"), b"asked", timeout_s=5)
    assert b'"seq"' in answer.data
    assert bodies([await stream.get(1), await stream.get(2)]) == [b"plain", b"asked"]
    assert (await stream.get(1)).headers == {"Key": "value"}


async def test_subscribers_see_what_is_published_into_a_stream(connect, open_stream, task):
    stream, bus, seen = await open_stream(), await connect(), collect()
    await bus.subscribe(task(">"), seen)
    await bus.flush()
    await stream.publish(task("a.x"), b"1")
    await seen.count(1)
    assert bodies(seen.items) == [b"1"]


async def test_a_message_id_is_stored_once_within_the_window(open_stream, task):
    stream = await open_stream(duplicates_s=1.0)
    headers = {"Nats-Msg-Id": "order-7"}
    first = await stream.publish(task("a.x"), b"1", headers=headers)
    again = await stream.publish(task("a.x"), b"2", headers=headers)
    other = await stream.publish(task("a.x"), b"3", headers={"Nats-Msg-Id": "order-8"})
    assert (again.sequence, again.duplicate) == (first.sequence, True)
    assert (other.sequence, other.duplicate) == (first.sequence + 1, False)

    async def forgotten():
        return not (await stream.publish(task("a.x"), b"4", headers=headers)).duplicate

    await eventually(forgotten)
    assert (await stream.state()).messages == 3


async def test_what_no_stream_could_take_is_refused_before_it_is_sent(open_stream, namespace, task):
    stream = await open_stream()
    with pytest.raises(InvalidName):
        await stream.publish(f"{namespace}.other", b"")
    with pytest.raises(InvalidName):
        await stream.publish(task("a.*"), b"")
    with pytest.raises(PayloadTooLarge):
        await stream.publish(task("a.x"), bytes(2 << 20))
    assert (await stream.state()).messages == 0


async def test_a_message_expires_when_its_ttl_is_over(open_stream, task):
    stream = await open_stream()
    await stream.publish(task("a.x"), b"brief", headers={"Nats-TTL": "1s"})
    await stream.publish(task("a.x"), b"lasting")
    await eventually(holds(stream, 1))
    assert (await stream.next(">")).data == b"lasting"
    with pytest.raises(Refused):
        await stream.publish(task("a.x"), b"", headers={"Nats-TTL": "soon"})


async def test_messages_expire_at_the_age_that_the_stream_sets(open_stream, task):
    stream = await open_stream(max_age_s=1.0)
    await fill(stream, task("a.x"), 3)
    await eventually(holds(stream, 0))


async def test_the_oldest_go_when_there_are_too_many_bytes(open_stream, task):
    stream = await open_stream(max_bytes=3000, retention=Retention.LIMITS)
    for _ in range(6):
        await stream.publish(task("a.x"), bytes(800))
    state = await stream.state()
    assert state.messages == 3
    assert (state.first_sequence, state.last_sequence) == (4, 6)


async def test_a_stream_opened_twice_is_one_and_one_of_other_subjects_is_refused(connect, namespace, task):
    bus, other = await connect(), await connect()
    one = await bus.stream(namespace, settings_of(namespace))
    await one.publish(task("a.x"), b"1")
    assert (await (await other.stream(namespace, settings_of(namespace))).state()).messages == 1
    for again in (bus, other):
        with pytest.raises(InvalidSettings):
            await again.stream(namespace, settings_of(namespace, retention=Retention.LIMITS))
        with pytest.raises(InvalidSettings):
            await again.stream(namespace, StreamSettings(subjects=(f"{namespace}.new",), storage=Storage.MEMORY))
    with pytest.raises(InvalidName):
        await bus.stream("a.b", settings_of(namespace))


# -- looking and removing -----------------------------------------------------------------------------------------


async def test_messages_are_found_by_sequence_by_subject_and_the_newest(open_stream, task):
    stream = await open_stream()
    for subject in ("a.x", "b.x", "a.y", "a.x"):
        await stream.publish(task(subject), subject.encode())
    assert (await stream.next(task("a.*"))).sequence == 1
    assert (await stream.next(task("a.*"), 2)).sequence == 3
    assert (await stream.next(task("b.>"), 3)) is None
    assert (await stream.last(task("a.x"))).sequence == 4
    assert await stream.last(task("c.x")) is None


async def test_one_message_is_deleted_once(open_stream, task):
    stream = await open_stream()
    await fill(stream, task("a.x"), 3)
    assert await stream.delete(2)
    assert not await stream.delete(2)
    assert not await stream.delete(99)
    assert await stream.get(2) is None
    assert (await stream.next(">", 2)).sequence == 3


async def test_a_purge_removes_what_matches_and_counts_it(open_stream, task):
    stream = await open_stream()
    await fill(stream, task("a.x"), 3)
    await fill(stream, task("b.x"), 2)
    assert await stream.purge(task("a.>"), before=3) == 2
    assert await stream.purge(task("a.>")) == 1
    assert await stream.purge(task("a.>")) == 0
    assert (await stream.state(">")).subjects == {task("b.x"): 2}


# -- consuming ----------------------------------------------------------------------------------------------------


async def test_messages_come_in_order_and_never_more_than_were_asked_for(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 20)
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got)
    consumer.pull(3)
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


async def test_what_is_asked_for_comes_when_it_is_there(open_stream, task):
    stream, got = await open_stream(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got)
    consumer.pull(5)
    assert (await consumer.state()).name == "c"
    await stream.publish(task("b.x"), b"not ours")
    await stream.publish(task("a.x"), b"ours")
    await got.count(1)
    assert consumer.wanted == 4
    await fill(stream, task("a.x"), 10)
    await got.count(5)
    assert (await consumer.state()).unacknowledged == 5
    assert len(got.items) == 5


async def test_pulling_a_little_again_and_again_takes_all(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 500)
    done = []

    def take(message):
        got(message)
        consumer.ack(message)
        done.append(message)
        consumer.pull(1)

    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), take)
    consumer.pull(64)
    await got.count(500)
    await consumer.settled()
    assert [message.sequence for message in done] == list(range(1, 501))
    assert (await stream.state()).messages == 0
    assert consumer.wanted == 64


async def test_what_is_acknowledged_goes_and_the_rest_stays(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 4)
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got)
    consumer.pull(4)
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


async def test_what_is_not_acknowledged_in_time_comes_again(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 3)
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>"), ack_wait_s=0.5), got)
    consumer.pull(3)
    await got.count(3)
    consumer.ack(got.items[1])
    await consumer.settled()
    consumer.pull(2)
    await got.count(5)
    assert [(message.sequence, message.delivered) for message in got.items[3:]] == [(1, 2), (3, 2)]
    assert bodies(got.items[3:]) == [b"0", b"2"]


async def test_no_more_than_max_pending_are_out_at_once(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 10)
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>"), max_pending=3), got)
    consumer.pull(10)
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
    assert {(one.name, one.filter) for one in await stream.consumers()} == {
        ("one", task("a.>")),
        ("two", task("b.>")),
    }


async def test_of_many_who_want_the_same_subjects_one_gets_them(open_stream, task):
    streams = [await open_stream() for _ in range(4)]
    got = collect()
    results = await asyncio.gather(
        *(
            streams[number % 4].consume(f"c-{number}", ConsumerSettings(filter=task("a.>")), got)
            for number in range(12)
        ),
        return_exceptions=True,
    )
    assert sum(1 for result in results if not isinstance(result, BaseException)) == 1
    assert all(isinstance(result, ConsumerTaken) for result in results if isinstance(result, BaseException))


async def test_a_consumer_tells_what_was_written_on_it(open_stream, task):
    stream, got = await open_stream(), collect()
    await fill(stream, task("a.x"), 2)
    about = {"dispatcher": "d1", "since": "now"}
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>"), metadata=about), got)
    assert (await consumer.state()).metadata == about
    (listed,) = await stream.consumers()
    assert (listed.name, listed.filter, listed.pending, listed.unacknowledged) == ("c", task("a.>"), 2, 0)
    assert listed.metadata == about


async def test_more_consumers_than_one_page_are_all_listed(open_stream, task):
    stream, got = await open_stream(), collect()
    for number in range(300):
        await (await stream.consume(f"c{number}", ConsumerSettings(filter=task(f"e{number}.>")), got)).close()
    assert {one.name for one in await stream.consumers()} == {f"c{number}" for number in range(300)}


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


async def test_a_waiting_consumer_hears_at_once_that_it_is_lost(open_stream, task):
    stream, other = await open_stream(), await open_stream()
    got, lost = collect(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got, on_lost=lambda: lost(1))
    consumer.pull(1)
    await consumer.state()
    await other.delete_consumer("c")
    async with asyncio.timeout(1):
        await lost.count(1)
    with pytest.raises(ConsumerLost):
        await consumer.state()
    consumer.pull(5)
    await stream.publish(task("a.x"), b"1")
    assert got.items == []
    assert len(lost.items) == 1
    await consumer.close()


async def test_who_pulls_or_acknowledges_too_late_hears_that_the_consumer_is_lost(open_stream, task):
    stream, other = await open_stream(), await open_stream()
    got, lost = collect(), collect()
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


async def test_another_consumer_of_the_same_name_is_not_ours(open_stream, task):
    stream, other = await open_stream(), await open_stream()
    got, lost = collect(), collect()
    ours = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got, on_lost=lambda: lost(1))
    await other.delete_consumer("c")
    theirs = await other.consume("c", ConsumerSettings(filter=task("a.>")), got)
    with pytest.raises(ConsumerLost):
        await ours.state()
    assert lost.items == [1]
    assert (await theirs.state()).name == "c"


async def test_closing_with_delete_makes_room_for_the_next(open_stream, task):
    stream, other, got, after = await open_stream(), await open_stream(), collect(), collect()
    await fill(stream, task("a.x"), 3)
    first = await stream.consume("one", ConsumerSettings(filter=task("a.>")), got)
    first.pull(2)
    await got.count(2)
    first.ack(got.items[0])
    await first.close(delete=True)
    await first.close(delete=True)
    second = await other.consume("two", ConsumerSettings(filter=task("a.>")), after)
    second.pull(9)
    await after.count(2)
    assert [message.sequence for message in after.items] == [2, 3]
    with pytest.raises(ClosedError):
        await first.state()


async def test_a_consumer_that_nobody_uses_is_removed_if_that_was_wanted(open_stream, task):
    stream, got = await open_stream(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>"), inactive_s=0.5), got)
    await consumer.close()

    async def removed():
        return await stream.consumers() == []

    await eventually(removed)


async def test_a_handler_that_raises_loses_nothing_else(open_stream, task):
    stream, got = await open_stream(), collect()

    def fragile(message):
        got(message)
        if message.data == b"1":
            raise ValueError("on purpose")

    await fill(stream, task("a.x"), 3)
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), fragile)
    consumer.pull(3)
    await got.count(3)
    assert bodies(got.items) == [b"0", b"1", b"2"]


async def test_a_negative_pull_is_refused(open_stream, task):
    consumer = await (await open_stream()).consume("c", ConsumerSettings(filter=task("a.>")), collect())
    with pytest.raises(InvalidRequest):
        consumer.pull(-1)


# -- schedules ----------------------------------------------------------------------------------------------------


def at(seconds):
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat().replace("+00:00", "Z")


async def test_a_message_scheduled_for_a_time_comes_then_once_with_its_other_headers(open_stream, namespace, task):
    stream, got = await open_stream(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task(">")), got)
    consumer.pull(5)
    subject = f"{namespace}.sched.one"
    headers = {"Nats-Schedule": f"@at {at(1)}", "Nats-Schedule-Target": task("a.x"), "Key": "k", "Nats-Msg-Id": "m"}
    await stream.publish(subject, b"body", headers=headers)
    assert got.items == []
    await got.count(1)
    (message,) = got.items
    assert (message.subject, message.data) == (task("a.x"), b"body")
    assert message.headers["Key"] == "k"
    assert message.headers["Nats-Scheduler"] == subject
    assert not {"Nats-Schedule", "Nats-Schedule-Target", "Nats-Msg-Id"} & set(message.headers)
    await eventually(holds(stream, 1))


async def test_a_time_in_the_past_is_due_at_once(open_stream, namespace, task):
    stream, got = await open_stream(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task(">")), got)
    consumer.pull(1)
    headers = {"Nats-Schedule": f"@at {at(-60)}", "Nats-Schedule-Target": task("a.x")}
    await stream.publish(f"{namespace}.sched.one", b"body", headers=headers)
    await got.count(1)


@pytest.mark.parametrize("schedule", ["@every 1s", "* * * * * *", "*/1 * * * * *"])
async def test_a_repeating_schedule_fires_until_it_is_removed(open_stream, namespace, task, schedule):
    stream, got = await open_stream(), collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task(">")), got)
    consumer.pull(100)
    subject = f"{namespace}.sched.tick"
    headers = {"Nats-Schedule": schedule, "Nats-Schedule-Target": task("a.x"), "Key": "k"}
    published = await stream.publish(subject, b"tick", headers=headers)
    await got.count(2)
    assert {(message.subject, message.data, message.headers["Key"]) for message in got.items} == {
        (task("a.x"), b"tick", "k")
    }
    assert (await stream.get(published.sequence)).headers["Nats-Schedule"] == schedule
    assert await stream.delete(published.sequence)
    seen = len(got.items)
    await asyncio.sleep(2.2)
    assert len(got.items) <= seen + 1  # one may have been on its way


async def test_a_schedule_replaces_the_one_of_its_subject(open_stream, namespace, task):
    stream = await open_stream()
    subject = f"{namespace}.sched.one"
    for target in ("a.x", "a.y"):
        headers = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": task(target)}
        await stream.publish(subject, b"", headers=headers)
    assert (await stream.state(f"{namespace}.sched.>")).subjects == {subject: 1}
    assert (await stream.last(subject)).headers["Nats-Schedule-Target"] == task("a.y")


@pytest.mark.parametrize("schedule", ["nonsense", "@every 10ms", "@at yesterday", "99 * * * * *", "* * * * *"])
async def test_a_schedule_that_the_server_does_not_understand_is_refused(open_stream, namespace, task, schedule):
    stream = await open_stream()
    with pytest.raises(Refused, match=r"schedule") as caught:
        await stream.publish(
            f"{namespace}.sched.one", b"", headers={"Nats-Schedule": schedule, "Nats-Schedule-Target": task("a.x")}
        )
    assert not caught.value.may_have_started
    assert (await stream.state()).messages == 0


async def test_a_schedule_into_another_stream_is_refused(open_stream, namespace):
    stream = await open_stream()
    with pytest.raises(Refused, match="target"):
        await stream.publish(
            f"{namespace}.sched.one", b"", headers={"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "elsewhere"}
        )


# -- reading ------------------------------------------------------------------------------------------------------


async def test_a_reader_gets_what_is_there_and_what_comes_in_order(open_stream, task):
    stream, writer = await open_stream(retention=Retention.LIMITS), await open_stream(retention=Retention.LIMITS)
    seen = collect()
    await fill(writer, task("a.x"), 50)
    await writer.publish(task("b.x"), b"not ours")
    reader = await stream.read(task("a.>"), seen)
    await fill(writer, task("a.y"), 50)
    await seen.count(100)
    assert bodies(seen.items) == [b"%d" % index for index in range(50)] * 2
    assert [message.sequence for message in seen.items] == [*range(1, 51), *range(52, 102)]
    await reader.unsubscribe()
    await fill(writer, task("a.x"), 1)
    later = collect()
    await stream.read(task("a.>"), later, start=52)
    await later.count(51)
    assert len(seen.items) == 100
    assert later.items[0].sequence == 52


async def test_a_work_queue_is_not_for_reading(open_stream, task):
    with pytest.raises(InvalidRequest, match="work queue"):
        await (await open_stream()).read(task(">"), collect())


async def test_a_readers_handler_that_raises_loses_nothing_else(open_stream, task):
    stream, seen = await open_stream(retention=Retention.LIMITS), collect()

    def fragile(message):
        seen(message)
        if message.data == b"0":
            raise ValueError("on purpose")

    await stream.read(task("a.>"), fragile)
    await fill(stream, task("a.x"), 2)
    await seen.count(2)


async def test_a_closed_bus_ends_consumers_and_readers(connect, namespace, task):
    bus = await connect()
    stream = await bus.stream(namespace, settings_of(namespace, retention=Retention.LIMITS))
    got = collect()
    consumer = await stream.consume("c", ConsumerSettings(filter=task("a.>")), got)
    await stream.read(task("a.>"), got)
    consumer.pull(1)
    await bus.close()
    with pytest.raises(ClosedError):
        await stream.publish(task("a.x"), b"")
    with pytest.raises(ClosedError):
        await consumer.state()
    consumer.pull(1)
    await consumer.close()
    assert got.items == []
