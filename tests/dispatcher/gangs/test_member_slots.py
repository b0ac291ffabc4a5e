"""Choosing a gang of a standing set, and leasing slots of one: they are held at its members."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings

from ...support.dispatcher.gang_rig import PAIR, GangRig, on_gang_rig, pool_of, until


async def another(rig: GangRig, name: str = "other") -> Client:
    client = Client(rig.hub.connect(name), names=rig.names, settings=RouterSettings(node="", zone=""))
    await client.start()
    return client


async def two_of_one_slot(rig: GangRig, **fields: Any) -> None:
    for number in (1, 2):
        await rig.worker(f"w{number}", pool_of(rig.probe, slots=1))
    await rig.stand("llm", gangs=1, gang=PAIR, **fields)


# -- choose and dispatch ----------------------------------------------------------------------------------------------


@on_gang_rig("w1", "w2")
async def test_a_gang_is_chosen_and_dispatched_to_on_rank_0(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    async with rig.client.choose_worker("llm") as selection:
        assert (selection.pool, selection.endpoint, selection.slots) == ("llm", "llm", 1)
        assert selection.gang in rig.gangs("llm")
        assert selection.worker in ("train.w1", "train.w2")
        assert rig.subleases() == 1
        seats = {lease.fence for worker in rig.workers.values() for lease in worker.core.leases.values()}
        assert seats == {selection.fence}, "that of the gang"
        assert await rig.client.dispatch(selection, "who", "x") == [0, 2, 1, "x"]
        with pytest.raises(errors.SelectionUsed):
            await rig.client.dispatch(selection, "who", "x")
    async with rig.client.choose_worker("llm.who") as selection:
        with pytest.raises(errors.WrongPool):
            await rig.client.dispatch(selection, "train.who", "x")
        assert await rig.client.dispatch(selection, "llm.who", "x") == [0, 2, 1, "x"]
    async with rig.client.choose_worker("llm"):
        pass  # left without a dispatch
    async with rig.client.choose_worker("llm") as selection:
        with pytest.raises(errors.TaskFailed, match="rank 0 has no luck"):
            await rig.client.dispatch(selection, "fail_on", 0)


@on_gang_rig()
async def test_a_chosen_slot_is_held_however_many_calls_come_and_however_long_it_is_kept(rig: GangRig) -> None:
    await two_of_one_slot(rig)
    other = await another(rig)
    async with rig.client.choose_worker("llm") as selection:
        waiting = [asyncio.create_task(client.call("llm.who", "later")) for client in (rig.client, other)]
        await asyncio.sleep(4)  # longer than it is good for without being renewed
        assert not any(call.done() for call in waiting)
        assert await rig.client.dispatch(selection, "who", "first") == [0, 2, 1, "first"]
    assert [(await call)[3] for call in waiting] == ["later", "later"]
    await rig.settled("llm")
    await rig.settled("llm", other)
    await other.close()


@pytest.mark.parametrize(("route", "ranks"), [("rank0", 1), ("all", 2)])
@on_gang_rig()
async def test_of_two_routers_that_choose_the_last_slot_one_has_it(rig: GangRig, route: str, ranks: int) -> None:
    await two_of_one_slot(rig, route=route)
    other = await another(rig)
    running: list[int] = []

    async def use(client: Client) -> None:
        for _ in range(5):
            async with client.options(timeout_s=60).choose_worker("llm") as selection:
                running.append(1)
                assert len(running) == 1, "two have the same slot"
                await asyncio.sleep(0.1)
                running.pop()
                await client.dispatch(selection, "once", 0.05)

    await asyncio.gather(use(rig.client), use(other))
    assert len(rig.probe.started) == 10 * ranks
    await rig.settled("llm", other)
    await other.close()


@on_gang_rig()
async def test_a_set_whose_calls_run_on_all_ranks_is_held_on_all_and_dispatched_to_all(rig: GangRig) -> None:
    await two_of_one_slot(rig, route="all")
    async with rig.client.choose_worker("llm") as selection:
        assert rig.subleases() == 2
        assert await rig.client.dispatch(selection, "gather", "v") == [[[0, "v"], [1, "v"]]] * 2
    async with rig.client.choose_worker("llm") as selection:
        with pytest.raises(errors.GangFailed) as caught:
            await rig.client.dispatch(selection, "fail_on", 1)
        assert caught.value.rank == 1
    async with rig.client.choose_worker("llm"):
        assert rig.subleases() == 2


@on_gang_rig()
async def test_cancelled_at_any_moment_while_choosing_nothing_stays_held(rig: GangRig) -> None:
    await two_of_one_slot(rig, route="all")
    for turns in range(40):
        choosing = asyncio.ensure_future(rig.client.choose_worker("llm").__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        choosing.cancel()
        chosen = (await asyncio.gather(choosing, return_exceptions=True))[0]
        if not isinstance(chosen, BaseException):
            chosen.close()
        await until(lambda: rig.subleases() == 0)
        await rig.settled("llm")
    assert await rig.client.call("llm.who", "x") == [[0, 2, 1, "x"], [1, 2, 1, "x"]]


@on_gang_rig("w1", "w2", "w3", no_workers_wait_s=30.0)
async def test_a_chosen_gang_whose_member_is_killed_is_chosen_again_like_a_worker(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    async with rig.client.options(timeout_s=60).choose_worker("llm") as selection:
        rig.cut(selection.worker.partition(".")[2])
        await until(lambda: selection.hold.trouble() is not None)
        assert isinstance(selection.hold.trouble(), errors.WorkerLost)
        # Not idempotent: but it cannot have started, so it runs on the gang's next generation.
        rank, size, generation, word = await rig.client.options(timeout_s=60).dispatch(selection, "who", "x")
        assert (rank, size, word) == (0, 2, "x") and generation == 2


@on_gang_rig("w1", "w2", "w3")
async def test_items_stream_from_a_gang_that_was_chosen(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    async with rig.client.choose_worker("llm") as selection:
        assert [item async for item in rig.client.stream(selection, "count", 3)] == [[0, 0], [0, 1], [0, 2]]
        with pytest.raises(errors.SelectionUsed):
            await anext(rig.client.stream(selection, "count", 3))
    async with rig.client.choose_worker("llm") as selection:
        with pytest.raises(errors.InvalidArguments):
            await anext(rig.client.stream(selection, "count", "many"))
    await rig.settled("llm")
    await rig.stand("llm", gangs=1, gang=PAIR, route="all")
    async with rig.client.choose_worker("llm") as selection:
        with pytest.raises(errors.InvalidRequest, match="none of them can be streamed"):
            await anext(rig.client.stream(selection, "count", 3))
        assert len(await rig.client.dispatch(selection, "who")) == 2, "nothing was sent: the selection is still good"


@on_gang_rig("w1", "w2", "w3", no_workers_wait_s=30.0)
async def test_a_task_that_may_not_be_moved_is_not_repeated_and_may_have_started(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    client = rig.client.options(timeout_s=60)
    async with client.choose_worker("llm", move=False) as selection:
        assert selection.gang is not None
        task = asyncio.ensure_future(client.dispatch(selection, "slow", 1.0))
        await until(lambda: rig.probe.started)
        await rig.report(selection.gang, 1)
        with pytest.raises(errors.WorkerLost) as caught:
            await task
        assert caught.value.may_have_started and len(rig.probe.started) == 1
    await rig.ready("llm", 1)


@pytest.mark.parametrize("route", ["rank0", "all"])
@pytest.mark.parametrize("method", ["slow", "once"])
@on_gang_rig("w1", "w2", "w3", no_workers_wait_s=30.0)
async def test_a_task_on_a_gang_torn_down_is_repeated_if_it_may_be(rig: GangRig, route: str, method: str) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR, route=route)
    client = rig.client.options(timeout_s=60)
    async with client.choose_worker("llm") as selection:
        assert selection.gang is not None
        task = asyncio.create_task(client.dispatch(selection, method, 1.0))
        await until(lambda: rig.probe.started)
        await rig.report(selection.gang, 1)
        if method == "slow":  # idempotent
            await task
        else:
            with pytest.raises(errors.WorkerLost) as caught:
                await task
            assert caught.value.may_have_started is True
        assert {generation for generation, _ in rig.probe.started} == ({1, 2} if method == "slow" else {1})
    await rig.ready("llm", 1)


@on_gang_rig("w1", "w2")
async def test_a_gang_that_is_rolled_while_it_is_held_is_chosen_again(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang={**PAIR, "slots": 2}, retire_s=0.5)
    client = rig.client.options(timeout_s=60)
    async with client.choose_worker("llm") as selection, client.lease("llm") as lease:
        before = selection.gang
        await rig.declare("llm", gangs=1, gang={"pool": "train", "size": 1}, retire_s=0.5)
        await until(lambda: selection.hold.trouble() is not None)
        assert await client.dispatch(selection, "who", "x") == [0, 1, 1, "x"]
        assert isinstance(lease.lost, errors.WorkerLost) and lease.lost.may_have_started is False
        assert before is not None and before in lease.lost.message and "nothing was sent" in lease.lost.message
        with pytest.raises(errors.WorkerLost):
            await lease.call("who", "x")
    await until(lambda: before not in rig.gangs("llm"))
    await until(lambda: all(worker.core.load.running == 0 for worker in rig.workers.values()))


@on_gang_rig("w1", "w2")
async def test_a_gang_that_only_retires_still_takes_what_was_chosen(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR, retire_s=5)
    async with rig.client.choose_worker("llm") as selection:
        before = selection.gang
        await rig.declare("llm", gangs=1, gang={"pool": "train", "size": 1}, retire_s=5)
        await until(lambda: before not in rig.gangs("llm"))
        assert await rig.client.dispatch(selection, "who", "x") == [0, 2, 1, "x"]


@on_gang_rig("w1", "w2")
async def test_an_endpoint_whose_route_leads_to_a_set_chooses_its_gangs(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR)
    await rig.client.set_route("chat", {"to": {"llm": 1}})
    async with rig.client.choose_worker("chat.who") as selection:
        assert (selection.endpoint, selection.pool) == ("chat", "llm")
        assert await rig.client.dispatch(selection, "who", "x") == [0, 2, 1, "x"]
    async with rig.client.lease("chat") as lease:
        assert await lease.call("chat.who", "x") == [0, 2, 1, "x"]
        assert await lease.call("who", "y") == [0, 2, 1, "y"]


# -- leases -----------------------------------------------------------------------------------------------------------


@on_gang_rig("w1", "w2")
async def test_a_lease_on_a_gang_runs_many_tasks_on_its_slots(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang={**PAIR, "slots": 2})
    async with rig.client.lease("llm", slots=2, wait=False) as lease:
        assert (lease.slots, lease.pool, lease.gang) == (2, "llm", rig.gangs("llm")[0])
        assert rig.subleases() == 2
        calls = [asyncio.create_task(lease.call("slow", 1.0)) for _ in range(2)]
        await until(lambda: lease.used == 2)
        with pytest.raises(errors.LeaseBusy):
            await lease.call("who")
        assert [rank for _, rank in await asyncio.gather(*calls)] == [0, 0]
        assert [item async for item in lease.stream("count", 3)] == [[0, 0], [0, 1], [0, 2]]
        assert lease.lost is None and lease.used == 0
    await until(lambda: rig.subleases() == 0)
    await rig.settled("llm")
    with pytest.raises(errors.Saturated):
        async with rig.client.lease("llm", slots=3):
            pass
    with pytest.raises(errors.InvalidRequest, match="standing set"):
        async with rig.client.lease("llm", ledger="sync"):
            pass


@on_gang_rig()
async def test_a_lease_on_all_ranks_runs_its_tasks_on_all(rig: GangRig) -> None:
    await two_of_one_slot(rig, route="all")
    async with rig.client.lease("llm") as lease:
        assert rig.subleases() == 2
        for value in range(3):
            assert await lease.call("gather", value) == [[[0, value], [1, value]]] * 2
        with pytest.raises(errors.InvalidRequest, match="all ranks"):
            async for _ in lease.stream("count", 1):
                pass
        both = await asyncio.gather(lease.call("once", 1.0), lease.call("once", 1.0))
        assert [[rank for _, rank in one] for one in both] == [[0, 1], [0, 1]]
        hurry = asyncio.create_task(lease.call("wait"))
        await until(lambda: len(rig.probe.started) == 6)
        hurry.cancel()
        assert await lease.call("who") == [[0, 2, 1, ""], [1, 2, 1, ""]], "the slots come back when it has stopped"


@on_gang_rig("w1", "w2")
async def test_a_lease_outlives_its_time_to_live_and_ends_by_it_when_its_holder_vanished(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR, route="all")
    other = await another(rig)
    async with rig.client.lease("llm", ttl_s=2) as lease:
        await asyncio.sleep(10)
        assert await lease.call("who", "x") == [[0, 2, 1, "x"], [1, 2, 1, "x"]]
    await other.lease("llm", ttl_s=2).__aenter__()
    assert rig.subleases() == 2
    rig.hub.kill(other.router.bus)
    await until(lambda: rig.subleases() == 0, within_s=5)
    assert await rig.client.call("llm.who", "x") == [[0, 2, 1, "x"], [1, 2, 1, "x"]]
    await rig.settled("llm")
    await other.close()


@on_gang_rig("w1", "w2", "w3", no_workers_wait_s=30.0)
async def test_a_lease_on_a_gang_that_is_torn_down_is_lost_and_says_what_may_have_started(rig: GangRig) -> None:
    for route in ("rank0", "all"):
        rig.probe.started.clear()
        await rig.stand("llm", gangs=1, gang=PAIR, route=route)
        async with rig.client.lease("llm") as lease:
            assert lease.gang is not None
            task = asyncio.ensure_future(lease.call("slow", 1.0))
            await until(lambda: rig.probe.started)
            await rig.report(lease.gang, 1, rig.probe.started[0][0])
            with pytest.raises(errors.WorkerLost) as caught:
                await task
            assert caught.value.may_have_started is True
            with pytest.raises(errors.WorkerLost) as again:
                await lease.call("slow", 1.0)
            assert again.value.may_have_started is False
            assert len(rig.probe.started) == (1 if route == "rank0" else 2)
        await rig.ready("llm", 1)
        await rig.settled("llm")


@on_gang_rig("w1", "w2", no_workers_wait_s=30.0)
async def test_a_lease_whose_member_was_killed_is_lost_before_the_coordinator_says_so(rig: GangRig) -> None:
    for route in ("rank0", "all"):
        await rig.declare(route, gangs=1, gang=PAIR, route=route)
    await until(lambda: rig.coordinator.statistics().gangs.get("formed") == 2)
    async with rig.client.lease("rank0") as first, rig.client.lease("all") as second:
        rig.cut(first.worker.partition(".")[2])
        for lease in (first, second):
            with pytest.raises(errors.WorkerLost) as caught:
                await lease.call("who")
            assert caught.value.may_have_started is False
        assert rig.coordinator.statistics().gangs.get("formed") == 2, "nobody has noticed it yet"
        sets = rig.client.router.sets._sets.values()
        assert any(each.suspected for each in sets)
        await until(lambda: not any(each.suspected for each in sets))  # its record was looked up


@on_gang_rig("w1", "w2", "w3", no_workers_wait_s=30.0)
async def test_a_lease_on_a_survivor_goes_on_in_the_next_generation(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang={**PAIR, "restart": "restart_member"})
    async with rig.client.lease("llm") as lease:
        assert lease.gang is not None
        (formation,) = rig.client.router.sets._sets["llm"]._formations.values()
        cut = formation.lines[1].seat.worker
        rig.cut(cut)
        await until(lambda: lease.hold.formation.generation == 2)
        assert await lease.call("who", "x") == [0, 2, 2, "x"]


@on_gang_rig("w1", "w2")
async def test_closing_the_client_gives_back_what_is_held(rig: GangRig) -> None:
    await rig.stand("llm", gangs=1, gang=PAIR, route="all")
    other = await another(rig)
    await other.lease("llm").__aenter__()
    assert rig.subleases() == 2
    await other.close()
    await until(lambda: rig.subleases() == 0)
