"""Routes through a real nats-server: changed under load, recovered after a restart, with shadows that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, ConnectionEvent, KeyValue, Storage
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import Names
from gangline.schemas.wire import codec
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...scale import repetitions
from ...waiting import PATIENCE_S, until
from ..calls.test_server import worker

pytestmark = pytest.mark.server

CHANGES = repetitions(6, whole=50)
CALLERS = 16
JUDGED = 200
ONLY_LIVE_S = 3600.0
"""How often routes are read again: so seldom that whoever knows of a change was told of it when it was made."""


def make_pool(name: str, slots: int, go: asyncio.Event) -> Pool:
    pool = Pool(name, slots=slots)

    @pool.task
    async def wait() -> str:
        await go.wait()
        return name

    @pool.task
    async def who(pause_s: float = 0.0) -> str:
        if pause_s:
            await asyncio.sleep(pause_s)
        return current_task().pool

    @pool.task
    async def slow_in_shadow() -> str:
        if current_task().shadow:
            await asyncio.sleep(3600)
        return name

    return pool


class Rig:
    """A bus for routes, and clients with seeded chances."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.names = Names(namespace)
        self.stack = contextlib.AsyncExitStack()
        self.routes: KeyValue
        self.go = asyncio.Event()
        """Tasks `wait` end when it is set."""

    async def bus(self, name: str) -> Any:
        bus = await connect_bus(ConnectionSettings.from_url(self.url, reconnect_wait_s=0.05), name=name)
        self.stack.push_async_callback(bus.close)
        return bus

    async def client(self, seed: int, **settings: Any) -> Client:
        bus = await self.bus(f"client-{seed}")
        made = Client(
            bus,
            names=self.names,
            settings=RouterSettings(**{"node": "", "zone": "", "reconcile_s": ONLY_LIVE_S, **settings}),
            ambient=Environment(random=random.Random(seed)),
        )
        return await self.stack.enter_async_context(made)

    async def serve(self, *pools: str, slots: int = 8) -> None:
        for pool in pools:
            await self.stack.enter_async_context(
                worker(self.url, self.names.namespace, f"w-{pool}", make_pool(pool, slots, self.go))
            )

    async def set_route(self, endpoint: str, **route: Any) -> None:
        await self.routes.put(endpoint, codec.to_json(route))


@contextlib.asynccontextmanager
async def rig_of(url: str, namespace: str) -> AsyncIterator[Rig]:
    rig = Rig(url, namespace)
    async with rig.stack:
        bus = await rig.bus("operator")
        rig.routes = await bus.bucket(rig.names.routes_bucket, BucketSettings(storage=Storage.FILE))
        yield rig


def weights_of(client: Client, endpoint: str) -> dict[str, float]:
    return client.router.routes.pools(endpoint)


