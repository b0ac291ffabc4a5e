"""Tenants that ask for gangs from accounts of their own: what they may, and that the server says who asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NotPermitted
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import JobDead
from gangline.schemas.permissions.quotas import parse_quotas

from ..waiting import PATIENCE_S, until
from .conftest import SERVERS, Site, cut, jwts

pytestmark = pytest.mark.server


async def ask(bus: NatsBus, operation: str, subject: str = "gangline.gang", **body: Any) -> Any:
    answer = await bus.request(f"{subject}.{operation}", json.dumps(body).encode(), timeout_s=PATIENCE_S)
    return json.loads(answer.data)


@pytest.fixture(params=["passwords", pytest.param("JWT", marks=pytest.mark.long)])
def tenants(request: pytest.FixtureRequest, site_of, tmp_path: Path) -> Callable[..., tuple[Site, list[str]]]:
    """A site with these users beside the servers, and what quotas must say about tenants there; in each form that
    `gangline roles` writes."""
    if request.param == "passwords":
        return lambda *users: (site_of(cut(*SERVERS, *users)), [])

    def by_jwt(*users: str) -> tuple[Site, list[str]]:
        site = site_of(jwts(tmp_path, *SERVERS, *users), tmp_path)
        return site, (tmp_path / "tenants").read_text().split()

    return by_jwt


@pytest.fixture
async def lab(tenants) -> Site:
    """Two workers of four slots, and a coordinator that gives the tenant `lab` one gang at a time."""
    site, named = tenants("batch@lab=owner:images", "other@shop=owner:video")
    quotas = parse_quotas([*named, "lab:gangs=1", "lab:gangs_waiting=1", "lab:priority=3"])
    await site.coordinator(settings=CoordinatorSettings(quotas=quotas))
    for id in ("w1", "w2"):
        await site.worker(id)
    return site


async def test_a_tenant_forms_a_gang_and_runs_tasks_on_its_members_with_plain_requests(lab: Site):
    batch = await lab.bus("batch")
    gang = await ask(batch, "acquire", pool="images", size=2, id="mine", owner_token="s3cret")
    assert (gang["state"], gang["tenant"], len(gang["seats"])) == ("formed", "lab", 2)
    for seat in gang["seats"]:
        worker = f"gangline.worker.images.{seat['worker']}"
        assert await ask(batch, "dispatch", worker, token=seat["token"], method="double", arguments=[4]) == 8
        refused = await ask(batch, "dispatch", worker, token="guessed", method="double", arguments=[4])
        assert refused["code"] == "unknown_token"
    assert (await ask(batch, "renew", id="mine", owner_token="s3cret"))["state"] == "formed"
    assert (await ask(batch, "release", id="mine", owner_token="s3cret"))["state"] == "ended"
    assert await lab.refused() == []


async def test_a_second_gang_waits_and_a_third_is_refused(lab: Site):
    batch = await lab.bus("batch")
    fields = {"pool": "images", "size": 1, "owner_token": "s3cret", "ttl_s": 600}
    assert (await ask(batch, "acquire", id="one", **fields))["state"] == "formed"
    assert (await ask(batch, "acquire", id="two", wait=False, **fields))["state"] == "queued"
    assert "quota gangs is 1" in (await ask(batch, "why", id="two"))["lacks"][0]
    refused = await ask(batch, "acquire", pool="images", size=1)
    assert (refused["code"], refused["details"]["quota"]) == ("quota_exceeded", "gangs_waiting")
    await ask(batch, "release", id="one", owner_token="s3cret")
    assert (await ask(batch, "acquire", pool="images", size=1, id="two", owner_token="s3cret"))["state"] == "formed"


async def test_priority_is_a_right(lab: Site):
    batch = await lab.bus("batch")
    refused = await ask(batch, "acquire", pool="images", size=1, priority=4)
    assert (refused["code"], refused["details"]) == ("not_entitled", {"tenant": "lab", "quota": "priority", "limit": 3})
    refused = await ask(batch, "acquire", pool="images", size=1, preempt=True)
    assert (refused["code"], refused["details"]["quota"]) == ("not_entitled", "preempt")
    assert (await ask(batch, "acquire", pool="images", size=1, priority=3))["state"] == "formed"


async def test_the_server_says_who_asks_whatever_a_tenant_writes(lab: Site):
    batch = await lab.bus("batch")
    forged = {"Nats-Request-Info": json.dumps({"acc": "shop"})}
    body = json.dumps({"pool": "images", "size": 1}).encode()
    answer = await batch.request("gangline.gang.acquire", body, headers=forged, timeout_s=PATIENCE_S)
    assert json.loads(answer.data)["tenant"] == "lab"


async def test_a_tenant_sees_no_gangs_but_its_own(lab: Site):
    batch, other, operator = [await lab.bus(user) for user in ("batch", "other", "operator")]
    await ask(operator, "acquire", pool="images", size=1, id="ours", owner_token="s3cret", ttl_s=600)
    await ask(batch, "acquire", pool="images", size=1, id="mine", owner_token="s3cret", ttl_s=600)
    assert [gang["id"] for gang in (await ask(batch, "list"))["gangs"]] == ["mine"]
    assert (await ask(other, "list"))["gangs"] == []
    assert len((await ask(operator, "list"))["gangs"]) == 2
    for operation in ("get", "why"):
        assert (await ask(batch, operation, id="ours"))["code"] == "unknown_gang"
    for operation in ("renew", "release"):
        assert (await ask(batch, operation, id="ours", owner_token="guessed"))["code"] == "not_owner"
    with pytest.raises(NotPermitted):
        await batch.request("gangline.worker.images.w1.reserve", b"{}", timeout_s=PATIENCE_S)


async def test_calls_of_a_tenant_use_no_more_slots_of_a_pool_than_its_quota(tenants):
    site, named = tenants("web@lab=producer:images", "other@shop=producer:images")
    worker = await site.worker("w1")
    settings = RouterSettings(node="", zone="", quotas=parse_quotas([*named, "lab:slots=2"]))
    gateway = Gateway(await site.bus("gateway"), router_settings=settings)
    async with gateway:
        web, other = await site.bus("web"), await site.bus("other")
        calls = [
            asyncio.ensure_future(web.request("gangline.call.images.wait", b"", timeout_s=PATIENCE_S)) for _ in range(6)
        ]

        async def running() -> bool:
            return worker.statistics().load.running == 2 and gateway.statistics()["pending"] == 6

        await until(running)
        assert (await other.request("gangline.call.images.double", b"[4]", timeout_s=PATIENCE_S)).data == b"8"
        assert worker.statistics().load.running == 2
        await gateway.drain(0.0)
        await asyncio.gather(*calls)

    async def idle() -> bool:
        return worker.statistics().load.running == 0

    await until(idle)


# -- submitted tasks --------------------------------------------------------------------------------------------------


async def why_refused(client: Client, target: str, *arguments: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    """Submit a task that is refused; the code and the details of its error."""
    job = await client.options(**options).submit(target, *arguments)
    with pytest.raises(JobDead) as dead:
        await job.result(PATIENCE_S)
    assert dead.value.reason == "refused"
    error = dead.value.details["error"]
    return error["code"], error["details"]


def told(quota: str, limit: int, used: int | None = None, tenant: str = "lab") -> dict[str, Any]:
    return {"tenant": tenant, "quota": quota, "limit": limit} | ({} if used is None else {"used": used})


async def test_a_tenant_has_no_more_tasks_of_an_endpoint_than_its_quota_and_another_goes_on(tenants):
    site, named = tenants("web@lab=producer:images", "other@shop=producer:images")
    worker = await site.worker("w1")
    settings = DispatcherSettings(quotas=parse_quotas([*named, "lab:queued_tasks=2", "lab:queued_bytes=20000"]))
    async with Dispatcher(await site.bus("dispatcher"), settings=settings):
        web, other = await site.client("web"), await site.client("other")
        waits = [await web.submit("images.wait") for _ in range(2)]

        async def running() -> bool:
            return worker.statistics().load.running == 2

        await until(running)  # so both are accepted
        assert await why_refused(web, "images.double", 1) == ("quota_exceeded", told("queued_tasks", 2, 2))
        assert await why_refused(web, "images.text", "x" * 20_000) == ("not_entitled", told("queued_bytes", 20_000))
        assert await (await other.submit("images.double", 4)).result(PATIENCE_S) == 8
        [letter, _] = await (await site.client("operator")).dead_letters()
        assert (letter.target, letter.reason, letter.subject) == (
            "images.double",
            "refused",
            "gangline.task.images.double.@lab",
        )
        for each in waits:
            assert await each.cancel()
        assert await (await web.submit("images.double", 5)).result(PATIENCE_S) == 10
        replayed = await (await site.client("operator")).replay(letter)
        assert await web.job(replayed.id).result(PATIENCE_S) == 2
    assert await site.refused() == []


async def test_the_bytes_of_a_tenants_tasks_are_limited(tenants):
    site, named = tenants("web@lab=producer:images", "other@shop=producer:images")
    settings = DispatcherSettings(quotas=parse_quotas([*named, "lab:queued_bytes=2000"]), unknown_after_s=600)
    async with Dispatcher(await site.bus("dispatcher"), settings=settings):
        web, other = await site.client("web"), await site.client("other")
        first = await web.submit("images.text", "x" * 1000)
        code, details = await why_refused(web, "images.text", "x" * 1000)
        assert (code, details["quota"], details["limit"]) == ("quota_exceeded", "queued_bytes", 2000)
        assert 1000 < details["used"] < 2000
        theirs = await other.submit("images.text", "x" * 5000)
        assert [(await each.status()).state.value for each in (first, theirs)] == ["queued"] * 2


async def test_priority_of_submitted_tasks_is_a_right(tenants):
    site, named = tenants("web@lab=producer:images", "other@shop=producer:images")
    await site.worker("w1")
    settings = DispatcherSettings(quotas=parse_quotas([*named, "lab:priority=3"]))
    async with Dispatcher(await site.bus("dispatcher"), settings=settings):
        web, other, operator = [await site.client(user) for user in ("web", "other", "operator")]
        assert await (await web.options(priority=3).submit("images.double", 1)).result(PATIENCE_S) == 2
        assert await why_refused(web, "images.double", 1, priority=4) == ("not_entitled", told("priority", 3))
        delayed = await why_refused(web, "images.double", 1, priority=4, delay_s=3600.0)
        assert delayed == ("not_entitled", told("priority", 3))
        refused = await why_refused(other, "images.double", 1, priority=1)
        assert refused == ("not_entitled", told("priority", 0, tenant="shop"))
        assert await (await operator.options(priority=100).submit("images.double", 1)).result(PATIENCE_S) == 2


async def test_a_tenant_gets_queues_for_endpoints_without_workers_up_to_its_quota(tenants):
    site, named = tenants("web@lab=producer", "other@shop=producer")
    await site.worker("w1")
    quotas = parse_quotas([*named, "lab:endpoints=0"])
    settings = DispatcherSettings(quotas=quotas, unknown_after_s=0.5, look_s=0.1)
    async with Dispatcher(await site.bus("dispatcher"), settings=settings):
        web, other = await site.client("web"), await site.client("other")
        assert await why_refused(web, "nowhere.double", 1) == ("quota_exceeded", told("endpoints", 0, 0))
        theirs = await other.submit("nowhere2.double", 1)
        with pytest.raises(JobDead) as dead:
            await theirs.result(PATIENCE_S)
        assert dead.value.reason == "unknown_endpoint", "it had a queue"
    # On a busy machine half a second may be too short to hear of a worker.
    async with Dispatcher(await site.bus("dispatcher"), settings=replace(settings, unknown_after_s=PATIENCE_S)):
        assert await (await web.submit("images.double", 4)).result(PATIENCE_S) == 8


async def test_a_delayed_task_is_still_its_tenants_when_its_time_has_come(tenants):
    site, named = tenants("web@lab=producer:images")
    await site.worker("w1")
    async with Dispatcher(await site.bus("dispatcher"), settings=DispatcherSettings(quotas=parse_quotas(named))):
        job = await (await site.client("web")).options(delay_s=1.0).submit("images.fail")
        with pytest.raises(JobDead):
            await job.result(PATIENCE_S)
        [letter] = await (await site.client("operator")).dead_letters()
        assert (letter.reason, letter.subject) == ("failed", "gangline.task.images.fail.@lab")
