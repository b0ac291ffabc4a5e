"""A worker's life on an in-memory server: start, freeze, resize, drain, stop, and bad connections."""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha256
from typing import Any
from unittest.mock import patch

import pytest

from gangline.bus.port.bus import Message, NoResponders
from gangline.schemas.errors.base import ClosedError, Unavailable, WorkerIdTaken
from gangline.schemas.names import public_id
from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.frames import AnswerOp, Load, LoadFlag, RequestOp, ReserveFlag
from gangline.testing import cluster
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker, WorkerState

from ..support.worker.rig import Hand, Rig, on_rig, reserve, task

OK, ERROR, GRANTED, REJECTED = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.GRANTED, AnswerOp.REJECTED


# -- start and stop ---------------------------------------------------------------------------------------------------


@on_rig(node="n1", zone="z1", address="n1:9", labels={"gpu": "a100"})
async def test_a_started_worker_is_registered_and_beats(rig: Rig):
    record = rig.value("reg.images.w1")
    assert (record["pool"], record["worker"], record["state"], record["slots"]) == ("images", "w1", "serving", 2)
    assert (record["node"], record["zone"], record["address"]) == ("n1", "z1", "n1:9")
    assert record["labels"] == {"gpu": "a100"}
    double = record["methods"]["double"]
    assert len(double.pop("schema_hash")) == 32
    assert double == {"slots": 1, "idempotent": True, "streams": False, "description": "", "policy": None}
    assert record["methods"]["count"]["streams"] is True
    assert record["epoch"] == rig.worker.core.epoch
    rig.hand.send(task(1, "wait"))
    await asyncio.sleep(1.1)
    beat = rig.value("alive.images.w1")
    assert (beat["running"], beat["reserved"], beat["total"]) == (1, 0, 2)
    assert beat["instance"] == record["instance"]


@on_rig()
async def test_a_worker_is_reached_on_its_public_subjects_and_on_those_of_its_channel(rig: Rig):
    worker, names, bus = rig.worker, rig.worker.names, rig.hand.bus
    channel = rig.value("reg.images.w1")["channel"]
    assert channel == worker.channel and len(channel) == 8
    subjects = [names.worker(worker.id, "stats", each) for each in ("", channel)]
    for subject in subjects:
        assert codec.from_json((await bus.request(subject, timeout_s=1)).data)["epoch"] == worker.core.epoch
    data = frames.encode_request(worker.core.epoch, "hand", [task(1)])
    bus.publish(names.worker(worker.id, "frames", channel), data, reply=rig.hand.reply)
    assert (await rig.hand.answer(1))[0] == OK
    with pytest.raises(NoResponders):
        await bus.request(names.worker(worker.id, "stats", "another"), timeout_s=1)
    await worker.stop()
    for subject in subjects:
        with pytest.raises(NoResponders):
            await bus.request(subject, timeout_s=1)


@on_rig()
async def test_a_stopped_worker_leaves_nothing_behind(rig: Rig):
    await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    await rig.hand.quiet(0.1)
    assert len(rig.keys()) == 3
    await rig.worker.stop()
    assert rig.keys() == []
    assert rig.worker.core.at_rest
    assert rig.events()[-1] == "leave"
    with pytest.raises(NoResponders):
        await rig.hand.request("stats")


@on_rig()
async def test_what_runs_when_a_worker_is_stopped_is_cancelled_and_answered(rig: Rig):
    rig.hand.send(task(1, "wait"))
    await rig.hand.quiet()
    await rig.worker.stop()
    await rig.hand.quiet()
    answer = rig.hand.answers_to(1)[0]
    assert answer[2] == "task_cancelled"
    assert "left before the task was done" in answer[3]


