"""Workers that are only registered: their records and heartbeats are in the ledger, but there is no process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gangline.bus.port.bus import KeyValue, KvWrite
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.workers import Heartbeat, Registration

_BEAT_S = 2.0
_BEAT_TTL_S = 6.0
_SLICES = 20
"""The heartbeats are spread over this many moments, like those of real workers."""


@asynccontextmanager
async def crowd(ledger: KeyValue, names: Names, pool: str, count: int) -> AsyncIterator[None]:
    """`count` workers in that pool, each with 4 idle slots."""
    workers = [WorkerId(pool, f"crowd{number}") for number in range(count)]
    await ledger.write([_registration(names, worker) for worker in workers])
    await ledger.write([_heartbeat(names, worker) for worker in workers])
    beating = asyncio.ensure_future(_beat(ledger, names, workers))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await ledger.write([KvWrite(key=names.alive_key(worker), value=None) for worker in workers])
        await ledger.write([KvWrite(key=names.registration_key(worker), value=None) for worker in workers])


async def _beat(ledger: KeyValue, names: Names, workers: list[WorkerId]) -> None:
    while True:
        for part in range(_SLICES):
            await ledger.write([_heartbeat(names, worker) for worker in workers[part::_SLICES]])
            await asyncio.sleep(_BEAT_S / _SLICES)


def _registration(names: Names, worker: WorkerId) -> KvWrite:
    record = Registration(
        pool=worker.pool, worker=worker.worker, epoch=1, instance=worker.worker, slots=4, node=worker.worker
    )
    return KvWrite(key=names.registration_key(worker), value=record.model_dump_json().encode(), ttl_s=600)


def _heartbeat(names: Names, worker: WorkerId) -> KvWrite:
    record = Heartbeat(epoch=1, instance=worker.worker, running=0, reserved=0, total=4)
    return KvWrite(key=names.alive_key(worker), value=record.model_dump_json().encode(), ttl_s=_BEAT_TTL_S)
