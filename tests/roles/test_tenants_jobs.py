"""Ids of jobs belong to their tenant: two tenants that share an endpoint and give their jobs the same ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.board.shares import why_job
from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import BucketSettings, NoResponders, Stream
from gangline.dispatcher.jobs.submitter import job_of_key
from gangline.schemas.errors.base import UnknownJob
from gangline.schemas.names import Names, job_of_tenant
from gangline.schemas.records.jobs import JobState, ResultRecord

from ..waiting import PATIENCE_S, until, until_read
from .conftest import SERVERS, Site, ask

pytestmark = pytest.mark.server

USERS = (*SERVERS, "own=producer:images", "web@shop=producer", "batch@lab=producer")
TENANTS = {"own": "", "web": "shop", "batch": "lab"}
"""By user."""


@pytest.fixture
def tenants(site_in_form) -> Site:
    site: Site = site_in_form(*USERS)
    return site


def full(job: str, user: str) -> str:
    """The id in Gangline's account."""
    tenant = TENANTS[user]
    return job_of_tenant(job, "images", tenant) if tenant else job


async def publish(bus: NatsBus, method: str, *arguments: Any, job: str = "images.order-7", **headers: str) -> int:
    """What the `nats` CLI does; the sequence that it is told."""
    given = {"Gangline-Job": job} | {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(arguments).encode()
    answer = await bus.request(f"gangline.task.images.{method}", body, headers=given, timeout_s=PATIENCE_S)
    return int(json.loads(answer.data)["seq"])


async def result(bus: NatsBus, user: str) -> Any:
    """Of order-7, as a client that knows nothing but its account waits for it."""
    found: list[ResultRecord] = []
    results = await bus.bucket(Names().results_bucket, BucketSettings(), make=False)

    async def told() -> bool:
        try:
            answer = await ask(bus, "gangline.queue.images.wait", jobs=["images.order-7"], wait_s=5)
        except NoResponders:
            return False  # no dispatcher has the queue yet
        found.extend(ResultRecord.model_validate(each) for each in answer.get("results", ()))
        assert {record.job for record in found} <= {"images.order-7"}, "it is told under the id that it knows"
        entry = await results.get(Names().result_key(full("images.order-7", user)))
        if entry is not None:
            found.append(ResultRecord.read(entry.value))
        return bool(found)

    await until(told)
    return found[0].result


async def buses(site: Site) -> dict[str, NatsBus]:
    return {user: await site.bus(user) for user in TENANTS}


async def opened(site: Site, *, stream: str) -> Stream:
    operator = await site.client("operator")
    found: Stream = await getattr(operator._submitter._streams, stream)()
    return found


async def test_tenants_that_choose_the_same_id_have_a_job_and_a_result_each(tenants: Site):
    await tenants.everything()
    users = await buses(tenants)
    for number, bus in enumerate(users.values(), 1):
        await publish(bus, "double", number)
    for number, (user, bus) in enumerate(users.items(), 1):
        assert await result(bus, user) == 2 * number
        client = await tenants.client(user)
        assert await client.job("images.order-7").result(timeout_s=PATIENCE_S) == 2 * number
        operator = await tenants.client("operator")
        assert await operator.job(full("images.order-7", user)).result(timeout_s=PATIENCE_S) == 2 * number
    assert await tenants.refused() == []


async def test_a_tenant_neither_sees_nor_cancels_the_job_of_another_whatever_it_calls_it(tenants: Site):
    await tenants.everything()
    users = await buses(tenants)
    for user in ("own", "web"):
        await publish(users[user], "wait")
        await until(lambda user=user: _runs(users[user]))
    for job in ("images.order-7", full("images.order-7", "web")):
        for operation in ("get", "why", "cancel"):
            told = await ask(users["batch"], f"gangline.queue.images.{operation}", job=job)
            assert told["code"] == "unknown_job", (operation, job, told)
        with pytest.raises(UnknownJob):
            await (await tenants.client("batch")).job(job).cancel()
    listed = {
        user: [each["job"] for each in (await ask(users[user], "gangline.queue.images.list"))["jobs"]] for user in users
    }
    assert listed == {
        "own": ["images.order-7", full("images.order-7", "web")],
        "web": [full("images.order-7", "web")],
        "batch": [],
    }
    assert (await ask(users["web"], "gangline.queue.images.cancel", job="images.order-7"))["cancelled"]
    assert await _runs(users["own"]), "the job of that id in our own account goes on"
    assert await tenants.refused() == []


async def _runs(bus: NatsBus) -> bool:
    try:
        told = await ask(bus, "gangline.queue.images.get", job="images.order-7")
    except NoResponders:
        return False
    return bool(told.get("state") == "running")


async def test_a_tenant_that_asks_what_its_job_waits_for_is_not_told_who_has_the_slots(tenants: Site):
    """It may not read the ledger. The server refuses that once, and nothing waits for it."""
    await tenants.everything()
    client = await tenants.client("web")
    jobs = [await client.submit("images.wait") for _ in range(9)]
    await until_read(jobs[7].status, lambda status: status.state == "running")
    why = await why_job(client, jobs[8])
    assert [obstacle.kind for obstacle in why.obstacles] == ["slots"] and why == await jobs[8].why()
    (refused,) = await tenants.refused()
    assert "STREAM.INFO.KV_GANGLINE_LEDGER" in refused


async def test_the_result_of_another_account_is_not_that_of_a_tenants_job(tenants: Site):
    await tenants.everything()
    users = await buses(tenants)
    await publish(users["own"], "double", 1)
    assert await result(users["own"], "own") == 2
    client = await tenants.client("web")
    with pytest.raises(UnknownJob):
        await client.job("images.order-7").result(timeout_s=PATIENCE_S)
    with pytest.raises(UnknownJob):
        await client.job("images.order-7").status()


async def test_delayed_tasks_of_the_same_id_do_not_replace_each_other(tenants: Site):
    await tenants.everything()
    users = await buses(tenants)
    for user in ("web", "batch"):
        await publish(users[user], "double", 0, job="images.later", Gangline_Delay="1h")
    schedules = await opened(tenants, stream="schedules")

    await until_read(lambda: schedules.state("gangline.sched.>"), lambda state: len(state.subjects) == 2)
    for number, user in enumerate(("web", "batch"), 1):
        await publish(users[user], "double", number, Gangline_Delay="1")
    for number, user in enumerate(("web", "batch"), 1):
        assert await result(users[user], user) == 2 * number


async def test_a_named_schedule_belongs_to_its_tenant_and_replaces_that_of_an_earlier_dispatcher(tenants: Site):
    await tenants.everything()
    schedules = await opened(tenants, stream="schedules")
    names, earlier = Names(), job_of_key("images.double", "nightly")
    given = {
        "Gangline-Paused": "2026-01-01T00:00:00Z",
        "Gangline-Cron": "0 0 3 * * *",
        "Gangline-Subject": "gangline.task.images.double.@lab",
    }
    await schedules.publish(names.schedule(earlier), b"[1]", headers=given)

    async def stored() -> set[str]:
        return {names.parse_schedule(subject) for subject in (await schedules.state(names.schedules)).subjects}

    jobs: dict[str, str] = {}
    for user, replaced in (("web", {earlier}), ("batch", set[str]()), ("own", set[str]())):
        named = (await tenants.client(user)).options(cron="0 0 3 * * *", idempotency_key="nightly")
        jobs[user] = (await named.submit("images.double", 1)).id

        await until_read(stored, {*jobs.values(), *replaced}.__eq__)
    assert jobs == {user: full(earlier, user) for user in jobs}
    operator = await tenants.client("operator")
    paused = {each.id: each.paused for each in await operator.schedules()}
    assert paused == {jobs["web"]: False, jobs["batch"]: True, jobs["own"]: False}


async def test_a_result_that_an_earlier_dispatcher_stored_stays_readable_and_its_key_used(tenants: Site):
    await tenants.everything()
    web = await tenants.client("web")
    key = job_of_key("images.double", "order-7", "shop")
    operator = await tenants.bus("operator")
    results = await operator.bucket(Names().results_bucket, BucketSettings(), make=False)
    for job in (key, "images.jV1StGX8xT0a3Zk29qLw7uA"):
        record = ResultRecord(job=job, endpoint="images", method="double", state=JobState.DONE, result=job)
        await results.put(Names().result_key(job), record.model_dump_json().encode())
        assert await web.job(job).result(timeout_s=PATIENCE_S) == job
    again = await web.options(idempotency_key="order-7").submit("images.double", 1)
    assert again.id == full(key, "web")
    assert await (await tenants.client("web")).job(again.id).result(timeout_s=PATIENCE_S) == key
    tasks = await opened(tenants, stream="tasks")
    assert (await tasks.state()).last_sequence == 0, "it is not submitted again"
