"""Workers that are not heard of: the ledger decides whether they are lost, and nothing else does."""

from __future__ import annotations

import asyncio

import pytest

from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.worker_table import WorkerEntry
from gangline.dispatcher.transport.channel import InFlightRequest
from gangline.dispatcher.transport.exchange import RequestExchange
from gangline.schemas.errors.base import WorkerLost
from gangline.schemas.wire.frames import AnswerOp, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, turns
from ...waiting import loop_time


def known(rig: Rig, name: str) -> WorkerEntry:
    worker: WorkerEntry = rig.router.pools["images"].core.view.workers[name]
    return worker


async def answers(worker: FakeWorker, value: str) -> None:
    """It ends the task that it has."""
    [frame] = worker.heard_of(RequestOp.TASK)
    worker.answer((AnswerOp.OK, frame[1], value))


async def test_a_server_that_falls_silent_loses_nobody(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    before = known(rig, "w1")
    rig.hub.freeze()
    await asyncio.sleep(9.0)
    assert not before.eligible and not call.done()
    rig.hub.thaw()
    await turns()
    assert known(rig, "w1") is before and before.eligible
    await answers(worker, "late, and right")
    assert await call == "late, and right"


async def test_a_worker_that_only_we_do_not_hear_gets_nothing_new_and_is_not_lost(rig: Rig) -> None:
    away, call, _ = await rig.held_call()
    await rig.worker("w2")
    before = known(rig, "w1")
    pool = rig.router.pools["images"]
    heard, pool.beat = pool.beat, lambda worker, beat: worker == "w1" or heard(worker, beat)
    await asyncio.sleep(4.0)
    assert not before.eligible and known(rig, "w2").eligible
    for _ in range(5):
        assert await rig.client.call("images.echo") == ["w2", "echo"]
    await asyncio.sleep(60.0)
    assert known(rig, "w1") is before and not call.done()
    pool.beat = heard
    await asyncio.sleep(1.5)
    assert before.eligible
    await answers(away, "done")
    assert await call == "done"


async def test_a_dead_worker_is_lost_when_its_heartbeat_has_expired_and_not_before(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    rig.router.pools["images"].suspect(known(rig, "w1"), "nobody has listened there for 1 s")
    worker.stop_beating()
    began = loop_time()
    with pytest.raises(WorkerLost):
        await call
    assert 2.0 < loop_time() - began < 3.6
    assert "w1" not in rig.router.pools["images"].core.view.workers


@pytest.mark.router(unconfirmed_after_s=5.0)
async def test_a_call_ends_as_lost_when_the_ledger_is_silent_too_and_a_durable_task_waits_on(rig: Rig) -> None:
    worker, call, _ = await rig.held_call()
    exchange: RequestExchange = rig.client.router.exchange
    lost: list[TryOutcome] = []

    class Durable(InFlightRequest):
        checked = durable = True

        def lose(self, fate: TryOutcome) -> None:
            lost.append(fate)

    flight = Durable(exchange.new_id(), known(rig, "w1"))
    exchange.launch(flight, worker.heard_of(RequestOp.TASK)[0])
    rig.hub.storage_down()
    worker.stop_beating()
    began = loop_time()
    with pytest.raises(WorkerLost):
        await call
    assert 7.0 < loop_time() - began < 9.0
    await asyncio.sleep(60.0)
    assert not lost and exchange.is_open(flight) and known(rig, "w1")
    rig.hub.storage_back()
    await asyncio.sleep(2.0)
    assert lost == [TryOutcome.LOST] and not exchange.is_open(flight)


async def test_an_answer_of_the_ledger_that_comes_late_is_not_believed(rig: Rig) -> None:
    await rig.known_worker()
    pool, before = rig.router.pools["images"], known(rig, "w1")
    asked: list[float] = []
    beats = pool.discovery.beats

    async def late(worker: str, instance: str) -> bool:
        asked.append(loop_time())
        if len(asked) < 4:
            await asyncio.sleep(2.0)
            return False  # as it was, before the server stood still
        found: bool = await beats(worker, instance)
        return found

    pool.discovery.beats = late
    rig.workers[0].stop_beating()
    for _ in range(8):
        pool.suspect(before, "not heard of")
        await asyncio.sleep(0.9)
        await rig.kv.put(rig.names.alive_key(rig.workers[0].id), b"{}", ttl_s=3)
    assert known(rig, "w1") is before and len(asked) >= 4
