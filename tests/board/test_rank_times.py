"""Which rank of a gang is the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline import Pool, current_task
from gangline.board.rank_readings import gang_times
from gangline.board.rank_times import rank_report, times_in
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.coordinator.server.observation import MOST_TIMES, GenerationTimes
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.dispatcher.client.client import Client
from gangline.runtime.clock import Environment
from gangline.schemas.messages.gangs import GangEvent, GangEventKind
from gangline.schemas.messages.operations import RankTimes
from gangline.schemas.names import WorkerId
from gangline.testing import cluster

pool = Pool("train", slots=4)


@pool.task
async def step(seconds: list[float]) -> int:
    """Each rank works as long as it is told, and all meet at the end."""
    gang = current_task().gang
    assert gang is not None
    await asyncio.sleep(seconds[gang.rank])
    await gang.barrier()
    return gang.rank


@pool.task
async def alone(seconds: float) -> None:
    await asyncio.sleep(seconds)


@asynccontextmanager
async def system(workers: int = 3) -> AsyncIterator[Client]:
    loop = asyncio.get_running_loop()
    ambient = Environment(wall=lambda: 1_700_000_000 + loop.time())
    running = cluster(pool, workers=workers, dispatcher=True, ambient=ambient)
    async with running as client:
        bus = running.hub.connect("coordinator")
        shell = ServiceSettings(history=HistorySettings(), node="c")
        async with Coordinator(bus=bus, shell=shell, ambient=ambient) as coordinator:
            await coordinator.wait_leading()
            yield client
        await bus.close()


async def told(client: Client, gang: Any) -> dict[str, Any]:
    workers = {member.worker for member in gang.members}
    return await gang_times(client, gang.id, gang.generation, workers)


async def test_the_rank_that_the_others_wait_for_is_named_though_all_take_the_same_time():
    async with system() as client, client.gang(pool="train", size=3, slots=3) as gang:
        assert (await told(client, gang))["told"] == []
        await gang.run("step", [1.0, 5.0, 2.0])
        report = await told(client, gang)
        assert report["slowest"] == report["slowest_of_run"] == 1
        assert [round(rank["worked_s"]) for rank in report["ranks"]] == [1, 5, 2]
        assert {round(rank["busy_s"]) for rank in report["ranks"]} == {5}
        assert [round(rank["waiting_s"]) for rank in report["ranks"]] == [4, 0, 3]
        worker = gang.members[1].worker
        assert report["told"] == [
            f"slowest in this generation: rank 1 on {worker} worked 5 s; the median of the 2 others is 1.5 s"
        ]
        await gang.run("step", [3.0, 0.0, 1.0])
        report = await told(client, gang)
        assert (report["slowest"], report["slowest_of_run"], report["run"]) == (1, 0, 2)
        assert len(report["told"]) == 2


async def test_the_slowest_rank_is_named_while_the_others_wait_for_it():
    async with system() as client, client.gang(pool="train", size=3, slots=3) as gang:
        running = asyncio.ensure_future(gang.run("step", [1.0, 1.0, 600.0]))
        await asyncio.sleep(10)
        report = await told(client, gang)
        assert report["slowest"] == 2
        assert [round(rank["worked_s"]) for rank in report["ranks"]] == [1, 1, 10]
        running.cancel()
        await asyncio.wait((running,))


async def test_the_times_of_a_generation_that_has_ended_are_in_its_last_event_and_in_the_history():
    async with system() as client:
        events: list[GangEvent] = []
        bus = client.router.bus
        await bus.subscribe(
            client.router.names.gang_events, lambda message: events.append(GangEvent.model_validate_json(message.data))
        )
        async with client.gang(pool="train", size=3, slots=3) as gang:
            await gang.run("step", [1.0, 1.0, 4.0])
        await asyncio.sleep(3)
        (ended,) = [event for event in events if event.kind is GangEventKind.ENDED]
        assert rank_report(times_in(ended.details))["slowest"] == 2
        report = await gang_times(client, gang.id, 1, ())
        assert (report["generation"], report["slowest"]) == (1, 2)


async def test_a_gang_without_collective_calls_has_times_too():
    async with system() as client, client.gang(pool="train", size=2, slots=3) as gang:
        await gang.run_each("alone", [{"seconds": 1.0}, {"seconds": 2.0}])
        await gang.call(1, "alone", 3.0)
        report = await told(client, gang)
        assert [round(rank["worked_s"]) for rank in report["ranks"]] == [1, 5]
        assert [rank["ended"] for rank in report["ranks"]] == [1, 2]
        assert report["told"][0].endswith("worked 5 s; the other 1 s")


def times(rank: int, busy_s: float) -> tuple[str, RankTimes]:
    return f"train.w{rank}", RankTimes(rank=rank, busy_s=busy_s)


@pytest.mark.parametrize("known", [[], [times(0, 3.0)], [times(0, 3.0), times(1, 3.0)]])
def test_no_rank_is_called_slow_that_is_not(known):
    report = rank_report(known)
    assert (report["slowest"], report["told"]) == (None, [])


def test_what_cannot_be_read_in_an_event_is_left_out():
    good = {"rank": 1, "busy_s": 2.0, "worker": "train.w1"}
    assert times_in({"times": [good, {"rank": "x", "worker": "w"}, {"rank": 1}, 7, None]}) == [times(1, 2.0)]
    assert times_in({"times": 5}) == times_in({}) == []


def test_an_event_names_the_slowest_of_a_large_gang_and_answers_that_come_too_late_are_forgotten():
    kept = GenerationTimes()
    for rank in range(MOST_TIMES + 10):
        kept.stopped(WorkerId("train", f"w{rank}"), "g", 1, [RankTimes(rank=rank, busy_s=rank)])
    event = GangEvent(kind=GangEventKind.RESTARTING, gang="g", generation=2, size=MOST_TIMES + 10)
    found = times_in(kept.told(event).details)
    assert sorted(each.rank for _, each in found) == list(range(10, MOST_TIMES + 10))
    assert kept.told(event) is event, "they are told once"
    kept.stopped(WorkerId("train", "w1"), "g", 1, [RankTimes(rank=1, busy_s=9.0)])
    late = GangEvent(kind=GangEventKind.ENDED, gang="g", generation=2, size=1)
    assert kept.told(late) is late, "they are of an earlier generation"
