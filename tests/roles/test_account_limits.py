"""What a tenant may take of the server itself: the server refuses what is over its limit, and others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Connection

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import MEBIBYTE, BucketSettings, Storage
from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import configuration, parse_limit, parse_user

from ..support.rows import case
from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, SERVERS, Site

MEMORY_FULL = "resource limits exceeded for account"
USERS = (*SERVERS, "web@shop=producer:images", "batch@lab=producer:images")


def limited(*limits: str) -> str:
    return configuration(Names(), tuple(map(parse_user, USERS)), limits=map(parse_limit, limits))


@pytest.fixture
def limited_site(site_in_form) -> Callable[..., Site]:
    return lambda *limits: site_in_form(*USERS, limits=limits)


class Refusals:
    """Why the server's client gave a connection up."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()

    async def ignore(self, error: Exception) -> None:
        """The connection keeps the last one."""

    async def of(self, connection: Connection) -> str:
        async with asyncio.timeout(PATIENCE_S):
            await self.closed.wait()
        return str(connection.last_error).lower()


async def connect(site: Site, user: str, refusals: Refusals, **others: Any) -> Connection:
    file = site.credentials(user)
    identity: dict[str, Any] = {"user_credentials": str(file)} if file else {"user": user, "password": PASSWORD}
    return await nats.connect(
        site.server.url,
        **identity,
        inbox_prefix=f"_INBOX.{user}".encode(),
        error_cb=refusals.ignore,
        closed_cb=refusals.close,
        allow_reconnect=False,
        **others,
    )


@pytest.mark.server
async def test_the_server_refuses_a_tenant_what_is_over_its_limits_and_nobody_else(limited_site):
    site: Site = limited_site("shop:connections=2", "shop:subscriptions=5", "shop:payload=1000")
    await site.everything()
    why_first, why_second = Refusals(), Refusals()
    first, second = await connect(site, "web", why_first), await connect(site, "web", why_second)
    lab = await site.bus("batch")
    call = "gangline.call.images.double"
    try:
        with pytest.raises(Exception, match="maximum account active connections exceeded"):
            await connect(site, "web", Refusals())
        for number in range(6):
            await first.subscribe(f"_INBOX.web.{number}")
        assert "maximum subscriptions exceeded" in await why_first.of(first)
        answer = await second.request(call, b"[2]", timeout=PATIENCE_S)
        assert answer.data == b"4"
        second._max_payload = 10_000  # as a client that ignores what the server told it
        await second.publish(call, b" " * 1001)
        assert "maximum payload violation" in await why_second.of(second)
        # Somebody else's limits are others.
        assert (await lab.request(call, b" " * 1001 + b"[3]", timeout_s=PATIENCE_S)).data == b"6"
        assert await (await site.client("batch")).submit("images.double", 4) is not None
    finally:
        await asyncio.gather(first.close(), second.close())


@pytest.mark.server
async def test_the_account_of_gangline_can_have_limits_of_jetstream(limited_site):
    site: Site = limited_site("GANGLINE:streams=1", "GANGLINE:store=1000000000")
    await site.make_ledger()
    operator = await site.bus("operator")
    with pytest.raises(Exception, match="maximum number of streams reached"):
        await operator.bucket(Names().routes_bucket, BucketSettings())


@pytest.mark.server
async def test_a_deployment_works_within_limits_of_memory_store_streams_and_consumers(limited_site, monkeypatch):
    each = 4 * MEBIBYTE
    monkeypatch.setenv("GANGLINE_MAX_BYTES", str(each))
    memory, store = each, 8 * each  # the ledger is in memory; the others are on disk
    limits = {"streams": 9, "consumers": 20, "memory": memory, "store": store}
    site: Site = limited_site(*(f"GANGLINE:{name}={number}" for name, number in limits.items()))
    await site.everything()
    operator, batch, router = [await site.client(user) for user in ("operator", "batch", "router")]
    assert await router.call("images.double", 1) == 2
    async with router.lease("images", slots=2) as lease:
        assert await lease.call("double", 2) == 4
    async with router.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]
    jobs = [await batch.submit("images.double", number) for number in range(10)]
    assert [await job.result(PATIENCE_S) for job in jobs] == [2 * number for number in range(10)]
    assert len(await (await batch.submit("images.text", 900_000)).result(PATIENCE_S)) == 900_000
    await operator.set_route("pictures", {"to": {"images": 1}})
    router.router.routes.start()
    await until(lambda: "pictures" in router.router.routes.known)
    assert await router.call("pictures.double", 3) == 6
    account = await ask(operator._bus, "$JS.API.INFO", b"")
    asked = {"max_memory": memory, "max_storage": store, "max_streams": 9, "max_consumers": 20}
    assert account["limits"] == account["limits"] | asked


