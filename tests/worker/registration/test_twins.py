"""A process that stood still: another of its id may have begun to serve meanwhile."""

from __future__ import annotations

import asyncio

from gangline.schemas.wire.frames import AnswerOp, RequestOp
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ...support.worker.gang_rig import Leader, load_of
from ...support.worker.rig import Hand, Rig, on_rig, reserve, task

LATER = 1_000_000


def stand_still(worker: Worker) -> None:
    worker._worker_server.guard.last_at -= 1.5  # type: ignore[union-attr]


@on_rig()
async def test_until_its_id_is_confirmed_it_starts_nothing_and_speaks_for_nobody_else(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    core, epoch = rig.worker.core, rig.worker.core.epoch
    rig.hub.storage_down()
    stand_still(rig.worker)
    rig.hand.send(task(2), task(3, token=token), reserve(4))
    rig.hand.send(task(5), reserve(6), (int(RequestOp.CHECK), 7, [5]), epoch=epoch + LATER)
    stats = asyncio.ensure_future(rig.hand.request("stats"))
    await rig.hand.quiet(2.0)
    assert [rig.hand.answers_to(n) for n in (2, 3, 4)] == [[[AnswerOp.REJECTED, n, "stale"]] for n in (2, 3, 4)]
    assert [rig.hand.answers_to(n) for n in (5, 6, 7)] == [[], [], []], "whoever has that epoch answers"
    last = rig.hand.envelopes[-1]
    assert (last.epoch, last.load.free) == (epoch, 0), "it has no other epoch, and nobody shall choose it"
    assert not stats.done() and core.epoch == epoch

    rig.hub.storage_back()
    await rig.hand.quiet(3.0)
    assert core.epoch > epoch and not core.doubted
    assert (await stats)[0]["epoch"] == core.epoch, "carried out once the id was known to be ours"
    assert (await rig.hand.ask(*task(8)))[0] == AnswerOp.OK
    assert rig.hand.envelopes[-1].load.free == 2
    assert rig.value("alive.images.w1")["reserved"] == 0


@on_rig()
async def test_a_teardown_stops_members_before_the_id_is_confirmed_and_is_answered_after(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "wait", token=seat.token))
    await rig.hand.quiet()
    rig.hub.storage_down()
    stand_still(rig.worker)
    teardown = asyncio.ensure_future(leader.teardown())
    assert (await rig.hand.answer(1))[2] == "task_cancelled"
    await rig.hand.quiet(2.0)
    assert not teardown.done(), "perhaps it is not its id any more"
    rig.hub.storage_back()
    assert (await teardown)["stopped"]
    assert load_of(rig) == (0, 0)


@on_rig()
async def test_one_whose_id_was_taken_leaves_without_a_word_for_its_successor(rig: Rig):
    first, bus = rig.worker, rig.worker_bus
    rig.hub.partition(bus)  # what comes meanwhile, it reads when it wakes
    await asyncio.sleep(5.0)
    epoch = first.core.epoch
    second = rig.make_worker()
    await second.start()
    router = await Hand(rig.connect("router"), second, "router").listen()
    router.send(task(1, "wait"), reserve(2))
    stats = asyncio.ensure_future(router.request("stats"))
    rig.hand.send(task(3), epoch=epoch)
    await rig.hand.quiet(0.1)
    stand_still(first)
    rig.hub.heal(bus)
    await asyncio.sleep(5.0)
    assert first.state == "closed" and first.core.epoch == epoch, "a later one would pass for its successor's"
    assert rig.events().count("start") == 1
    assert router.answers_to(1) == [] and [frame[0] for frame in router.answers_to(2)] == [AnswerOp.GRANTED]
    assert {envelope.epoch for envelope in router.envelopes} == {second.core.epoch}
    assert (await stats)[0]["epoch"] == second.core.epoch
    assert {frame[2] for frame in rig.hand.answers_to(3)} == {"stale"}, "of the one that was asked"
    assert min(envelope.epoch for envelope in rig.hand.envelopes) == epoch
    rig.gates.open.set()
    assert await router.answer(1) == [AnswerOp.OK, 1, " done"]
    await second.stop()


@on_rig()
async def test_a_plain_request_that_two_of_one_id_hear_is_answered_in_the_epoch_of_the_one_that_refuses(rig: Rig):
    first, bus = rig.worker, rig.worker_bus
    granted, _ = await rig.hand.request("reserve", {"ttl_s": 60.0})
    rig.hub.partition(bus)
    await asyncio.sleep(5.0)
    second = rig.make_worker()
    await second.start()
    rig.hub.heal(bus)  # it has not noticed yet that its id was taken
    request = {"token": granted["token"], "method": "echo"}
    assert not first.core.doubted
    refused, headers = await rig.hand.request("dispatch", request)
    assert refused["code"] == "unknown_token" and headers["Nats-Service-Error-Code"] == "404"
    assert refused["details"]["epoch"] == second.core.epoch != granted["epoch"]
    assert rig.events().count("start") == 1, "it ran where the lease is from"
    await asyncio.sleep(0.1)  # now it knows
    for more in ({"epoch": granted["epoch"]}, {}):
        refused, _ = await rig.hand.request("renew", {"token": granted["token"], **more})
        assert refused["details"]["epoch"] == second.core.epoch
    await asyncio.sleep(5.0)
    assert first.state == "closed"
    await second.stop()


@on_rig()
async def test_while_its_heartbeat_may_have_expired_a_hold_waits_until_the_id_is_confirmed(rig: Rig, leader: Leader):
    epoch = rig.worker.core.epoch
    rig.hub.storage_down()
    await asyncio.sleep(1.0)
    assert (await leader.hold("a"))["accepted"], "nobody can have its id yet"
    await asyncio.sleep(WorkerSettings().heartbeat_ttl_s)
    waiting = [asyncio.ensure_future(leader.hold(gang)) for gang in ("b", "c")]
    await asyncio.sleep(1.0)
    assert not any(each.done() for each in waiting) and load_of(rig) == (0, 1)
    assert (await rig.hand.ask(*task(1)))[0] == AnswerOp.OK, "what needs no storage goes on"
    rig.hub.storage_back()
    answers = await asyncio.gather(*waiting)
    # The slot of the first gang may not be free yet.
    assert answers[0]["accepted"] and answers[1]["reason"] in (None, "full") and rig.worker.core.epoch == epoch


@on_rig()
async def test_one_whose_id_was_taken_in_an_outage_holds_nothing_beside_its_successor(rig: Rig, leader: Leader):
    await rig.worker._worker_server.registrar.stop()  # type: ignore[union-attr]  # its heartbeats reach nobody
    await asyncio.sleep(WorkerSettings().heartbeat_ttl_s + 1.0)
    second = rig.make_worker()
    await second.start()
    held = await leader.hold(ranks=2)
    assert held["accepted"] and held["epoch"] == second.core.epoch
    await rig.hand.quiet(1.0)
    assert load_of(rig) == (0, 0) and second.core.load.reserved == 2
    await second.stop()
