"""What a connection knows of its permissions, and says at once instead of waiting for an answer that cannot come."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import BucketSettings, ConnectionEvent, NotPermitted, StreamSettings

from ...waiting import PATIENCE_S, until
from ..conftest import happens

pytestmark = pytest.mark.server

USERS = """
accounts {{
  APP {{ jetstream: enabled, users: [
    {{ user: all, password: x }}
    {{ user: few, password: x, permissions {{ publish {{ allow: [{allowed}] }} }} }}
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
        with pytest.raises(NotPermitted, match="MSG.GET"):
            await bucket.entries("*")
        with pytest.raises(NotPermitted, match="MSG.GET"):
            await bucket.get("a")
        with pytest.raises(NotPermitted, match="CONSUMER.CREATE"):
            await bucket.watch("*", lambda entry: None)


async def test_who_may_not_make_a_bucket_waits_for_somebody_who_may(connect_to, secured, namespace):
    server = secured(users(f"$JS.API.STREAM.INFO.KV_{namespace}", f"$KV.{namespace}.*"))
    other = await connect_to(as_user(server.url, "all"))
    bus = await connect_to(as_user(server.url, "few"))
    opening = asyncio.ensure_future(bus.bucket(namespace, BucketSettings()))

    async def refused() -> bool:
        return f"$JS.API.STREAM.CREATE.KV_{namespace}" in bus._forbidden

    await until(refused)
    await other.bucket(namespace, BucketSettings())
    assert await (await opening).put("a", b"1")


async def test_who_may_not_make_a_stream_is_told_to_start_somebody_who_may(connect_to, secured, namespace):
    server = secured(users(f"$JS.API.STREAM.INFO.{namespace}"))
    bus = await connect_to(as_user(server.url, "few"), storage_timeout_s=0.5)
    with pytest.raises(NotPermitted, match="does not exist, and this user may not create it.*STREAM.CREATE"):
        await bus.stream(namespace, StreamSettings(subjects=(f"{namespace}.>",)))
