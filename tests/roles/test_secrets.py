"""What users who may read the ledger, list gangs or serve tasks can do with what they learn: nothing to others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, NotPermitted, Storage
from gangline.dispatcher.jobs.submitter import job_of_key
from gangline.schemas.errors.base import GangFailed
from gangline.schemas.names import Names, public_id
from gangline.worker.pool.pool import Pool

from ..waiting import PATIENCE_S, until
from .conftest import Site, ask, cut

pytestmark = pytest.mark.server

USERS = (
    *("producer", "coordinator", "dispatcher", "operator"),
    *("w1=worker:images.w1", "w2=worker:images.w2", "alice=router+producer", "bob=router+producer"),
)


async def gang_site(site_of: Any) -> Site:
    site: Site = site_of(cut(*USERS))
    await site.coordinator()
    for id in ("w1", "w2"):
        await site.worker(id, user=id)
    return site


def words(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    match value:
        case dict():
            for key, each in value.items():
                yield key
                yield from words(each)
        case list():
            for each in value:
                yield from words(each)
        case str():
            yield value


async def readable(bus: NatsBus, gang: str) -> set[str]:
    """Every word of leases and gangs that this user can read, in the ledger and from the coordinator."""
    ledger = await bus.bucket(Names().ledger_bucket, BucketSettings(storage=Storage.MEMORY))
    found: set[str] = set()
    for entry in await ledger.entries("lease.*.*.*", "gang.*", "member.*.*.*"):
        found |= {*entry.key.split("."), *words(json.loads(entry.value))}
    for operation, body in (("list", {}), ("get", {"id": gang}), ("why", {"id": gang})):
        found |= set(words(await ask(bus, f"gangline.gang.{operation}", **body)))
    return {word for word in found if 0 < len(word) <= 64}


async def test_what_others_can_read_gives_no_right_to_leases_and_gangs(site_of):
    site = await gang_site(site_of)
    alice, bob = await site.client("alice"), await site.bus("bob")
    async with alice.lease("images", slots=2, ttl_s=60) as lease, alice.gang(pool="images", size=2) as gang:
        ledger = await bob.bucket(Names().ledger_bucket, BucketSettings(storage=Storage.MEMORY))
        await until(lambda: ledger.entries("lease.*.*.*"))
        learnt = await readable(bob, gang.id)
        assert {public_id(lease.token), *(public_id(member.token) for member in gang.members)} <= learnt
        used = []
        for word in sorted(learnt):
            for worker in ("w1", "w2"):
                subject = f"gangline.worker.images.{worker}"
                ran = await ask(bob, f"{subject}.dispatch", token=word, method="double", arguments=[1])
                renewed = await ask(bob, f"{subject}.renew", token=word)
                released = await ask(bob, f"{subject}.release", token=word)
                used += [(worker, word)] * ("code" not in ran or "code" not in renewed or released.get("released"))
            for operation in ("renew", "get", "acquire", "release"):
                shown = {"id": gang.id, "owner_token": word} | ({"pool": "images"} if operation == "acquire" else {})
                used += [(operation, word)] * ("code" not in await ask(bob, f"gangline.gang.{operation}", **shown))
        assert used == []
        assert await gang.run("double", n=2) == [4, 4] and await lease.call("double", n=4) == 8


async def test_a_worker_reports_only_for_members_that_it_has(site_of):
    site = await gang_site(site_of)
    alice, w1 = await site.client("alice"), await site.bus("w1")
    async with alice.gang(pool="images", size=2, strategy="strict_spread", restart="fail") as gang:
        (rank,) = (member.rank for member in gang.members if member.worker == "images.w2")
        forged = {"gang": gang.id, "generation": 1, "rank": rank, "cause": "crashed", "detail": "forged by w1"}
        for subject in ("gangline.gang.report", "gangline.gang.report.images.w2"):
            with pytest.raises(NotPermitted):
                await ask(w1, subject, **forged)
        assert await ask(w1, "gangline.gang.report.images.w1", **forged) == {"known": False}
        assert await gang.run("double", n=2) == [4, 4]
        assert (gang.generation, len(await site.refused())) == (1, 2)
        own = {**forged, "rank": 1 - rank, "detail": "its own"}
        assert await ask(w1, "gangline.gang.report.images.w1", **own) == {"known": True}
        with pytest.raises(GangFailed, match="its own"):
            await gang.ready()
            await gang.run("wait")


BILLING = Pool("billing", slots=2)


@BILLING.task
async def whose() -> str:
    return "bob was here"


async def tenants(site_of: Any) -> tuple[Site, NatsBus, NatsBus]:
    """Alice, who submits to images, and bob, who submits to billing."""
    users = ("dispatcher", "operator", "worker", "alice=producer:images", "bob=producer:billing")
    site: Site = site_of(cut(*users))
    await site.dispatcher()
    await site.worker()
    await site.worker("b1", pool=BILLING)
    return site, await site.bus("alice"), await site.bus("bob")


async def publish(bus: NatsBus, target: str, **fields: str) -> dict[str, Any]:
    """Submit by hand; the answer is the publish ack."""
    given = {name.replace("_", "-"): text for name, text in fields.items()}
    answer = await bus.request(f"gangline.task.{target}", b"", headers=given, timeout_s=PATIENCE_S)
    found = json.loads(answer.data)
    assert isinstance(found, dict)
    return found


async def test_nobody_elses_job_takes_the_place_of_mine(site_of):
    site, _, bob = await tenants(site_of)
    alice = await site.client("alice")
    key = alice.options(idempotency_key="invoice-4711")
    id = job_of_key("images.double", "invoice-4711")
    assert id.startswith("images.")
    # The ids that alice's submission is going to have are no secret.
    for msg_id in (id, f"{id}-1"):
        ack = await publish(bob, "billing.whose", Nats_Msg_Id=msg_id, Gangline_Job=id)
        assert "duplicate" not in ack
    job = await key.submit("images.double", n=4)
    assert (job.id, await job.result(timeout_s=PATIENCE_S)) == (id, 8)
    again = await key.submit("images.double", n=4)
    assert await again.result(timeout_s=PATIENCE_S) == 8
    assert (await (await site.client("operator")).job(id).status()).endpoint == "images"
    letters = await (await site.client("operator")).dead_letters("billing")
    assert {letter.reason for letter in letters} == {"malformed"} and len(letters) == 2
    assert await site.refused() == []


async def test_an_id_that_names_no_endpoint_is_shared_and_yet_each_task_runs_and_has_its_result(site_of):
    site, alice, bob = await tenants(site_of)
    await publish(bob, "billing.whose", Gangline_Job="order-7")
    operator = await site.client("operator")
    assert await operator.job("order-7", "billing").result(timeout_s=PATIENCE_S) == "bob was here"
    await publish(alice, "images.report", Gangline_Job="order-7")
    assert await operator.job("order-7", "images").result(timeout_s=PATIENCE_S) == "done"
    await publish(alice, "images.report", Gangline_Job="images.4712")
    assert await operator.job("images.4712").result(timeout_s=PATIENCE_S) == "done"
    results = await alice.bucket(Names().results_bucket, BucketSettings(storage=Storage.FILE))
    assert json.loads((await results.get("result.images.4712")).value)["result"] == "done"