async def test_a_task_that_catches_its_cancellation_is_cancelled_again_before_the_worker_leaves(
    caplog: pytest.LogCaptureFixture,
):
    rig, pool, ended = Rig(), Pool("images", slots=2), asyncio.Event()

    @pool.task
    async def stubborn() -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            try:
                await asyncio.sleep(1e6)
            finally:
                ended.set()

    rig.worker = Worker(pool, bus=rig.connect("worker"), names=rig.names, settings=WorkerSettings(id="w1"))
    async with rig:
        rig.hand.send(task(1, "stubborn"))
        await rig.hand.quiet()
        await rig.worker.stop()
        assert ended.is_set() and rig.worker.core.at_rest
        assert "left behind" not in caplog.text


async def test_start_and_stop_may_be_called_in_any_order_and_again():
    rig = Rig()
    await rig.worker.stop()
    await rig.worker.stop()
    with pytest.raises(ClosedError, match="make a new one"):
        await rig.worker.start()
    async with Rig() as other:
        await other.worker.start()
        assert other.worker.state is WorkerState.SERVING
        await asyncio.gather(other.worker.stop(), other.worker.stop())
        assert other.worker.state is WorkerState.CLOSED
    await rig.close()


async def test_a_start_that_is_cancelled_leaves_nothing_behind():
    rig = Rig()
    rig.hub.storage_down()
    starting = asyncio.create_task(rig.worker.start())
    await asyncio.sleep(0.5)
    rig.hub.storage_back()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert rig.worker.state is WorkerState.CLOSED
    assert rig.keys() == []
    await rig.close()


async def test_a_drain_during_a_start_begins_when_the_start_is_done():
    rig = Rig()
    starting = asyncio.create_task(rig.worker.start())
    await asyncio.sleep(0)
    await rig.worker.stop()
    await starting
    assert rig.worker.state is WorkerState.CLOSED
    assert rig.events() == ["drain", "leave"]
    assert rig.keys() == []
    await rig.close()


@pytest.mark.parametrize("away_s", [0.05, 4.0])
@pytest.mark.parametrize("lost_at", [0.0, 0.5, 1.0])
async def test_a_server_that_goes_away_during_a_start_is_waited_for(lost_at: float, away_s: float):
    rig = Rig()
    pool = Pool("images", slots=1)

    @pool.lifespan
    @contextlib.asynccontextmanager
    async def lifespan():
        await asyncio.sleep(1.0)
        yield

    bus = rig.hub.connect("late")
    worker = Worker(pool, bus=bus, names=rig.names, settings=WorkerSettings(id="late"))
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(lost_at)
    rig.hub.disconnect(bus)
    await asyncio.sleep(max(1.0 - lost_at, 0.0) + away_s)
    rig.hub.reconnect(bus)
    await starting
    assert worker.state is WorkerState.SERVING
    await asyncio.sleep(1)
    assert sorted(rig.keys()) == ["alive.images.late", "reg.images.late"]
    hand = await Hand(rig.connect("hand"), worker).listen()
    assert (await hand.ask(*task(1, "none")))[2] == "unknown_method", "it hears"
    await worker.stop()
    await rig.close()


async def test_a_start_does_not_wait_for_ever_for_a_server():
    rig = Rig(start_timeout_s=2.0)
    rig.hub.disconnect(rig.worker.bus)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable):
        await rig.worker.start()
    assert 2.0 <= asyncio.get_running_loop().time() - began < 12.0
    await rig.close()


async def test_a_lifespan_that_fails_at_its_end_does_not_keep_a_worker_from_leaving(caplog):
    rig = Rig()

    async def resource():
        yield "pool"
        raise RuntimeError("cannot close")

    rig.worker.pool.lifespan(resource)
    await rig.worker.start()
    await rig.worker.stop()
    assert rig.worker.state is WorkerState.CLOSED
    assert rig.keys() == []
    assert any(record.__dict__.get("action") == "worker.leave_failed" for record in caplog.records)
    await rig.close()


