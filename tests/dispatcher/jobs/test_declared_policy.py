"""What a task declares holds for its submissions: attempts, backoff, time limit, priority, limits."""

from __future__ import annotations

import asyncio
import builtins
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors.base import JobDead, TaskFailed, UnknownJob
from gangline.schemas.messages.jobs import JobState
from gangline.schemas.records.routes import QueueRules, RouteRecord
from gangline.testing.in_memory import Cluster
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.jobs_rig import virtual_cluster


class DeclaredTask:
    """A pool with a task that declares what the test says, and notes its starts."""

    def __init__(self, slots: int = 8) -> None:
        self.pool = Pool("p", slots=slots)
        self.running = self.most = 0
        self.starts: list[tuple[float, Any]] = []

    def declare(self, **policy: Any) -> None:
        """The task `work`."""

        @self.pool.task(**policy)
        async def work(what: Any = None, seconds: float = 1.0) -> Any:
            now = asyncio.get_running_loop().time()
            self.starts.append((now, what))
            if isinstance(what, str) and what.startswith("raise "):
                raise getattr(builtins, what[6:])("no")
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running -= 1
            return current_task().attempt

    def cluster(self, **more: Any) -> Cluster:
        settings = DispatcherSettings(backoff_s=5.0)
        return virtual_cluster(self.pool, dispatcher_settings=settings, **more)


async def died(client: Client, what: str, **options: Any) -> JobDead:
    job = await client.options(**options).submit("p.work", what)
    with pytest.raises(JobDead) as caught:
        await job.result()
    return caught.value


async def test_a_task_says_how_often_it_may_be_tried_and_submission_and_route_go_before_it() -> None:
    declared = DeclaredTask()
    declared.declare(max_attempts=3, backoff_s=0.1)
    async with declared.cluster() as client:
        for options, times in (({}, 3), ({"max_attempts": 2}, 2), ({"idempotent": True}, 3)):
            declared.starts.clear()
            assert (await died(client, "raise ValueError", **options)).reason == "failed"
            assert len(declared.starts) == times, options
            assert declared.starts[-1][0] - declared.starts[0][0] < 1.0, "it declares a short backoff"
        await client.set_route("p", RouteRecord(queue=QueueRules(max_attempts=4)))
        declared.starts.clear()
        await died(client, "raise ValueError")
        assert len(declared.starts) == 4


async def test_a_task_says_after_which_exceptions_it_may_be_tried_again() -> None:
    declared = DeclaredTask()
    declared.declare(max_attempts=3, backoff_s=0.1, retry_on=OSError, no_retry_on="PermissionError")
    async with declared.cluster() as client:
        for kind, times in (("ConnectionResetError", 3), ("PermissionError", 1), ("ValueError", 1)):
            declared.starts.clear()
            error = await died(client, f"raise {kind}")
            assert len(declared.starts) == times, kind
            assert isinstance(error.__cause__, TaskFailed)
            assert error.__cause__.retryable is (times > 1)


async def test_the_time_limit_of_a_task_holds_unless_the_submission_or_the_route_has_another() -> None:
    declared = DeclaredTask()
    declared.declare(timeout_s=2.0)
    async with declared.cluster() as client:
        job = await client.options(timeout_s=10.0).submit("p.work", "slow", 5.0)
        assert await job.result() == 1, "longer than the task declares"
        short = await client.options(timeout_s=1.0).submit("p.work", "slow", 1.5)
        with pytest.raises(JobDead, match=r"p\.work did not end within its timeout_s of 1 s"):
            await short.result()
        late = await client.options(timeout_s=9.0, deadline_s=1.0).submit("p.work", "slow", 1.5)
        with pytest.raises(JobDead, match=r"p\.work did not end by its deadline"):
            await late.result()
        own = await client.submit("p.work", "slow", 5.0)
        with pytest.raises(JobDead, match="timeout_s of 2 s"):
            await own.result()


async def test_at_most_so_many_of_a_task_run_at_once_and_others_pass_it() -> None:
    declared = DeclaredTask(slots=4)
    declared.declare(max_running=2)

    @declared.pool.task
    async def other() -> float:
        return asyncio.get_running_loop().time()

    async with declared.cluster(workers=2) as client:
        began = asyncio.get_running_loop().time()
        jobs = await client.submit_many("p.work", [{"what": number} for number in range(8)])
        passing = await client.submit("p.other")
        assert await passing.result() - began < 1.0, "it does not wait behind those that may not start"
        why = await jobs[7].why()
        assert [(each.kind, each.text) for each in why.obstacles] == [
            ("method", "p.work declares that at most 2 may run at once.")
        ]
        assert len(why.obstacles[0].jobs) == 2
        await asyncio.gather(*(job.result() for job in jobs))
        assert declared.most == 2
        assert sorted(what for _, what in declared.starts) == list(range(8))


async def test_at_most_so_many_of_a_key_run_at_once() -> None:
    declared = DeclaredTask()
    declared.declare(per_key=1)
    async with declared.cluster() as client:
        jobs = [await client.options(key=key).submit("p.work", key) for key in "aabb"]
        jobs.append(await client.submit("p.work", "no key"))
        await asyncio.gather(*(job.result() for job in jobs))
    first = [what for at, what in declared.starts if at - declared.starts[0][0] < 0.5]
    assert sorted(first) == ["a", "b", "no key"]


async def test_starts_of_a_task_keep_its_rate_also_over_a_takeover() -> None:
    declared = DeclaredTask()
    declared.declare(rate_per_s=2.0)
    running = declared.cluster()
    async with running as client:
        jobs = await client.submit_many("p.work", [{"what": number, "seconds": 0.0} for number in range(6)])
        await jobs[2].result()
        await running.add_dispatcher()
        await running.dispatchers[0].stop()
        await asyncio.gather(*(job.result() for job in jobs))
    times = [at for at, _ in declared.starts]
    assert all(later - earlier >= 0.5 - 1e-6 for earlier, later in zip(times, times[1:], strict=False)), times


async def test_the_declared_priority_counts_where_the_submission_has_none() -> None:
    declared = DeclaredTask(slots=1)
    declared.declare(priority=2)

    @declared.pool.task
    async def plain(what: str) -> None:
        declared.starts.append((0.0, what))

    async with declared.cluster() as client:
        await client.submit("p.work", "blocker")
        await asyncio.sleep(0.5)
        assert declared.running == 1
        jobs = [
            await client.submit("p.plain", "plain"),
            await client.options(priority=0).submit("p.work", "low", 0.0),
            await client.submit("p.work", "declared", 0.0),
        ]
        assert [(await job.status()).priority for job in jobs] == [0, 0, 2]
        await asyncio.gather(*(job.result() for job in jobs))
    assert [what for _, what in declared.starts] == ["blocker", "declared", "plain", "low"]


async def test_a_task_says_how_long_its_results_are_kept() -> None:
    declared = DeclaredTask()
    declared.declare(result_ttl_s=5.0)
    async with declared.cluster() as client:
        job = await client.submit("p.work", "x", 0.0)
        assert await job.result() == 1
        again = client.job(job.id)
        assert (await again.status()).state is JobState.DONE
        await asyncio.sleep(10.0)
        with pytest.raises(UnknownJob):
            await again.status()
