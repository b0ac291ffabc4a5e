"""What users who may read the ledger, list gangs or serve tasks can do with what they learn: nothing to others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import NotPermitted
from gangline.schemas.errors.base import GangFailed

from ..waiting import PATIENCE_S
from .conftest import Site, cut

pytestmark = pytest.mark.server

USERS = (
    *("producer", "coordinator", "dispatcher", "operator"),
    *("w1=worker:images.w1", "w2=worker:images.w2", "alice=router+producer", "bob=router+producer"),
)


async def ask(bus: NatsBus, subject: str, **body: Any) -> dict[str, Any]:
    """A bare request in JSON; an error is returned like any answer."""
    answer = await bus.request(subject, json.dumps(body).encode(), timeout_s=PATIENCE_S)
    found = json.loads(answer.data)
    assert isinstance(found, dict)
    return found


async def gang_site(site_of: Any) -> Site:
    site: Site = site_of(cut(*USERS))
    await site.coordinator()
    for id in ("w1", "w2"):
        await site.worker(id, user=id)
    return site


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
