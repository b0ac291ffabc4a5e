"""What a connection knows of its permissions, and says at once instead of waiting for an answer that cannot come."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gangline.bus.nats_client.refusals_core import Right
from gangline.bus.port.bus import BucketSettings, ConnectionEvent, NotPermitted, StreamSettings

from ...waiting import PATIENCE_S, until
from ..conftest import collect, happens

pytestmark = pytest.mark.server

USERS = """
accounts {{
  APP {{ jetstream: enabled, users: [
    {{ user: all, password: x }}
    {{ user: few, password: x, permissions {{ publish {{ allow: [{allowed}] }} }} }}
  ] }}
}}
"""


LOSING = """
accounts {{
  APP {{ jetstream: enabled, users: [
    {{ user: all, password: x }}
    {{ user: some, password: x, permissions {{ publish {{ deny: [{lost}] }}, subscribe {{ deny: [{lost}] }} }} }}
  ] }}
}}
"""


def users(*allowed: str) -> str:
    return USERS.format(allowed=", ".join(f'"{subject}"' for subject in ("$JS.API.INFO", *allowed)))


def as_user(url: str, user: str) -> str:
    return url.replace("nats://", f"nats://{user}:x@")


async def test_after_a_refusal_publish_raises_until_the_connection_is_made_anew(connect_to, secured):
    server = secured(users("Allowed"))
    bus = await connect_to(as_user(server.url, "few"))
    bus.publish("Forbidden", b"lost")
    await bus.flush()
    with pytest.raises(NotPermitted, match="publish to 'Forbidden'") as caught:
        bus.publish("Forbidden", b"")
    assert caught.value.details == {"subject": "Forbidden"}
    bus.publish("Allowed", b"")
    await happens(bus, ConnectionEvent.RECONNECTED, server.restart)
    bus.publish("Forbidden", b"")  # perhaps it may now: the server is asked again


async def test_a_list_of_keys_that_is_forbidden_fails_at_once(connect_to, secured, namespace):
    server = secured(users(f"$JS.API.STREAM.INFO.KV_{namespace}"))
    other = await connect_to(as_user(server.url, "all"))
    await (await other.bucket(namespace, BucketSettings())).put("a", b"1")
    bus = await connect_to(as_user(server.url, "few"), storage_timeout_s=5 * PATIENCE_S)
    bucket = await bus.bucket(namespace, BucketSettings())
    async with asyncio.timeout(PATIENCE_S):
        for refused in (bucket.entries("*"), bucket.get("a")):
            with pytest.raises(NotPermitted, match="MSG.GET"):
                await refused
        with pytest.raises(NotPermitted, match="CONSUMER.CREATE"):
            await bucket.watch("*", lambda entry: None)


async def test_who_may_not_make_a_bucket_waits_for_somebody_who_may(connect_to, secured, namespace):
    server = secured(users(f"$JS.API.STREAM.INFO.KV_{namespace}", f"$KV.{namespace}.*"))
    other = await connect_to(as_user(server.url, "all"))
    bus = await connect_to(as_user(server.url, "few"))
    opening = asyncio.ensure_future(bus.bucket(namespace, BucketSettings()))

    async def refused() -> bool:
        return bus._refusals.get(Right.PUBLISH, f"$JS.API.STREAM.CREATE.KV_{namespace}") is not None

    await until(refused)
    await other.bucket(namespace, BucketSettings())
    assert await (await opening).put("a", b"1")


async def test_who_may_not_make_a_stream_is_told_to_start_somebody_who_may(connect_to, secured, namespace):
    server = secured(users(f"$JS.API.STREAM.INFO.{namespace}"))
    bus = await connect_to(as_user(server.url, "few"), storage_timeout_s=0.5)
    with pytest.raises(NotPermitted, match="does not exist, and this user may not create it.*STREAM.CREATE"):
        await bus.stream(namespace, StreamSettings(subjects=(f"{namespace}.>",)))


async def test_rights_that_were_lost_and_given_back_are_used_again(connect_to, secured, caplog):
    server = secured(LOSING.format(lost=""))
    bus = await connect_to(as_user(server.url, "some"))
    other = await connect_to(as_user(server.url, "all"))
    heard, events = collect(), collect()
    bus.on_connection(events)
    await bus.subscribe("Here", heard)
    await bus.subscribe("Here", heard, queue="group")
    await bus.subscribe("There", lambda message: bus.publish(message.reply, b"yes"))
    bus.publish("Away", b"")
    await bus.flush()
    with caplog.at_level(logging.INFO, "gangline.bus"):
        server.reload(LOSING.format(lost='"Here", "Away", "_INBOX.>"'))
        await until(lambda: len(bus.impairments()) == 2)  # it has an inbox, too
        await bus.flush()  # which is no news to those who did not subscribe just now
        with pytest.raises(NotPermitted):
            await bus.subscribe("Here", heard)

        async def refused() -> bool:
            try:
                bus.publish("Away", b"")
            except NotPermitted:
                return True
            await asyncio.sleep(0)
            return False

        await until(refused)
        assert any("'Away'" in lost for lost in bus.impairments())
        server.reload(LOSING.format(lost=""))
        await events.until(lambda seen: ConnectionEvent.RECONNECTED in seen)
        await until(lambda: other.publish("Here", b"") or len(heard.items) >= 2)
        assert (await other.request("There", timeout_s=PATIENCE_S)).data == b"yes"

        async def permitted() -> bool:
            return not await refused() and not bus.impairments()

        await until(permitted)
    said = [
        (record.levelname, record.action, record.subject) for record in caplog.records if hasattr(record, "subject")
    ]
    for subject in ("Here", "Away"):
        assert said.count(("ERROR", "bus.not_permitted", subject)) == 1
        assert said.count(("INFO", "bus.permitted", subject)) == 1
    assert ConnectionEvent.DISCONNECTED not in events.items
