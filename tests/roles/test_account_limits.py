"""What a tenant may take of the server itself: the server refuses what is over its limit, and others go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import MEBIBYTE
from gangline.schemas.errors.base import InvalidRequest
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import configuration, parse_limit, parse_user

from ..support.rows import case
from ..waiting import PATIENCE_S, until
from .conftest import SERVERS, Site

USERS = (*SERVERS, "web@shop=producer:images", "batch@lab=producer:images")


def limited(*limits: str) -> str:
    return configuration(Names(), tuple(map(parse_user, USERS)), limits=map(parse_limit, limits))


@pytest.fixture
def limited_site(site_in_form) -> Callable[..., Site]:
    return lambda *limits: site_in_form(*USERS, limits=limits)


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
