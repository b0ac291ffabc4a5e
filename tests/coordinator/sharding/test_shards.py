"""Coordinators that share a namespace's pools, on an in-memory server.

Two shards unless said otherwise: `train` has the pool train, `serve` the pools gpu and cpu.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline.bus.port.bus import Conflict, KvWrite, NoResponders
from gangline.coordinator.service import Coordinator, CoordinatorState
from gangline.coordinator.sharding.registry import GONE_S
from gangline.coordinator.sharding.shards import WHOLE, Shard, pools_of, shard_of
from gangline.schemas.errors.base import (
    GangImpossible,
    InvalidRequest,
    InvalidSettings,
    NoCoordinator,
    ShardConflict,
    UnknownGang,
)
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangSpec, LeaderRecord, MemberRecord, ShardMap

from ...support.coordinator.rig import CoordinatorSystem
from ...support.rows import in_rows
from ...waiting import until

PREFILL = {"bundles": [{"pool": "gpu"}, {"pool": "cpu"}]}


async def shard(system: CoordinatorSystem, name: str, *pools: str, who: str = "", **shell) -> Coordinator:
    return await system.lead(who or f"k-{name}", shard=name, pools=pools, **shell)


async def two(system: CoordinatorSystem, *, slots: int = 4, **shell) -> tuple[Coordinator, Coordinator]:
    for pool in ("train", "gpu", "cpu"):
        await system.worker(f"w-{pool}", pool, slots=slots)
    return await shard(system, "train", "train", **shell), await shard(system, "serve", "gpu", "cpu", **shell)


async def shard_map(system: CoordinatorSystem) -> dict[str, tuple[str, ...]]:
    entry = await system.ledger.get("shards")
    return ShardMap.model_validate_json(entry.value).shards


@in_rows(("name", "pools"), [("a", None), (None, ["p"]), ("a", []), ("a b", ["p"]), ("a", ["p.q"])])
def test_a_shard_has_a_name_and_pools_or_neither(name, pools):
    with pytest.raises(InvalidRequest):
        Shard.of(name, pools)


def test_a_gang_belongs_to_the_shard_of_its_first_pool():
    spec = GangSpec.model_validate({"bundles": [{"pool": "a", "extras": [{"pool": "b"}]}, {"pool": "a"}]})
    assert pools_of(spec) == ("a", "b")
    mine, other = Shard.of("x", ["a"]), Shard.of("y", ["b"])
    assert mine.owns(spec) and not mine.keeps_all(spec) and not other.owns(spec)
    assert WHOLE.owns(spec) and WHOLE.keeps_all(spec) and Shard.of("z", ["a", "b"]).keeps_all(spec)
    assert shard_of("b", {"x": ("a",), "y": ("b",)}) == "y"
    assert shard_of("c", {"x": ("a",)}) is None


async def test_each_shard_has_a_leader_of_its_own_and_callers_need_not_know(system, hub):
    train, serve = await two(system)
    gangs = [await system.owner.acquire(pool="train", size=2), await system.owner.acquire(**PREFILL)]
    assert {len(train.term.core.gangs()), len(serve.term.core.gangs())} == {1}
    for gang, size in zip(gangs, (2, 2), strict=True):
        assert (gang["state"], gang["size"]) == ("formed", size)
        for operation in ("get", "why"):
            assert (await system.owner.ask(operation, {"id": gang["id"]}))["id"] == gang["id"]
        owned = {"id": gang["id"], "owner_token": gang["owner_token"]}
        assert (await system.owner.ask("renew", owned))["state"] == "formed"
    listed = await system.owner.ask("list")
    assert [gang["id"] for gang in listed["gangs"]] == [gang["id"] for gang in gangs]
    assert listed["missing"] == []
    for gang in gangs:
        assert (await system.owner.release(gang))["state"] == "ended"
    assert system.at_rest()
    found = {entry.key for entry in hub.peek(system.names.ledger_bucket)}
    assert {"leader.train", "leader.serve", "leader_alive.train", "leader_alive.serve", "shards"} <= found
    assert not {"leader", "leader_alive"} & found


@in_rows(
    ("operation", "body"),
    [
        ("acquire", {"pool": "train", "size": 1}),
        ("acquire", {"pool": "gpu", "size": 1, "id": "mine", "owner_token": "t"}),
        ("acquire", {"pool": "train"}),
        ("acquire", {"pool": "train", "size": 99}),
        ("acquire", {"pool": "elsewhere", "size": 1}),
        ("acquire", {"bundles": [{"pool": "train"}, {"pool": "gpu"}]}),
        ("acquire", {"size": 0}),
        ("acquire", ["nonsense"]),
        ("list", None),
        ("get", {"id": "nobody"}),
        ("get", {}),
        ("renew", {"id": "nobody", "owner_token": "t"}),
        ("report", {"gang": "nobody", "generation": 1, "rank": 0, "cause": "failed"}),
        ("dance", {}),
    ],
)
async def test_every_request_has_exactly_one_answer(system, hub, operation, body):
    if not system.workers:
        await two(system, slots=64)  # a gang that one row was granted is in no other's way
    answered = []
    inbox = system.owner.bus.inbox
    hub.tap(on_message=lambda name, m: answered.append(name) if m.subject.startswith(f"{inbox}.") else None)
    for _ in range(2):  # whoever the server chooses as the usher
        answered.clear()
        await system.owner.bus.request(
            f"{system.names.namespace}.gang.{operation}",
            b"" if body is None else json.dumps(body).encode(),
            timeout_s=5,
        )
        await asyncio.sleep(0.5)
        assert len(answered) == 1, answered


async def test_a_gang_over_the_pools_of_two_shards_is_refused_at_once(system):
    await two(system)
    began = asyncio.get_running_loop().time()
    with pytest.raises(InvalidRequest, match=r"train \(shard train\), gpu \(shard serve\)") as caught:
        await system.owner.acquire(bundles=[{"pool": "train", "extras": [{"pool": "gpu"}]}])
    assert not isinstance(caught.value, GangImpossible)
    assert asyncio.get_running_loop().time() - began < 0.1
    with pytest.raises(InvalidRequest, match=r"other \(no shard\)"):
        await system.owner.acquire(bundles=[{"pool": "gpu"}, {"pool": "other"}])


async def test_a_pool_that_no_shard_keeps_is_told_with_those_that_are_kept(system):
    await two(system)
    with pytest.raises(InvalidRequest, match="no coordinator keeps pool 'other'.*serve keeps cpu, gpu; train keeps"):
        await system.owner.acquire(pool="other", size=1)


async def test_an_id_is_unique_over_all_shards(system):
    await two(system)
    await system.owner.acquire(pool="train", size=1, id="one", owner_token="t")
    with pytest.raises(InvalidRequest, match="in other pools"):
        await system.owner.acquire(pool="gpu", size=1, id="one", owner_token="t")
    again = await system.owner.acquire(pool="train", size=1, id="one", owner_token="t")
    assert again["id"] == "one"


async def test_a_workers_report_reaches_the_shard_of_its_gang(system):
    await two(system)
    gang = await system.owner.acquire(**PREFILL, backoff_s=0)
    report = {"gang": gang["id"], "generation": 1, "rank": 1, "cause": "crashed"}
    assert await system.owner.ask("report", report) == {"known": True}
    assert (await system.event("formed", gang["id"], nth=2))["generation"] == 2
    assert await system.owner.ask("report", {**report, "gang": "nobody"}) == {"known": False}


async def test_while_one_shard_has_no_leader_its_callers_hear_so_at_once_and_the_others_notice_nothing(system):
    train, serve = await two(system)
    gang = await system.owner.acquire(pool="gpu", size=1)
    await serve.stop()
    began = asyncio.get_running_loop().time()
    with pytest.raises(NoCoordinator, match="shard serve"):
        await system.owner.acquire(pool="gpu", size=1)
    with pytest.raises(NoCoordinator, match="shard serve"):
        await system.owner.ask("renew", {"id": gang["id"], "owner_token": gang["owner_token"]})
    with pytest.raises(UnknownGang):
        await system.owner.ask("get", {"id": "nobody"})
    listed = await system.owner.ask("list")
    assert (listed["gangs"], listed["missing"]) == ([], ["serve"])
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"
    assert asyncio.get_running_loop().time() - began < 0.5
    await train.stop()
    with pytest.raises(NoResponders):
        await system.owner.acquire(pool="train", size=1)


async def test_a_standby_of_a_shard_takes_over_its_gangs_and_only_those(system, hub):
    train, serve = await two(system)
    standby = await system.coordinator("standby", shard="serve", pools=("cpu", "gpu"))
    of_train = await system.owner.acquire(pool="train", size=1)
    of_serve = await system.owner.acquire(**PREFILL)
    hub.kill(serve._bus)
    await standby.wait_leading()
    assert [gang.id for gang in standby.term.core.gangs()] == [of_serve["id"]]
    assert [gang.id for gang in train.term.core.gangs()] == [of_train["id"]]
    assert (await system.owner.release(of_serve))["state"] == "ended"
    assert "torn_down" not in [event["kind"] for event in system.events if event["gang"] == of_train["id"]]


async def test_a_shard_removes_no_member_of_another_shards_gang(system):
    train, _ = await two(system, sweep_s=1.0)
    gangs = [await system.owner.acquire(pool="train", size=1), await system.owner.acquire(**PREFILL)]
    for pool in ("train", "cpu"):
        ghost = MemberRecord(gang="ghost", generation=1, epoch=1, seats=())
        key = system.names.member_key(WorkerId(pool, f"w-{pool}"), "ghost")
        await system.ledger.put(key, ghost.model_dump_json().encode())
    await train.stop()
    await asyncio.sleep(4)
    left = {entry.key for entry in await system.ledger.entries("member.>")}
    assert "member.train.w-train.ghost" in left, "its shard has no leader, so nobody may judge"
    assert "member.cpu.w-cpu.ghost" not in left
    assert len(left) == 1 + 1 + 2
    await shard(system, "train", "train", who="again", sweep_s=1.0)
    await asyncio.sleep(2)
    assert len(await system.ledger.entries("member.>")) == 1 + 2
    for gang in gangs:
        await system.owner.release(gang)


async def test_l9_holds_for_each_shard(system):
    """The server refuses a deposed leader of one shard, whoever leads the others."""
    _, serve = await two(system)
    old = (await system.ledger.get("leader.serve")).revision
    await serve.stop()
    await shard(system, "serve", "gpu", "cpu", who="second")
    zombie = KvWrite(key="gang.zombie", value=b"{}", condition_key="leader.serve", revision=old)
    with pytest.raises(Conflict):
        await system.ledger.commit([zombie])


@pytest.mark.parametrize(
    ("name", "pools", "text"),
    [
        ("more", ("other", "gpu"), "shard serve keeps cpu, gpu"),
        ("serve", ("gpu",), "this shard now keeps cpu, gpu"),
        (None, (), "shard serve keeps cpu, gpu"),
    ],
)
async def test_who_would_keep_a_pool_that_is_kept_is_refused_at_the_start(system, name, pools, text):
    _, serve = await two(system)
    with pytest.raises(ShardConflict, match=text):
        await system.coordinator("late", shard=name, pools=pools)
    assert serve.state is CoordinatorState.LEADING
    assert await shard_map(system) == {"train": ("train",), "serve": ("cpu", "gpu")}


async def test_a_shard_is_refused_while_a_coordinator_of_all_pools_leads(system):
    await system.lead()
    with pytest.raises(ShardConflict, match="a coordinator of all pools leads"):
        await system.coordinator("late", shard="train", pools=("train",))
    assert await system.ledger.get("shards") is None


async def test_two_shards_that_start_at_once_with_one_pool_do_not_both_get_it(system):
    results = await asyncio.gather(
        system.coordinator("a", shard="a", pools=("p", "q")),
        system.coordinator("b", shard="b", pools=("q", "r")),
        return_exceptions=True,
    )
    assert sum(isinstance(result, ShardConflict) for result in results) == 1
    for result in results:
        if isinstance(result, Coordinator):
            await result.wait_leading()
            break
    await asyncio.sleep(GONE_S + 2)
    kept = [pool for pools in (await shard_map(system)).values() for pool in pools]
    assert len(kept) == len(set(kept))


async def test_from_one_coordinator_to_shards_and_back_the_gangs_live_on(system):
    for pool in ("train", "gpu"):
        await system.worker(f"w-{pool}", pool, slots=4)
    whole = await system.lead("whole")
    plain = [await system.owner.acquire(pool=pool, size=2, ttl_s=600) for pool in ("train", "gpu")]
    mixed = await system.owner.acquire(bundles=[{"pool": "gpu"}, {"pool": "train"}], ttl_s=600)
    await whole.stop()

    train, serve = await asyncio.gather(shard(system, "train", "train"), shard(system, "serve", "gpu"))
    torn = await system.event("torn_down", mixed["id"])
    assert (torn["reason"], torn["ends"]) == ("resharded", True)
    await system.event("ended", mixed["id"])
    assert [gang.id for gang in train.term.core.gangs()] == [plain[0]["id"]]
    assert [gang.id for gang in serve.term.core.gangs()] == [plain[1]["id"]]
    await train.stop()
    await serve.stop()

    whole = await system.lead("whole again")
    assert await shard_map(system) == {}
    assert {gang.id for gang in whole.term.core.gangs()} == {gang["id"] for gang in plain}
    for gang in plain:
        assert (await system.owner.release(gang))["generation"] == 1
    assert system.at_rest()


async def test_a_shard_that_was_taken_out_while_it_was_cut_off_is_fenced_and_stops(system, hub):
    _, serve = await two(system)
    fence = serve.term.core.fence
    hub.partition(serve._bus)
    await asyncio.sleep(3)  # its leader_alive has expired
    began = asyncio.get_running_loop().time()
    wide = await shard(system, "wide", "gpu", "other")
    assert asyncio.get_running_loop().time() - began >= GONE_S
    assert await shard_map(system) == {"train": ("train",), "wide": ("gpu", "other")}
    with pytest.raises(Conflict):
        await system.ledger.commit([KvWrite(key="gang.z", value=b"{}", condition_key="leader.serve", revision=fence)])
    deposed = LeaderRecord.model_validate_json((await system.ledger.get("leader.serve")).value)
    assert deposed.instance == ""
    hub.heal(serve._bus)
    with pytest.raises(ShardConflict, match="shard wide keeps gpu, other"):
        async with asyncio.timeout(30):
            await serve.wait_closed()
    assert wide.state is CoordinatorState.LEADING
    assert (await system.owner.acquire(pool="gpu", size=1))["state"] == "formed"


async def test_shards_enter_themselves_again_into_a_ledger_that_was_lost(system, hub):
    train, serve = await two(system)
    gang = await system.owner.acquire(**PREFILL)
    hub.stop()
    hub.start()
    await asyncio.sleep(4)
    assert (train.state, serve.state) == (CoordinatorState.LEADING, CoordinatorState.LEADING)
    assert await shard_map(system) == {"train": ("train",), "serve": ("cpu", "gpu")}
    assert (await system.owner.ask("get", {"id": gang["id"]}))["generation"] == 1
    await system.owner.release(gang)


async def test_a_map_written_by_hand_does_not_end_the_coordinator_that_is_elected(system):
    """It once left for good: `shards` said that somebody else keeps its pools, though nobody did."""
    await system.worker()
    first = await system.lead("first")
    second = await system.coordinator("second")
    await system.ledger.put("shards", b'{"shards": {"a": ["train"]}}')
    await first.stop()
    async with asyncio.timeout(60):
        await second.wait_leading()
    assert await shard_map(system) == {}
    assert (await system.owner.acquire(pool="train", size=1))["state"] == "formed"


async def test_each_shard_keeps_the_sets_of_its_own_pools_up(system):
    train, serve = await two(system)
    await system.ledger.put("gangset.a", b'{"gangs": 1, "gang": {"pool": "train", "size": 2}}')
    await system.ledger.put("gangset.b", b'{"gangs": 2, "gang": {"pool": "gpu", "size": 1}}')
    await system.ledger.put("gangset.c", b'{"gangs": 1, "gang": {"bundles": [{"pool": "gpu"}, {"pool": "train"}]}}')
    await system.event("formed", nth=3)
    await asyncio.sleep(1)
    assert [gang.gangset for gang in train.term.core.gangs()] == ["a"]
    assert [gang.gangset for gang in serve.term.core.gangs()] == ["b", "b"]
    # It moves to the other shard, with its pool.
    await system.ledger.put("gangset.a", b'{"gangs": 1, "gang": {"pool": "cpu", "size": 2}}')
    await until(lambda: not train.term.core.gangs())
    await until(lambda: [g.gangset for g in serve.term.core.gangs() if g.state == "formed"].count("a") == 1)


async def test_a_shard_is_shown_by_discovery(system):
    await two(system)
    infos = []
    await system.owner.bus.subscribe("probe", lambda message: infos.append(json.loads(message.data)["metadata"]))
    system.owner.bus.publish("$SRV.INFO.gangline-coordinator", b"", reply="probe")
    await asyncio.sleep(0.5)
    assert {(info["shard"], info["pools"], info["role"]) for info in infos} == {
        ("train", "train", "leader"),
        ("serve", "cpu,gpu", "leader"),
    }


def test_settings_that_make_no_shard_are_refused_before_anything_is_asked(hub):
    with pytest.raises(InvalidSettings, match="at least one pool"):
        Coordinator(bus=hub.connect("k"), shard="train")
