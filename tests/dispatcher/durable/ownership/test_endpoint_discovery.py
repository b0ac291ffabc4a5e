"""Which endpoints get a queue when tenants name many of them."""

from __future__ import annotations

import asyncio

from gangline.schemas.names import job_of_tenant, split_tenant
from gangline.schemas.permissions.quotas import parse_quotas

from ....support.durable.site import Site


def target(endpoint: str, tenant: str = "") -> str:
    return f"{endpoint}.square.@{tenant}" if tenant else f"{endpoint}.square"


async def publish(site: Site, *targets: str) -> list[str]:
    stream, ids = await site.streams.tasks(), list[str]()
    for each in targets:
        job = str((await stream.publish(f"{site.names.namespace}.task.{each}", b"[2]")).sequence)
        tenant = split_tenant(each)[1]
        ids.append(job_of_tenant(job, each.partition(".")[0], tenant) if tenant else job)
    return ids


async def test_endpoints_that_only_a_tenant_names_get_queues_up_to_its_quota_and_the_others_are_refused():
    quotas = parse_quotas(["lab:endpoints=2"])
    async with Site(quotas=quotas, unknown_after_s=20.0) as site:
        site.worker()
        node = site.dispatcher()
        await asyncio.sleep(2)
        lab = [target(f"lab{number}", "lab") for number in range(4)]
        others = [target("shop0", "shop"), target("shop1", "shop"), target("shop2", "shop"), target("own")]
        jobs = dict(zip(lab, await publish(site, *lab), strict=True))
        await publish(site, *others, target("work", "lab"))
        await asyncio.sleep(5)
        has = sorted(node.dispatcher.queues)
        assert has == ["lab0", "lab1", "own", "shop0", "shop1", "shop2", "work"]
        assert len(site.starts) == 1, "an endpoint with workers needs no quota"
        for _ in range(6):  # the first two stay in use
            await publish(site, *lab[:2])
            await asyncio.sleep(5)
        reasons = {each: (await site.result(jobs[each])) for each in lab}
        told = {each: (record.reason, record.error.code) for each, record in reasons.items()}
        assert told == {
            **dict.fromkeys(lab[:2], ("unknown_endpoint", "no_workers")),
            **dict.fromkeys(lab[2:], ("refused", "quota_exceeded")),
        }
        details = reasons[lab[2]].error.details
        assert details == {"tenant": "lab", "quota": "endpoints", "limit": 2, "used": 2}


async def test_an_endpoint_above_the_quota_gets_its_queue_when_workers_come_in_time():
    async with Site(quotas=parse_quotas(["endpoints=0"]), unknown_after_s=20.0) as site:
        node = site.dispatcher()
        await asyncio.sleep(2)
        [job] = await publish(site, target("work", "lab"))
        await asyncio.sleep(5)
        assert not node.dispatcher.queues
        site.worker()
        assert (await site.ended(job)).result == 4
