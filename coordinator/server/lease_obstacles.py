"""Which leases stand in a gang's way: the core knows how many slots are in use, the ledger knows by whom."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from ...bus.port.bus import KeyValue
from ...schemas.messages.gangs import GangObstacle, GangWhyReply
from ...schemas.names import Names, WorkerId
from ...schemas.public_id import public_id
from ...schemas.records.workers import LeaseRecord
from ...telemetry.logs import Log
from ..ledger.reader import parse

_MOST_WORKERS: Final = 64
"""Whose leases are looked up; for more, the number of slots must do."""


async def name_leases(
    kv: KeyValue, names: Names, reply: GangWhyReply, *, members: Set[str], wall: float, log: Log
) -> GangWhyReply:
    """`reply` with leases, each with its end, in place of the lines that only say how many slots are in use.

    Args:
        members: tokens of gangs, which the reply has already.
        wall: Unix time now.

    Raises:
        Unavailable: the ledger cannot be read.
    """
    unnamed = {WorkerId(item.pool, item.worker): item.slots for item in reply.obstacles if item.holder == "tasks"}
    asked = list(unnamed)[:_MOST_WORKERS]
    if not asked:
        return reply
    leases: dict[WorkerId, list[GangObstacle]] = {worker: [] for worker in asked}
    for entry in await kv.entries(*(names.leases_of(worker.pool, worker.worker) for worker in asked)):
        lease = parse(LeaseRecord, entry, log)
        if lease is None or lease.token in members:
            continue
        worker = WorkerId(lease.pool, lease.worker)
        leases.setdefault(worker, []).append(
            GangObstacle(
                pool=lease.pool,
                worker=lease.worker,
                holder=f"lease {public_id(lease.token)}",
                slots=lease.slots,
                owner=lease.owner,
                ends_in_s=round(max(0.0, lease.expires_at - wall), 3),
            )
        )
    found: list[GangObstacle] = []
    for item in reply.obstacles:
        worker = WorkerId(item.pool, item.worker)
        if item.holder != "tasks" or worker not in leases:
            found.append(item)
            continue
        found += leases[worker]
        rest = item.slots - sum(lease.slots for lease in leases[worker])
        if rest > 0:
            found.append(item.model_copy(update={"slots": rest}))
    return reply.model_copy(update={"obstacles": tuple(found)})
