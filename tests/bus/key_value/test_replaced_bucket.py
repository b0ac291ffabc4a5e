"""Somebody removes a bucket, and makes another one of its name by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gangline.bus.key_value.wire import stream_configuration
from gangline.bus.port.bus import BucketSettings, Bus, KvWrite
from gangline.schemas.errors.base import GanglineError, InvalidSettings, Unavailable

from ...waiting import until
from ..conftest import collect

pytestmark = pytest.mark.server

REASON = "exists without allow_msg_ttl"


@pytest.fixture
def namespace(namespace: str) -> str:
    """Also the name of a bucket that takes atomic batches."""
    return f"{namespace}_LEDGER"


async def _replace(operator: Any, name: str, **changed: Any) -> None:
    await operator.api.call(f"STREAM.DELETE.KV_{name}", what="remove it")
    made = stream_configuration(name, BucketSettings(max_bytes=-1))
    await operator.api.call(f"STREAM.CREATE.KV_{name}", {**made, **changed}, what="make another")


def _logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    actions = ("bus.stream_replaced", "bus.stream_back")
    return [(each.levelname, each.action) for each in caplog.records if getattr(each, "action", "") in actions]


@pytest.mark.parametrize("finds_out", ["watch", "put", "write", "commit", "entries"])
async def test_a_replaced_bucket_is_named_once_by_whoever_uses_it_until_it_is_put_right(
    connect_to: Any, nats_url: str, namespace: str, caplog: pytest.LogCaptureFixture, finds_out: str
) -> None:
    caplog.set_level(logging.INFO)
    bus, operator = await connect_to(nats_url), await connect_to(nats_url)
    bucket, keys, write = (
        await bus.bucket(namespace, BucketSettings()),
        collect(),
        KvWrite(key="a", value=b"1", ttl_s=5),
    )
    if finds_out == "watch":
        await bucket.watch("*", keys)
    await _replace(operator, namespace, allow_msg_ttl=False)

    async def use() -> None:
        match finds_out:
            case "watch":
                await until(lambda: _logged(caplog))
                await bucket.put("a", b"1")
            case "put":
                await bucket.put("a", b"1", ttl_s=5.0)
            case "write":
                (result,) = await bucket.write([write])
                assert isinstance(result, GanglineError)
                await bucket.write([write])
                await bucket.put("a", b"1")
            case "commit":
                await bucket.commit([write, KvWrite(key="b", value=b"1")])
            case _:
                await bucket.entries("*")

    for _ in range(2):
        with pytest.raises(Unavailable, match=REASON):
            await use()
    assert _logged(caplog) == [("ERROR", "bus.stream_replaced")]
    await operator.api.call(f"STREAM.DELETE.KV_{namespace}", what="remove it")
    await bucket.put("a", b"2", ttl_s=5.0)
    assert [entry.value for entry in await bucket.entries("*")] == [b"2"]
    if finds_out == "watch":
        await keys.until(lambda entries: bool(entries) and entries[-1].value == b"2")
    assert _logged(caplog) == [("ERROR", "bus.stream_replaced"), ("INFO", "bus.stream_back")]


async def test_a_process_that_only_reads_says_why_it_cannot_use_a_bucket(
    connect_to: Any, nats_url: str, namespace: str
) -> None:
    operator = await connect_to(nats_url)
    made = stream_configuration(namespace, BucketSettings(max_bytes=-1))
    await operator.api.call(f"STREAM.CREATE.KV_{namespace}", {**made, "allow_msg_ttl": False}, what="make it")
    reader: Bus = await connect_to(nats_url)
    bucket = await reader.bucket(namespace, BucketSettings(), make=False)
    with pytest.raises(InvalidSettings, match=REASON):
        await bucket.entries("*")
    with pytest.raises(InvalidSettings, match=REASON):
        await bucket.watch("*", collect())
