"""A worker on a real nats-server: what only a real one can show."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp

from ..support.worker.on_server import WorkerOnServer
from ..support.worker.rig import task
from ..waiting import until

pytestmark = pytest.mark.server

OK = AnswerOp.OK


async def test_after_a_server_restart_everything_is_recorded_again_and_no_slot_leaks(nats_server: Any, namespace: str):
    async with WorkerOnServer.started(nats_server.url, namespace) as rig:
        lease = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
        rig.hand.send(task(2, "wait", ["through"], deadline_ms=60_000))
        await until(rig.has_leases(1))
        epoch = rig.worker.core.epoch
        await asyncio.to_thread(nats_server.kill)
        await until(lambda: not rig.worker.bus.connected)
        await asyncio.to_thread(nats_server.start)

        async def all_back() -> bool:
            with contextlib.suppress(Exception):
                keys = await rig.keys("*.images.>")
                return sorted(keys) == ["alive.images.w1", rig.names.lease_key(rig.worker.id, lease), "reg.images.w1"]
            return False

        await until(all_back)
        await until(lambda: rig.hand.bus.connected)
        assert rig.worker.core.epoch == epoch, "the process did not freeze: what was granted still holds"
        assert rig.worker.core.load == Load(1, 1, 2)
        assert await rig.hand.ask(*task(3, "double", [4], token=lease)) == [OK, 3, 8]
        rig.gates.open.set()
        assert await rig.hand.answer(2) == [OK, 2, "through done"]
        rig.hand.send((int(RequestOp.RELEASE), None, lease))
        await until(rig.at_rest)
