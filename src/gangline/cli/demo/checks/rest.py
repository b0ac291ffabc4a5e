"""Checks that everything is zero when nothing is held: each worker is asked, the ledger and the gauges are read."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from ....dispatcher.client.client import Client
from ....schemas.errors.base import NoWorkers
from ....schemas.records.gangs import GangRecord, GangState
from ..fixtures.stage import Stage
from .calls import AtRest

REST_S: Final = 30.0
"""Heartbeats report the load once a second, so rest becomes visible with a delay; the heartbeat of a killed worker
expires after three seconds. All of this takes longer on a busy machine."""


async def limiters(client: Client, pool: str) -> dict[str, tuple[int, int]]:
    """Running and reserved slots of every living worker, as it reports them. A killed worker stays listed for three
    seconds, but has no slots."""
    found = {}
    for info in await client.workers(pool):
        with contextlib.suppress(NoWorkers):
            stats = await client.stats(info.name)
            found[info.registration.worker] = (stats.load.running, stats.load.reserved)
    return found


async def at_rest(stage: Stage, pool: str) -> AtRest:
    """Wait briefly for everything to be zero, and return the final state."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + REST_S
    while True:
        rest = await _look(stage, pool)
        same = rest.limiters.keys() == rest.heartbeats.keys()
        quiet = same and not rest.ledger and all(load == (0, 0) for load in rest.heartbeats.values())
        if quiet or clock() > deadline:
            return rest
        await asyncio.sleep(0.1)


async def _look(stage: Stage, pool: str) -> AtRest:
    client, ledger, names = stage.client, stage.ledger, stage.names
    workers = await client.workers(pool)
    leases = [lease.token for lease in await client.leases(pool)]
    members = [entry.key for entry in await ledger.entries(names.members_of(pool))]
    gangs = [GangRecord.model_validate_json(entry.value) for entry in await ledger.entries(names.gang_key())]
    standing = [f"gang {gang.id}, {gang.state.value}" for gang in gangs if gang.state is not GangState.ENDED]
    return AtRest(
        limiters=await limiters(client, pool),
        heartbeats={w.registration.worker: (w.heartbeat.running, w.heartbeat.reserved) for w in workers},
        ledger=[*leases, *members, *standing],
        gauges=stage.gauges.read(),
    )
