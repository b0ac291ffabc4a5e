"""Gangs whose members take time to start, fail or hang: readiness, as owners and callers see it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.schemas.errors.base import GangEnded, GangFailed, GangNotFormed, InvalidRequest, NoWorkers
from gangline.schemas.names import GangOperation, Names
from gangline.schemas.records.gangs import GangSetStatus, SetState
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.gang_rig import PAIR, GangRig, Load, on_gang_rig, until
from ...waiting import loop_time


class Starts:
    """What start hooks do, by generation; counts who began."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.fails: set[int] = set()
        """Generations in which rank 1 raises."""
        self.began: list[tuple[int, int]] = []

    def pool(self, rig: GangRig) -> Pool:
        pool = rig.pool

        @pool.gang_start
        async def start(gang: Any) -> None:
            self.began.append((gang.generation, gang.rank))
            await asyncio.sleep(self.takes_s)
            if gang.rank == 1 and gang.generation in self.fails:
                raise RuntimeError("no weights")

        return pool

    async def workers(self, rig: GangRig, *names: str) -> Starts:
        pool = self.pool(rig)
        for name in names:
            await rig.worker(name, pool)
        return self


@on_gang_rig()
async def test_a_gang_is_ready_when_the_start_hooks_of_all_its_members_have_ended(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 3.0
    began = loop_time()
    async with rig.client.gang(pool="train", size=2, strategy="spread") as gang:
        assert loop_time() - began < 1.0, "formed, and not ready"
        reply = await rig.client.router.gangs.coordinator_client.ask(GangOperation.RENEW, gang._owner._owned, 1.0)
        assert (reply.step, reply.ready) == ("formed", False)
        assert await gang.ready() == 1
        assert 3.0 <= loop_time() - began < 3.5
        assert await gang.ready() == 1
        reply = await rig.client.router.gangs.coordinator_client.ask(GangOperation.RENEW, gang._owner._owned, 1.0)
        assert reply.ready


@on_gang_rig("w1", "w2")
async def test_a_gang_without_start_hooks_is_ready_at_once(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2) as gang:
        assert await gang.options(timeout_s=1.0).ready() == 1


@on_gang_rig()
async def test_ready_waits_over_a_failed_start_for_the_next_generation_and_raises_what_ended_it(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s, starts.fails = 1.0, {1}
    async with rig.client.gang(pool="train", size=2, backoff_s=0.1) as gang:
        assert await gang.ready() == 2
        assert gang.restarts == 1
    starts.fails = {1, 2}
    with pytest.raises((GangFailed, GangEnded), match="no weights"):
        async with rig.client.gang(pool="train", size=2, max_restarts=1, backoff_s=0.1) as gang:
            await gang.ready()


@on_gang_rig()
async def test_ready_is_waited_for_until_the_deadline(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 60.0
    async with rig.client.gang(pool="train", size=2) as gang:
        with pytest.raises(GangNotFormed, match="not ready"):
            await gang.options(timeout_s=2.0).ready()
        assert gang.lost is None


@on_gang_rig()
async def test_a_start_hook_that_hangs_fails_its_member_after_start_timeout_s(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 1e6
    began = loop_time()
    with pytest.raises((GangFailed, GangEnded), match=r"start_timeout_s \(5 s\)"):
        async with rig.client.gang(pool="train", size=2, restart="fail", start_timeout_s=5.0) as gang:
            await gang.ready()
    assert 5.0 <= loop_time() - began < 7.0
    await until(lambda: rig.free("w1") == rig.free("w2") == 2)
    with pytest.raises(InvalidRequest, match="start_timeout_s"):
        rig.client.gang(pool="train", size=2, start_timeout_s=0)


@on_gang_rig()
async def test_a_new_leader_learns_that_a_gang_is_ready(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 5.0
    async with rig.client.gang(pool="train", size=2) as gang:
        assert rig.coordinator is not None
        await rig.coordinator.stop()
        await rig.start_coordinator("another")
        assert await gang.ready() == 1
        await rig.coordinator.stop()
        await asyncio.sleep(5.0)
        await rig.start_coordinator("third")
        coordinator_client = rig.client.router.gangs.coordinator_client
        await asyncio.sleep(1.0)
        assert (await coordinator_client.ask(GangOperation.RENEW, gang._owner._owned, 1.0)).ready


# -- standing sets -----------------------------------------------------------------------------------------------------


async def status_of(rig: GangRig, name: str) -> GangSetStatus | None:
    ledger = await rig.client.router.ledger()
    entry = await ledger.get(Names.gangset_status_key(name))
    return None if entry is None else GangSetStatus.model_validate_json(entry.value)


async def steady(rig: GangRig, name: str, limit_s: float = 60.0) -> GangSetStatus:
    for _ in range(int(limit_s / 0.25)):
        status = await status_of(rig, name)
        if status is not None and status.state is SetState.STEADY:
            return status
        await asyncio.sleep(0.25)
    raise AssertionError(f"{name} never came up: {await status_of(rig, name)}")


@on_gang_rig()
async def test_callers_of_a_set_are_sent_to_gangs_that_are_ready(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2", "w3", "w4")
    starts.takes_s = 3.0
    await rig.declare("llm", gangs=1, gang=PAIR)
    await until(lambda: len(starts.began) == 2)
    with pytest.raises(NoWorkers, match="gangset status llm"):
        await rig.client.options(timeout_s=0.5).call("llm.who", "too early")
    assert (await steady(rig, "llm")).ready == 1
    async with Load(rig, "llm.who", "x", pause_s=0.2) as load:
        await rig.declare("llm", gangs=1, gang={**PAIR, "owner": "v2"})
        await until(lambda: len(starts.began) == 4)
        await asyncio.sleep(6.0)
        assert (await steady(rig, "llm")).served
    assert not load.errors and len(load.results) > 30 and load.slowest_s < 0.5, "nobody waits for a start"


@on_gang_rig()
async def test_callers_of_a_set_that_first_comes_up_wait_for_its_start_functions(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s = 50.0
    await rig.declare("llm", gangs=1, gang=PAIR)
    await until(lambda: len(starts.began) == 2)
    began = loop_time()
    with pytest.raises(NoWorkers, match="no gang of standing set 'llm' is ready"):
        await rig.client.options(timeout_s=20).call("llm.who", "by its deadline, not after a second")
    assert loop_time() - began == pytest.approx(20.0)
    assert (await rig.client.call("llm.who", "without a deadline"))[3] == "without a deadline"
    async with rig.client.choose_worker("llm") as selection:
        assert selection.gang is not None
    assert rig.client.router.sets._sets["llm"]._starting == {}


@on_gang_rig()
async def test_callers_of_a_set_whose_members_fail_at_their_start_do_not_wait_for_ever(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2")
    starts.takes_s, starts.fails = 10.0, set(range(1, 100))
    await rig.declare("llm", gangs=1, gang={**PAIR, "backoff_s": 30.0, "restart": "fail"})
    await until(lambda: len(starts.began) == 2)
    began = loop_time()
    with pytest.raises(NoWorkers, match="gangset status llm"):
        await rig.client.call("llm.who", "x")
    tries = len(starts.began) / 2
    assert 10 * tries < loop_time() - began < 10 * tries + 2, "as long as some gang started, and no_workers_wait_s"


@on_gang_rig()
async def test_a_roll_to_gangs_that_fail_at_their_start_harms_no_caller_and_is_rolled_back(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2", "w3", "w4", "w5", "w6")
    await rig.declare("llm", gangs=2, gang=PAIR)
    await steady(rig, "llm")
    async with Load(rig, "llm.who", "x", pause_s=0.2) as load:
        starts.takes_s, starts.fails = 0.2, set(range(1, 100))
        await rig.declare("llm", gangs=2, gang={**PAIR, "owner": "bad"})
        await asyncio.sleep(20.0)
        status = await status_of(rig, "llm")
        assert status is not None and status.state is SetState.FAILING and status.stopped
        assert "RuntimeError: no weights" in status.reason and "stopped" in status.reason
        assert (status.gangs, status.ready, status.old) == (2, 0, 2)
        assert status.previous is not None
        await rig.declare("llm", gangs=2, gang=status.previous)
        await asyncio.sleep(3.0)
        assert (await steady(rig, "llm")).ready == 2
    assert not load.errors and len(load.results) > 30 and load.slowest_s < 0.5


@on_gang_rig()
async def test_a_roll_to_gangs_whose_start_hangs_is_stopped_after_their_time(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2", "w3", "w4")
    await rig.declare("llm", gangs=1, gang=PAIR)
    await steady(rig, "llm")
    starts.takes_s = 1e6
    await rig.declare("llm", gangs=1, roll_failures=2, gang={**PAIR, "owner": "hangs", "start_timeout_s": 5})
    await asyncio.sleep(4.0)
    status = await status_of(rig, "llm")
    assert status is not None and status.state is SetState.ROLLING and "starting" in status.reason
    await asyncio.sleep(20.0)
    status = await status_of(rig, "llm")
    assert status is not None and status.stopped and "start_timeout_s (5 s)" in status.reason
    assert (await rig.client.call("llm.who", "x"))[3] == "x"
    await until(lambda: sum(rig.free(name) for name in rig.workers) == 6)


@on_gang_rig()
async def test_a_member_that_is_replaced_starts_before_callers_are_sent_to_its_gang_again(rig: GangRig) -> None:
    starts = await Starts().workers(rig, "w1", "w2", "w3")
    await rig.declare("llm", gangs=1, gang={**PAIR, "restart": "restart_member"})
    await steady(rig, "llm")
    assert (await rig.client.call("llm.who"))[2] == 1
    starts.takes_s = 3.0
    gang = next(iter(rig.client.router.sets._sets["llm"]._formations.values()))
    rig.cut(gang.members[1].worker.partition(".")[2])
    await until(lambda: (2, 1) in starts.began)
    assert rig.gangs("llm") == []
    await steady(rig, "llm")
    assert (await rig.client.call("llm.who"))[2] == 2
