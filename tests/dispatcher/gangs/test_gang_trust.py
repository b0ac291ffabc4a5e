"""A gang and its owner out of touch: lost leaders, answers and members, and what may still be trusted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline import errors
from gangline.bus.memory.faults import WriteOutcome
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.gang_rig import GangRig, on_gang_rig, until
from ...waiting import loop_time


@on_gang_rig("w1", "w2")
async def test_a_gang_outlives_its_coordinator_and_the_next_one_takes_over(rig: GangRig) -> None:
    async with rig.client.gang(pool="train", size=2) as gang:
        running = asyncio.ensure_future(gang.run("wait"))
        await until(lambda: len(rig.probe.started) == 2)
        old = rig.coordinator
        rig.cut("coordinator")
        await rig.start_coordinator("second")
        await asyncio.sleep(20)
        rig.probe.go.set()
        assert await running == ["1.0", "1.1"]
        assert gang.lost is None
        assert old is not None
        await old.stop()


@on_gang_rig("w1")
async def test_an_owner_that_cannot_renew_stops_trusting_before_the_gang_can_end(rig: GangRig) -> None:
    gang = await rig.client.gang(pool="train", size=2, ttl_s=6).__aenter__()
    began_at = loop_time()
    rig.hub.partition(rig.bus)
    await until(lambda: gang.lost is not None)
    assert loop_time() - began_at < 6
    assert rig.workers["w1"].core.load.ongoing == 2, "the gang still stands"
    with pytest.raises(errors.LeaseExpired, match="could not be renewed in time"):
        await gang.run("who")
    await asyncio.sleep(10)
    assert rig.free("w1") == 2, "the owner was given up"
    rig.hub.heal(rig.bus)
    await until(lambda: isinstance(gang.lost, errors.GangEnded))
    with pytest.raises(errors.GangEnded):
        await gang.wait_formed()
    await gang.release()


@on_gang_rig("w1", "w2")
async def test_a_member_that_this_process_had_given_up_is_waited_for(rig: GangRig) -> None:
    """As after a worker's freeze: the coordinator has its answers before we have its next heartbeat."""
    async with rig.client.gang(pool="train", size=4) as gang:
        pool = await rig.client.router.pool("train", None)
        assert pool.discovery is not None
        pull, pulls = pool.discovery.informer.refresh, 0

        async def too_early() -> None:
            nonlocal pulls
            pulls += 1
            if pulls > 4:
                await pull()

        pool.discovery.informer.refresh = too_early  # type: ignore[method-assign]
        pool.core.gone(pool.core.view.workers["w2"], loop_time())
        assert "w2" not in pool.core.view.workers
        assert [result[0] for result in await gang.run("who")] == [0, 1, 2, 3]
        assert gang.generation == 1


@on_gang_rig("w1")
async def test_looking_for_a_member_ends_with_the_callers_deadline(rig: GangRig) -> None:
    """Also when the ledger does not answer."""
    async with rig.client.gang(pool="train", size=1) as gang:
        pool = await rig.client.router.pool("train", None)
        assert pool.discovery is not None

        async def never() -> None:
            await asyncio.sleep(100)

        pool.discovery.informer.refresh = never  # type: ignore[method-assign]
        pool.core.gone(pool.core.view.workers["w1"], loop_time())
        began = loop_time()
        with pytest.raises(errors.DeadlineExceeded):
            await gang.options(timeout_s=0.5).run("who")
        assert loop_time() - began < 0.6


class LoseTheFirstAnswer:
    """Of the coordinator to the client."""

    def __init__(self, inbox: str) -> None:
        self.inbox = inbox
        self.lost = 0

    def message(self, sender: str, receiver: str, subject: str, now: float) -> tuple[float, ...]:
        if sender == "coordinator" and subject.startswith(self.inbox) and not self.lost:
            self.lost = 1
            return ()
        return (0.0,)

    def storage(self, client: str, now: float) -> WriteOutcome:
        return WriteOutcome(0.0, 0.0)


