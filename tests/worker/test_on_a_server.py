"""A worker on a real nats-server: what only a real one can show."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.runtime.rate import burst_of
from gangline.schemas.errors.base import Disconnected, WorkerIdTaken
from gangline.schemas.names import Names, public_id
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp, ReserveFlag
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker
from gangline.worker.slots.method_limits import MethodLimit

from ..support.worker.on_server import WorkerOnServer
from ..support.worker.rig import reserve, task
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


async def test_the_ledger_shows_each_grant_and_its_end_in_order(nats_url: str, namespace: str):
    """Within which time (L6) is checked on virtual time, in test_ledger."""
    async with real(nats_url, namespace) as rig:
        seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        watch = await rig.kv.watch(
            "lease.*.*.*", lambda entry: seen.put_nowait((entry.operation, entry.key.rpartition(".")[2]))
        )
        for number in range(1, 21):
            token = await rig.hand.grant(number, claim_ms=60_000)
            assert await asyncio.wait_for(seen.get(), PATIENCE_S) == ("put", public_id(token)[1:])
            rig.hand.send((int(RequestOp.RELEASE), None, token))
            assert await asyncio.wait_for(seen.get(), PATIENCE_S) == ("delete", public_id(token)[1:])
        await watch.unsubscribe()
        assert seen.empty()


async def test_a_sync_lease_is_fenced_by_a_revision_that_grows_over_all_workers(nats_url: str, namespace: str):
    async with real(nats_url, namespace) as rig:
        first = await rig.hand.ask(*reserve(1, claim_ms=30_000, flags=ReserveFlag.SYNC))
        entry = await rig.kv.get(rig.names.lease_key(rig.worker.id, first[2]))
        assert entry is not None
        assert first[3] == entry.revision
        rig.worker = await rig.new_worker(id="w2")
        await rig.worker.start()
        second = await (await rig.new_hand()).ask(*reserve(1, claim_ms=30_000, flags=ReserveFlag.SYNC))
        assert second[3] > first[3]


async def test_two_workers_with_one_id_cannot_both_serve(nats_url: str, namespace: str):
    async with real(nats_url, namespace) as rig:
        second = await rig.new_worker()
        with pytest.raises(WorkerIdTaken):
            await second.start()
        assert (await rig.value("reg.images.w1"))["instance"] == rig.worker.instance
        assert await rig.hand.ask(*task(1, "double", [4])) == [OK, 1, 8]


async def test_the_successor_of_a_crashed_worker_takes_over_when_its_heartbeat_has_expired(
    nats_url: str, namespace: str
):
    async with real(nats_url, namespace) as rig:
        await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
        await until(rig.has_leases(1))
        before = rig.worker.core.epoch
        await rig.worker.abort()
        rig.worker = await rig.new_worker()
        await rig.worker.start()
        assert rig.worker.core.epoch > before
        hand = await rig.new_hand()
        assert await hand.ask(*task(1, "double", [4])) == [OK, 1, 8]
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


async def test_answers_that_fell_into_a_disconnection_come_afterwards(nats_server: Any, namespace: str):
    async with real(nats_server.url, namespace) as rig:
        rig.hand.send(task(1, "wait", ["x"], deadline_ms=60_000))
        await until(lambda: rig.gates.started)
        await asyncio.to_thread(nats_server.kill)
        rig.gates.open.set()
        await until(lambda: not rig.worker.core.load.running)
        await asyncio.to_thread(nats_server.start)
        await until(lambda: rig.hand.bus.connected)
        # It may have been sent while the hand was still away; then it is asked for, as routers do.
        numbers = itertools.count(100)

        def answered() -> bool:
            with contextlib.suppress(Disconnected):
                rig.hand.send((int(RequestOp.CHECK), next(numbers), [1]))
            return bool(rig.hand.answers_to(1))

        await until(answered)
        assert rig.hand.answers_to(1)[0] == [OK, 1, "x done"]


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


async def test_a_drain_under_load_loses_no_answer(nats_url: str, namespace: str):
    async with real(nats_url, namespace, slots=8) as rig:
        for number in range(8):
            rig.hand.send(task(number, "wait", [str(number), 0.2]))
        await until(lambda: len(rig.gates.started) == 8)
        await rig.worker.drain(PATIENCE_S)
        for number in range(8):
            assert await rig.hand.answer(number) == [OK, number, f"{number} done"]
        assert await rig.keys(">") == []


async def test_a_hundred_leases_come_and_go_and_the_ledger_ends_empty(nats_url: str, namespace: str):
    async with real(nats_url, namespace, slots=100) as rig:
        rig.hand.send(*(reserve(number, claim_ms=30_000) for number in range(100)))
        await rig.hand.answer(99)
        await until(rig.has_leases(100))
        tokens = [answer[2] for answer in rig.hand.answers]
        rig.hand.send(*((int(RequestOp.RELEASE), None, token) for token in tokens))
        await until(rig.at_rest)


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