class Load:
    """Calls without a pause to endpoint `e`: more than there are slots, so that some always wait."""

    def __init__(self, clients: list[Client]) -> None:
        self.failed: list[BaseException] = []
        self.served = 0
        self._over = False
        self._tasks = [asyncio.ensure_future(self._ask(client)) for client in clients for _ in range(CALLERS // 2)]

    async def _ask(self, client: Client) -> None:
        while not self._over:
            try:
                await client.call("e.who", 0.001)
            except Exception as error:
                self.failed.append(error)
                return
            self.served += 1

    async def stop(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


async def test_changes_under_load_lose_nothing_and_keep_the_shares(nats_url: str, namespace: str) -> None:
    """Every client is told of each change; no call fails, though pools come and go under those who wait.

    Shares are judged by a second endpoint, whose calls all begin and end under the same weights. They are a matter of
    chance: each may be off by five standard deviations, which happens once in a million; test_routes.py judges them
    closer, with chances that are the same each time.
    """
    async with rig_of(nats_url, namespace) as rig:
        pools = ["v1", "v2", "v3"]
        await rig.serve(*pools, slots=2)
        clients = [await rig.client(seed) for seed in (1, 2)]
        draws = random.Random(11)
        await rig.set_route("e", to={"v1": 1})
        load = Load(clients)
        await until(lambda: load.served > 0)
        expected, variance, seen = dict.fromkeys(pools, 0.0), dict.fromkeys(pools, 0.0), Counter[str]()
        for _ in range(CHANGES):
            chosen = draws.sample(pools, draws.choice((1, 2, 2, 3)))
            weights = {pool: float(draws.randint(1, 9)) for pool in chosen}
            await rig.set_route("e", to=weights)
            await rig.set_route("judged", to=weights)
            for client in clients:
                for endpoint in ("e", "judged"):
                    await until(lambda args=(client, endpoint), weights=weights: weights_of(*args) == weights)
            counts = Counter(await asyncio.gather(*(clients[n % 2].call("judged.who") for n in range(JUDGED))))
            for pool in pools:
                share = weights.get(pool, 0.0) / sum(weights.values())
                if share in (0.0, 1.0):
                    assert counts[pool] == JUDGED * share, (counts, weights)
                    continue
                spread = JUDGED * share * (1 - share)
                assert abs(counts[pool] - JUDGED * share) < 5 * spread**0.5 + 1, (pool, counts, weights)
                expected[pool] += JUDGED * share
                variance[pool] += spread
                seen[pool] += counts[pool]
        await load.stop()
        assert load.failed == []
        for pool in pools:
            assert abs(seen[pool] - expected[pool]) < 5 * variance[pool] ** 0.5 + 1, (pool, seen, expected)
        for client in clients:
            idle = {"inside": {}, "waiting": 0}
            assert client.statistics()["routes"]["traffic"] == {"e": idle, "judged": idle}


async def test_queued_calls_move_to_the_new_pools_and_none_is_lost(nats_url: str, namespace: str) -> None:
    async with rig_of(nats_url, namespace) as rig:
        await rig.serve("v1", "v2", slots=1)
        client = await rig.client(1)
        await rig.set_route("e", to={"v1": 1})
        long = asyncio.ensure_future(client.call("e.wait"))
        waiting = [asyncio.ensure_future(client.call("e.who")) for _ in range(200)]
        await until(lambda: "v1" in client.router.pools and client.router.pools["v1"].core.waiting == 200)
        await rig.set_route("e", to={"v2": 1})
        assert await asyncio.gather(*waiting) == ["v2"] * 200
        assert not long.done()
        rig.go.set()
        assert await long == "v1"


@pytest.mark.parametrize("shadow", ["none", "serving", "stuck", "gone"])
async def test_nobody_waits_for_a_shadow_pool_that_is_dead_or_stuck(nats_url: str, namespace: str, shadow: str) -> None:
    """A call that waited for its copy would wait for an hour."""
    calls = 100
    async with rig_of(nats_url, namespace) as rig:
        await rig.serve("v1", slots=64)
        if shadow in ("serving", "stuck"):
            await rig.serve("shadow", slots=64)
        client = await rig.client(1, max_shadows=20, shadow_timeout_s=3600.0)
        await rig.set_route("e", to={"v1": 1}, **({} if shadow == "none" else {"shadow": {"shadow": 100}}))
        task = "e.slow_in_shadow" if shadow == "stuck" else "e.who"

        def told() -> Counter[str]:
            return Counter(client.statistics()["routes"]["shadows"].get("e", {}).get("shadow", {}))

        async def opened() -> bool:
            assert await client.call(task) == "v1"
            return shadow in ("none", "gone") or told()["sent"] > 0

        def served() -> bool:
            return shadow != "serving" or told()["sent"] == told()["ok"]

        await until(opened)
        await until(served)
        before = told()
        for _ in range(calls):
            assert await client.call(task) == "v1"
            await until(served)
        counted = told()
        counted.subtract(before)
        match shadow:
            case "serving":
                assert counted["sent"] == calls
            case "stuck":
                assert told()["sent"] == 20 and counted["sent"] + counted["dropped"] == calls
            case "gone":
                assert counted["dropped"] == calls and told()["sent"] == 0


async def test_routes_are_recovered_after_the_server_was_restarted(nats_server: Any, namespace: str) -> None:
    async with rig_of(nats_server.url, namespace) as rig:
        await rig.serve("v1", "v2")
        client = await rig.client(1, reconcile_s=5.0)
        await rig.set_route("e", to={"v1": 1})
        assert await client.call("e.who") == "v1"
        events: list[ConnectionEvent] = []
        client._bus.on_connection(events.append)
        nats_server.kill()
        nats_server.start()
        await until(lambda: ConnectionEvent.RECONNECTED in events)
        assert weights_of(client, "e") == {"v1": 1.0}
        assert await client.options(timeout_s=PATIENCE_S).call("e.who") == "v1"

        async def set_again() -> bool:
            with contextlib.suppress(GanglineError):
                await rig.set_route("e", to={"v2": 1})
                return True
            return False

        await until(set_again, pause_s=0.1)
        await until(lambda: weights_of(client, "e") == {"v2": 1.0})
        assert await client.options(timeout_s=PATIENCE_S).call("e.who") == "v2"
        fresh = await rig.client(2)
        assert await fresh.options(timeout_s=PATIENCE_S).call("e.who") == "v2"
