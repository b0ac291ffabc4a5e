"""Members that talk over a bus."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import ConnectionEvent
from gangline.schemas.errors.base import ClosedError, GangEnded, InvalidRequest, PayloadTooLarge, StaleGeneration
from gangline.schemas.names import Names
from gangline.worker.gangs.collectives import LINGER_S, CollectiveSession, CollectiveSessions
from gangline.worker.gangs.flow_core import PATIENCE_S
from gangline.worker.gangs.rank_timer import RankTimer
from gangline.worker.gangs.shared_run import SharedRuns

from ...support.rows import in_rows

NAMES = Names("test")


@contextlib.asynccontextmanager
async def members(
    size: int, hub: MemoryServer | None = None, *, generation: int = 1
) -> AsyncIterator[list[CollectiveSessions]]:
    hub = hub or MemoryServer()
    buses = [hub.connect(f"m{rank}") for rank in range(size)]
    made = [
        CollectiveSessions(bus, NAMES, SharedRuns(bus, NAMES), gang="g", generation=generation, rank=rank, size=size)
        for rank, bus in enumerate(buses)
    ]
    try:
        yield made
    finally:
        for talks in made:
            await talks.close()
        for bus in buses:
            await bus.close()


def sessions(made: list[CollectiveSessions], run: int = 1) -> list[CollectiveSession]:
    return [talks.session(run) for talks in made]


async def on_all(talks: list[CollectiveSession], what: Any) -> list[Any]:
    return await asyncio.gather(*(what(talk) for talk in talks))


async def test_members_gather_broadcast_and_meet():
    async with members(4) as made:
        talks = sessions(made)
        gathered = await on_all(talks, lambda talk: talk.all_gather({"rank": talk.rank}))
        assert gathered == [[{"rank": rank} for rank in range(4)]] * 4
        told = await on_all(talks, lambda talk: talk.broadcast(f"from {talk.rank}", root=2))
        assert told == ["from 2"] * 4
        assert await on_all(talks, CollectiveSession.barrier) == [None] * 4


async def test_nobody_leaves_a_barrier_before_the_last_has_come():
    async with members(3) as made:
        talks = sessions(made)
        first = [asyncio.ensure_future(talk.barrier()) for talk in talks[1:]]
        await asyncio.sleep(5)
        assert not any(task.done() for task in first)
        await talks[0].barrier()
        await asyncio.gather(*first)


async def test_only_the_time_until_the_others_come_counts_as_a_wait_for_them(monkeypatch):
    waited: list[float] = []
    async with members(2) as made:
        talks = sessions(made)
        talks[1]._timed = timer = RankTimer(1, waited.append)
        bus = talks[1]._bus
        subscribe = bus.subscribe

        async def slowly(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(10)
            return await subscribe(*args, **options)

        monkeypatch.setattr(bus, "subscribe", slowly)
        waiting = asyncio.ensure_future(talks[1].barrier())
        await asyncio.sleep(25)  # 20 of them for two subscriptions
        await talks[0].barrier()
        await waiting
        assert waited == [5.0]
        assert timer.times(asyncio.get_running_loop().time()).waiting_s == 5.0


async def test_a_wait_that_failed_or_was_cancelled_is_not_measured_as_one_for_the_others():
    waited: list[float] = []
    async with members(2) as made:
        talk = made[1].session(1)
        talk._timed = timer = RankTimer(1, waited.append)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await talk.barrier()
        waiting = asyncio.ensure_future(talk.barrier())
        await asyncio.sleep(4)
        made[1].end(GangEnded("released"))
        with pytest.raises(GangEnded):
            await waiting
        with pytest.raises(GangEnded):
            await talk.barrier()
        assert waited == []
        assert timer.times(asyncio.get_running_loop().time() + 1).waiting_s == 7.0, "it no longer waits"


async def test_a_gang_of_one_needs_no_bus():
    hub = MemoryServer()
    async with members(1, hub) as made:
        [talk] = sessions(made)
        hub.stop()
        assert await talk.all_gather(7) == [7]
        assert await talk.broadcast("x") == "x"
        await talk.barrier()


async def test_large_values_travel_in_parts():
    async with members(3) as made:
        values = [bytes([rank]) * 2_000_000 for rank in range(3)]
        gathered = await on_all(sessions(made), lambda talk: talk.all_gather(values[talk.rank]))
        assert gathered == [values] * 3


@in_rows("turns", [1, 3, 6, 9])
async def test_large_values_arrive_although_a_connection_is_lost_on_their_way(turns: int):
    hub = MemoryServer()
    async with members(3, hub) as made:
        talks = sessions(made)
        await on_all(talks, CollectiveSession.barrier)
        value = bytes(3_000_000)
        waiting = [asyncio.ensure_future(talk.broadcast(value if talk.rank == 1 else None, root=1)) for talk in talks]
        for _ in range(turns):
            await asyncio.sleep(0)
        for talk in talks[turns % 3 :]:
            hub.disconnect(talk._bus)
            hub.reconnect(talk._bus)
        assert await asyncio.gather(*waiting) == [value] * 3


async def test_a_member_that_ends_while_large_values_are_on_their_way_is_named_to_the_others():
    async with members(3) as made:
        talks = sessions(made)
        await on_all(talks, CollectiveSession.barrier)
        waiting = [asyncio.ensure_future(talk.all_gather(bytes(3_000_000))) for talk in talks[:2]]
        await asyncio.sleep(0)
        made[2].task_ended(1, "failed")
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {"rank 2 failed without calling all_gather()" in str(error) for error in errors} == {True}


async def test_a_worker_that_is_cut_off_for_good_holds_up_the_others_for_a_while_only():
    hub = MemoryServer()
    async with members(3, hub) as made:
        talks = sessions(made)
        await on_all(talks, CollectiveSession.barrier)
        waiting = [asyncio.ensure_future(talk.broadcast(bytes(3_000_000), root=0)) for talk in talks]
        await waiting[0]
        hub.partition(talks[2]._bus)
        assert len(await waiting[1]) == 3_000_000
        assert asyncio.get_running_loop().time() > PATIENCE_S
        waiting[2].cancel()
        await asyncio.wait(waiting)


async def test_runs_of_one_generation_and_generations_do_not_hear_each_other():
    hub = MemoryServer()
    async with members(2, hub) as old, members(2, hub, generation=2) as new:
        stuck = asyncio.ensure_future(sessions(old, run=1)[1].all_gather("half-way"))
        await asyncio.sleep(1)
        assert await on_all(sessions(old, run=2), lambda talk: talk.all_gather(talk.rank)) == [[0, 1]] * 2
        assert await on_all(sessions(new, run=1), lambda talk: talk.all_gather(talk.rank)) == [[0, 1]] * 2
        assert not stuck.done()
        stuck.cancel()
        await asyncio.wait([stuck])


async def test_a_teardown_ends_every_wait_at_once_and_every_later_call():
    async with members(2) as made:
        talk = made[1].session(1)
        waiting = asyncio.ensure_future(talk.barrier())
        await asyncio.sleep(1)
        began_at = asyncio.get_running_loop().time()
        made[1].end(GangEnded("gang g has ended: released"))
        with pytest.raises(GangEnded, match="released"):
            await waiting
        assert asyncio.get_running_loop().time() == began_at
        with pytest.raises(GangEnded):
            await talk.all_gather(1)
        with pytest.raises(GangEnded):
            await made[1].session(2).barrier()


async def test_the_first_end_counts():
    async with members(2) as made:
        made[0].end(StaleGeneration("gang g is in generation 2"))
        made[0].end(GangEnded("later"))
        with pytest.raises(StaleGeneration):
            await made[0].session(1).barrier()


async def test_what_was_lost_with_the_connection_is_asked_for_when_it_is_back():
    hub = MemoryServer()
    async with members(3, hub) as made:
        talks = sessions(made)
        await on_all(talks, CollectiveSession.barrier)
        bus = talks[2]._bus
        waiting = asyncio.ensure_future(talks[2].all_gather(2))
        await asyncio.sleep(0)
        hub.disconnect(bus)
        others = [asyncio.ensure_future(talk.all_gather(talk.rank)) for talk in talks[:2]]
        back = asyncio.Event()
        bus.on_connection(lambda event: back.set() if event is ConnectionEvent.RECONNECTED else None)
        hub.reconnect(bus)
        await back.wait()
        assert await waiting == [0, 1, 2]
        assert await asyncio.gather(*others) == [[0, 1, 2]] * 2


async def test_a_cancelled_call_can_be_made_again():
    async with members(2) as made:
        talks = sessions(made)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await talks[1].all_gather("b")
        other = asyncio.ensure_future(talks[0].all_gather("a"))
        await asyncio.sleep(1)  # it is over at both ends by now
        assert await talks[1].all_gather("b") == ["a", "b"]
        assert await other == ["a", "b"]


async def test_two_calls_at_once_of_one_member_are_refused():
    async with members(2) as made:
        talk = made[0].session(1)
        first = asyncio.ensure_future(talk.barrier())
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="one collective call at a time"):
            await talk.barrier()
        await asyncio.gather(first, made[1].session(1).barrier())


async def test_members_that_make_different_calls_are_told_so_and_so_is_everybody():
    async with members(3) as made:
        talks = sessions(made)
        calls = [talks[0].barrier(), talks[1].barrier(), talks[2].all_gather(1)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, InvalidRequest) for error in errors)
        assert len({str(error) for error in errors}) == 1
        assert "rank 2 called all_gather()" in str(errors[0]) or "rank 2 called" in str(errors[0])


async def test_values_without_a_form_on_the_wire_or_too_large_are_refused_at_once():
    async with members(2) as made:
        talk = made[0].session(1)
        with pytest.raises(InvalidRequest):
            await talk.all_gather(object())
        with pytest.raises(PayloadTooLarge):
            await talk.broadcast(bytes(5 * 1024 * 1024))
        both = sessions(made)
        assert await on_all(both, lambda talk: talk.all_gather(talk.rank)) == [[0, 1]] * 2


async def test_the_hub_still_answers_for_a_while_after_its_task_has_ended():
    hub = MemoryServer()
    async with members(2, hub) as made:
        talks = sessions(made)
        await on_all(talks, CollectiveSession.barrier)
        hub.partition(talks[1]._bus)
        slow = asyncio.ensure_future(talks[1].all_gather("b"))
        quick = asyncio.ensure_future(talks[0].all_gather("a"))
        await asyncio.sleep(1)
        hub.heal(talks[1]._bus)
        await quick
        made[0].task_ended(1)
        assert await slow == ["a", "b"]
        assert made[0].session(1) is talks[0]
        await asyncio.sleep(LINGER_S + 1)
        assert made[0].session(1) is not talks[0]
        with pytest.raises(ClosedError):
            await talks[0].barrier()


@in_rows("who", [0, 1, 2])
@in_rows("calls", [0, 1])
@in_rows("before", [True, False])
async def test_a_member_that_returns_early_is_named_to_all_who_wait_for_it(who: int, calls: int, before: bool):
    async with members(3) as made:
        if calls:
            await on_all(sessions(made), CollectiveSession.barrier)
        if before:
            made[who].task_ended(1)
            await asyncio.sleep(60)
        others = [made[rank].session(1) for rank in range(3) if rank != who]
        waiting = [asyncio.ensure_future(talk.all_gather(1)) for talk in others]
        await asyncio.sleep(0 if before else 60)
        began = asyncio.get_running_loop().time()
        if not before:
            made[who].task_ended(1, "failed")
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert asyncio.get_running_loop().time() - began < 1.0
        verb = "returned" if before else "failed"
        assert all(isinstance(error, InvalidRequest) for error in errors), errors
        assert {f"rank {who} {verb} without calling all_gather()" in str(error) for error in errors} == {True}


async def test_a_member_that_returns_after_the_last_call_harms_nobody():
    hub = MemoryServer()
    async with members(3, hub) as made:
        talks = sessions(made)
        hub.partition(talks[2]._bus)
        late = asyncio.ensure_future(talks[2].all_gather(2))
        others = [asyncio.ensure_future(talk.all_gather(talk.rank)) for talk in talks[:2]]
        await asyncio.sleep(1)
        hub.heal(talks[2]._bus)
        await others[1]
        hub.partition(talks[2]._bus)
        made[0].task_ended(1)
        made[1].task_ended(1)
        await asyncio.sleep(1)
        hub.heal(talks[2]._bus)
        assert await late == [0, 1, 2]
        with pytest.raises(InvalidRequest, match="returned without calling barrier"):
            await talks[2].barrier()


async def test_run_zero_stays_as_long_as_the_member():
    async with members(1) as made:
        talk = made[0].session()
        made[0].task_ended(0)
        await asyncio.sleep(10 * LINGER_S)
        assert made[0].session() is talk
        await talk.barrier()


async def test_members_on_one_worker_get_one_copy_and_share_what_cannot_change():
    bus = MemoryServer().connect("worker")
    shared = SharedRuns(bus, NAMES)
    made = [CollectiveSessions(bus, NAMES, shared, gang="g", generation=1, rank=rank, size=6) for rank in range(6)]
    copies: list[int] = []
    deliver = bus.subscribe

    async def counted(subject: str, take: Any, **options: Any) -> Any:
        def count(message: Any) -> Any:
            copies.append(len(message.data))
            return take(message)

        return await deliver(subject, count if subject.endswith(".all") else take, **options)

    bus.subscribe = counted  # type: ignore[method-assign]
    talks = sessions(made)
    await on_all(talks, CollectiveSession.barrier)
    copies.clear()
    values: list[Any] = [bytes(5_000), "x" * 5_000, [1], {"a": 1}, 2.5, None]
    gathered = await on_all(talks, lambda talk: talk.all_gather(values[talk.rank]))
    assert gathered == [values] * 6
    assert len(copies) == 1 and copies[0] < 11_000, "one copy of the results for all six"
    for index, one in enumerate([True, True, False, False, True, True]):
        assert len({id(got[index]) for got in gathered}) == (1 if one else 6), values[index]
    for each in made[:5]:
        await each.close()
    assert repr(shared) == "SharedRuns(1)", "the last one still listens"
    await made[5].close()
    assert repr(shared) == "SharedRuns(0)"
    await bus.close()
