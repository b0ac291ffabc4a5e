"""Tenants that ask for gangs from accounts of their own: what they may, and that the server says who asks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gangline.bus.port.bus import NotPermitted
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import JobDead
from gangline.schemas.permissions.quotas import parse_quotas

from ..waiting import PATIENCE_S, until
from .conftest import SERVERS, Site, ask

pytestmark = pytest.mark.server


TWO = ("web@lab=producer:images", "other@shop=producer:images")


@pytest.fixture
async def lab(site_in_form) -> Site:
    """Two workers of four slots, and a coordinator that gives the tenant `lab` one gang at a time."""
    site: Site = site_in_form(*SERVERS, "batch@lab=owner:images", "other@shop=owner:video")
    quotas = parse_quotas([*site.named, "lab:gangs=1", "lab:gangs_waiting=1", "lab:priority=3"])
    await site.coordinator(settings=CoordinatorSettings(quotas=quotas))
    for id in ("w1", "w2"):
        await site.worker(id)
    return site


async def test_a_tenant_forms_a_gang_and_runs_tasks_on_its_members_with_plain_requests(lab: Site):
    batch = await lab.bus("batch")
    gang = await ask(batch, "gangline.gang.acquire", pool="images", size=2, id="mine", owner_token="s3cret")
    assert (gang["state"], gang["tenant"], len(gang["seats"])) == ("formed", "lab", 2)
    for seat in gang["seats"]:
        worker = f"gangline.worker.images.{seat['worker']}.dispatch"
        assert await ask(batch, worker, token=seat["token"], method="double", arguments=[4]) == 8
        refused = await ask(batch, worker, token="guessed", method="double", arguments=[4])
        assert refused["code"] == "unknown_token"
    assert (await ask(batch, "gangline.gang.renew", id="mine", owner_token="s3cret"))["state"] == "formed"
    assert (await ask(batch, "gangline.gang.release", id="mine", owner_token="s3cret"))["state"] == "ended"
    assert await lab.refused() == []


async def test_a_second_gang_waits_and_a_third_is_refused(lab: Site):
    batch = await lab.bus("batch")
    fields = {"pool": "images", "size": 1, "owner_token": "s3cret", "ttl_s": 600}
    assert (await ask(batch, "gangline.gang.acquire", id="one", **fields))["state"] == "formed"
    assert (await ask(batch, "gangline.gang.acquire", id="two", wait=False, **fields))["state"] == "queued"
    assert "quota gangs is 1" in (await ask(batch, "gangline.gang.why", id="two"))["lacks"][0]
    refused = await ask(batch, "gangline.gang.acquire", pool="images", size=1)
    assert (refused["code"], refused["details"]["quota"]) == ("quota_exceeded", "gangs_waiting")
    await ask(batch, "gangline.gang.release", id="one", owner_token="s3cret")
    assert (await ask(batch, "gangline.gang.acquire", pool="images", size=1, id="two", owner_token="s3cret"))[
        "state"
    ] == "formed"


async def test_priority_is_a_right(lab: Site):
    batch = await lab.bus("batch")
    refused = await ask(batch, "gangline.gang.acquire", pool="images", size=1, priority=4)
    assert (refused["code"], refused["details"]) == ("not_entitled", {"tenant": "lab", "quota": "priority", "limit": 3})
    refused = await ask(batch, "gangline.gang.acquire", pool="images", size=1, preempt=True)
    assert (refused["code"], refused["details"]["quota"]) == ("not_entitled", "preempt")
    assert (await ask(batch, "gangline.gang.acquire", pool="images", size=1, priority=3))["state"] == "formed"


async def test_the_server_says_who_asks_whatever_a_tenant_writes(lab: Site):
    batch = await lab.bus("batch")
    forged = {"Nats-Request-Info": json.dumps({"acc": "shop"})}
    assert (await ask(batch, "gangline.gang.acquire", forged, pool="images", size=1))["tenant"] == "lab"


async def test_a_tenant_sees_no_gangs_but_its_own(lab: Site):
    batch, other, operator = [await lab.bus(user) for user in ("batch", "other", "operator")]
    await ask(operator, "gangline.gang.acquire", pool="images", size=1, id="ours", owner_token="s3cret", ttl_s=600)
    await ask(batch, "gangline.gang.acquire", pool="images", size=1, id="mine", owner_token="s3cret", ttl_s=600)
    assert [gang["id"] for gang in (await ask(batch, "gangline.gang.list"))["gangs"]] == ["mine"]
    assert (await ask(other, "gangline.gang.list"))["gangs"] == []
    assert len((await ask(operator, "gangline.gang.list"))["gangs"]) == 2
    for operation in ("get", "why"):
        assert (await ask(batch, f"gangline.gang.{operation}", id="ours"))["code"] == "unknown_gang"
    for operation in ("renew", "release"):
        assert (await ask(batch, f"gangline.gang.{operation}", id="ours", owner_token="guessed"))["code"] == "not_owner"
    with pytest.raises(NotPermitted):
        await batch.request("gangline.worker.images.w1.reserve", b"{}", timeout_s=PATIENCE_S)


async def test_calls_of_a_tenant_use_no_more_slots_of_a_pool_than_its_quota(site_in_form):
    site: Site = site_in_form(*SERVERS, *TWO)
    worker = await site.worker("w1")
    settings = RouterSettings(node="", zone="", quotas=parse_quotas([*site.named, "lab:slots=2"]))
    gateway = Gateway(await site.bus("gateway"), router_settings=settings)
    async with gateway:
        web, other = await site.bus("web"), await site.bus("other")
        calls = [
            asyncio.ensure_future(web.request("gangline.call.images.wait", b"", timeout_s=PATIENCE_S)) for _ in range(6)
        ]

        await until(lambda: worker.statistics().load.running == 2 and gateway.statistics()["pending"] == 6)
        assert (await other.request("gangline.call.images.double", b"[4]", timeout_s=PATIENCE_S)).data == b"8"
        assert worker.statistics().load.running == 2
        await gateway.drain(0.0)
        await asyncio.gather(*calls)
    await until(lambda: worker.statistics().load.running == 0)


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


async def test_a_tenant_has_no_more_tasks_of_an_endpoint_than_its_quota_and_another_goes_on(site_in_form):
    site: Site = site_in_form(*SERVERS, *TWO)
    worker = await site.worker("w1")
    await site.dispatcher("lab:queued_tasks=2", "lab:queued_bytes=20000")
    web, other, operator = [await site.client(user) for user in ("web", "other", "operator")]
    waits = [await web.submit("images.wait") for _ in range(2)]
    await until(lambda: worker.statistics().load.running == 2)  # so both are accepted
    assert await why_refused(web, "images.double", 1) == ("quota_exceeded", told("queued_tasks", 2, 2))
    assert await why_refused(web, "images.text", "x" * 20_000) == ("not_entitled", told("queued_bytes", 20_000))
    assert await (await other.submit("images.double", 4)).result(PATIENCE_S) == 8
    [letter, _] = await operator.dead_letters()
    subject = "gangline.task.images.double.@lab"
    assert (letter.target, letter.reason, letter.subject) == ("images.double", "refused", subject)
    for each in waits:
        assert await each.cancel()
    assert await (await web.submit("images.double", 5)).result(PATIENCE_S) == 10
    replayed = await operator.replay(letter)
    assert await web.job(replayed.id).result(PATIENCE_S) == 2
    assert await site.refused() == []


async def test_the_bytes_of_a_tenants_tasks_are_limited(site_in_form):
    site: Site = site_in_form(*SERVERS, *TWO)
    await site.dispatcher("lab:queued_bytes=2000", unknown_after_s=600)
    web, other = await site.client("web"), await site.client("other")
    first = await web.submit("images.text", "x" * 1000)
    code, details = await why_refused(web, "images.text", "x" * 1000)
    assert (code, details["quota"], details["limit"]) == ("quota_exceeded", "queued_bytes", 2000)
    assert 1000 < details["used"] < 2000
    theirs = await other.submit("images.text", "x" * 5000)
    assert [(await each.status()).state.value for each in (first, theirs)] == ["queued"] * 2


async def test_priority_of_submitted_tasks_is_a_right(site_in_form):
    site: Site = site_in_form(*SERVERS, *TWO)
    await site.worker("w1")
    await site.dispatcher("lab:priority=3")
    web, other, operator = [await site.client(user) for user in ("web", "other", "operator")]
    assert await (await web.options(priority=3).submit("images.double", 1)).result(PATIENCE_S) == 2
    for delay in ({}, {"delay_s": 3600.0}):
        refused = await why_refused(web, "images.double", 1, priority=4, **delay)
        assert refused == ("not_entitled", told("priority", 3))
    refused = await why_refused(other, "images.double", 1, priority=1)
    assert refused == ("not_entitled", told("priority", 0, tenant="shop"))
    assert await (await operator.options(priority=100).submit("images.double", 1)).result(PATIENCE_S) == 2


async def test_a_tenant_gets_queues_for_endpoints_without_workers_up_to_its_quota(site_in_form):
    site: Site = site_in_form(*SERVERS, "web@lab=producer", "other@shop=producer")
    await site.worker("w1")
    first = await site.dispatcher("lab:endpoints=0", unknown_after_s=0.5, look_s=0.1)
    web, other = await site.client("web"), await site.client("other")
    assert await why_refused(web, "nowhere.double", 1) == ("quota_exceeded", told("endpoints", 0, 0))
    theirs = await other.submit("nowhere2.double", 1)
    with pytest.raises(JobDead) as dead:
        await theirs.result(PATIENCE_S)
    assert dead.value.reason == "unknown_endpoint", "it had a queue"
    await first.stop()
    # On a busy machine half a second may be too short to hear of a worker.
    await site.dispatcher("lab:endpoints=0", unknown_after_s=PATIENCE_S, look_s=0.1)
    assert await (await web.submit("images.double", 4)).result(PATIENCE_S) == 8


async def test_a_delayed_task_is_still_its_tenants_when_its_time_has_come(site_in_form):
    site: Site = site_in_form(*SERVERS, "web@lab=producer:images")
    await site.worker("w1")
    await site.dispatcher()
    job = await (await site.client("web")).options(delay_s=1.0).submit("images.fail")
    with pytest.raises(JobDead):
        await job.result(PATIENCE_S)
    [letter] = await (await site.client("operator")).dead_letters()
    assert (letter.reason, letter.subject) == ("failed", "gangline.task.images.fail.@lab")
