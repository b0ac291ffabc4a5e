"""Limits that a task declares hold on its worker for whatever is sent there: calls, leases, selections, submissions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.rate import burst_of
from gangline.schemas.errors.base import DeadlineExceeded, LeaseBusy, Saturated
from gangline.schemas.wire import codec
from gangline.testing.in_memory import Cluster, cluster
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.fakes import give_up
from ...waiting import loop_time


class LimitedTask:
    def __init__(self, slots: int = 4, **policy: Any) -> None:
        self.pool = pool = Pool("p", slots=slots)
        self.starts: list[float] = []
        self.running = self.most = 0

        @pool.task(**policy)
        async def work(seconds: float = 1.0) -> None:
            self.starts.append(loop_time())
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running -= 1

        @pool.task
        async def other() -> float:
            return loop_time()

    @contextlib.asynccontextmanager
    async def served(self, *clients: str, **options: Any) -> AsyncIterator[tuple[Cluster, list[Client]]]:
        """A cluster of the pool, and its client and these; in the end, the books of all workers are straight."""
        running = cluster(self.pool, **options)
        async with running as client, contextlib.AsyncExitStack() as stack:
            others = [Client(running.hub.connect(name), names=running.names) for name in clients]
            yield running, [client, *[await stack.enter_async_context(each) for each in others]]
            for worker in running.workers.values():
                worker.core.check()


async def test_calls_of_several_routers_wait_for_each_other_and_not_in_the_way_of_other_tasks() -> None:
    scene = LimitedTask(max_running=2)
    async with scene.served("second") as (running, (client, second)):
        calls = [asyncio.ensure_future(each.call("p.work")) for each in (client, second) * 4]
        await asyncio.sleep(0.5)
        assert scene.running == 2
        began = loop_time()
        assert await client.call("p.other") - began < 0.1, "the line of `work` holds it up"
        await asyncio.gather(*calls)
    assert (scene.most, len(scene.starts)) == (2, 8)
    assert scene.starts[-1] - scene.starts[0] < 3.5, "a router is invited when one has ended"


async def test_the_limit_holds_over_all_workers_and_routers() -> None:
    scene = LimitedTask(max_running=2)
    async with scene.served("second", workers=3) as (running, (client, second)):
        began = loop_time()
        await asyncio.gather(*(each.call("p.work", 0.5) for each in (client, second) * 8))
        took = loop_time() - began
    assert (scene.most, len(scene.starts)) == (2, 16)
    assert took < 6.0, "both shares are in use nearly all the time"


async def test_a_worker_that_somebody_insists_on_gets_a_share() -> None:
    scene = LimitedTask(max_running=1)
    async with scene.served(workers=3) as (running, (client,)):
        await client.call("p.work", 0.0)
        for worker in running.workers.values():
            bus = running.hub.connect(f"cli {worker.id}")
            for _ in range(20):
                reserved = await bus.request(
                    f"gangline.worker.p.{worker.id.worker}.reserve", b'{"slots": 1}', timeout_s=5
                )
                token = codec.from_json(reserved.data)["token"]
                body = codec.to_json({"method": "work", "token": token, "arguments": [0.01]})
                reply = await bus.request(f"gangline.worker.p.{worker.id.worker}.dispatch", body, timeout_s=5)
                if not (reply.headers or {}).get("Nats-Service-Error"):
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"{worker.id} never gets a share")
            await bus.close()
    assert scene.most == 1


async def test_the_share_of_a_killed_worker_goes_to_the_others() -> None:
    scene = LimitedTask(max_running=1)
    async with scene.served(workers=2) as (running, (client,)):
        await asyncio.sleep(6.0)  # past the time in which nobody is taken for dead
        busy = asyncio.ensure_future(client.call("p.work", 100.0))
        await asyncio.sleep(0.1)
        (holder,) = [each for each in running.workers.values() if each.core.tasks]
        await holder.abort()
        await client.options(timeout_s=15.0).call("p.work", 0.1)
        await give_up(busy)
    assert len(scene.starts) >= 2


async def test_calls_of_one_key_are_limited_and_others_are_not() -> None:
    scene = LimitedTask(per_key=1)
    async with scene.served() as (running, (client,)):
        keyed = [client.options(key=key).call("p.work") for key in ("a", "a", "b")]
        calls = [asyncio.ensure_future(call) for call in (*keyed, client.call("p.work"))]
        await asyncio.sleep(0.5)
        assert scene.running == 3
        await asyncio.gather(*calls)


def within(rate: float, times: list[float]) -> bool:
    """Whether no more start in any time than the rate allows, with the burst of a tenth of a second."""
    times = sorted(times)
    return all(
        last - first + 1 <= burst_of(rate) + rate * (times[last] - times[first]) + 1e-6
        for first in range(len(times))
        for last in range(first, len(times))
    )


async def test_the_rate_holds_over_all_workers_and_routers_for_calls_and_submissions() -> None:
    rate, count = 20.0, 20
    scene = LimitedTask(slots=50, rate_per_s=rate)
    async with scene.served("second", workers=3, dispatcher=True) as (running, (client, second)):
        jobs = await client.submit_many("p.work", [{"seconds": 0.0}] * count)
        calls = [each.options(timeout_s=60.0).call("p.work", 0.0) for each in (client, second) for _ in range(count)]
        await asyncio.gather(*calls, *(job.result() for job in jobs))
        assert [(await job.status()).attempts for job in jobs] == [1] * count, "a refusal is no attempt"
    assert len(scene.starts) == 3 * count and within(rate, scene.starts)
    took = scene.starts[-1] - scene.starts[0]
    assert took < 1.5 * 3 * count / rate, "units are in use most of the time"


async def test_a_rate_and_max_running_together_hold_over_all_workers_and_nobody_waits_for_ever() -> None:
    scene = LimitedTask(rate_per_s=4.0, max_running=1)
    async with scene.served("second", workers=3) as (running, (client, second)):
        calls = [each.options(timeout_s=60.0).call("p.work", 0.05) for each in (client, second) for _ in range(8)]
        await asyncio.gather(*calls)
        told = [await client.stats(str(worker.id)) for worker in running.workers.values()]
        assert all([(each.per_s, each.limit) for each in stats.limits] == [(None, 1), (4.0, 1)] for stats in told)
    assert len(scene.starts) == 16 and within(4.0, scene.starts) and scene.most == 1
    assert scene.starts[-1] - scene.starts[0] < 12.0


async def test_after_a_restart_of_the_only_worker_the_rate_still_holds() -> None:
    scene = LimitedTask(rate_per_s=0.5)
    async with scene.served() as (running, (client,)):
        await client.call("p.work", 0.0)
        (worker,) = running.workers.values()
        await worker.stop()
        await running.add_worker(scene.pool)
        await client.options(timeout_s=30.0).call("p.work", 0.0)
    assert len(scene.starts) == 2 and within(0.5, scene.starts)


async def test_a_call_that_may_not_wait_is_refused_and_told_why() -> None:
    scene = LimitedTask(max_running=1)
    settings = RouterSettings(saturated_wait_s=2.0)
    async with cluster(scene.pool, router_settings=settings) as client:
        busy = asyncio.ensure_future(client.call("p.work", 10.0))
        await asyncio.sleep(0.1)
        with pytest.raises(Saturated, match="the limit that the task declares is reached"):
            await client.call("p.work")
        await busy


async def test_a_lease_is_no_way_round_the_limit() -> None:
    scene = LimitedTask(max_running=1)
    async with scene.served() as (running, (client,)):
        async with client.lease("p", slots=2, wait=False) as lease:
            busy = asyncio.ensure_future(lease.call("work"))
            await asyncio.sleep(0.1)
            with pytest.raises(LeaseBusy, match="limit"):
                await lease.call("p.work")
            await busy
            await lease.call("work")
        busy = asyncio.ensure_future(client.call("p.work"))
        await asyncio.sleep(0.1)
        async with client.choose_worker("p") as selection:
            await client.dispatch(selection, "work")
        await busy
        assert scene.most == 1


async def test_calls_and_submissions_share_the_limit() -> None:
    scene = LimitedTask(max_running=2)
    async with scene.served(dispatcher=True) as (running, (client,)):
        jobs = await client.submit_many("p.work", [{"seconds": 0.5}] * 6)
        calls = [asyncio.ensure_future(client.call("p.work", 0.5)) for _ in range(6)]
        await asyncio.gather(*calls, *(job.result() for job in jobs))
        assert [(await job.status()).attempts for job in jobs] == [1] * 6, "a refusal is no attempt"
    assert (scene.most, len(scene.starts)) == (2, 12)


async def test_a_queue_comes_back_to_the_worker_that_has_got_the_unit_though_no_slot_may_be_kept() -> None:
    scene = LimitedTask(slots=1, max_running=1)
    async with scene.served(workers=3, dispatcher=True) as (running, (client,)):
        waits: list[float] = []
        for _ in range(8):
            await client.call("p.other")  # the worker without the unit may be the next
            began = loop_time()
            job = await client.submit("p.work", 0.0)
            async with asyncio.timeout(60):
                await job.result()
            waits.append(scene.starts[-1] - began)
    assert max(waits) < 0.5, waits


async def test_a_plain_request_above_the_limit_is_told_so() -> None:
    scene = LimitedTask(max_running=1)
    async with scene.served() as (running, (client,)):
        busy = asyncio.ensure_future(client.call("p.work"))
        await asyncio.sleep(0.1)
        bus = running.hub.connect("cli")
        granted = codec.from_json(
            (await bus.request("gangline.worker.p.w1.reserve", b'{"slots": 1}', timeout_s=5)).data
        )
        body = codec.to_json({"method": "work", "token": granted["token"]})
        reply = await bus.request("gangline.worker.p.w1.dispatch", body, timeout_s=5)
        assert codec.from_json(reply.data)["code"] == "lease_busy"
        await busy
        await bus.close()


@pytest.mark.parametrize("policy", [{"max_running": 1}, {"rate_per_s": 5.0}], ids=["max_running", "rate_per_s"])
async def test_a_call_on_a_lease_waits_for_its_share_of_a_limit(policy: dict[str, Any]) -> None:
    scene = LimitedTask(slots=4, **policy)
    async with cluster(scene.pool, workers=3) as client:
        for round in range(6):
            async with client.options(deadline_s=10).lease("p") as lease:
                await asyncio.gather(*(lease.call("p.work", 0.01) for _ in range(1 + round % 2)))
    assert scene.most <= 1 or "rate_per_s" in policy
    assert len(scene.starts) == 9


async def test_a_call_on_a_lease_waits_until_its_deadline_while_its_task_is_at_its_limit() -> None:
    scene = LimitedTask(slots=4, max_running=1)
    async with cluster(scene.pool) as client:
        running = asyncio.ensure_future(client.call("p.work", 5.0))
        await asyncio.sleep(0.1)
        async with client.options(deadline_s=2).lease("p") as lease:
            with pytest.raises(DeadlineExceeded) as caught:
                await lease.call("p.work", 0.0)
            assert not caught.value.may_have_started
        async with client.lease("p") as lease:
            await lease.call("p.work", 0.0)
        await running
    assert (scene.most, len(scene.starts)) == (1, 2)