async def ask(bus: NatsBus, subject: str, body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await bus.request(subject, body, timeout_s=PATIENCE_S)).data)
    return found


@pytest.mark.server
async def test_streams_in_memory_take_no_more_than_the_accounts_limit_and_those_on_disk_go_on(limited_site):
    site: Site = limited_site("GANGLINE:memory=1000000")
    operator = await site.bus("operator")
    unbounded = BucketSettings(max_bytes=-1)
    await operator.bucket(Names().ledger_bucket, unbounded)
    routes = await operator.bucket(Names().routes_bucket, replace(unbounded, storage=Storage.FILE))
    answers = [await ask(operator, f"$KV.GANGLINE_LEDGER.gangset.s{n}", bytes(100_000)) for n in range(11)]
    stored = [answer for answer in answers if "error" not in answer]
    assert 0 < len(stored) < 10
    assert {answer["error"]["description"] for answer in answers[len(stored) :]} == {MEMORY_FULL}
    await routes.put("images", bytes(500_000))
    await operator.request("$JS.API.STREAM.PURGE.KV_GANGLINE_LEDGER", b"", timeout_s=PATIENCE_S)
    assert "error" not in await ask(operator, "$KV.GANGLINE_LEDGER.gangset.s0", b"room again")


@pytest.mark.server
async def test_each_stream_has_no_more_consumers_than_the_accounts_limit(limited_site):
    site: Site = limited_site("GANGLINE:consumers=2")
    operator = await site.bus("operator")
    for bucket in (Names().ledger_bucket, Names().routes_bucket):
        await operator.bucket(bucket, BucketSettings(max_bytes=-1))

    async def consume(stream: str, name: str) -> str:
        config = {"name": name, "ack_policy": "none", "inactive_threshold": 10**12}
        body = json.dumps({"stream_name": stream, "config": config}).encode()
        answer = await ask(operator, f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)
        return str(answer.get("error", {}).get("description", ""))

    assert [await consume("KV_GANGLINE_LEDGER", name) for name in "abc"] == ["", "", "maximum consumers limit reached"]
    assert await consume("KV_GANGLINE_ROUTES", "a") == ""
    await operator.request("$JS.API.CONSUMER.DELETE.KV_GANGLINE_LEDGER.a", b"", timeout_s=PATIENCE_S)
    assert await consume("KV_GANGLINE_LEDGER", "c") == ""


def test_limits_of_one_tenant_go_before_those_of_all_and_all_have_some():
    def limits(text: str) -> list[str]:
        return [line.strip() for line in text.splitlines() if "limits:" in line]

    usual = "limits: { max_connections: 256, max_subscriptions: 1000, max_payload: 1048576 }"
    assert limits(limited()) == [usual, usual]
    shop, lab = limits(limited("shop:connections=3", "connections=20"))
    assert "max_connections: 3," in shop and "max_connections: 20," in lab
    assert limits(limited("GANGLINE:connections=9"))[0] == "limits: { max_connections: 9 }"


def test_a_limit_that_cannot_be_is_refused():
    cases = [
        *((text, "is not") for text in ("", "connections", "connections=", "connections=-1", "connections=0", "x=1")),
        ("king:connections=1", "no account 'king'"),
        ("shop:streams=1", "only GANGLINE has JetStream"),
        ("store=1", "only GANGLINE has JetStream"),
    ]
    for limit, why in cases:
        with case(limit, why), pytest.raises(InvalidRequest, match=why):
            limited(limit)
