"""A worker on a real nats-server: what only a real one can show."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.runtime.rate import burst_of
from gangline.schemas.names import Names
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp, ReserveFlag
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker
from gangline.worker.slots.method_limits import MethodLimit

from ..support.worker.on_server import WorkerOnServer
from ..support.worker.rig import task
from ..waiting import PATIENCE_S, until

pytestmark = pytest.mark.server

OK, ERROR, GRANTED, REJECTED = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.GRANTED, AnswerOp.REJECTED


real = WorkerOnServer.started


async def test_calls_leases_and_single_use_tokens_leave_nothing_behind(nats_url: str, namespace: str):
    async with real(nats_url, namespace) as rig:
        assert await rig.hand.ask(*task(1, "double", [4])) == [OK, 1, 8]
        lease = await rig.hand.grant(2, claim_ms=30_000)
        once = await rig.hand.grant(3, claim_ms=30_000, flags=ReserveFlag.SINGLE_USE)
        assert await rig.hand.ask(*task(4, "double", [5], token=once)) == [OK, 4, 10]
        assert await rig.hand.ask(*task(5, "double", [6], token=lease)) == [OK, 5, 12]
        key = rig.names.lease_key(rig.worker.id, lease)

        async def only_the_lease() -> bool:
            return await rig.keys() == [key]

        await until(only_the_lease)
        record = await rig.value(key)
        assert (record["epoch"], record["slots"], record["single_use"]) == (rig.worker.core.epoch, 1, False)
        rig.hand.send((int(RequestOp.RELEASE), None, lease))
        await until(rig.at_rest)


async def test_after_a_server_restart_everything_is_recorded_again_and_no_slot_leaks(nats_server: Any, namespace: str):
    async with real(nats_server.url, namespace) as rig:
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


@pytest.mark.parametrize("fmt", list(Format), ids=["json", "msgpack"])
async def test_another_language_can_do_everything_with_plain_requests(nats_url: str, namespace: str, fmt: Format):
    async with real(nats_url, namespace) as rig:
        body, _ = await rig.hand.request("reserve", {"slots": 1, "ttl_s": 60, "owner": "shell"}, fmt)
        token = body["token"]
        await until(rig.has_leases(1))
        assert (await rig.hand.request("dispatch", {"token": token, "method": "double", "arguments": [21]}, fmt))[
            0
        ] == 42
        assert (await rig.hand.request("renew", {"token": token}, fmt))[0]["ttl_s"] == 60.0
        stats, _ = await rig.hand.request("stats", None, fmt)
        assert stats["leases"][0]["owner"] == "shell"
        answer, headers = await rig.hand.request("dispatch", {"token": token, "method": "fail"}, fmt)
        assert headers["Nats-Service-Error-Code"] == "500"
        assert answer["code"] == "task_failed"
        assert (await rig.hand.request("release", {"token": token}, fmt))[0]["released"] is True
        assert (await rig.hand.request("resize", {"slots": 7}, fmt))[0]["load"]["total"] == 7
        await until(rig.at_rest)
        assert (await rig.hand.request("drain", {}, fmt))[0]["draining"] is True
        await asyncio.wait_for(rig.worker.wait_closed(), PATIENCE_S)
        assert await rig.keys(">") == []


async def test_a_rate_holds_over_several_workers(nats_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch):
    admitted: list[float] = []
    begin = MethodLimit.begin

    def recorded(self: MethodLimit, record: object, key: str | None, now: float) -> None:
        admitted.append(now)
        begin(self, record, key, now)

    monkeypatch.setattr(MethodLimit, "begin", recorded)
    rate, count = 20.0, 12
    async with contextlib.AsyncExitStack() as stack:
        pools = [Pool("p", slots=count) for _ in range(3)]
        for number, pool in enumerate(pools):

            @pool.task(rate_per_s=rate)
            async def work() -> None:
                """It is admitted, and that counts."""

            bus = await connect(ConnectionSettings.from_url(nats_url), name=f"worker {number}")
            stack.push_async_callback(bus.close)
            settings = WorkerSettings(id=f"w{number}")
            worker = Worker(pool, bus=bus, names=Names(namespace), settings=settings)
            stack.push_async_callback(worker.stop)
            await worker.start()
        bus = await connect(ConnectionSettings.from_url(nats_url), name="client")
        stack.push_async_callback(bus.close)
        client = await stack.enter_async_context(Client(bus, names=Names(namespace)))
        patient = client.options(timeout_s=PATIENCE_S)
        await asyncio.gather(*(patient.call("p.work") for _ in range(count)))
        seen = [entry.key for entry in await (await client.router.ledger()).entries("limit.p.*")]
    assert seen == ["limit.p.work=rate"] and len(admitted) == count
    for first, earlier in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= burst_of(rate) + rate * (admitted[last] - earlier) + 1e-6