@on_gang_rig("w1")
async def test_an_answer_that_was_lost_with_its_leader_is_made_up_for_by_the_event(rig: GangRig) -> None:
    faults = LoseTheFirstAnswer(rig.bus.inbox)
    rig.hub.faults = faults
    began_at = loop_time()
    async with rig.client.gang(pool="train", size=2) as gang:
        assert faults.lost == 1
        assert loop_time() - began_at < 0.5
        assert gang.generation == 1 and gang.lost is None


@on_gang_rig()
async def test_a_run_waits_for_the_tasks_of_the_one_before_that_take_their_time_to_stop(rig: GangRig) -> None:
    pool = Pool("slow", slots=1)

    @pool.task
    async def tidy(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            raise
        return "done"

    await rig.worker("w1", pool)
    async with rig.client.gang(pool="slow", size=1) as gang:
        with pytest.raises(errors.DeadlineExceeded):
            await gang.options(timeout_s=0.5).run("tidy", 100)
        assert await gang.options(timeout_s=5).run("tidy", 0) == ["done"]


@on_gang_rig()
async def test_a_run_that_fails_says_whether_any_rank_may_have_started(rig: GangRig) -> None:
    await rig.worker("w1")
    async with rig.client.gang(pool="train", size=2) as gang:
        line = gang._newest.lines[0]

        async def late(*_: object) -> None:
            await asyncio.sleep(0.1)
            raise errors.DeadlineExceeded("it reached rank 0 too late; nothing started", may_have_started=False)

        line.call = late  # type: ignore[method-assign, assignment]
        with pytest.raises(errors.DeadlineExceeded) as caught:
            await gang.run("wait")
        assert rig.probe.started == [(1, 1)] and caught.value.may_have_started


@pytest.mark.parametrize("partial", [False, True])
@on_gang_rig("w1")
async def test_what_is_said_of_a_repeated_run_holds_for_all_its_tries(rig: GangRig, partial: bool) -> None:
    async with rig.client.gang(pool="train", size=1, grace_s=0, backoff_s=30) as gang:
        run = asyncio.create_task(gang.options(retries=1, timeout_s=5, partial=partial).run("wait"))
        await until(lambda: rig.probe.started)
        await rig.worker("w2")
        rig.cut("w1")
        with pytest.raises(errors.GangNotFormed) as caught:
            await run
        assert caught.value.may_have_started, "the first try did"


class Deaf:
    """The client hears of no events."""

    def message(self, sender: str, receiver: str, subject: str, now: float) -> tuple[float, ...]:
        return () if receiver == "client" and ".event.gang." in subject else (0.0,)

    def storage(self, client: str, now: float) -> WriteOutcome:
        return WriteOutcome(0.0, 0.0)


def hear_late(rig: GangRig) -> None:
    """The answer to the client's acquire takes 8 s, in which the gang loses its worker."""
    rig.hub.faults = Deaf()
    coordinator_client = rig.client.router.gangs.coordinator_client
    acquire = coordinator_client.acquire

    async def slowly(*args: Any) -> Any:
        answer = await acquire(*args)
        rig.cut("w1")
        await asyncio.sleep(8)
        return answer

    coordinator_client.acquire = slowly  # type: ignore[method-assign]


@on_gang_rig("w1")
async def test_a_gang_torn_down_before_its_owner_heard_of_it_is_given_in_its_next_generation(rig: GangRig) -> None:
    hear_late(rig)
    acquiring = asyncio.create_task(rig.client.gang(pool="train", size=1, backoff_s=0).__aenter__())
    await asyncio.sleep(10)
    assert not acquiring.done()
    cut_off = rig.workers.pop("w1")  # and not to be waited for
    await rig.worker("w2")
    gang = await acquiring
    assert gang.generation == 2 and gang.lost is None
    await gang.release()
    await cut_off.stop()


@on_gang_rig("w1")
async def test_such_a_gang_that_is_not_formed_again_is_refused_at_its_deadline(rig: GangRig) -> None:
    hear_late(rig)
    began = loop_time()
    with pytest.raises(errors.GangNotFormed):
        async with rig.client.gang(pool="train", size=1, backoff_s=0, deadline_s=12):
            pass
    assert loop_time() - began < 12.1
    assert rig.client.router.statistics()["gangs"] == 0
