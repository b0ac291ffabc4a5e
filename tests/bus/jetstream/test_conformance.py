"""What both buses promise about streams and their consumers."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from gangline.bus.port.bus import (
    ConsumerSettings,
    Publication,
    Published,
    PublishRefused,
    Retention,
    Storage,
    StreamSettings,
)
from gangline.schemas.errors.base import ClosedError, InvalidName, InvalidRequest, InvalidSettings, PayloadTooLarge

from ...support.rows import in_rows
from ...waiting import PATIENCE_S, until
from ..conftest import bodies, collect, fill, holds, stream_settings

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


async def test_many_at_once_are_all_stored(stream, task):
    sequences = await fill(stream, task("a.x"), 300)
    assert sequences == list(range(1, 301))
    state = await stream.state()
    assert (state.messages, state.first_sequence, state.last_sequence, dict(state.subjects)) == (300, 1, 300, {})
    assert state.bytes > 300


async def test_each_of_many_that_are_sent_together_has_an_outcome_of_its_own(stream, namespace, task):
    many = [
        Publication(task("a.x"), b"1", {"Nats-Msg-Id": "order-7"}),
        Publication(f"{namespace}.other", b"2"),
        Publication(task("a.x"), bytes(2 << 20)),
        Publication(task("a.y"), b"4", {"Nats-Msg-Id": "order-7"}),
        Publication(task("a.y"), b"5"),
    ]
    first, foreign, large, again, last = await stream.publish_many(many)
    assert (first, again, last) == (Published(1), Published(1, duplicate=True), Published(2))
    assert isinstance(foreign, InvalidName) and isinstance(large, PayloadTooLarge)
    assert bodies([await stream.get(1), await stream.get(2)]) == [b"1", b"5"]
    assert await stream.publish_many([]) == []


async def test_as_many_are_sent_together_as_there_are(stream, task):
    outcomes = await stream.publish_many([Publication(task("a.x"), b"%d" % number) for number in range(1000)])
    assert outcomes == [Published(sequence) for sequence in range(1, 1001)]
    assert (await stream.get(1000)).data == b"999"


async def test_the_state_counts_the_subjects_that_match(stream, task):
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
    answer = await bus.request(task("a.x"), b"asked", timeout_s=PATIENCE_S)
    assert b'"seq"' in answer.data
    assert bodies([await stream.get(1), await stream.get(2)]) == [b"plain", b"asked"]
    assert (await stream.get(1)).headers == {"Key": "value"}


async def test_a_message_id_is_stored_once_within_the_window(stream, task):
    headers = {"Nats-Msg-Id": "order-7"}
    first = await stream.publish(task("a.x"), b"1", headers=headers)
    again = await stream.publish(task("a.x"), b"2", headers=headers)
    other = await stream.publish(task("a.x"), b"3", headers={"Nats-Msg-Id": "order-8"})
    assert (again.sequence, again.duplicate) == (first.sequence, True)
    assert (other.sequence, other.duplicate) == (first.sequence + 1, False)
    assert (await stream.state()).messages == 2


async def test_a_message_id_is_forgotten_after_the_window(open_stream, task):
    stream = await open_stream(duplicates_s=1.0)
    headers = {"Nats-Msg-Id": "order-7"}
    await stream.publish(task("a.x"), b"1", headers=headers)

    async def forgotten():
        return not (await stream.publish(task("a.x"), b"2", headers=headers)).duplicate

    await until(forgotten)
    assert (await stream.state()).messages == 2


async def test_what_no_stream_could_take_is_refused_before_it_is_sent(stream, namespace, task):
    with pytest.raises(InvalidName):
        await stream.publish(f"{namespace}.other", b"")
    with pytest.raises(InvalidName):
        await stream.publish(task("a.*"), b"")
    with pytest.raises(PayloadTooLarge):
        await stream.publish(task("a.x"), bytes(2 << 20))
    assert (await stream.state()).messages == 0


async def test_a_message_expires_when_its_ttl_is_over(stream, task):
    await stream.publish(task("a.x"), b"brief", headers={"Nats-TTL": "1s"})
    await stream.publish(task("a.x"), b"lasting")
    await until(holds(stream, 1))
    assert (await stream.next(">")).data == b"lasting"
    with pytest.raises(PublishRefused):
        await stream.publish(task("a.x"), b"", headers={"Nats-TTL": "soon"})


async def test_messages_expire_at_the_age_that_the_stream_sets(open_stream, task):
    stream = await open_stream(max_age_s=1.0)
    await fill(stream, task("a.x"), 3)
    await until(holds(stream, 0))


async def test_the_oldest_go_when_there_are_too_many_bytes(open_stream, task):
    stream = await open_stream(max_bytes=3000, retention=Retention.LIMITS)
    for _ in range(6):
        await stream.publish(task("a.x"), bytes(800))
    state = await stream.state()
    assert state.messages == 3
    assert (state.first_sequence, state.last_sequence) == (4, 6)


async def test_a_stream_opened_twice_is_one_and_one_of_other_subjects_is_refused(connect, namespace, task):
    bus, other = await connect(), await connect()
    one = await bus.stream(namespace, stream_settings(namespace))
    await one.publish(task("a.x"), b"1")
    assert (await (await other.stream(namespace, stream_settings(namespace))).state()).messages == 1
    for again in (bus, other):
        with pytest.raises(InvalidSettings):
            await again.stream(namespace, stream_settings(namespace, retention=Retention.LIMITS))
        with pytest.raises(InvalidSettings):
            await again.stream(namespace, StreamSettings(subjects=(f"{namespace}.new",), storage=Storage.MEMORY))
    with pytest.raises(InvalidName):
        await bus.stream("a.b", stream_settings(namespace))


async def test_a_stream_that_is_only_read_is_not_made_until_the_first_message(connect, namespace, task):
    reader, writer = await connect(), await connect()
    settings = stream_settings(namespace, retention=Retention.LIMITS)
    read = await reader.stream(namespace, settings, make=False)
    assert (await read.state(">")).messages == 0
    assert (await read.get(1), await read.next(">"), await read.last(task("a.x"))) == (None, None, None)
    assert (await read.consumers(), await read.delete_consumer("c")) == ([], False)
    assert (await read.delete(1), await read.purge(">")) == (False, 0)
    assert (await read.state()).last_sequence == 0  # still not made
    written = await writer.stream(namespace, settings, make=False)
    await written.publish(task("a.x"), b"1")
    assert (await read.get(1)).data == b"1"
    assert (await read.state(">")).subjects == {task("a.x"): 1}
    await (await reader.stream(namespace, settings)).publish(task("a.x"), b"2")
    assert (await read.last(task("a.x"))).data == b"2"


# -- looking and removing -----------------------------------------------------------------------------------------


async def test_messages_are_found_by_sequence_by_subject_and_the_newest(stream, task):
    for subject in ("a.x", "b.x", "a.y", "a.x"):
        await stream.publish(task(subject), subject.encode())
    assert (await stream.next(task("a.*"))).sequence == 1
    assert (await stream.next(task("a.*"), 2)).sequence == 3
    assert (await stream.next(task("b.>"), 3)) is None
    assert (await stream.last(task("a.x"))).sequence == 4
    assert (await stream.last(task("a.>"))).sequence == 4
    assert (await stream.last(task("b.>"))).sequence == 2
    assert await stream.last(task("c.x")) is None


async def test_one_message_is_deleted_once(stream, task):
    await fill(stream, task("a.x"), 3)
    assert await stream.delete(2)
    assert not await stream.delete(2)
    assert not await stream.delete(99)
    assert await stream.get(2) is None
    assert (await stream.next(">", 2)).sequence == 3


async def test_a_purge_removes_what_matches_and_counts_it(stream, task):
    await fill(stream, task("a.x"), 3)
    await fill(stream, task("b.x"), 2)
    assert await stream.purge(task("a.>"), before=3) == 2
    assert await stream.purge(task("a.>")) == 1
    assert await stream.purge(task("a.>")) == 0
    assert (await stream.state(">")).subjects == {task("b.x"): 2}


# -- schedules ----------------------------------------------------------------------------------------------------


def at(seconds):
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat().replace("+00:00", "Z")


async def test_a_message_scheduled_for_a_time_comes_then_once_with_its_other_headers(stream, got, namespace, task):
    consumer = await stream.consume("c", ConsumerSettings(filter=task(">")), got)
    consumer.pull(5)
    subject, due = f"{namespace}.sched.one", time.time() + 1
    headers = {"Nats-Schedule": f"@at {at(1)}", "Nats-Schedule-Target": task("a.x"), "Key": "k", "Nats-Msg-Id": "m"}
    await stream.publish(subject, b"body", headers=headers)
    assert got.items == [] or time.time() >= due
    await got.count(1)
    (message,) = got.items
    assert (message.subject, message.data) == (task("a.x"), b"body")
    assert message.headers["Key"] == "k"
    assert message.headers["Nats-Scheduler"] == subject
    assert not {"Nats-Schedule", "Nats-Schedule-Target", "Nats-Msg-Id"} & set(message.headers)
    await until(holds(stream, 1))


async def test_a_time_in_the_past_is_due_at_once(stream, got, namespace, task):
    consumer = await stream.consume("c", ConsumerSettings(filter=task(">")), got)
    consumer.pull(1)
    headers = {"Nats-Schedule": f"@at {at(-60)}", "Nats-Schedule-Target": task("a.x")}
    await stream.publish(f"{namespace}.sched.one", b"body", headers=headers)
    await got.count(1)


@pytest.mark.parametrize(
    "schedule", ["@every 1s", "* * * * * *", pytest.param("*/1 * * * * *", marks=pytest.mark.long)]
)
async def test_a_repeating_schedule_fires_until_it_is_removed(stream, got, namespace, task, schedule):
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
    other = {"Nats-Schedule": schedule, "Nats-Schedule-Target": task("a.y")}
    await stream.publish(f"{namespace}.sched.other", b"", headers=other)

    def fired(subject):
        return sum(message.subject == task(subject) for message in got.items)

    await got.until(lambda _: fired("a.y") == 2)
    assert fired("a.x") <= seen + 1  # one may have been on its way


async def test_a_schedule_replaces_the_one_of_its_subject(stream, namespace, task):
    subject = f"{namespace}.sched.one"
    for target in ("a.x", "a.y"):
        headers = {"Nats-Schedule": "@every 1h", "Nats-Schedule-Target": task(target)}
        await stream.publish(subject, b"", headers=headers)
    assert (await stream.state(f"{namespace}.sched.>")).subjects == {subject: 1}
    assert (await stream.last(subject)).headers["Nats-Schedule-Target"] == task("a.y")


@in_rows("schedule", ["nonsense", "@every 10ms", "@at yesterday", "99 * * * * *", "* * * * *"])
async def test_a_schedule_that_the_server_does_not_understand_is_refused(stream, namespace, task, schedule):
    with pytest.raises(PublishRefused, match=r"schedule") as caught:
        await stream.publish(
            f"{namespace}.sched.one", b"", headers={"Nats-Schedule": schedule, "Nats-Schedule-Target": task("a.x")}
        )
    assert not caught.value.may_have_started
    assert (await stream.state()).messages == 0


async def test_a_schedule_into_another_stream_is_refused(stream, namespace):
    with pytest.raises(PublishRefused, match="target"):
        await stream.publish(
            f"{namespace}.sched.one", b"", headers={"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "elsewhere"}
        )


# -- reading ------------------------------------------------------------------------------------------------------


async def test_a_reader_gets_what_is_there_and_what_comes_in_order(open_stream, task, seen):
    stream, writer = await open_stream(retention=Retention.LIMITS), await open_stream(retention=Retention.LIMITS)
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


async def test_a_closed_bus_ends_consumers_and_readers(connect, namespace, task, got):
    bus = await connect()
    stream = await bus.stream(namespace, stream_settings(namespace, retention=Retention.LIMITS))
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
