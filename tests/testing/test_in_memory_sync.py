"""`gangline.testing.cluster_sync`: what users write in tests without an event loop."""

from __future__ import annotations

import threading

import pytest

from gangline.schemas.errors.base import ClosedError, InvalidRequest, TaskFailed
from gangline.testing import cluster_sync
from gangline.worker.pool.pool import Pool

pool = Pool("math", slots=2)


@pool.task(idempotent=True)
async def add(a: int, b: int) -> int:
    return a + b


@pool.task
async def fail() -> None:
    raise ValueError("no")


@pool.task
async def numbers(to: int):  # noqa: ANN201
    for number in range(to):
        yield number


def test_a_sync_client_runs_tasks_streams_leases_and_jobs():
    with cluster_sync(pool, dispatcher=True) as client:
        assert client.call(add, 1, b=2) == 3
        assert list(client.stream(numbers, 3)) == [0, 1, 2]
        with client.lease("math", slots=2) as lease:
            assert lease.call(add, 1, 2) == 3
        assert client.submit(add, 2, 3).result(timeout_s=60) == 5
        with pytest.raises(TaskFailed):
            client.call(fail)
    with pytest.raises(ClosedError):
        client.call(add, 1, 2)


def test_threads_share_a_client():
    with cluster_sync(pool) as client:
        found: list[int] = []
        threads = [threading.Thread(target=lambda n=n: found.append(client.call(add, n, n))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == [0, 2, 4, 6]


def test_a_worker_can_be_killed_and_another_added():
    running = cluster_sync(pool, workers=2)
    with running as client:
        running.kill("math.w1")
        assert list(running.cluster.workers) == ["math.w2"]
        assert running.add_worker(pool) == "math.w3"
        assert [client.call(add, 1, 1) for _ in range(3)] == [2, 2, 2]
        running.cut("client")
        running.restore("client")
        assert client.call(add, 1, 1) == 2


def test_on_virtual_time_only_waiting_takes_time_and_it_takes_none():
    running = cluster_sync(pool, dispatcher=True, virtual_time=True)
    with running as client:
        job = client.options(delay_s=30).submit(add, 1, 2)
        running.advance(15)
        assert job.status().state.value == "scheduled"
        running.advance(16)
        assert job.status().state.value == "done"
        assert job.result() == 3
    with pytest.raises(ClosedError):
        client.call(add, 1, 2)


def test_mistakes_are_told():
    running = cluster_sync(pool)
    with pytest.raises(InvalidRequest, match="not entered"):
        running.kill("math.w1")
    with running:
        with pytest.raises(InvalidRequest, match="virtual time"):
            running.advance(1)
        with pytest.raises(InvalidRequest, match="there is no process 'x'.*math.w1"):
            running.freeze("x")
    with pytest.raises(ClosedError), running:
        raise AssertionError("it was used before")
