"""Owning a gang, with a real coordinator and real workers on a bus in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gangline import errors
from gangline.schemas.messages.gangs import GangEventKind, GangReply
from gangline.schemas.names import GangOperation
from gangline.worker.context.task_context import GangContext

from ...support.dispatcher.fakes import give_up
from ...support.dispatcher.gang_rig import GangRig, on_gang_rig, pool_of, until
from ...support.rows import in_rows
from ...waiting import loop_time


async def started(rig: GangRig, gang: Any, *arguments: Any, **options: Any) -> asyncio.Task[list[Any]]:
    """A run of `wait` that has started on all ranks."""
    running = asyncio.create_task(gang.options(**options).run("wait", *arguments))
    await until(lambda: len(rig.probe.started) == gang.size)
    return running


def worker_of(gang: Any, rank: int) -> str:
    return str(gang.members[rank].worker.partition(".")[2])


# -- acquiring and releasing --------------------------------------------------------------------------------------


@on_gang_rig("w1", "w2")
async def test_a_gang_says_who_its_members_are(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=4, strategy="spread") as gang:
        assert (gang.size, gang.generation, gang.restarts, gang.lost) == (4, 1, 0, None)
        assert [member.rank for member in gang.members] == [0, 1, 2, 3]
        assert {member.worker for member in gang.members} == {"train.w1", "train.w2"}
        assert len({member.token for member in gang.members}) == 4
        assert gang.fence > 0 and gang.rendezvous is not None and gang.rendezvous.port > 0
        host, port = gang.rendezvous
        assert (host, port) == (gang.rendezvous.host, gang.rendezvous.port)
        assert rig.free("w1") == rig.free("w2") == 0
        assert gang.id in repr(gang)
    assert rig.free("w1") == rig.free("w2") == 2, "given back when the block was left"


@on_gang_rig("w1")
async def test_bundles_over_pools_make_ranks_in_their_order(rig: GangRig) -> None:
    await rig.worker("l1", pool_of(rig.probe, "licences"))
    bundles = [{"pool": "train", "count": 2, "extras": []}, {"pool": "licences", "slots": 2}]
    async with rig.client.gang(bundles=bundles) as gang:
        assert [member.pool for member in gang.members] == ["train", "train", "licences"]
        assert gang.members[2].slots == 2
        assert [result[0] for result in await gang.run("who")] == [0, 1, 2]
        with pytest.raises(errors.WrongPool, match="rank 2 is of pool 'licences'"):
            await gang.call(2, "train.who")


@on_gang_rig("w1")
async def test_what_can_never_be_and_what_is_malformed_is_refused_at_once(rig: GangRig) -> None:
    began_at = loop_time()
    with pytest.raises(errors.GangImpossible):
        async with rig.client.gang(pool="train", size=3, deadline_s=60):
            pass
    with pytest.raises(errors.GangImpossible):
        async with rig.client.gang(pool="nowhere", size=1, deadline_s=60):
            pass
    assert loop_time() - began_at < 1
    for fields in (
        {},
        {"pool": "train", "size": 0},
        {"pool": "train", "size": 2, "strategy": "around"},
        {"pool": "tr ain", "size": 2},
        {"pool": "train", "bundles": [{"pool": "train"}]},
        {"bundles": [{"pool": "train", "cuont": 2}]},
        {"pool": "train", "deadline_s": 0},
        {"pool": "train", "ttl_s": 0.1},
        {"pool": "train", "max_restarts": -1},
    ):
        with pytest.raises(errors.InvalidRequest):
            rig.client.gang(**fields)  # type: ignore[arg-type]


@on_gang_rig("w1")
async def test_a_second_gang_waits_for_the_first_and_a_deadline_says_what_stood_in_its_way(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2):
        with pytest.raises(errors.GangNotFormed) as caught:
            async with rig.client.gang(pool="train", size=2, deadline_s=2):
                pass
        assert caught.value.details["lacks"]
        second = rig.client.gang(pool="train", size=2, deadline_s=60)
        entering = asyncio.ensure_future(second.__aenter__())
        await asyncio.sleep(12)  # longer than an acquire goes without asking again
        assert not entering.done()
    gang = await entering
    assert gang.size == 2
    await second.__aexit__(None, None, None)
    with pytest.raises(errors.SelectionUsed):
        await second.__aenter__()


@on_gang_rig("w1")
async def test_giving_up_the_wait_leaves_nothing_behind(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2):
        waiting = asyncio.ensure_future(rig.client.gang(pool="train", size=1).__aenter__())
        await asyncio.sleep(1)
        await give_up(waiting)
    await asyncio.sleep(1)
    assert rig.free("w1") == 2
    assert rig.coordinator is not None and rig.coordinator.statistics().gangs["gangs"] == 0


@on_gang_rig("w1")
async def test_closing_the_client_gives_its_gangs_back(rig: GangRig) -> None:
    gang = await rig.client.gang(pool="train", size=2).__aenter__()
    running = await started(rig, gang)
    await rig.client.close()
    with pytest.raises(errors.ClosedError):
        await running
    with pytest.raises(errors.ClosedError):
        await gang.run("who")
    await asyncio.sleep(1)
    assert rig.free("w1") == 2


@on_gang_rig()
async def test_without_a_coordinator_acquiring_waits_for_one_if_it_has_a_deadline(rig: GangRig) -> None:
    await rig.worker("w1")
    assert rig.coordinator is not None
    await rig.coordinator.stop()
    for deadline_s, patience_s in ((1.5, 1.5), (None, 0)):
        began_at = loop_time()
        with pytest.raises(errors.NoCoordinator, match="gangline coordinator"):
            async with rig.client.gang(pool="train", size=1, deadline_s=deadline_s):
                pass
        assert loop_time() - began_at == pytest.approx(patience_s, abs=0.2)
    entering = asyncio.ensure_future(rig.client.gang(pool="train", size=1, deadline_s=30).__aenter__())
    await asyncio.sleep(2)
    await rig.start_coordinator("second")
    gang = await entering
    assert await gang.run("who") == [[0, 1, 1, ""]]
    await gang.release()


@on_gang_rig(saturated_wait_s=3)
async def test_a_gang_that_waits_when_the_last_coordinator_goes_waits_for_another_a_while(rig: GangRig) -> None:
    await rig.worker("w1")
    assert rig.coordinator is not None
    async with rig.client.gang(pool="train", size=2):
        entering = asyncio.ensure_future(rig.client.gang(pool="train", size=1).__aenter__())
        await asyncio.sleep(2)
        await rig.coordinator.stop()
        began_at = loop_time()
        with pytest.raises(errors.NoCoordinator):
            await entering
        assert 3 <= loop_time() - began_at < 10


@on_gang_rig("w1")
async def test_whoever_waits_in_vain_is_told_what_stood_in_the_way(rig: GangRig) -> None:
    """Also when the request was to be sent again at the very moment of the deadline."""

    async def in_vain(deadline_s: float, ttl_s: float) -> errors.GangNotFormed:
        with pytest.raises(errors.GangNotFormed) as caught:
            async with rig.client.gang(pool="train", size=1, deadline_s=deadline_s, ttl_s=ttl_s):
                pass
        return caught.value

    async with rig.client.gang(pool="train", size=2):
        deadlines = (12, 7.01, 7, 5, 4, 3.1, 3, 2, 1.5, 1.25, 1, 0.5, 1 / 3, 0.1)
        for ttl_s in (1.0, 3.0, 15.0):
            refusals = await asyncio.gather(*(in_vain(deadline_s, ttl_s) for deadline_s in deadlines))
            untold = [limit for limit, error in zip(deadlines, refusals, strict=True) if not error.details["lacks"]]
            assert untold == []
            assert "13 gangs ahead of it in the queue" in str(refusals[-1])


@on_gang_rig("w1")
async def test_who_waits_for_workers_gets_its_gang_when_they_come(rig: GangRig) -> None:
    with pytest.raises(errors.GangImpossible):
        async with rig.client.gang(pool="train", size=4):
            pass
    entering = asyncio.ensure_future(rig.client.gang(pool="train", size=4, wait_for_workers=True).__aenter__())
    await asyncio.sleep(60)
    assert not entering.done()
    async with rig.client.gang(pool="train", size=2, deadline_s=10):
        pass  # it stands in nobody's way
    await rig.worker("w2")
    gang = await entering
    assert len(await gang.run("who")) == 4
    await gang.release()


@on_gang_rig("w1")
async def test_an_operator_ends_a_gang_and_its_owner_is_told_why(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2) as gang:
        running = await started(rig, gang)
        body = json.dumps({"id": gang.id, "reason": "maintenance"}).encode()
        answer = await rig.bus.request(rig.names.gang(GangOperation.END), body, timeout_s=10)
        assert json.loads(answer.data)["state"] == "ended"
        with pytest.raises(errors.GangEnded, match="maintenance"):
            await running
    assert rig.free("w1") == 2


# -- running ------------------------------------------------------------------------------------------------------


@on_gang_rig("w1", "w2")
async def test_a_run_is_on_all_ranks_and_its_results_are_by_rank(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=4) as gang:
        assert await gang.run("who", word="x") == [[rank, 4, 1, "x"] for rank in range(4)]
        each = [("a",), {"word": "b"}, ["c"], ()]
        assert [result[3] for result in await gang.run_each("who", each)] == ["a", "b", "c", ""]
        assert await gang.call(2, "train.who", "only") == [2, 4, 1, "only"]
        assert [item async for item in gang.stream(1, "count", 200)] == [[1, number] for number in range(200)]
        results = await gang.options(partial=True).run_each("who", [(), {"wrong": 1}, (), ()])
        assert results[0] == [0, 4, 1, ""] and results[2] == [2, 4, 1, ""]
        assert isinstance(results[1], errors.InvalidArguments)


@on_gang_rig("w1", "w2")
async def test_members_talk_and_each_run_has_a_talk_of_its_own(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=3) as gang:
        each = [(value,) for value in "abc"]
        expected = [[rank, value] for rank, value in enumerate("abc")]
        assert await gang.run_each("gather", each) == [expected] * 3
        half = asyncio.ensure_future(gang.call(1, "gather", "half"))
        await asyncio.sleep(1)
        await give_up(half)
        assert await gang.run_each("gather", each) == [expected] * 3


@on_gang_rig("w1")
async def test_wrong_ranks_arguments_and_options_are_refused_before_anything_is_sent(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2) as gang:
        for rank in (-1, 2, "0", True):
            with pytest.raises(errors.InvalidRequest, match="0 to 1"):
                await gang.call(rank, "who")  # type: ignore[arg-type]
        for arguments in ([()], [(), (), ()], "ab", [1, 2], {"a": 1}):
            with pytest.raises(errors.InvalidArguments):
                await gang.run_each("who", arguments)  # type: ignore[arg-type]
        for retries in (-1, 1.5, True):
            with pytest.raises(errors.InvalidSettings):
                gang.options(retries=retries)  # type: ignore[arg-type]
        with pytest.raises(errors.UnknownMethod):
            await gang.run("nothing")
        with pytest.raises(errors.InvalidArguments):
            await gang.run("who", wrong=1)
        assert rig.free("w1") == 0


@on_gang_rig("w1", "w2")
async def test_the_first_failure_is_raised_with_its_rank_and_the_others_are_cancelled(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=4) as gang:
        with pytest.raises(errors.GangFailed) as caught:
            await gang.run("fail_on", 2)
        error = caught.value
        assert (error.rank, error.generation) == (2, 1)
        assert isinstance(error.__cause__, errors.TaskFailed) and error.__cause__.remote_type == "ValueError"
        assert not isinstance(error, errors.GangRestarted)
        assert await gang.run("who") == [[rank, 4, 1, ""] for rank in range(4)], "the gang goes on, its slots are free"


@on_gang_rig("w1", "w2")
async def test_cancelling_a_run_and_a_deadline_stop_every_rank(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=4) as gang:
        running = await started(rig, gang)
        await give_up(running)
        assert running.cancelled()
        await asyncio.sleep(0.1)
        assert sorted(rig.probe.stopped) == [(1, rank) for rank in range(4)]
        with pytest.raises(errors.DeadlineExceeded):
            await gang.options(timeout_s=2).run("wait")
        await asyncio.sleep(0.1)
        assert len(rig.probe.stopped) == 8


@on_gang_rig("w1")
async def test_a_rank_with_one_slot_runs_its_tasks_one_after_the_other(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=1) as gang:
        first = asyncio.ensure_future(gang.call(0, "wait"))
        second = asyncio.ensure_future(gang.call(0, "who"))
        await asyncio.sleep(5)
        assert not second.done()
        rig.probe.go.set()
        assert await first == "1.0"
        assert await second == [0, 1, 1, ""]


# -- restarts -----------------------------------------------------------------------------------------------------


@on_gang_rig("w1", "w2", "w3")
async def test_a_run_whose_member_dies_is_told_that_the_gang_restarts(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=4, strategy="spread") as gang:
        running = await started(rig, gang)
        victim = gang.members[1]
        rig.cut(victim.worker.partition(".")[2])
        with pytest.raises(errors.GangRestarted) as caught:
            await running
        assert caught.value.generation == 1 and caught.value.may_have_started
        assert await gang.wait_formed() == gang.generation == 2
        assert victim.worker not in {member.worker for member in gang.members}
        assert [result[2] for result in await gang.run("who")] == [2] * 4
        assert gang.restarts == 1


@on_gang_rig("w1", "w2", "w3")
async def test_a_run_that_was_torn_down_is_made_again_only_so_often(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2, strategy="spread", backoff_s=0) as gang:
        running = asyncio.ensure_future(gang.options(retries=1).run("wait"))
        for generation in (1, 2):
            await until(lambda g=generation: (g, 0) in rig.probe.started)
            rig.cut(worker_of(gang, 0))
        with pytest.raises(errors.GangRestarted) as caught:
            await running
        assert caught.value.generation == 2


@on_gang_rig("w1", "w2")
async def test_a_gang_that_may_not_restart_ends_with_the_rank_at_fault(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2, strategy="spread", restart="fail") as gang:
        running = await started(rig, gang, retries=5)
        rig.cut(worker_of(gang, 1))
        with pytest.raises(errors.GangFailed) as caught:
            await running
        assert caught.value.rank == 1 and not isinstance(caught.value, errors.GangRestarted)
        await asyncio.sleep(10)
        with pytest.raises(errors.GangFailed):
            await gang.run("who")
        with pytest.raises(errors.GangFailed):
            await gang.wait_formed()
        assert gang.lost is not None


@in_rows("restart", ["restart_gang", "restart_member"])
@on_gang_rig()
async def test_a_member_that_did_not_start_is_no_failure_of_a_run_with_retries(rig: GangRig, restart: str) -> None:
    tried = []
    pool = pool_of(rig.probe)

    @pool.gang_start
    async def load(context: GangContext) -> None:
        tried.append(context.rank)
        if len(tried) == 1:
            raise OSError("the disk is not mounted yet")

    for name in ("w1", "w2"):
        await rig.worker(name, pool)
    async with rig.client.gang(pool="train", size=2, strategy="spread", restart=restart) as gang:
        results = await gang.options(retries=1).run("who")
        assert [result[:2] for result in results] == [[0, 2], [1, 2]] and gang.generation == 2


@on_gang_rig()
async def test_a_member_that_never_starts_is_the_cause_that_the_run_tells(rig: GangRig) -> None:
    pool = pool_of(rig.probe)

    @pool.gang_start
    async def load(context: GangContext) -> None:
        raise OSError("no disk")

    await rig.worker("w1", pool)
    async with rig.client.gang(pool="train", size=1, max_restarts=1, backoff_s=0.1) as gang:
        with pytest.raises(errors.GangFailed, match="no disk") as caught:
            await gang.options(retries=5).run("who")
        assert not isinstance(caught.value, errors.GangRestarted)


@on_gang_rig("w1", "w2")
async def test_members_that_a_restarted_server_has_not_back_yet_are_waited_for(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2, strategy="spread") as gang:
        assert len(await gang.run("who")) == 2
        for name in ("coordinator", "w2"):
            rig.hub.disconnect(rig.buses[name])
        running = asyncio.ensure_future(gang.run("who"))
        await asyncio.sleep(1)
        assert not running.done()
        for name in ("w2", "coordinator"):
            rig.hub.reconnect(rig.buses[name])
        assert len(await running) == 2 and gang.generation == 1


@on_gang_rig("w1", "w2", "w3")
async def test_restart_member_leaves_calls_on_the_others_alone(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=3, strategy="spread", restart="restart_member") as gang:
        calls = [asyncio.ensure_future(gang.call(rank, "wait")) for rank in range(3)]
        await until(lambda: len(rig.probe.started) == 3)
        rig.cut(worker_of(gang, 2))
        with pytest.raises(errors.GangRestarted):
            await calls[2]
        await until(lambda: gang.generation == 2)
        assert not calls[0].done() and not calls[1].done()
        rig.probe.go.set()
        assert await asyncio.gather(*calls[:2]) == ["1.0", "1.1"]
        assert [result[:3] for result in await gang.run("who")] == [[rank, 3, 2] for rank in range(3)]


@on_gang_rig("w1", "w2", "w3")
async def test_runs_in_a_new_generation_have_numbers_of_their_own(rig: GangRig) -> None:
    """A task of a run that was sent in the generation before may reach a member that is already in the new one."""
    async with rig.client.gang(pool="train", size=2, strategy="spread", restart="restart_member") as gang:
        runs = await gang.run("run_of")
        rig.cut(worker_of(gang, 1))
        await until(lambda: gang.generation == 2)
        runs += await gang.run("run_of")
        assert len(set(runs)) == 2 and 0 not in runs


@on_gang_rig()
async def test_a_member_that_is_lost_without_a_spare_is_told_at_once_and_waited_for(rig: GangRig) -> None:
    for name in ("w1", "w2"):
        await rig.worker(name, pool_of(rig.probe, slots=1))
    async with rig.client.gang(pool="train", size=2, restart="restart_member", max_restarts=None) as gang:
        assert (gang.state, gang.lost_ranks) == ("formed", ())
        calls = [asyncio.ensure_future(gang.call(rank, "wait")) for rank in range(2)]
        await until(lambda: len(rig.probe.started) == 2)
        rig.cut(worker_of(gang, 1))
        with pytest.raises(errors.GangRestarted, match="rank 1 of gang .* was lost in generation 1") as caught:
            await calls[1]
        assert "torn down" not in str(caught.value) and caught.value.may_have_started
        assert (gang.state, gang.lost_ranks, gang.lost, gang.generation) == ("repairing", (1,), None, 1)
        assert not calls[0].done(), "the others go on"
        formed = asyncio.ensure_future(gang.wait_formed())
        with pytest.raises(errors.GangNotFormed, match="not repaired by the deadline"):
            await gang.options(timeout_s=1).run("who")
        assert not formed.done()
        await rig.worker("w3", pool_of(rig.probe, slots=1))
        assert await formed == 2
        assert (gang.state, gang.lost_ranks, gang.restarts, gang.failures) == ("formed", (), 1, 1)
        rig.probe.go.set()
        assert await calls[0] == "1.0"
        assert [result[:3] for result in await gang.run("who")] == [[rank, 2, 2] for rank in range(2)]


@on_gang_rig("w1", "w2")
async def test_a_worker_that_is_told_to_leave_twice_counts_as_a_restart_and_as_no_failure(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2, strategy="spread") as gang:
        leaving = rig.workers[worker_of(gang, 1)]
        running = await started(rig, gang, retries=1)
        events = gang.events()
        leaving.begin_drain(30.0)
        await asyncio.sleep(1)
        leaving.begin_drain(0.0)
        torn = await anext(events)
        assert (torn.kind, torn.reason.partition(":")[0]) == (GangEventKind.TORN_DOWN, "drained")
        rig.probe.go.set()
        assert await running == ["2.0", "2.1"]
        body = json.dumps({"id": gang.id}).encode()
        answer = await rig.bus.request(rig.names.gang(GangOperation.GET), body, timeout_s=10)
        reply = GangReply.model_validate_json(answer.data)
        told = [(torn.generation, torn.failures), (gang.generation, gang.failures), (reply.generation, reply.failures)]
        assert told == [(1, 0), (2, 0), (2, 0)]
        assert torn.restarts == 0 and gang.restarts == reply.restarts == 1


@on_gang_rig()
async def test_a_gang_with_a_range_of_sizes_is_as_large_as_there_is_room_for_in_each_generation(rig: GangRig) -> None:
    for name in ("w1", "w2", "w3"):
        await rig.worker(name, pool_of(rig.probe, slots=1))
    async with rig.client.gang(pool="train", size=(2, 8), backoff_s=0) as gang:
        assert gang.size == 3 and [rank for rank, *_ in await gang.run("who")] == [0, 1, 2]
        rig.cut(worker_of(gang, 2))
        await until(lambda: gang.generation == 2)
        assert gang.size == 2 and [result[:3] for result in await gang.run("who")] == [[0, 2, 2], [1, 2, 2]]
        await rig.worker("w4", pool_of(rig.probe, slots=1))
        assert gang.size == 2
        rig.cut(worker_of(gang, 0))
        await until(lambda: gang.generation == 3)
        words = await gang.run_each("who", lambda size: [(f"{rank} of {size}",) for rank in range(size)])
        assert [word for *_, word in words] == ["0 of 2", "1 of 2"]
    for wrong in ((2, 1), (0, 3), (1, 2, 3)):
        with pytest.raises(errors.InvalidRequest, match="size"):
            rig.client.gang(pool="train", size=wrong)  # type: ignore[arg-type]
