"""Calling standing sets: each gang is like one worker. A real coordinator and real workers on a bus in memory."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gangline import errors
from gangline.bus.port.bus import Message
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.pools.pool import RoutedPool
from gangline.dispatcher.routing.settings import RouterSettings

from ...support.dispatcher.gang_rig import PAIR, GangRig, Load, on_gang_rig, pool_of, until
from ...waiting import loop_time


@on_gang_rig("w1", "w2", "w3", "w4")
async def test_calls_to_a_set_run_on_rank_0_of_its_gangs_evenly(rig: GangRig) -> None:
    await rig.stand("llm", gangs=4, gang=PAIR)
    calls = [rig.client.call("llm.slow", 1.0) for _ in range(4)]
    results = await asyncio.gather(*calls)
    assert all(rank == 0 for _, rank in results)
    assert set(Counter(gang for gang, _ in results).values()) == {1}, "each gang took one at a time"
    assert {gang for gang, _ in results} == set(rig.gangs("llm"))


@on_gang_rig("w1", "w2")
async def test_a_call_made_before_its_set_is_declared_waits_for_the_set_and_later_ones_find_it(rig: GangRig) -> None:
    with pytest.raises(errors.NoWorkers):
        await rig.client.options(timeout_s=0.3).call("llm.who", "too early")
    assert "llm" in rig.client.router._traffic.plain
    early = asyncio.create_task(rig.client.options(timeout_s=5).call("llm.who", "early"))
    await asyncio.sleep(0.3)
    await rig.declare("llm", gangs=1, gang=PAIR)
    assert await early == [0, 2, 1, "early"]
    assert await rig.client.call("llm.who", "later") == [0, 2, 1, "later"]
    assert "llm" not in rig.client.router._traffic.plain
    await rig.declare("llm")
    await until(lambda: "llm" not in rig.client.router.sets.statistics())
    with pytest.raises(errors.NoWorkers):
        await rig.client.call("llm.who", "too late")
    await rig.stand("llm", gangs=1, gang=PAIR)
    assert await rig.client.call("llm.who", "again") == [0, 2, 1, "again"]


@on_gang_rig("w1", "w2")
async def test_a_set_that_is_declared_while_the_pool_of_its_name_is_opened_is_not_overlooked(rig: GangRig) -> None:
    router = rig.client.router
    await router.sets.find("llm", None)  # read, and none is declared
    opened = router._following.get

    async def slowly(name: str, deadline: float | None) -> RoutedPool:
        pool = await opened(name, deadline)
        if name == "llm":
            await rig.declare("llm", gangs=1, gang=PAIR)
            await until(lambda: "llm" in router.sets.statistics())
        return pool

    router._following.get = slowly  # type: ignore[method-assign]
    assert await rig.client.options(timeout_s=5).call("llm.who", "x") == [0, 2, 1, "x"]
    assert "llm" not in router._traffic.plain


@on_gang_rig("w1", "w2")
async def test_by_setting_a_call_runs_on_all_ranks(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR, route="all")
    assert await rig.client.call("llm.who", "x") == [[0, 2, 1, "x"], [1, 2, 1, "x"]]
    assert await rig.client.call("llm.gather", "v") == [[[0, "v"], [1, "v"]]] * 2
    with pytest.raises(errors.GangFailed) as caught:
        await rig.client.call("llm.fail_on", 1)
    assert caught.value.rank == 1 and isinstance(caught.value.__cause__, errors.TaskFailed)
    with pytest.raises(errors.InvalidRequest, match="all ranks"):
        async for _ in rig.client.stream("llm.count", 1):
            pass


@on_gang_rig()
async def test_several_routers_share_a_gang_whose_calls_run_on_all_ranks(rig: GangRig) -> None:
    """Each takes all ranks or none: no call fails, and none runs twice on any rank."""
    for number in range(2):
        await rig.worker(f"w{number}", pool_of(rig.probe, slots=1))
    await rig.declare("s", gangs=1, gang=PAIR, route="all")
    clients = [rig.client]
    for number in range(4):
        client = Client(rig.hub.connect(f"client{number}"), names=rig.names, settings=RouterSettings(node="", zone=""))
        await client.start()
        clients.append(client)
    await until(lambda: rig.coordinator.statistics().gangs.get("formed") == 1)
    waited: list[float] = []

    async def use(client: Client, number: int) -> None:
        for turn in range(4):
            began = loop_time()
            value = [number, turn]
            # Not idempotent, and the ranks meet: two calls that each had one rank would wait for each other.
            assert await client.options(timeout_s=60).call("s.gather", value) == [[[0, value], [1, value]]] * 2
            await client.options(timeout_s=60).call("s.once", 0.01)
            waited.append(loop_time() - began)

    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(clients):
            group.create_task(use(client, number))
    for client in clients[1:]:
        await client.close()
    assert len(rig.probe.started) == 2 * 4 * len(clients)
    assert max(waited) < 10.0
    assert all(worker.statistics().load.running == 0 for worker in rig.workers.values())


@on_gang_rig()
async def test_a_rank_that_does_not_answer_ends_the_try_and_nothing_has_started(rig: GangRig) -> None:
    for number in range(2):
        await rig.worker(f"w{number}", pool_of(rig.probe, slots=1))
    await rig.declare("s", gangs=1, gang=PAIR, route="all")
    assert await rig.client.call("s.who") == [[0, 2, 1, ""], [1, 2, 1, ""]]
    rig.hub.partition(rig.buses["w1"])
    with pytest.raises(errors.GanglineError) as caught:
        await rig.client.options(timeout_s=1.5).call("s.once", 0.0)
    assert caught.value.may_have_started is False
    rig.hub.heal(rig.buses["w1"])
    await asyncio.sleep(3)
    assert rig.probe.started == []


@on_gang_rig("w1", "w2")
async def test_more_calls_than_gangs_can_take_wait_their_turn_and_a_key_stays_with_its_gang(rig: GangRig) -> None:
    await rig.stand("llm", gangs=2, gang=PAIR)
    began_at = loop_time()
    await asyncio.gather(*(rig.client.call("llm.slow", 1.0) for _ in range(10)))
    assert loop_time() - began_at == pytest.approx(5.0, abs=0.6)
    for key in "abcdef":
        client = rig.client.options(key=key)
        assert len({(await client.call("llm.slow", 0.1))[0] for _ in range(5)}) == 1


@on_gang_rig("w1", "w2")
async def test_errors_of_tasks_pass_as_they_are_and_unknown_tasks_are_told_at_once(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    with pytest.raises(errors.TaskFailed, match="rank 0 has no luck"):
        await rig.client.call("llm.fail_on", 0)
    with pytest.raises(errors.UnknownMethod):
        await rig.client.call("llm.nothing")
    assert [item async for item in rig.client.stream("llm.count", 100)] == [[0, number] for number in range(100)]


@on_gang_rig("w1", "w2")
async def test_a_set_takes_the_calls_of_a_pool_of_its_name_unless_the_pool_is_asked_for(rig: GangRig) -> None:
    await rig.stand("train", gangs=1, gang=PAIR)
    assert (await rig.client.call("train.slow", 0.1))[1] == 0
    with pytest.raises(errors.TaskFailed, match="gang"):  # the pool's task, outside of any gang
        await rig.client.options(pool="train").call("train.who")


@on_gang_rig("w1", "w2")
async def test_a_set_without_a_gang_says_so(rig: GangRig) -> None:
    await rig.declare("llm", gangs=1, gang={"pool": "train", "size": 9})
    await asyncio.sleep(1)
    with pytest.raises(errors.NoWorkers, match="no gang of standing set 'llm'"):
        await rig.client.call("llm.who")


@on_gang_rig("w1", "w2", "w3", "w4", "w5")
@pytest.mark.long
async def test_a_member_killed_under_load_costs_only_what_ran_on_its_gangs(rig: GangRig) -> None:
    await rig.stand("llm", gangs=3, gang=PAIR)
    async with Load(rig, "llm.once", 0.2, callers=3) as load:
        await asyncio.sleep(2)
        formations = rig.client.router.sets._sets["llm"]._formations.values()
        victim = next(iter(formations)).members[1].worker
        hit = [each for each in formations if victim in {member.worker for member in each.members}]
        rig.cut(victim.partition(".")[2])
        await asyncio.sleep(10)
    assert len(load.errors) <= len(hit)
    assert all(isinstance(error, errors.WorkerLost) and error.may_have_started for error in load.errors)
    assert len(load.results) > 75
    await until(lambda: len(rig.gangs("llm")) == 3)


@on_gang_rig("w1", "w2", "w3")
async def test_a_call_on_a_gang_that_was_torn_down_is_made_again_only_if_that_does_no_harm(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang={**PAIR, "backoff_s": 0})
    for target, again in (("llm.once", False), ("llm.slow", True)):
        await until(lambda: rig.gangs("llm"))
        rig.probe.started.clear()
        call = asyncio.ensure_future(rig.client.options(timeout_s=60).call(target, 10.0))
        await until(lambda: rig.probe.started)
        routed = rig.client.router.sets._sets["llm"]
        formation = routed._formations[routed.gangs[0]]
        # As a member that asks for it does: rank 0's worker, on which the call runs, stays.
        await rig.report(formation.gang, 1, formation.generation)
        if again:
            assert (await call)[1] == 0
            assert [generation for generation, _ in rig.probe.started] == [2, 3]
        else:
            with pytest.raises(errors.WorkerLost) as caught:
                await call
            assert caught.value.may_have_started
            await asyncio.sleep(5)
            assert rig.probe.started == [(1, 0)], "it started once and never again"


@on_gang_rig("w1", "w2", "w3", "w4")
async def test_rolling_all_gangs_under_load_fails_no_call(rig: GangRig) -> None:
    await rig.stand("llm", gangs=3, gang=PAIR)
    before = set(rig.gangs("llm"))
    async with Load(rig, "llm.once", 0.2, callers=6) as load:
        await asyncio.sleep(2)
        await rig.declare("llm", gangs=3, gang={**PAIR, "priority": 1})
        await until(lambda: len(rig.gangs("llm")) == 3 and not before & set(rig.gangs("llm")))
        await asyncio.sleep(2)
    assert load.errors == []
    assert {gang for gang, _ in load.results[-20:]} <= set(rig.gangs("llm"))


@on_gang_rig("w1", "w2", "w3", "w4", "w5")
async def test_draining_a_worker_moves_its_gangs_without_an_error(rig: GangRig) -> None:
    await rig.stand("llm", gangs=3, gang=PAIR)
    async with Load(rig, "llm.once", 0.2, callers=4) as load:
        await asyncio.sleep(2)
        await rig.client.drain("train.w1", grace_s=60)
        await until(lambda: rig.workers["w1"].state == "closed")
        await asyncio.sleep(2)
    assert load.errors == [] and len(rig.gangs("llm")) == 3


@on_gang_rig("w1", "w2")
async def test_a_draining_worker_is_left_well_before_its_grace_ends_though_there_is_no_room(rig: GangRig) -> None:
    await rig.stand("s", gangs=1, gang={**PAIR, "slots": 2, "grace_s": 0.5}, retire_s=0.5)
    began = loop_time()
    await rig.workers.pop("w1").drain(20)
    assert loop_time() - began < 8
    await rig.worker("w3")
    await until(lambda: len(rig.gangs("s")) == 1)
    assert len(await rig.client.call("s.who")) == 4


@on_gang_rig("w1", "w2")
async def test_calls_go_on_while_the_coordinator_is_gone(rig: GangRig) -> None:
    await rig.stand("llm", gangs=2, gang=PAIR)
    async with Load(rig, "llm.once", 0.2, callers=2) as load:
        rig.cut("coordinator")
        await asyncio.sleep(8)
    assert load.errors == [] and len(load.results) > 50


@on_gang_rig("w1", "w2")
async def test_closing_the_client_ends_calls_to_sets(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    running = asyncio.ensure_future(rig.client.call("llm.wait"))
    waiting = asyncio.ensure_future(rig.client.call("llm.wait"))
    await until(lambda: rig.probe.started)
    await rig.client.close()
    for call in (running, waiting):
        with pytest.raises(errors.ClosedError):
            await call
    await until(lambda: rig.probe.stopped)


@on_gang_rig("w1", "w2")
async def test_the_gateway_routes_to_sets_too(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    bus = rig.hub.connect("gateway")
    rig.buses["gateway"] = bus
    async with Gateway(bus, names=rig.names):
        answer: Message = await rig.bus.request("test.call.llm.who", b'{"word": "hello"}', timeout_s=5)
    assert answer.data == b'[0,2,1,"hello"]'
    assert answer.headers is not None and answer.headers["Gangline-Worker"].startswith("llm.llm-")