@on_rig()
async def test_statistics_and_repr_tell_the_state(rig: Rig):
    rig.hand.send(task(1, "wait"), reserve(2), task(3, "fail"))
    await rig.hand.quiet()
    statistics = rig.worker.statistics()
    assert statistics.load == Load(1, 1, 2)
    assert statistics.tasks["started"] == 1
    assert statistics.tasks["rejected"] == 1
    assert statistics.state is WorkerState.SERVING
    assert repr(rig.worker).endswith("1 running + 1 reserved of 2 slots>")
    assert repr(rig.worker).startswith("<Worker images.w1 serving, epoch ")


# -- two with one id --------------------------------------------------------------------------------------------------


@on_rig()
async def test_a_second_worker_with_a_living_id_is_refused_and_does_not_say_that_it_left(rig: Rig):
    heard: list[bytes] = []
    await rig.hand.bus.subscribe(rig.names.events, lambda message: heard.append(message.data))
    with pytest.raises(WorkerIdTaken, match="give this one another id"):
        await rig.make_worker().start()
    assert rig.value("reg.images.w1")["instance"] == rig.worker.instance
    assert await rig.hand.ask(*task(1, "double", [4])) == [OK, 1, 8]
    assert heard == [] and rig.events("drain", "leave") == []


@on_rig()
async def test_the_successor_of_a_crashed_worker_waits_for_its_heartbeat_to_expire(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    await rig.hand.quiet(0.1)
    first_epoch = rig.worker.core.epoch
    await rig.worker.abort()
    assert len(rig.keys()) == 3, "a crash takes nothing away"
    rig.worker = rig.make_worker()
    began = asyncio.get_running_loop().time()
    await rig.worker.start()
    assert asyncio.get_running_loop().time() - began < 4.0
    assert rig.worker.core.epoch > first_epoch
    await rig.hand.quiet(0.1)
    assert rig.keys("lease.") == [], "its predecessor's leases are void and gone from the ledger"
    hand = await rig.new_hand()
    assert (await hand.ask(*task(1, token=token)))[2] == "unknown_token"


@on_rig()
async def test_a_worker_whose_id_was_taken_meanwhile_fences_itself(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000)
    rig.hand.send(task(2, "wait", ["old"]))
    await rig.hand.quiet(0.1)
    old, old_bus = rig.worker, rig.worker_bus
    rig.hub.partition(old_bus)
    await asyncio.sleep(4.0)
    rig.worker = rig.make_worker()
    await rig.worker.start()
    rig.hub.heal(old_bus)
    closing = asyncio.create_task(old.wait_closed())
    await asyncio.sleep(3.0)
    assert old.core.load == Load(1, 0, 2, LoadFlag.DRAINING), "its leases are void, its task may end"
    hand = await rig.new_hand("new")
    assert await hand.ask(*task(1, "double", [4])) == [OK, 1, 8]
    assert len(hand.answers) == 1, "only one of them hears"
    assert (await hand.ask(*task(2, token=token)))[2] == "unknown_token"
    rig.gates.open.set()
    with pytest.raises(WorkerIdTaken, match="was taken by another process"):
        await closing
    assert rig.value("reg.images.w1")["instance"] == rig.worker.instance
    assert rig.value("alive.images.w1")["instance"] == rig.worker.instance


# -- freezes ----------------------------------------------------------------------------------------------------------


@on_rig()
async def test_what_piled_up_during_a_freeze_is_refused(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    rig.hand.send(task(2, "wait"))
    await rig.hand.quiet()
    epoch = rig.worker.core.epoch
    rig.worker._worker_server.guard.last_at -= 1.5  # type: ignore[union-attr]
    rig.hand.send(task(3), task(4, token=token), reserve(5), epoch=epoch)
    await rig.hand.quiet()
    assert [rig.hand.answers_to(number) for number in (3, 4, 5)] == [[[REJECTED, n, "stale"]] for n in (3, 4, 5)]
    assert rig.worker.core.epoch > epoch
    assert rig.worker.core.load == Load(1, 0, 2), "what ran goes on, leases are void"
    assert rig.hand.envelopes[-1].epoch == epoch, "the later one is told when storage has confirmed that the id is ours"
    await rig.hand.quiet(0.1)
    assert rig.value("reg.images.w1")["epoch"] == rig.worker.core.epoch
    assert rig.keys("lease.") == []
    assert (await rig.hand.ask(*task(6, token=token)))[2] == "stale_epoch"
    rig.gates.open.set()
    assert await rig.hand.answer(2) == [OK, 2, " done"]
    assert "epoch" in rig.events()


@on_rig()
async def test_a_freeze_is_noticed_without_any_message(rig: Rig):
    epoch = rig.worker.core.epoch
    rig.worker._worker_server.guard.last_at -= 1.5  # type: ignore[union-attr]
    await asyncio.sleep(0.3)
    assert rig.worker.core.epoch > epoch


@on_rig()
async def test_a_short_stall_shortens_what_is_left_of_deadlines(rig: Rig):
    epoch = rig.worker.core.epoch
    rig.worker._worker_server.guard.last_at -= 0.6  # type: ignore[union-attr]
    rig.hand.send(task(1, deadline_ms=300), task(2, deadline_ms=5000), reserve(3, deadline_ms=300))
    await rig.hand.quiet()
    assert rig.hand.answers_to(1) == [[REJECTED, 1, "expired"]]
    assert rig.hand.answers_to(3) == [[REJECTED, 3, "expired"]]
    assert rig.hand.answers_to(2) == [[OK, 2, None]]
    assert rig.worker.core.epoch == epoch


# -- resize -----------------------------------------------------------------------------------------------------------


@on_rig()
async def test_slots_can_be_changed_live_and_everybody_hears(rig: Rig):
    rig.worker.resize(5)
    await rig.hand.quiet(0.1)
    assert rig.value("reg.images.w1")["slots"] == 5
    assert rig.value("alive.images.w1")["total"] == 5
    rig.hand.send(*(task(number, "wait") for number in range(6)))
    assert await rig.hand.answer(5) == [REJECTED, 5, "full"]
    assert rig.worker.core.load == Load(5, 0, 5)


# -- drain ------------------------------------------------------------------------------------------------------------


@on_rig()
async def test_a_draining_worker_honours_what_it_granted_and_then_leaves(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=20_000, ttl_ms=20_000)
    rig.hand.send(task(2, "wait", ["running"]))
    await rig.hand.quiet()
    draining = asyncio.create_task(rig.worker.drain(10.0))
    await rig.hand.quiet(0.1)
    rig.hand.send(reserve(3), task(4))
    assert await rig.hand.answer(3) == [REJECTED, 3, "draining"]
    assert await rig.hand.answer(4) == [REJECTED, 4, "draining"]
    assert rig.hand.envelopes[-1].load.draining
    assert rig.value("reg.images.w1")["state"] == "draining"
    assert await rig.hand.ask(*task(5, "double", [4], token=token)) == [OK, 5, 8]
    rig.gates.open.set()
    assert await rig.hand.answer(2) == [OK, 2, "running done"]
    assert not draining.done(), "the lease is still held"
    rig.hand.send((int(RequestOp.RELEASE), None, token))
    await asyncio.wait_for(draining, 0.5)
    assert rig.keys() == []
    assert rig.events("drain", "leave") == ["drain", "leave"]


@on_rig()
async def test_a_drain_cancels_what_is_left_after_its_grace(rig: Rig):
    await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    rig.hand.send(task(2, "wait"))
    await rig.hand.quiet()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await rig.worker.drain(3.0)
    assert loop.time() - began == pytest.approx(3.0, abs=0.2)
    await rig.hand.quiet()
    assert rig.hand.answers_to(2)[0][2] == "task_cancelled"
    assert rig.keys() == []


@on_rig()
async def test_renewals_do_not_hold_up_a_drain(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000)
    draining = asyncio.create_task(rig.worker.drain(2.0))
    await rig.hand.quiet(0.5)
    answer = await rig.hand.ask(int(RequestOp.RENEW), 2, token, 60_000)
    assert answer[0] == AnswerOp.RENEWED
    assert answer[2] <= 1500, "no longer than the grace"
    await asyncio.wait_for(draining, 2.0)


@on_rig()
async def test_cancelling_the_wait_does_not_stop_the_drain(rig: Rig):
    rig.hand.send(task(2, "wait"))
    await rig.hand.quiet()
    waiting = asyncio.create_task(rig.worker.drain(30.0))
    await rig.hand.quiet()
    waiting.cancel()
    await rig.hand.quiet()
    assert await rig.hand.ask(*task(3)) == [REJECTED, 3, "draining"]
    rig.gates.open.set()
    await asyncio.wait_for(rig.worker.wait_closed(), 0.5)


@on_rig()
async def test_requests_on_their_way_to_a_worker_that_leaves_are_answered(rig: Rig):
    subject, bus = rig.worker.names.worker(rig.worker.id, "reserve"), rig.hand.bus
    stopping, asked = asyncio.create_task(rig.worker.stop()), []
    while not stopping.done():
        asked.append(asyncio.create_task(bus.request(subject, b'{"slots": 1}', timeout_s=10.0)))
        await asyncio.sleep(0)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(answer) for answer in answers} <= {Message, NoResponders}, answers


# -- bad connections --------------------------------------------------------------------------------------------------


@on_rig()
async def test_answers_wait_for_the_connection(rig: Rig):
    rig.hand.send(task(1, "wait", ["x"]), task(2, "wait", ["y"]))
    await rig.hand.quiet()
    rig.hub.disconnect(rig.worker_bus)
    rig.gates.open.set()
    await asyncio.sleep(0.5)
    assert rig.hand.answers == []
    rig.hub.reconnect(rig.worker_bus)
    assert await rig.hand.answer(1) == [OK, 1, "x done"]
    assert await rig.hand.answer(2) == [OK, 2, "y done"]


@on_rig(unsent_bytes=1 << 20)
async def test_unsent_answers_are_bounded_and_the_newest_stay(rig: Rig):
    rig.worker.resize(9)
    for number in range(5):
        rig.hand.send(task(number, "wait", [str(number) * 300_000]))
    await rig.hand.quiet()
    rig.hub.disconnect(rig.worker_bus)
    rig.gates.open.set()
    await asyncio.sleep(0.5)
    rig.hub.reconnect(rig.worker_bus)
    await rig.hand.quiet()
    assert rig.worker.statistics().answers["kept_bytes"] == 0
    assert rig.worker.statistics().answers["dropped"] >= 1
    checked = await rig.hand.ask(int(RequestOp.CHECK), 50, list(range(5)))
    assert checked[2] == [2] * 5, "and each can still be asked for"


@on_rig()
async def test_everything_is_recorded_again_after_the_server_lost_its_memory(rig: Rig):
    token = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    await rig.hand.quiet(0.1)
    rig.hub.stop()
    await asyncio.sleep(2.0)
    rig.hub.start()
    await asyncio.sleep(1.0)
    assert sorted(rig.keys()) == ["alive.images.w1", rig.names.lease_key(rig.worker.id, token), "reg.images.w1"]
    assert await rig.hand.ask(*task(2, "double", [4], token=token)) == [OK, 2, 8]
    rig.hand.send((int(RequestOp.RELEASE), None, token))
    await rig.hand.quiet(0.1)
    assert rig.at_rest()


@on_rig()
async def test_grants_go_on_while_storage_has_no_leader(rig: Rig):
    rig.hub.storage_down()
    token = await rig.hand.grant(1, claim_ms=60_000, ttl_ms=60_000)
    gone = await rig.hand.grant(2, flags=ReserveFlag.SINGLE_USE)
    assert await rig.hand.ask(*task(3, "double", [4], token=gone)) == [OK, 3, 8]
    await asyncio.sleep(2.0)
    rig.hub.storage_back()
    await asyncio.sleep(6.0)
    assert rig.keys("lease.") == [rig.names.lease_key(rig.worker.id, token)]
    assert rig.keys("alive.")


# -- the ledger before the answer ----------------------------------------------------------------------------------


@on_rig()
async def test_a_sync_lease_stands_in_the_ledger_before_it_is_answered(rig: Rig):
    granted = await rig.hand.ask(*reserve(1, flags=ReserveFlag.SYNC))
    _, _, token, fence, _ = granted
    entry = next(e for e in rig.hub.peek(rig.names.ledger_bucket) if e.key == rig.names.lease_key(rig.worker.id, token))
    assert fence == entry.revision
    again = await rig.hand.ask(*reserve(2, flags=ReserveFlag.SYNC))
    assert again[3] > fence, "fences of sync leases grow over the whole system"


@on_rig()
async def test_a_repeated_sync_reserve_gets_the_same_fence(rig: Rig):
    rig.hand.send(reserve(1, flags=ReserveFlag.SYNC), reserve(1, flags=ReserveFlag.SYNC))
    await rig.hand.quiet()
    rig.hand.send(reserve(1, flags=ReserveFlag.SYNC))
    await rig.hand.quiet()
    answers = rig.hand.answers_to(1)
    assert len(answers) == 3
    assert answers[0] == answers[1] == answers[2]
    assert rig.worker.core.load.reserved == 1


@on_rig()
async def test_a_sync_lease_that_storage_does_not_take_is_an_error_and_holds_nothing(rig: Rig):
    rig.hub.storage_down()
    answer = await rig.hand.ask(*reserve(1, flags=ReserveFlag.SYNC, claim_ms=60_000, ttl_ms=60_000))
    assert answer[2] == "storage_unavailable"
    assert rig.worker.core.load == Load(0, 0, 2)
    rig.hub.storage_back()
    await asyncio.sleep(6.0)
    assert rig.at_rest()


# -- service discovery ------------------------------------------------------------------------------------------------


@on_rig(node="n1")
async def test_the_stock_service_commands_see_it(rig: Rig):
    await rig.hand.ask(*task(1, "double", [4]))
    await rig.hand.request("reserve", {"slots": 0})
    info = codec.from_json((await rig.hand.bus.request("$SRV.INFO.gangline-worker", timeout_s=1)).data)
    assert info["metadata"]["worker"] == "w1"
    assert info["metadata"]["pool"] == "images"
    assert {e["name"] for e in info["endpoints"]} >= {"frames", "reserve", "dispatch", "drain", "stats"}
    stats = codec.from_json((await rig.hand.bus.request("$SRV.STATS.gangline-worker", timeout_s=1)).data)
    counts = {e["name"]: (e["num_requests"], e["num_errors"]) for e in stats["endpoints"]}
    assert counts["frames"] == (1, 0)
    assert counts["reserve"] == (1, 1)


@on_rig()
async def test_a_token_is_hashed_once_however_often_it_is_used_and_nothing_for_a_plain_call(rig: Rig):
    hashed: list[bytes] = []

    def count(data: bytes) -> Any:
        hashed.append(data)
        return sha256(data)

    public_id.cache_clear()
    with patch("gangline.schemas.names.sha256", count):
        for number in range(1, 21):
            assert await rig.hand.ask(*task(number, "double", [1])) == [OK, number, 2]
        assert hashed == []
        token = await rig.hand.grant(30, claim_ms=60_000, ttl_ms=5000)
        for number in range(31, 51):
            await rig.hand.ask(*task(number, "double", [1], token=token))
            await rig.hand.quiet(0.5)
        rig.hand.send((int(RequestOp.RELEASE), None, token))
        await rig.hand.quiet(0.1)
    assert rig.at_rest() and hashed == [token.encode()]


async def test_a_pool_without_tasks_is_warned_of(caplog):
    async with cluster(Pool("empty", slots=1)):
        [line] = [record for record in caplog.records if record.__dict__.get("action") == "worker.no_tasks"]
    assert line.getMessage() == "the pool has no tasks: decorate functions with @pool.task"
