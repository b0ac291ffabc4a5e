"""The coordinator on an in-memory server, with workers that follow a script."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from gangline.bus.key_value.bucket import NatsKeyValue
from gangline.bus.memory.faults import FaultRates, RandomFaults
from gangline.bus.port.bus import KvEntry, RequestTimeout, StorageUnavailable
from gangline.coordinator.election.leader_record import LeaderKey
from gangline.coordinator.service import Coordinator, CoordinatorState
from gangline.schemas.errors.base import (
    ClosedError,
    GangNotFormed,
    InvalidRequest,
    NoCoordinator,
    NotOwner,
    UnknownGang,
)
from gangline.schemas.names import public_id
from gangline.schemas.records.workers import Heartbeat, LeaseRecord
from gangline.schemas.wire.codec import Format

from ..support.rows import in_rows
from ..waiting import until

# -- the way of a gang ------------------------------------------------------------------------------------------------


async def test_a_gang_is_granted_told_of_and_released(system):
    for name in ("w1", "w2"):
        await system.worker(name, slots=2, node=name, address=f"10.0.0.{name[1]}:99")
    await system.lead()
    gang = await system.owner.acquire(pool="train", size=3, strategy="spread")
    assert (gang["state"], gang["generation"], gang["size"]) == ("formed", 1, 3)
    assert [seat["rank"] for seat in gang["seats"]] == [0, 1, 2]
    assert {seat["worker"] for seat in gang["seats"]} == {"w1", "w2"}
    assert gang["owner_token"] and gang["fence"] > 0
    assert gang["rendezvous"]["port"] == 4711
    formed = await system.event("formed")
    assert (formed["gang"], formed["generation"], formed["fence"]) == (gang["id"], 1, gang["fence"])
    assert sum(worker.reserved for worker in system.workers.values()) == 3
    assert all(gang["id"] in worker.members for worker in system.workers.values())

    ended = await system.owner.release(gang)
    assert ended["state"] == "ended"
    assert system.at_rest()
    torn = await system.event("torn_down")
    assert (torn["reason"], torn["generation"], torn["ends"]) == ("released", 1, True)
    assert [event["kind"] for event in system.events] == ["queued", "formed", "ready", "torn_down", "ended"]


@in_rows(
    ("address", "host"),
    [
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[::1]:7000", "::1"),
        ("fe80::2%eth0", "fe80::2%eth0"),
        ("[fe80::2%eth0]:7000", "fe80::2%eth0"),
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1:7000", "10.0.0.1"),
        ("gpu-1.example", "gpu-1.example"),
        ("gpu-1.example:7000", "gpu-1.example"),
        (":7000", "node-1"),
        ("", "node-1"),
    ],
)
async def test_members_meet_at_the_host_of_rank_0_however_its_address_is_written(system, address, host):
    if not system.workers:
        await system.lead()
    name = f"w{len(system.workers)}"
    await system.worker(name, pool=name, node="node-1", address=address)
    gang = await system.owner.acquire(pool=name, size=1)
    assert gang["rendezvous"] == {"host": host, "port": 4711}


async def test_workers_are_told_before_the_owner_hears(system, hub, leader):
    passed = []
    hub.tap(on_message=lambda name, message: passed.append((name, message.subject)))
    await system.owner.acquire(pool="train", size=1)
    sent = [subject for name, subject in passed if name == "coordinator"]
    answered = max(index for index, subject in enumerate(sent) if subject.startswith("_INBOX."))
    assert sent.index("gangline.worker.train.w1.form") < answered


async def test_answers_come_in_the_format_of_the_request(system, leader):
    gang = await system.owner.ask("acquire", {"pool": "train", "size": 1}, fmt=Format.MSGPACK)
    assert gang["state"] == "formed"
    listed = await system.owner.ask("list", fmt=Format.MSGPACK)
    assert [one["id"] for one in listed["gangs"]] == [gang["id"]]


async def test_an_owner_that_renews_keeps_its_gang_and_one_that_does_not_loses_it(system, leader):
    gang = await system.owner.acquire(pool="train", size=2, ttl_s=2)
    for _ in range(4):
        await asyncio.sleep(1.5)
        renewed = await system.owner.ask("renew", {"id": gang["id"], "owner_token": gang["owner_token"]})
        assert renewed["state"] == "formed"
    torn = await system.event("torn_down")
    assert torn["reason"].startswith("owner_lost")
    await system.event("ended")
    assert system.at_rest()


# -- what goes wrong with members -------------------------------------------------------------------------------------


async def test_a_members_report_tears_the_gang_down_and_the_next_generation_forms(system, leader):
    gang = await system.owner.acquire(pool="train", size=2, backoff_s=0)
    report = {"gang": gang["id"], "generation": 1, "rank": 1, "cause": "crashed", "detail": "signal 9"}
    assert await system.owner.ask("report", report) == {"known": True}
    torn = await system.event("torn_down")
    assert (torn["generation"], torn["rank"], torn["reason"]) == (1, 1, "crashed: signal 9")
    formed = await system.event("formed", nth=2)
    assert formed["generation"] == 2 and formed["fence"] > gang["fence"]
    assert await system.owner.ask("report", report) == {"known": False}
    assert [e["kind"] for e in system.events].count("torn_down") == 1


async def test_a_worker_that_nobody_listens_for_is_found_by_pings_within_a_second(system):
    await system.worker("w1", slots=1)
    lost = await system.worker("w2", slots=1)
    await system.worker("w3", slots=1)
    await system.lead()
    gang = await system.owner.acquire(pool="train", size=2, strategy="spread", backoff_s=0)
    victim = system.workers[gang["seats"][0]["worker"]]
    began = asyncio.get_running_loop().time()
    await victim.vanish()
    torn = await system.event("torn_down")
    assert asyncio.get_running_loop().time() - began < 1.0
    assert torn["reason"].startswith("worker_lost") and torn["rank"] == 0
    again = await system.event("formed", nth=2)
    assert again["generation"] == 2
    assert lost is not None


async def test_a_frozen_worker_is_found_when_its_heartbeat_expires(system):
    await system.worker("w1", slots=1)
    await system.worker("w2", slots=1)
    await system.lead()
    gang = await system.owner.acquire(pool="train", size=2, restart="fail", grace_s=0.5)
    began = asyncio.get_running_loop().time()
    await system.workers["w2"].freeze()
    torn = await system.event("torn_down")
    assert asyncio.get_running_loop().time() - began < 4.0
    assert torn["reason"].startswith("worker_lost")
    ended = await system.event("ended", gang["id"])
    assert ended["ends"]
    assert system.workers["w1"].reserved == 0


async def test_a_worker_that_refuses_to_form_fails_the_gang(system):
    worker = await system.worker()
    worker.refuse.add("form")
    await system.lead()
    await system.owner.acquire(pool="train", size=2, restart="fail")
    torn = await system.event("torn_down")
    assert torn["reason"] == "failed_at_start: train.w1: no interpreter"
    await system.event("ended")
    assert [e["kind"] for e in system.events].count("torn_down") == 1
    assert system.at_rest()


async def test_a_hold_that_is_not_answered_keeps_the_place_in_the_queue(system):
    worker = await system.worker()
    await system.lead()
    worker.silent.add("hold")
    asked = asyncio.create_task(system.owner.acquire(pool="train", size=1))
    await until(lambda: [op for op, _ in worker.asked].count("hold") >= 2)
    assert "unhold" in [op for op, _ in worker.asked]
    worker.silent.clear()
    assert (await asked)["state"] == "formed"


# -- requests ---------------------------------------------------------------------------------------------------------


@in_rows(
    ("operation", "body", "code", "text"),
    [
        ("acquire", {"pool": "train", "size": 0}, "invalid_request", "size: Input should be greater than or equal"),
        ("acquire", {"pool": "train", "size": 9}, "gang_impossible", "8"),
        ("acquire", {"pool": "other", "size": 1}, "gang_impossible", "other"),
        ("acquire", {"pool": "train", "size": 3, "strategy": "strict_spread"}, "gang_impossible", "node"),
        ("acquire", {"pool": "train", "size": 1, "labels": {"gpu": "a"}}, "gang_impossible", "gpu"),
        ("acquire", {"pool": "train", "sise": 1}, "invalid_request", "sise"),
        ("acquire", {}, "invalid_request", "give a pool and a size"),
        ("acquire", {"pool": "train", "bundles": [{"pool": "train"}]}, "invalid_request", "not both"),
        ("acquire", {"pool": "a b"}, "invalid_request", "pool"),
        ("acquire", "train", "invalid_request", ""),
        ("renew", {"id": "nobody", "owner_token": "x"}, "unknown_gang", "nobody"),
        ("release", {"id": "nobody", "owner_token": "x"}, "unknown_gang", "nobody"),
        ("get", {"id": "nobody"}, "unknown_gang", "nobody"),
        ("why", {"id": "nobody"}, "unknown_gang", "nobody"),
        ("get", {}, "invalid_request", "id"),
        ("report", {"gang": "g"}, "invalid_request", "generation"),
        ("dance", None, "unknown_method", "acquire"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(system, operation, body, code, text):
    if not system.workers:
        await system.worker("w1")
        await system.worker("w2")
        await system.lead()
    with pytest.raises(Exception) as caught:
        await system.owner.ask(operation, body, timeout_s=5)
    assert caught.value.code == code
    assert text in str(caught.value)
    assert (await system.owner.ask("list"))["gangs"] == []


async def test_a_worker_that_registered_a_moment_ago_is_looked_for_before_a_gang_is_impossible(system):
    coordinator = await system.lead()
    worker = await system.worker()
    # As if the news of it were still on their way.
    coordinator._context.worker_registry._entries.clear()
    coordinator.term.core._state.inventory.gone(worker.id)
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"


async def test_a_body_that_is_not_json_is_told_so(system):
    await system.lead()
    message = await system.owner.bus.request("gangline.gang.acquire", b"{pool}", timeout_s=5)
    assert "not JSON" in message.headers["Nats-Service-Error"]
    assert message.headers["Nats-Service-Error-Code"] == "400"


async def test_somebody_elses_gang_and_a_stale_generation_are_refused(system, leader):
    gang = await system.owner.acquire(pool="train", size=1)
    for operation in ("renew", "release"):
        with pytest.raises(Exception) as caught:
            await system.owner.ask(operation, {"id": gang["id"], "owner_token": "mine"})
        assert (caught.value.code, caught.value.status) == ("not_owner", 403)
    with pytest.raises(Exception) as caught:
        await system.owner.ask("release", {"id": gang["id"], "owner_token": gang["owner_token"], "generation": 2})
    assert caught.value.code == "stale_generation"
    assert (await system.owner.ask("get", {"id": gang["id"]}))["state"] == "formed"


async def test_why_names_the_gangs_and_leases_in_the_way(system):
    worker = await system.worker(slots=4)
    await system.lead()
    gang = await system.owner.acquire(pool="train", size=1)
    lease = LeaseRecord(
        pool="train", worker="w1", epoch=worker.epoch, token="tok", slots=2, fence=1, single_use=False, owner="bob",
        granted_at=0.0, expires_at=4e9,
    )  # fmt: skip
    worker.running = 3
    await system.ledger.put(system.names.lease_key(worker.id, "tok"), lease.model_dump_json().encode())
    await worker.beat()
    waiting = asyncio.create_task(system.owner.acquire(pool="train", size=2, id="waits", owner_token="x"))
    await system.event("queued", "waits")
    why = await system.owner.ask("why", {"id": "waits"})
    assert why["step"] == "queued" and why["place"] == 0 and why["lacks"]
    found = {(item["holder"], item["slots"], item["owner"]) for item in why["obstacles"]}
    assert found == {(f"gang {gang['id']}", 1, ""), (f"lease {public_id('tok')}", 2, "bob"), ("tasks", 1, "")}
    waiting.cancel()
    await asyncio.wait([waiting])


# -- leading and standing by ------------------------------------------------------------------------------------------


async def test_one_leads_and_when_it_stops_a_standby_takes_over_at_once(system, leader):
    second = await system.coordinator("second")
    await asyncio.sleep(10)
    assert (leader.state, second.state) == (CoordinatorState.LEADING, CoordinatorState.STANDBY)
    gang = await system.owner.acquire(pool="train", size=2)
    began = asyncio.get_running_loop().time()
    await leader.stop()
    await second.wait_leading()
    assert asyncio.get_running_loop().time() - began < 1.0
    found = await system.owner.ask("get", {"id": gang["id"]})
    tokens = [public_id(seat["token"]) for seat in gang["seats"]]
    assert (found["state"], found["generation"], [seat["token"] for seat in found["seats"]]) == ("formed", 1, tokens)
    assert (await system.event("recovered"))["gang"] == gang["id"]
    assert "torn_down" not in [e["kind"] for e in system.events]
    await system.owner.release(gang)
    assert system.at_rest()


@pytest.mark.parametrize("sealed", [True, False], ids=["", "a worker of an earlier version"])
async def test_an_owner_whose_answer_was_lost_gets_its_tokens_from_the_next_leader(system, sealed):
    worker = await system.worker()
    worker.sealed = sealed
    first = await system.lead()
    second = await system.coordinator("second")
    wanted = {"id": "mine", "owner_token": "s3cret", "pool": "train", "size": 2}
    gang = await system.owner.ask("acquire", wanted)
    tokens = [seat["token"] for seat in gang["seats"]]
    worker.silent.add("form")
    await first.stop()
    await second.wait_leading()
    again = asyncio.create_task(system.owner.ask("acquire", wanted))
    await asyncio.sleep(1.0)
    assert again.done() is not sealed, "it waits for the tokens, which only the worker knows"
    worker.silent.clear()
    assert [seat["token"] for seat in (await again)["seats"]] == tokens
    own = await system.owner.ask("get", {"id": "mine", "owner_token": "s3cret"})
    assert [seat["token"] for seat in own["seats"]] == tokens
    record = (await system.ledger.get("gang.mine")).value.decode()
    shown = public_id("s3cret")
    assert shown in record and "s3cret" not in record and all((token in record) is not sealed for token in tokens)
    for operation in ("acquire", "renew", "get", "release"):
        for token in ("S3cret", shown):
            with pytest.raises((NotOwner, InvalidRequest)):
                more = wanted if operation == "acquire" else {}
                await system.owner.ask(operation, {**more, "id": "mine", "owner_token": token})
    await system.owner.release(gang)
    assert system.at_rest()


async def test_coordinators_far_from_the_server_lead_while_workers_beat_faster_than_keys_are_read(system, hub):
    beats = [
        (
            f"alive.train.w{number}",
            Heartbeat(epoch=1, instance=f"i{number}", running=0, reserved=0, total=4).model_dump_json().encode(),
        )
        for number in range(60)
    ]

    async def beat_on():
        for key, beat in itertools.cycle(beats):
            writing = asyncio.create_task(system.ledger.put(key, beat, ttl_s=3))
            writes.add(writing)
            writing.add_done_callback(writes.discard)
            await asyncio.sleep(1 / len(beats))

    writes = set()
    hub.faults = RandomFaults(random.Random(11), FaultRates(latency_s=0.025, distance_s=0.05))
    beating = asyncio.create_task(beat_on())
    await asyncio.sleep(2)
    first, second = await system.coordinator(), await system.coordinator("second")
    try:
        async with asyncio.timeout(5):
            await first.wait_leading()
        await first.stop()
        async with asyncio.timeout(5):
            await second.wait_leading()
    finally:
        beating.cancel()
        await asyncio.wait([beating, *writes])


async def test_a_leader_whose_process_dies_is_followed_within_its_keys_life(system, hub, leader):
    second = await system.coordinator("second")
    gang = await system.owner.acquire(pool="train", size=1)
    began = asyncio.get_running_loop().time()
    hub.kill(leader._bus)
    await second.wait_leading()
    assert asyncio.get_running_loop().time() - began < 5.0
    assert (await system.owner.ask("get", {"id": gang["id"]}))["state"] == "formed"
    assert "torn_down" not in [e["kind"] for e in system.events]


async def test_a_leader_that_cannot_renew_yields_before_its_key_expires(system, hub):
    first = await system.lead()
    hub.partition(first._bus)
    began = asyncio.get_running_loop().time()
    await until(lambda: first.state is CoordinatorState.STANDBY)
    assert asyncio.get_running_loop().time() - began < 2.0
    second = await system.lead("second")
    hub.heal(first._bus)
    await asyncio.sleep(5)
    assert (first.state, second.state) == (CoordinatorState.STANDBY, CoordinatorState.LEADING)


async def test_a_leader_whose_timers_come_late_acts_on_nothing_any_more(system):
    """As after a freeze: messages are looked at before timers."""
    worker = await system.worker()
    first = await system.lead()
    term = first.term
    elector = first._context.elector
    elector._tasks.cancel()
    elector._timer.cancel()
    first._context.worker_registry.listener = None
    await asyncio.sleep(3)
    assert first.state is CoordinatorState.LEADING and term.core.leading
    asked = len(worker.asked)
    with pytest.raises(RequestTimeout):
        await system.owner.ask("acquire", {"pool": "train", "size": 1}, timeout_s=1)
    assert first.state is CoordinatorState.STANDBY and not term.core.leading
    assert len(worker.asked) == asked


@pytest.mark.parametrize("shard", [{}, {"shard": "s", "pools": ("train",)}], ids=["all pools", "one shard"])
async def test_requests_that_the_only_leader_reads_too_late_are_told_to_ask_again(system, hub, shard):
    await system.worker(slots=1)
    only = await system.lead(**shard)
    gang = await system.owner.acquire(pool="train", size=1)
    hub.partition(only._bus)
    asked = [
        asyncio.ensure_future(system.owner.ask(operation, body))
        for operation, body in (
            ("list", None),
            ("why", {"id": gang["id"]}),
            ("acquire", {"pool": "train", "size": 1}),
            ("get", {}),
            ("nonsense", {}),
        )
    ]
    await until(lambda: only.state is CoordinatorState.STANDBY)
    answers: list[str] = []
    hub.tap(on_message=lambda name, message: answers.append(message.subject))
    hub.heal(only._bus)
    await only.wait_leading()
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, NoCoordinator), error
    answers = [subject for subject in answers if subject.startswith("_INBOX.")]
    assert len(answers) >= len(asked) and len(answers) == len(set(answers))
    assert (await system.owner.ask("get", {"id": gang["id"]}))["state"] == "formed"


async def test_requests_that_a_leader_reads_too_late_are_left_to_the_one_that_led_meanwhile(system, hub):
    first = await system.lead()
    hub.partition(first._bus)
    asked = asyncio.ensure_future(system.owner.ask("list", timeout_s=60.0))
    second = await system.lead("second")
    hub.heal(first._bus)
    await second.stop()
    await first.wait_leading()
    with pytest.raises(RequestTimeout):
        await asked


async def test_who_asks_for_too_much_in_the_turn_that_ends_the_term_is_told_to_ask_again(system, monkeypatch):
    first = await system.lead()
    server, elector = first.term._executor.request_server, first._context.elector
    answer = server.answer

    def answer_and_lose(effect):
        answer(effect)
        elector.deposed()

    monkeypatch.setattr(server, "answer", answer_and_lose)
    with pytest.raises(NoCoordinator):
        await system.owner.acquire(pool="nobody", size=1)


async def test_who_waits_when_the_leader_stops_is_told_to_ask_again(system):
    await system.worker(slots=1)
    first = await system.lead()
    await system.owner.acquire(pool="train", size=1)
    waiting = asyncio.create_task(system.owner.acquire(pool="train", size=1))
    await system.event("queued", nth=2)
    await first.stop()
    with pytest.raises(Exception) as caught:
        await waiting
    assert caught.value.code == "no_coordinator"


async def test_a_new_leader_judges_no_worker_by_keys_that_an_outage_lost(system):
    worker = await system.worker()
    first = await system.lead()
    gang = await system.owner.acquire(pool="train", size=1)
    await first.stop()
    # No heartbeat key, as after an outage of storage; the worker lives and beats on.
    await system.ledger.delete(system.names.alive_key(worker.id))
    await system.lead("second")
    await system.event("recovered", gang["id"])
    await asyncio.sleep(5)
    assert (await system.owner.ask("get", {"id": gang["id"]}))["generation"] == 1
    assert "torn_down" not in [e["kind"] for e in system.events]


async def test_a_failing_query_removes_nothing(system, hub):
    await system.worker()
    coordinator = await system.lead(sweep_s=1.0)
    gang = await system.owner.acquire(pool="train", size=1, ttl_s=60)
    for _ in range(5):
        hub.storage_down()
        await asyncio.sleep(3)
        hub.storage_back()
        await coordinator.wait_leading()
    assert (await system.owner.ask("get", {"id": gang["id"]}))["generation"] == 1
    assert "torn_down" not in [e["kind"] for e in system.events]


async def test_a_lost_bucket_is_written_again_while_the_leader_leads(system, hub):
    worker = await system.worker()
    coordinator = await system.lead()
    gang = await system.owner.acquire(pool="train", size=2)
    await system.ledger.put("gangset.s", b'{"gangs": 1, "gang": {"pool": "train", "size": 1}}')
    await system.event("formed", nth=2)
    hub.stop()
    hub.start()
    await asyncio.sleep(3)
    assert coordinator.state is CoordinatorState.LEADING
    keys = {entry.key for entry in hub.peek(system.names.ledger_bucket)}
    assert {"leader", "gangset.s", f"gang.{gang['id']}", system.names.member_key(worker.id, gang["id"])} <= keys
    assert "torn_down" not in [e["kind"] for e in system.events]
    await system.owner.release(gang)


async def test_a_timer_that_rings_early_is_set_again(system, monkeypatch):
    await system.worker(slots=1)
    await system.lead()
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    monkeypatch.setattr(loop, "call_at", lambda when, *rest, **kw: call_at(when - 0.0007, *rest, **kw))
    await system.owner.acquire(pool="train", size=1, ttl_s=60)
    with pytest.raises(GangNotFormed):
        await system.owner.ask("acquire", {"pool": "train", "size": 1, "deadline_s": 0.5}, timeout_s=5)


# -- the object itself ------------------------------------------------------------------------------------------------


async def test_start_and_stop_are_idempotent_and_a_stopped_one_is_not_started_again(system):
    coordinator = Coordinator(bus=await system.bus("c"), names=system.names)
    await coordinator.start()
    await coordinator.start()
    await coordinator.wait_leading()
    await coordinator.stop()
    await coordinator.stop()
    await coordinator.wait_closed()
    with pytest.raises(ClosedError):
        await coordinator.start()
    unused = Coordinator(bus=await system.bus("d"), names=system.names)
    await unused.stop()


async def test_statistics_count_requests_gangs_and_commits(system):
    await system.worker(slots=1)
    coordinator = await system.lead()
    gang = await system.owner.acquire(pool="train", size=1)
    waiting = asyncio.create_task(system.owner.acquire(pool="train", size=1))
    await system.event("queued", nth=2)
    with pytest.raises(UnknownGang):
        await system.owner.ask("get", {"id": "x"})
    await asyncio.sleep(2)
    found = coordinator.statistics()
    assert (found.state, found.workers, found.waiting) == ("leading", 1, 1)
    assert found.term == coordinator.term.number
    assert (found.gangs["gangs"], found.gangs["formed"], found.gangs["queued"]) == (2, 1, 1)
    assert found.gangs["oldest_s"] == pytest.approx(2, abs=0.5)
    assert found.counts["commits"] == 1
    assert found.requests["acquire"] == (2, 0) and found.requests["get"] == (1, 1)
    assert "LEADING" not in repr(coordinator) and "leading" in repr(coordinator)
    await system.owner.release(gang)
    await waiting


async def test_a_claim_whose_answer_was_lost_makes_a_leader_like_any_other(system, monkeypatch):
    claim, lost = LeaderKey.claim, []

    async def unheard(self: LeaderKey, *args: Any) -> int:
        fence = await claim(self, *args)
        if not lost:
            lost.append(fence)
            raise StorageUnavailable("the answer was lost")
        return fence

    monkeypatch.setattr(LeaderKey, "claim", unheard)
    coordinator = await system.lead()
    assert coordinator._context is not None
    assert coordinator._context.leader.fence == lost[0]
    assert await coordinator._context.leader.rewrite() > lost[0], "it can fence what it wrote"


async def test_a_ledger_that_is_lost_while_a_new_leader_reads_it_is_led_all_the_same(system, hub, monkeypatch):
    entries, blocked = NatsKeyValue.entries, True

    async def slow(self: NatsKeyValue, *patterns: str) -> list[KvEntry]:
        if blocked and system.names.leader_key in patterns:
            raise StorageUnavailable("not yet")
        return await entries(self, *patterns)

    monkeypatch.setattr(NatsKeyValue, "entries", slow)
    for number in range(50):  # so that the fence is far above what the next bucket begins with
        await system.ledger.put("reg.x.y", str(number).encode())
    coordinator = await system.coordinator("first")
    await until(lambda: coordinator.term is not None)
    hub.stop()
    hub.start()
    await until(lambda: any(e.key == "leader" for e in hub.peek(system.names.ledger_bucket)))
    blocked = False
    await asyncio.wait_for(coordinator.wait_leading(), 5)


async def test_a_set_that_is_deleted_while_a_new_leader_takes_over_is_not_kept_up(system, monkeypatch):
    await system.worker()
    await system.ledger.put("gangset.s", b'{"gangs": 1, "gang": {"pool": "train", "size": 1}, "retire_s": 0}')
    watch = NatsKeyValue.watch

    async def late(self: NatsKeyValue, pattern: str, handler: Any) -> Any:
        if pattern == system.names.gangset_key():
            await system.ledger.delete("gangset.s")
        return await watch(self, pattern, handler)

    monkeypatch.setattr(NatsKeyValue, "watch", late)
    coordinator = await system.lead()
    await until(lambda: coordinator.statistics().gangs["gangs"] == 0 and system.at_rest())


async def test_to_stop_it_ends_its_start(hub):
    bus = hub.connect("stopped")
    opened, bucket = asyncio.Event(), bus.bucket

    async def late(*args: Any, **more: Any) -> Any:
        await opened.wait()
        return await bucket(*args, **more)

    bus.bucket = late  # type: ignore[method-assign]
    coordinator = Coordinator(bus=bus)
    starting = asyncio.ensure_future(coordinator.start())
    await asyncio.sleep(1)
    await coordinator.stop()
    opened.set()
    with pytest.raises(ClosedError, match="stopped while it started"):
        await starting
    await asyncio.sleep(10)
    assert coordinator.state is CoordinatorState.CLOSED and coordinator.term is None
    await bus.close()
