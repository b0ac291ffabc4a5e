"""Who serves a pool: pulled, followed, reconciled, and never forgotten because a query failed."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from gangline.bus.memory.faults import FaultRates, RandomFaults
from gangline.bus.port.bus import Conflict
from gangline.schemas.errors.base import ClosedError, Disconnected, Unavailable
from gangline.schemas.records.workers import MethodInfo
from gangline.schemas.wire.frames import AnswerOp, Load, RequestOp

from ...support.dispatcher.fakes import Rig, silent, turns


def known(rig: Rig, pool: str = "images") -> dict[str, Any]:
    return dict(rig.router.pools[pool].core.view.workers)


async def test_a_client_far_from_the_server_calls_at_once_though_workers_beat_fast(rig: Rig) -> None:
    for number in range(60):
        await rig.worker(f"w{number}")
        await asyncio.sleep(1 / 60)
    rig.hub.faults = RandomFaults(random.Random(11), FaultRates(latency_s=0.025, distance_s=0.05))
    async with asyncio.timeout(2):
        await rig.client.call("images.echo")
    assert len(known(rig)) == 60
    # Restarts of all workers at once are read together, too.
    rig.hub.faults = None
    for worker in rig.workers:
        worker.instance += "-again"
        worker.epoch += 1
        await worker.register()
    rig.hub.faults = RandomFaults(random.Random(11), FaultRates(latency_s=0.025, distance_s=0.05))
    await asyncio.sleep(2)
    assert all(worker.instance.endswith("-again") for worker in known(rig).values())


async def test_no_storage_is_touched_before_the_first_request(rig: Rig) -> None:
    fresh = Rig()
    fresh.hub = rig.hub
    rig.hub.storage_up = False
    await fresh.client.start()
    await fresh.client.close()
    rig.hub.storage_up = True
    assert rig.router.pools == {}


async def test_a_registration_without_a_heartbeat_is_of_a_dead_worker(rig: Rig) -> None:
    dead = await rig.worker("w1")
    await dead.die()
    await asyncio.sleep(4)
    await rig.known_worker("w2")
    assert set(known(rig)) == {"w2"}


async def test_changes_are_seen_as_they_happen(rig: Rig) -> None:
    one = await rig.known_worker("w1")
    await rig.worker("w2")
    await turns()
    assert set(known(rig)) == {"w1", "w2"}
    one.slots, one.methods = 9, {"echo": MethodInfo(), "new": MethodInfo()}
    await one.register()
    await turns()
    assert known(rig)["w1"].total == 9 and "new" in known(rig)["w1"].methods
    await one.leave()
    await turns()
    assert set(known(rig)) == {"w2"}


async def test_a_deletion_that_storage_refuses_removes_no_worker(rig: Rig) -> None:
    worker = await rig.known_worker("w1")
    before = known(rig)["w1"]
    for key in (rig.names.alive_key(worker.id), rig.names.registration_key(worker.id)):
        with pytest.raises(Conflict):
            await rig.kv.delete(key, revision=1)
    await turns()
    assert known(rig) == {"w1": before} and before.eligible
    assert await rig.client.call("images.echo") == ["w1", "echo"]
    await worker.leave()
    await turns()
    assert known(rig) == {}


async def test_a_deletion_that_cannot_be_checked_removes_no_worker_while_its_heart_beats(rig: Rig) -> None:
    worker = await rig.known_worker("w1")
    rig.hub.storage_down()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await rig.kv.delete(rig.names.registration_key(worker.id), revision=1)
    await asyncio.sleep(30.0)
    assert set(known(rig)) == {"w1"}
    rig.hub.storage_back()


async def test_heartbeats_carry_the_load(rig: Rig) -> None:
    worker = await rig.known_worker(slots=5)
    worker.load = Load(3, 1, 5)
    await asyncio.sleep(1.1)
    assert known(rig)["w1"].ongoing == 4


async def test_a_failing_pull_removes_nothing_and_heartbeats_go_on_counting(rig: Rig) -> None:
    await rig.known_worker()
    rig.hub.storage_up = False
    for _ in range(20):
        await asyncio.sleep(0.9)
        for worker in rig.workers:  # writes fail, but pass by
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await worker.beat()
        assert set(known(rig)) == {"w1"}
        if len(rig.workers) > 1:
            break
    rig.hub.storage_up = True


async def test_a_call_made_while_storage_is_away_waits_for_it(rig: Rig) -> None:
    await rig.worker()
    rig.hub.storage_up = False
    with pytest.raises(Unavailable) as caught:
        await rig.client.options(timeout_s=2).call("images.echo")
    assert not caught.value.may_have_started
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(3)
    rig.hub.storage_up = True
    for worker in rig.workers:
        worker.stop_beating()
        worker._beats = asyncio.ensure_future(worker._beat_on())
        await worker.register()
    assert await call == ["w1", "echo"]


async def test_a_first_call_without_a_connection_says_so_at_its_deadline(rig: Rig) -> None:
    rig.hub.disconnect(rig.bus)
    with pytest.raises(Disconnected):
        await rig.client.options(timeout_s=2).call("images.echo")


async def test_unreadable_records_are_left_aside(rig: Rig) -> None:
    await rig.worker("w1")
    for key, value in (("reg.images.bad", b"{"), ("alive.images.bad", b"[]"), ("reg.images.odd", b'{"pool": "x"}')):
        await rig.kv.put(key, value)
    assert await rig.client.call("images.echo") == ["w1", "echo"]
    await rig.kv.put("reg.images.w1", b"nonsense")
    await rig.kv.put("alive.images.w1", b"nonsense", ttl_s=3)
    await turns()
    assert await rig.client.call("images.echo") == ["w1", "echo"]


async def test_what_was_missed_while_disconnected_is_pulled_on_reconnection(rig: Rig) -> None:
    await rig.worker("w1", silent)
    await rig.router.pool("images")
    rig.hub.disconnect(rig.bus)
    await rig.worker("w2")
    await asyncio.sleep(1)
    assert set(known(rig)) == {"w1"}
    rig.hub.reconnect(rig.bus)
    await turns(50)
    assert set(known(rig)) == {"w1", "w2"}


async def test_a_change_whose_news_got_lost_is_found_by_reconciling(rig: Rig) -> None:
    worker = await rig.worker()
    await rig.router.pool("images")
    pool = rig.router.pools["images"]
    await pool.discovery.informer._unsubscribe()  # deaf from now on
    pool.discovery.informer._subscriptions = []
    await rig.worker("w2")
    worker.stop_beating()
    await asyncio.sleep(rig.settings.reconcile_s + 1)
    assert "w2" in known(rig)


async def test_a_pool_that_nobody_serves_and_nobody_asks_for_is_forgotten(rig: Rig) -> None:
    for n in range(5):
        with pytest.raises(Unavailable):
            await rig.client.call(f"nobody{n}.echo")
    assert len(rig.router.pools) == 5
    await asyncio.sleep(60)
    assert rig.router.pools == {}


async def test_closing_while_a_pool_is_opened_ends_the_call(rig: Rig) -> None:
    rig.hub.storage_up = False
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(0.1)
    await rig.client.close()
    with pytest.raises(ClosedError):
        await call
    rig.hub.storage_up = True


async def test_a_cancelled_first_call_does_not_stop_the_opening_for_the_others(rig: Rig) -> None:
    await rig.worker()
    first = asyncio.ensure_future(rig.client.call("images.echo"))
    second = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ["w1", "echo"]


async def test_a_pull_that_fails_is_a_warning_unless_the_connection_is_lost(rig: Rig, caplog: Any) -> None:
    await rig.known_worker("w1")

    def failed(level: int) -> int:
        return sum(
            record.__dict__.get("action") == "pool.pull_failed" and record.levelno == level for record in caplog.records
        )

    with caplog.at_level(logging.DEBUG, "gangline.dispatcher"):
        rig.hub.disconnect(rig.bus)
        await asyncio.sleep(21)
        assert failed(logging.WARNING) == 0 and failed(logging.DEBUG) >= 3, "that was said already, once"
        rig.hub.reconnect(rig.bus)
        await asyncio.sleep(1)
        rig.hub.storage_down()
        await asyncio.sleep(21)
        assert failed(logging.WARNING) >= 1
        rig.hub.storage_back()


@pytest.mark.router(reconcile_s=0.7)
async def test_a_heartbeat_that_is_only_read_again_is_no_sign_of_life(rig: Rig) -> None:
    """The last heartbeat of a worker that was killed stands in the ledger for three seconds."""
    worker = await rig.known_worker("w1")
    await worker.die()
    await asyncio.sleep(2.4)
    assert set(known(rig)) == {"w1"}
    await asyncio.sleep(1.5)
    assert known(rig) == {}


@pytest.mark.parametrize("answers", [True, False])
async def test_a_worker_that_left_after_its_last_answer_is_no_loss(rig: Rig, caplog: Any, answers: bool) -> None:
    worker = await rig.worker("w1", behave=silent)
    call = asyncio.ensure_future(rig.client.options(idempotent=True, timeout_s=20).call("images.echo"))
    (task,) = await worker.hears(RequestOp.TASK)
    await worker.leave()
    await turns()
    if answers:
        worker.draining = True
        worker.answer((AnswerOp.OK, task[1], "late"))
        assert await call == "late"
    with caplog.at_level(logging.WARNING, "gangline.dispatcher"):
        await asyncio.sleep(5)
    assert known(rig) == {}
    assert any(record.__dict__.get("action") == "worker.lost" for record in caplog.records) != answers
    call.cancel()
