"""Two routers on a pool that is too small for either."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.runtime.clock import Environment
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...support.dispatcher.fakes import give_up


@pytest.mark.parametrize("way", ["call", pytest.param("choose", marks=pytest.mark.long)])
async def test_a_full_pool_is_shared_with_whoever_comes_later(way: str) -> None:
    hub, names = MemoryServer(), Names("fair")
    seconds = 5
    pool = Pool("images", slots=4)

    @pool.task
    async def nap() -> None:
        await asyncio.sleep(0.05)

    done: Counter[str] = Counter()

    async def ask(name: str, client: Client) -> None:
        for _ in range(10_000):
            if way == "call":
                await client.call("images.nap")
            else:
                async with client.choose_worker("images") as selection:
                    await client.dispatch(selection, "nap")
            done[name] += 1

    worker_bus = hub.connect("worker")
    chance, alone = random.Random(1), RouterSettings(node="", zone="")
    clients = [
        Client(
            hub.connect(name), names=names, settings=alone, ambient=Environment(random=random.Random(chance.random()))
        )
        for name in "ab"
    ]
    async with Worker(pool, bus=worker_bus, names=names), clients[0] as first, clients[1] as second:
        asking = [asyncio.ensure_future(ask("first", first)) for _ in range(8)]
        await asyncio.sleep(1)
        asking += [asyncio.ensure_future(ask("second", second)) for _ in range(8)]
        done.clear()
        await asyncio.sleep(seconds)
        await give_up(*asking)
    assert done.total() > 0.85 * 4 * seconds / 0.05, "the slots are in use all the time"
    # Whoever is told of a free slot first has it: by chance, so that shares of 10 s lie some 0.07 around a half.
    assert 0.33 < done["first"] / done.total() < 0.67, done
