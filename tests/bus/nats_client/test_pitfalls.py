"""One test, or more, for each thing that nats-py does badly, in the order in which they were found.

What is missing, both buses promise: see `tests/bus/port/test_conformance.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest

from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import (
    BucketSettings,
    Conflict,
    ConnectionEvent,
    KvEntry,
    KvOperation,
    KvWrite,
    NotPermitted,
    StorageUnavailable,
)
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.errors.base import Disconnected, InvalidName, ServerUnreachable

from ...waiting import PATIENCE_S, until
from ..conftest import collect, happens, impatient

pytestmark = pytest.mark.server

GONE = KvOperation.DELETE


async def answers(bus, subject="pitfall.echo"):
    """The connection hears and is heard."""
    subscription = await bus.subscribe(subject, lambda message: bus.publish(message.reply, message.data))
    try:
        return (await bus.request(subject, b"alive", timeout_s=PATIENCE_S)).data == b"alive"
    finally:
        await subscription.unsubscribe()


async def test_1_a_cancelled_flush_does_not_stop_the_connection_from_hearing(bus):
    for _ in range(20):
        flush = asyncio.ensure_future(bus.flush())
        await asyncio.sleep(0)  # the PING is out, the PONG is on its way
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
    await bus.flush()
    assert await answers(bus)


async def test_1_a_flush_that_times_out_says_so_and_the_connection_goes_on(bus, nats_server, monkeypatch):
    nats_server.freeze()
    with monkeypatch.context() as patch, pytest.raises(Disconnected, match="did not answer"):
        patch.setattr("gangline.bus.nats_bus._FLUSH_TIMEOUT_S", 0.1)
        await bus.flush()
    nats_server.thaw()
    assert await answers(bus)


async def test_1_a_connection_that_is_closed_while_a_subscription_drains_ends_that_without_an_error(
    bus, nats_server, namespace, monkeypatch
):
    subscription = await bus.subscribe(namespace, collect())
    await bus.flush()
    nats_server.freeze()
    draining = asyncio.ensure_future(subscription.drain())
    await asyncio.sleep(0)  # the PING is out, and is never answered
    monkeypatch.setattr("gangline.bus.nats_bus._FLUSH_TIMEOUT_S", 0.1)
    await bus.close()
    nats_server.thaw()
    await draining


async def test_2_a_defect_in_the_read_loop_costs_a_reconnect_and_not_the_connection(connect_to, nats_url, monkeypatch):
    bus = await connect_to(nats_url, ping_interval_s=300)  # nothing else may notice
    events = collect()
    bus.on_connection(events)
    with monkeypatch.context() as patch:
        patch.setattr("gangline.bus.nats_client.client.decode_headers", lambda block: 1 / 0)
        await bus.subscribe("pitfall.headers", lambda message: None)
        await happens(
            bus, ConnectionEvent.DISCONNECTED, lambda: bus.publish("pitfall.headers", b"", headers={"A": "b"})
        )
    await events.until(lambda seen: ConnectionEvent.RECONNECTED in seen)
    assert await answers(bus)


async def test_3_what_is_published_while_disconnected_is_refused_and_never_delivered(bus, nats_server, got):
    await bus.subscribe("pitfall.late", got)
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    with pytest.raises(Disconnected) as caught:
        bus.publish("pitfall.late", b"while down")
    assert not caught.value.may_have_started
    with pytest.raises(Disconnected):
        await bus.request("pitfall.late", b"while down", timeout_s=1)
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.start)
    bus.publish("pitfall.late", b"after")
    await got.count(1)
    assert [message.data for message in got.items] == [b"after"]


async def test_3_what_was_buffered_when_the_connection_broke_is_not_delivered_after_the_reconnect(bus, nats_server):
    got = collect()
    await bus.subscribe("pitfall.buffered", got)
    nats_server.kill()  # the loop has not run since: nobody knows yet
    assert bus.connected
    bus.publish("pitfall.buffered", b"lost in the socket")
    await happens(bus, ConnectionEvent.DISCONNECTED, lambda: None)
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.start)

    def publish_and_lose():
        bus.publish("pitfall.buffered", b"lost before the write")
        bus._client._lose(OSError("planted"))

    await happens(bus, ConnectionEvent.RECONNECTED, publish_and_lose)
    bus.publish("pitfall.buffered", b"after")
    await got.count(1)
    assert [message.data for message in got.items] == [b"after"]


async def test_4_waiting_under_back_pressure_can_be_cancelled(bus, nats_server):
    nats_server.freeze()
    while bus.statistics()["buffered_bytes"] < 16 * 1024 * 1024:
        bus.publish("pitfall.flood", b"x" * 500_000)
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(bus.writable())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    again = asyncio.ensure_future(bus.writable())
    nats_server.thaw()
    await again
    assert bus.statistics()["buffered_bytes"] < 16 * 1024 * 1024
    await bus.writable(100_000)
    assert bus.statistics()["buffered_bytes"] < 100_000


async def test_5_whatever_waits_when_the_connection_is_lost_hears_of_it_at_once(
    connect_to, nats_server, namespace, monkeypatch
):
    monkeypatch.setattr("gangline.bus.nats_bus._FLUSH_TIMEOUT_S", 3600.0)
    bus = await connect_to(nats_server.url, storage_timeout_s=5 * PATIENCE_S)
    bucket = await bus.bucket(namespace, BucketSettings())
    nats_server.freeze()
    operations = (bucket.put("a", b"1"), bucket.put("b", b"1", revision=0), bucket.get("a"), bucket.entries(">"))
    request = bus.request("pitfall.mute", b"", timeout_s=3600)
    waiting = [asyncio.ensure_future(each) for each in (request, *operations, bus.flush())]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    nats_server.kill()
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {Disconnected}
    assert bus.statistics()["waiting_requests"] == 0


async def test_6_a_subject_that_would_make_the_server_close_the_connection_is_refused(bus, events, got):
    bus.on_connection(events)
    long = "a" * 5000
    bus.publish("ok.a", b"")
    for subject, reply in ((long, ""), ("ok", long), ("ok." + "a" * 1534, ""), ("ok." + "ä" * 1000, "")):
        with pytest.raises(InvalidName, match="at most"):
            bus.publish(subject, b"", reply=reply)
    with pytest.raises(InvalidName):
        await bus.request(long, b"", timeout_s=1)
    with pytest.raises(InvalidName):
        await bus.subscribe(long, lambda message: None)
    longest = "a" * 1536
    await bus.subscribe(longest, got)
    bus.publish(longest, b"x" * bus.max_payload, reply=longest)
    await got.count(1)
    assert events.items == []


async def test_7_a_watch_reports_what_changed_while_it_was_blind(proxy, bucket, other, seen):
    for key in ("kept", "changed", "deleted", "expired"):
        await other.put(key, b"1")
    await bucket.watch(">", seen)
    proxy.refusing = True
    await happens(bucket.bus, ConnectionEvent.DISCONNECTED, proxy.cut)
    gone = collect()
    await other.watch("expired", gone)
    await other.put("expired", b"1", ttl_s=1)
    await other.put("changed", b"2")
    await other.delete("deleted")
    await other.put("new", b"1")
    await gone.until(lambda entries: entries[-1].operation is GONE)
    seen.take()
    proxy.refusing = False
    await seen.until(lambda entries: {entry.key for entry in entries} >= {"changed", "deleted", "new", "expired"})
    last = {entry.key: (entry.operation, entry.value) for entry in seen.items}
    assert last["deleted"][0] is last["expired"][0] is GONE
    assert last["changed"][1] == b"2"
    assert last["new"][1] == b"1"


LIMITED = """
accounts {
  APP { jetstream: enabled, users: [
    { user: all, password: x }
    { user: few, password: x, permissions {
        publish { allow: ["Allowed.>", "_INBOX.>", "$JS.API.>"] }, subscribe { deny: ["Secret.>"] } } }
    { user: deaf, password: x, permissions { subscribe { deny: ["_INBOX.>"] } } }
  ] }
}
"""


def as_user(url: str, user: str) -> str:
    return url.replace("nats://", f"nats://{user}:x@")


async def test_8_a_forbidden_request_fails_at_once_and_says_what_is_forbidden(connect_to, secured, caplog):
    server = secured(LIMITED)
    bus = await connect_to(as_user(server.url, "few"))
    other = await connect_to(as_user(server.url, "all"))
    await other.subscribe("Allowed.mute", lambda message: None)
    await other.flush()
    allowed = asyncio.ensure_future(bus.request("Allowed.mute", b"", timeout_s=3600))
    with caplog.at_level(logging.INFO), pytest.raises(NotPermitted, match="Forbidden.Subject"):
        async with asyncio.timeout(PATIENCE_S):
            await bus.request("Forbidden.Subject", b"", timeout_s=3600)
    assert "Forbidden.Subject" not in caplog.text, "whoever asked is told, and may have expected it"
    assert not allowed.done()
    allowed.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await allowed
    assert bus.connected


async def test_8_a_forbidden_subject_stays_forbidden_when_one_below_it_is_published_to(connect_to, secured):
    bus = await connect_to(as_user(secured(LIMITED).url, "few"))
    with pytest.raises(NotPermitted):
        await bus.request("Forbidden.Subject", b"", timeout_s=PATIENCE_S)
    for _ in range(2):
        with pytest.raises(NotPermitted):
            bus.publish("Forbidden.Subject")
        bus.publish("Forbidden.Subject.below")


async def test_8_each_subject_is_checked_once_siblings_too(bus, monkeypatch):
    checked: list[str] = []
    check = bus._check_subject
    monkeypatch.setattr(bus, "_check_subject", lambda subject: (checked.append(subject), check(subject)))
    for _ in range(3):
        for subject in ("pitfall.one", "pitfall.two", "pitfall.three"):
            bus.publish(subject, reply=f"{subject}.answer")
    assert len(checked) == len(set(checked)) == 6


async def test_8_a_forbidden_write_fails_at_once(connect_to, secured, namespace):
    server = secured(LIMITED)
    other = await connect_to(as_user(server.url, "all"))
    await other.bucket(namespace, BucketSettings())
    bus = await connect_to(as_user(server.url, "few"))
    bucket = await bus.bucket(namespace, BucketSettings())
    with pytest.raises(NotPermitted):
        await bucket.put("a", b"1")
    assert await bucket.get("a") is None


async def test_8_a_forbidden_subscription_is_told_by_the_next_flush_and_the_rest_goes_on(connect_to, secured, caplog):
    server = secured(LIMITED)
    bus = await connect_to(as_user(server.url, "few"))
    with caplog.at_level(logging.ERROR):
        await bus.subscribe("Secret.place", lambda message: None)
        with pytest.raises(NotPermitted, match=r"subscribe to 'Secret\.place'"):
            await bus.flush()
    assert "Secret.place" in caplog.text
    assert bus.connected
    await bus.flush()  # said once
    with pytest.raises(NotPermitted):  # it is known by now
        await bus.subscribe("Secret.place", lambda message: None)


async def test_8_a_user_who_may_not_hear_answers_is_told_when_connecting(settings_of, secured):
    server = secured(LIMITED)
    with pytest.raises(NotPermitted, match="inbox"):
        await connect_jetstream(settings_of(as_user(server.url, "deaf")))
    bus = await connect_jetstream(settings_of(as_user(server.url, "deaf"), inbox_prefix="_MINE"))
    assert await answers(bus)
    await bus.close()


@pytest.mark.parametrize(
    ("number", "size"), [(2_300, 64_000), pytest.param(530_000, 270, marks=pytest.mark.long)], ids=["bytes", "messages"]
)
async def test_11_a_flood_is_delivered_whole_with_no_local_queue_that_could_drop(
    connect_to, secured, namespace, number, size
):
    """Over a limit of nats-py's queues, 128 MiB or 512 Ki messages, while the receiver's loop is busy sending."""
    server = secured('max_pending: 512MB\nwrite_deadline: "5m"')  # by itself it gives a slow receiver up at 64 MB
    one, two = await connect_to(server.url), await connect_to(server.url)
    count = 0

    def handler(message):
        nonlocal count
        count += 1

    await two.subscribe(namespace, handler)
    await two.flush()
    data = b"x" * size
    for index in range(number):
        one.publish(namespace, data)
        if index % (number // 50) == 0:
            await one.writable()
    await until(lambda: count >= number)
    await two.flush()
    assert count == number


async def test_12_a_dead_address_is_an_error_within_the_timeout(settings_of):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"nats://name:secret@127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerUnreachable) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await connect_jetstream(settings_of(url, connect_timeout_s=1))
    text = str(caught.value)
    assert url.rpartition("@")[2] in text
    assert "secret" not in text
    assert "refused" in text.lower() or "connect call failed" in text.lower()
    assert "start a nats-server" in text


async def test_12_a_server_that_accepts_and_says_nothing_is_an_error_within_the_timeout(settings_of):
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    with pytest.raises(ServerUnreachable, match=url):
        async with asyncio.timeout(PATIENCE_S):
            await connect_jetstream(settings_of(url, connect_timeout_s=0.4))
    silent.close()


async def test_12_reconnecting_never_gives_up(connect_to, nats_server, monkeypatch):
    bus = await connect_to(nats_server.url, reconnect_wait_s=0.01)
    tries = collect()
    monkeypatch.setattr(bus._client._observer, "on_attempt_failed", tries)
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.kill)
    await tries.count(70)  # nats-py's default would have closed for good after 60
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.start)
    assert await answers(bus)


async def test_12_a_frozen_server_is_noticed_by_pings(connect_to, nats_server):
    bus = await connect_to(nats_server.url, ping_interval_s=0.1)
    bus.publish("pitfall.unsent", b"x" * 900_000)  # a polite close would wait until the server takes it
    await happens(bus, ConnectionEvent.DISCONNECTED, nats_server.freeze)
    assert not bus.connected
    await happens(bus, ConnectionEvent.RECONNECTED, nats_server.thaw)
    assert await answers(bus)


async def lose_write(proxy, bucket, value, revision=0):
    """Write the key `a`, and hear nothing: answers are held back from now on."""
    proxy.hold_answers()
    with impatient(bucket.bus), pytest.raises(StorageUnavailable) as caught:
        await bucket.put("a", value, revision=revision)
    assert caught.value.may_have_started


async def test_13_a_conditional_write_that_timed_out_is_recognised_when_tried_again(proxy, bucket):
    first = await bucket.put("a", b"0")
    await lose_write(proxy, bucket, b"1", first)
    proxy.let_answers_pass()
    again = await bucket.put("a", b"1", revision=first)
    assert again == first + 1
    assert (await bucket.get("a")).revision == again
    assert await bucket.put("a", b"2", revision=again) == again + 1


async def test_13_another_value_at_the_same_revision_goes_on_from_the_own_lost_write(proxy, bucket):
    await lose_write(proxy, bucket, b"1")
    proxy.let_answers_pass()
    revision = await bucket.put("a", b"2", revision=0)
    assert await bucket.get("a") == KvEntry(key="a", value=b"2", revision=revision)


async def test_13_a_write_that_does_not_resume_leaves_what_the_own_lost_write_has_stored(proxy, bucket):
    await lose_write(proxy, bucket, b"1")
    proxy.let_answers_pass()
    (answer,) = await bucket.write([KvWrite(key="a", value=b"2", revision=0, resumes=False)])
    assert isinstance(answer, Conflict)
    assert (await bucket.get("a")).value == b"1"


async def test_13_a_conditional_write_lost_with_its_connection_is_recognised_too(proxy, bucket, other, seen):
    await other.watch("a", seen)
    proxy.hold_answers()
    lost = asyncio.ensure_future(bucket.put("a", b"1", revision=0))
    await seen.count(1)
    proxy.let_answers_pass()
    await happens(bucket.bus, ConnectionEvent.RECONNECTED, proxy.cut)
    with pytest.raises(Disconnected) as caught:
        await lost
    assert caught.value.may_have_started
    assert await bucket.put("a", b"1", revision=0) == seen.items[0].revision


async def test_13_a_write_of_somebody_else_is_still_a_conflict_after_a_timeout(proxy, bucket, other):
    await lose_write(proxy, bucket, b"same")
    mine = (await other.get("a")).revision
    await other.put("a", b"same", revision=mine)  # the same value, by another hand
    proxy.let_answers_pass()
    with pytest.raises(Conflict):
        await bucket.put("a", b"same", revision=0)


async def test_the_defaults_notice_a_dead_server_within_a_quarter_of_a_minute():
    settings = ConnectionSettings()
    assert settings.ping_interval_s * 3 <= 15
