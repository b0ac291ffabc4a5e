"""Tenants whose submitted tasks wait for the same slots take turns, however many tasks each has in the queue."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NoResponders
from gangline.worker.pool.pool import Pool

from ..waiting import PATIENCE_S, until
from .conftest import SERVERS, Site

pytestmark = pytest.mark.server

USERS = (*SERVERS, "web@shop=producer:images", "batch@lab=producer:images")
WINDOW = 8
EACH = 3 * WINDOW
"""Tasks of each tenant: those of one alone fill the window several times."""


@pytest.fixture
def tenants(site_in_form) -> Site:
    site: Site = site_in_form(*USERS)
    return site


async def is_known(bus: NatsBus, sequence: int) -> bool:
    """Whether the dispatcher has read this task of the tenant that asks."""
    try:
        answer = await bus.request("gangline.queue.images.list", b"", timeout_s=PATIENCE_S)
    except NoResponders:
        return False  # no dispatcher has the queue yet
    reply = json.loads(answer.data)
    return any(job["sequence"] == sequence for job in (*reply["jobs"], *reply["ahead"]))


@pytest.mark.parametrize("weight", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_two_tenants_that_each_fill_the_whole_window_start_tasks_in_turn(tenants: Site, weight: int):
    starts: list[str] = []
    ends = asyncio.Semaphore(0)
    pool = Pool("images", slots=1)

    @pool.task
    async def note(tenant: str) -> None:
        starts.append(tenant)
        await ends.acquire()

    buses = {"lab": await tenants.bus("batch"), "shop": await tenants.bus("web")}
    await tenants.make_ledger()
    await tenants.dispatcher(f"lab:weight={weight}", window_tasks=WINDOW)
    stored: dict[str, list[int]] = {"lab": [], "shop": []}
    for tenant, bus in buses.items():  # all of one before the first of the other
        for _ in range(EACH):
            body = json.dumps([tenant]).encode()
            answer = await bus.request("gangline.task.images.note", body, timeout_s=PATIENCE_S)
            stored[tenant].append(json.loads(answer.data)["seq"])
    assert max(stored["lab"]) < min(stored["shop"])

    async def the_next_of_both_are_known() -> bool:
        following = {tenant: stored[tenant][starts.count(tenant) :][:1] for tenant in stored}
        return all([await is_known(buses[tenant], each) for tenant, found in following.items() for each in found])

    await tenants.worker(pool=pool)
    for count in range(1, 2 * EACH + 1):
        await until(lambda count=count: len(starts) >= count)
        await until(the_next_of_both_are_known)
        assert len(starts) == count, "one slot, one task"
        lab, shop = starts.count("lab") - 1, starts.count("shop")  # the first started while nobody else was known
        if lab < EACH - 1 and shop < EACH:
            assert abs(lab / weight - shop) <= 1, starts
        ends.release()
    assert [starts.count(tenant) for tenant in stored] == [EACH, EACH]
    assert await tenants.refused() == []
