"""Routes that change at random under calls, streams, leases and cancellations: nothing fails, nothing is left over."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.testing import cluster
from gangline.testing.in_memory import Cluster
from gangline.worker.pool.pool import Pool

from ...scale import repetitions

CHANGES = repetitions(20, whole=60)

POOLS = ("e", "v1", "v2", "v3")


def pool_of(name: str) -> Pool:
    pool = Pool(name, slots=3)

    @pool.task
    async def work(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return name

    @pool.task
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            await asyncio.sleep(0.01)
            yield number

    return pool


def some_route(draws: random.Random) -> dict[str, Any] | None:
    if draws.random() < 0.15:
        return None
    chosen = draws.sample(POOLS, draws.randint(1, 3))
    route: dict[str, Any] = {"to": {pool: draws.randint(0, 5) for pool in chosen}, "by_key": draws.random() < 0.5}
    route["to"][chosen[0]] = 1
    if draws.random() < 0.5:
        route["limits"] = {pool: draws.randint(1, 4) for pool in chosen if draws.random() < 0.7}
    rest = [pool for pool in POOLS if pool not in chosen]
    if rest and draws.random() < 0.5:
        route["shadow"] = {rest[0]: draws.randint(0, 100)}
    return route


def assert_at_rest(running: Cluster, client: Client) -> None:
    told = client.statistics()
    assert all(each == {"inside": {}, "waiting": 0} for each in told["routes"]["traffic"].values()), told["routes"]
    assert told["holds"] == 0 and told["in_flight"] == 0
    for pool in client.router.pools.values():
        pool.core.check()
        assert pool.core.placed == pool.core.waiting == 0, pool
    for worker in running.workers.values():
        assert worker.statistics().load[:2] == (0, 0), worker
    with contextlib.suppress(KeyError):
        for counts in told["routes"]["shadows"]["e"].values():
            ended = sum(counts.get(end, 0) for end in ("ok", "failed", "refused", "late", "lost"))
            assert counts.get("sent", 0) == ended, counts
    metrics = client.router.metrics
    assert set(metrics._held_back.values()) <= {0} and metrics.statistics()["queue_size"] == 0


@pytest.mark.parametrize("seed", range(repetitions(1, whole=4)))
async def test_whatever_changes_every_request_is_served_and_the_books_are_straight(seed: int) -> None:
    draws = random.Random(seed)
    running = cluster(
        *map(pool_of, POOLS),
        router_settings=RouterSettings(node="", zone=""),
        ambient=Environment(random=random.Random(seed)),
    )
    async with running as client:
        over = asyncio.Event()
        done = cancelled = 0

        async def one(asker: Any) -> None:
            kind = draws.random()
            if kind < 0.7:
                assert await asker.call("e.work", draws.random() * 0.2) in POOLS
            elif kind < 0.8:
                assert [item async for item in asker.stream("e.count", 5)] == [0, 1, 2, 3, 4]
            elif kind < 0.9:
                async with client.choose_worker("e.work") as selection:
                    if draws.random() < 0.7:
                        assert await client.dispatch(selection, "e.work", 0.05) == selection.pool
            else:
                async with client.lease("e", slots=2) as lease:
                    assert await lease.call("e.work", 0.05) == lease.pool

        async def ask() -> None:
            nonlocal done, cancelled
            while not over.is_set():
                asker = client if draws.random() < 0.5 else client.options(key=f"user-{draws.randint(0, 9)}")
                try:
                    # Cancelled wherever it happens to be: in line, at a limit, on its way, running.
                    async with asyncio.timeout(None if draws.random() < 0.8 else draws.random() * 0.3):
                        await one(asker)
                    done += 1
                except TimeoutError:
                    cancelled += 1

        tasks = [asyncio.ensure_future(ask()) for _ in range(30)]
        for _ in range(CHANGES):
            await asyncio.sleep(draws.random() * 0.3)
            route = some_route(draws)
            if route is None:
                await client.delete_route("e")
            else:
                await client.set_route("e", route)
            for route_ in client.router._traffic.routes.values():
                route_.core.check()
        over.set()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks)
        assert done > 3 * CHANGES and cancelled > CHANGES / 3
        await asyncio.sleep(15)  # copies and cancelled tasks end
        assert_at_rest(running, client)
