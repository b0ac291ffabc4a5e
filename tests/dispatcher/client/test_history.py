"""What is recorded of a running system, and how it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline import Pool
from gangline.bus.memory.server import MemoryBus, MemoryServer
from gangline.bus.streams.history_recorder import HistorySettings, HistorySummary
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.client.history import HistoryFilter, HistoryReader, holdings
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import JobDead
from gangline.schemas.names import Names, public_id
from gangline.schemas.records.history import HistoryKind, HistoryRecord
from gangline.schemas.wire import headers
from gangline.testing import cluster
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ...waiting import loop_time

HISTORY = HistorySettings()
SHELL = ServiceSettings(history=HISTORY, node="c")
SETTLED_S = 3.0
pool = Pool("images", slots=4)


@pool.task
async def sleep(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "done"


@pool.task
async def fail() -> None:
    raise ValueError("not today")


class RecordedCluster:
    def __init__(self, client: Client, running: Any, reader: HistoryReader, leader: MemoryBus) -> None:
        self.client = client
        self.running = running
        self.reader = reader
        self.leader = leader
        """The connection of its coordinator."""

    async def told(self, *kinds: HistoryKind, **wanted: Any) -> list[HistoryRecord]:
        await asyncio.sleep(SETTLED_S)
        return await self.reader.records(HistoryFilter(kinds=frozenset(kinds), **wanted))


def ambient() -> Environment:
    return Environment(wall=lambda: 1_700_000_000 + loop_time())


@asynccontextmanager
async def system(workers: int = 1) -> AsyncIterator[RecordedCluster]:
    running = cluster(
        pool,
        workers=workers,
        dispatcher=True,
        worker_settings=WorkerSettings(history=HISTORY),
        dispatcher_settings=DispatcherSettings(history=HISTORY),
        ambient=ambient(),
    )
    async with running as client:
        bus = running.hub.connect("coordinator")
        async with Coordinator(bus=bus, shell=SHELL, ambient=ambient()) as coordinator:
            await coordinator.wait_leading()
            yield RecordedCluster(client, running, HistoryReader(client.router.bus, client.router.names), bus)
        await bus.close()


async def test_a_long_lease_is_recorded_when_it_lasts_and_when_it_ends_and_short_ones_are_counted():
    async with system() as seen:
        for _ in range(3):
            async with seen.client.lease("images", slots=2, ttl_s=30):
                await asyncio.sleep(0.5)
        async with seen.client.lease("images", slots=3, ttl_s=30) as lease:
            await asyncio.sleep(10)
            (granted,) = await seen.told(HistoryKind.LEASE_GRANTED)
        (ended,) = await seen.told(HistoryKind.LEASE_ENDED)
        assert granted.lease == ended.lease == public_id(lease.token)
        assert (granted.pool, granted.worker, granted.slots) == ("images", "w1", 3)
        assert ended.reason == "released" and ended.since == granted.since
        assert granted.since is not None and 10 <= ended.at - granted.since <= 10 + SETTLED_S + 1
        await asyncio.sleep(HistorySummary.PERIOD_S)
        (short,) = await seen.told(HistoryKind.LEASES)
        assert (short.count, short.seconds) == (3, pytest.approx(3.0, abs=0.1))
        assert lease.token not in str([record.model_dump() for record in await seen.told()])


async def test_each_generation_of_a_gang_is_recorded_with_its_workers_and_why_it_ended():
    async with system(workers=3) as seen:
        async with seen.client.gang(pool="images", size=2, slots=3) as gang:
            name = gang.id
            lost = gang.members[0].worker
            await seen.running.workers[lost].abort()
            await gang.ready()
            await asyncio.sleep(20)
            assert gang.generation == 2
        told = await seen.told(gang=name)
        kinds = [record.kind for record in told if not record.lease]
        assert kinds[:2] == [HistoryKind.GANG_QUEUED, HistoryKind.GANG_FORMED]
        assert kinds[-1] is HistoryKind.GANG_ENDED
        first, second = [record for record in told if record.kind is HistoryKind.GANG_FORMED]
        assert (first.generation, second.generation) == (1, 2)
        assert lost in first.workers and lost not in second.workers and len(second.workers) == 2
        (down, _) = [record for record in told if record.kind is HistoryKind.GANG_TORN_DOWN]
        assert down.generation == 1 and "w" in down.reason


async def test_a_job_that_is_cancelled_is_recorded_whether_it_had_started_or_not():
    async with system() as seen:
        running = [await seen.client.submit("images.sleep", 60.0) for _ in range(4)]
        queued = await seen.client.submit("images.sleep", 60.0)
        await asyncio.sleep(1)
        assert await queued.cancel() and await running[0].cancel()
        (record,) = await seen.told(job=queued.id)
        assert (record.kind, record.attempt, record.worker) == (HistoryKind.JOB_CANCELLED, 0, "")
        stopped, record = await seen.told(job=running[0].id)
        assert (stopped.kind, stopped.reason) == (HistoryKind.ATTEMPT_ENDED, "task_cancelled")
        assert (record.kind, record.attempt, record.worker) == (HistoryKind.JOB_CANCELLED, 1, "w1")


async def test_a_delayed_job_that_is_cancelled_before_it_is_due_is_recorded_once():
    async with system() as seen:
        job = await seen.client.options(delay_s=3600.0).submit("images.sleep", 60.0)
        assert await job.cancel() and not await job.cancel()
        (record,) = await seen.told(job=job.id)
        assert (record.kind, record.attempt, record.endpoint) == (HistoryKind.JOB_CANCELLED, 0, "images")


async def test_failed_long_and_dead_attempts_are_recorded_and_short_ones_counted():
    async with system() as seen:
        for _ in range(5):
            await (await seen.client.submit("images.sleep")).result()
        long = await seen.client.submit("images.sleep", 4.0)
        await long.result()
        dead = await seen.client.submit("images.fail")
        with pytest.raises(JobDead):
            await dead.result()
        (slow,) = await seen.told(HistoryKind.ATTEMPT_ENDED, job=long.id)
        assert slow.since is not None and slow.at - slow.since == pytest.approx(4.0, abs=0.2)
        assert (slow.endpoint, slow.pool, slow.worker, slow.attempt, slow.reason) == ("images", "images", "w1", 1, "")
        attempt, end = await seen.told(job=dead.id)
        assert (attempt.kind, end.kind) == (HistoryKind.ATTEMPT_ENDED, HistoryKind.JOB_DEAD)
        assert (attempt.reason, end.reason) == ("task_failed", "failed")
        assert end.attempt == 1
        await asyncio.sleep(HistorySummary.PERIOD_S)
        (short,) = await seen.told(HistoryKind.ATTEMPTS)
        assert (short.count, short.endpoint, short.pool) == (5, "images", "images")


async def test_a_message_that_is_no_task_is_recorded_with_the_id_that_it_has():
    async with system() as seen:
        bus, names = seen.client.router.bus, seen.client.router.names
        await (await seen.client.submit("images.sleep")).result()  # the stream has been made
        bad = {headers.PRIORITY: "high"}
        bus.publish(names.task("images", "sleep"), b"[]", headers={**bad, headers.JOB: "images.mine"})
        bus.publish(names.task("images", "sleep"), b"[]", headers=bad)
        ended = await seen.told(HistoryKind.JOB_DEAD)
        assert [(record.job, record.reason) for record in ended] == [("images.mine", "malformed"), ("3", "malformed")]


async def test_workers_leaders_queues_and_routes_are_recorded_each_once():
    async with system(workers=2) as seen:
        await seen.running.add_dispatcher()
        await (await seen.client.submit("images.sleep")).result()
        seen.running.workers["images.w1"].resize(9)
        await seen.client.set_route("pictures", {"to": {"images": 1}})
        await asyncio.sleep(SETTLED_S)
        await seen.client.delete_route("pictures")
        await seen.client.drain("images.w2")
        told = await seen.told()
        kinds = [record.kind.value for record in told]
        for kind in ("leader_elected", "route_set", "route_deleted", "worker_resized", "worker_left"):
            assert kinds.count(kind) == 1, (kind, kinds)
        assert kinds.count("worker_joined") == 2 and "queue_taken" in kinds
        assert kinds.index("worker_draining") < kinds.index("worker_left")
        (route,) = [record for record in told if record.kind is HistoryKind.ROUTE_SET]
        assert route.endpoint == "pictures" and route.details == {"to": {"images": 1.0}}
        assert [record.at for record in told] == sorted(record.at for record in told)


async def test_a_worker_that_was_killed_is_recorded_as_lost_with_what_it_held():
    async with system(workers=2) as site:
        await site.client.call("images.sleep")
        async with site.client.lease("images", slots=2) as lease:
            await asyncio.sleep(2 * SETTLED_S)  # that it was granted has been written
            await site.running.kill(lease.worker)
            await asyncio.sleep(5)
            (lost,) = await site.told(HistoryKind.WORKER_LOST)
            assert (f"{lost.pool}.{lost.worker}", lost.slots, lost.count) == (lease.worker, 2, 1)
            assert lost.details["leases"] == [public_id(lease.token)] and "no heartbeat" in lost.reason
            assert lost.by.startswith("coordinator.")
            before, after = await site.reader.held_at(lost.at - 0.1), await site.reader.held_at(lost.at)
            assert [each.lease for each in before] == [public_id(lease.token)] and after == []
        assert await site.told(HistoryKind.WORKER_LEFT) == []


async def test_a_time_before_and_after_and_a_limit_cut_the_history():
    async with system() as seen:
        began = (await seen.told())[-1].at
        for _ in range(20):
            seen.running.workers["images.w1"].resize(5)
            await asyncio.sleep(1.1)
        everything = await seen.told(HistoryKind.WORKER_RESIZED)
        assert len(everything) == 20
        middle = everything[10].at
        assert await seen.told(HistoryKind.WORKER_RESIZED, since=middle) == everything[10:]
        assert await seen.told(HistoryKind.WORKER_RESIZED, until=middle) == everything[:11]
        assert {record.at <= began for record in await seen.told(until=began)} == {True}
        newest = await seen.reader.records(HistoryFilter(kinds=frozenset({HistoryKind.WORKER_RESIZED})), limit=7)
        assert newest == everything[-7:]


async def test_who_held_what_at_a_time_is_read_from_the_history():
    async with system(workers=2) as seen:
        wall = seen.client.router.names and (await seen.told())[-1].at
        async with (
            seen.client.lease("images", slots=1, ttl_s=60),
            seen.client.gang(pool="images", size=2, slots=3) as gang,
        ):
            await asyncio.sleep(5)
            (granted,) = [each for each in await seen.told(HistoryKind.LEASE_GRANTED) if not each.gang]
        await seen.told()
        held = await seen.reader.held_at(granted.at + 1)
        assert {(record.kind, record.gang or record.lease) for record in held} == {
            (HistoryKind.LEASE_GRANTED, granted.lease),
            (HistoryKind.GANG_FORMED, gang.id),
        }
        assert await seen.reader.held_at(wall) == []
        assert await seen.reader.held_at(granted.at + 3600) == []


async def test_a_gang_whose_leader_died_before_it_could_record_the_end_has_ended_all_the_same():
    async with system(workers=2) as seen:
        hub = seen.running.hub
        async with Coordinator(bus=hub.connect("next"), shell=SHELL, ambient=ambient()) as following:
            async with seen.client.gang(pool="images", size=2, slots=1, ttl_s=60):
                await asyncio.sleep(SETTLED_S)
            async with seen.client.gang(pool="images", size=2, slots=3, ttl_s=60) as gang:
                await asyncio.sleep(SETTLED_S)
                assert [record.gang for record in await seen.reader.held_at(ambient().wall())] == [gang.id]
            hub.partition(seen.leader)
            await following.wait_leading()
            await asyncio.sleep(SETTLED_S)
            assert await seen.reader.held_at(ambient().wall()) == []
            ends = await seen.told(HistoryKind.GANG_ENDED)
            assert len(ends) == 2 and ends[-1].gang == gang.id and ends[-1].by == f"coordinator.{following.instance}"
            hub.heal(seen.leader)  # the record was only late
            ends = await seen.told(HistoryKind.GANG_ENDED)
            assert len(ends) == 2 and ends[-1].gang == gang.id


def test_a_worker_that_left_or_voided_its_leases_holds_nothing():
    lease = HistoryRecord(kind=HistoryKind.LEASE_GRANTED, at=1, pool="a", worker="w", lease="~x", slots=1)
    other = HistoryRecord(kind=HistoryKind.LEASE_GRANTED, at=1, pool="a", worker="v", lease="~y", slots=1)
    for kind in (HistoryKind.WORKER_LEFT, HistoryKind.WORKER_EPOCH, HistoryKind.WORKER_JOINED):
        gone = HistoryRecord(kind=kind, at=2, pool="a", worker="w")
        assert holdings([lease, other, gone], 1.5) == [lease, other]
        assert holdings([lease, other, gone], 3) == [other]


@pytest.mark.parametrize("switch", ["on", "off"])
async def test_a_program_records_without_a_setting_unless_its_environment_says_off(monkeypatch, switch):
    monkeypatch.setenv("GANGLINE_HISTORY", switch)
    hub = MemoryServer()
    buses = [hub.connect(name) for name in ("coordinator", "worker", "dispatcher", "client")]
    async with (
        Coordinator(bus=buses[0]) as coordinator,
        Worker(pool, bus=buses[1], settings=WorkerSettings(id="w1")),
        Dispatcher(buses[2]),
        Client(buses[3]) as client,
    ):
        await coordinator.wait_leading()
        async with client.lease("images", slots=2, ttl_s=30):
            await asyncio.sleep(5)
        await asyncio.sleep(SETTLED_S)
        told = await HistoryReader(buses[3], Names()).records()
    for bus in buses:
        await bus.close()
    kinds = {record.kind for record in told}
    expected = {HistoryKind.LEASE_GRANTED, HistoryKind.LEADER_ELECTED, HistoryKind.QUEUE_TAKEN}
    assert kinds >= expected if switch == "on" else not kinds


async def test_a_cluster_for_tests_records_nothing_unless_it_is_told_to(monkeypatch):
    monkeypatch.setenv("GANGLINE_HISTORY", "on")
    async with cluster(pool, workers=1, dispatcher=True, coordinator=True) as client:
        async with client.lease("images", ttl_s=30):
            await asyncio.sleep(5)
        assert await HistoryReader(client.router.bus, client.router.names).records() == []
