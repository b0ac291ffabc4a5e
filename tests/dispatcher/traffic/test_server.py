"""Routes through a real nats-server: changed under load, and recovered after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from gangline.bus.port.bus import BucketSettings, ConnectionEvent, Storage
from gangline.dispatcher.client.client import Client
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.wire import codec
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...scale import repetitions
from ...support.dispatcher.server_rig import ServerRig, server_rig
from ...waiting import PATIENCE_S, until

pytestmark = pytest.mark.server

CHANGES = repetitions(4, whole=50)
CALLERS = 16
ONLY_LIVE_S = 3600.0
"""How often routes are read again: so seldom that whoever knows of a change was told of it when it was made."""


def make_pool(name: str, slots: int) -> Pool:
    pool = Pool(name, slots=slots)

    @pool.task
    async def who(pause_s: float = 0.0) -> str:
        await asyncio.sleep(pause_s)
        return current_task().pool

    return pool


async def serve(rig: ServerRig, *pools: str) -> None:
    for pool in pools:
        await rig.worker(f"w-{pool}", make_pool(pool, slots=2))


async def set_route(rig: ServerRig, endpoint: str, **route: Any) -> None:
    async with contextlib.AsyncExitStack() as stack:
        bus = await rig.bus("operator")
        stack.push_async_callback(bus.close)
        routes = await bus.bucket(rig.names.routes_bucket, BucketSettings(storage=Storage.FILE))
        await routes.put(endpoint, codec.to_json(route))


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


async def test_changes_of_a_route_under_load_reach_every_client_and_fail_no_call(server: ServerRig) -> None:
    """Pools come and go under those who wait. The shares are judged by test_routes.py."""
    pools = ["v1", "v2", "v3"]
    await serve(server, *pools)
    clients = [await server.client(Environment(random=random.Random(seed)), reconcile_s=ONLY_LIVE_S) for seed in (1, 2)]
    draws = random.Random(11)
    await set_route(server, "e", to={"v1": 1})
    load = Load(clients)
    await until(lambda: load.served > 0)
    for _ in range(CHANGES):
        chosen = draws.sample(pools, draws.choice((1, 2, 2, 3)))
        weights = {pool: float(draws.randint(1, 9)) for pool in chosen}
        await set_route(server, "e", to=weights)
        for client in clients:
            await until(lambda client=client, weights=weights: weights_of(client, "e") == weights)
        served = load.served
        await until(lambda served=served: load.failed or load.served > served + 2 * CALLERS)
        assert {await clients[0].call("e.who") for _ in range(20)} <= set(weights)
    await load.stop()
    assert load.failed == []
    for client in clients:
        assert client.statistics()["routes"]["traffic"] == {"e": {"inside": {}, "waiting": 0}}


async def test_routes_are_recovered_after_the_server_was_restarted(nats_server: Any, namespace: str) -> None:
    async with server_rig(nats_server.url, namespace) as rig:
        await serve(rig, "v1", "v2")
        client = await rig.client(reconcile_s=5.0)
        await set_route(rig, "e", to={"v1": 1})
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
                await set_route(rig, "e", to={"v2": 1})
                return True
            return False

        await until(set_again, pause_s=0.1)
        await until(lambda: weights_of(client, "e") == {"v2": 1.0})
        assert await client.options(timeout_s=PATIENCE_S).call("e.who") == "v2"
        fresh = await rig.client()
        assert await fresh.options(timeout_s=PATIENCE_S).call("e.who") == "v2"
