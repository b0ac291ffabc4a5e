"""Client, gateway and workers through a real nats-server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.client.sync import connect_sync
from gangline.schemas.names import public_id
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.server_rig import ServerRig, server_rig
from ...waiting import PATIENCE_S, until

pytestmark = pytest.mark.server


def make_pool(slots: int = 4) -> Pool:
    pool = Pool("images", slots=slots)

    @pool.task
    async def echo(value: Any = None) -> Any:
        return value

    @pool.task
    async def who(number: int = 0) -> str:
        return current_task().worker

    @pool.task
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @pool.task
    async def fails() -> None:
        raise ValueError("as asked")

    @pool.task
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    return pool


async def test_every_way_of_running_a_task(server: ServerRig) -> None:
    one, two = [await server.worker(name, make_pool()) for name in ("w1", "w2")]
    client = await server.client()
    assert await client.call("images.echo", {"a": [1, b"x"]}) == {"a": [1, b"x"]}
    names = await asyncio.gather(*(client.call("images.who", n) for n in range(200)))
    assert 60 < names.count("images.w1") < 140
    async with client.choose_worker("images") as selection:
        assert await client.dispatch(selection, "who") == selection.worker
    async with client.lease("images", slots=3, ledger="sync") as lease:

        async def recorded() -> bool:  # the ledger follows the selection's end a moment later
            return [(each.token, each.slots) for each in await client.leases()] == [(public_id(lease.token), 3)]

        await until(recorded)
        ran = await asyncio.gather(*(lease.call("who", n) for n in range(20)))
        assert set(ran) == {lease.worker}
        assert [item async for item in lease.stream("count", 100)] == list(range(100))
    assert [item async for item in client.stream("images.count", 1000)] == list(range(1000))
    await until(lambda: one.statistics().load[:2] == two.statistics().load[:2] == (0, 0))

    async def forgotten() -> bool:
        return not await client.leases()

    await until(forgotten)


# -- the gateway, as the stock CLI uses it -------------------------------------------------------------------------


# -- without a loop ------------------------------------------------------------------------------------------------


async def test_the_client_without_a_loop_does_it_all(server: ServerRig) -> None:
    def plain() -> None:
        with connect_sync(server.url, namespace=server.names.namespace, name="plain") as client:
            assert client.call("images.echo", 1) == 1
            assert client.options(timeout_s=PATIENCE_S).call("images.echo", value=2) == 2
            assert list(client.stream("images.count", 200)) == list(range(200))
            items = client.stream("images.count", 10_000)
            assert next(items) == 0
            items.close()
            with client.choose_worker("images") as selection:
                assert client.dispatch(selection, "who") == "images.w1"
            with client.lease("images", slots=2) as lease:
                assert lease.call("who") == "images.w1" and lease.lost is None and lease.used == 0
                assert list(lease.stream("count", 3)) == [0, 1, 2]
                while [record.token for record in client.leases()] != [public_id(lease.token)]:
                    time.sleep(0.01)  # the ledger is written after the answers
            assert [info.name for info in client.workers()] == ["images.w1"]
            assert client.resize("images.w1", 6).slots == 6
            assert client.stats("images.w1").load.total == 6
            with pytest.raises(errors.TaskFailed):
                client.call("images.fails")
            with ThreadPoolExecutor(8) as threads:
                assert list(threads.map(lambda n: client.call("images.echo", n), range(100))) == list(range(100))
        with pytest.raises(errors.GanglineError):
            client.call("images.echo", 1)
        client.close()

    one = await server.worker("w1", make_pool())
    await asyncio.to_thread(plain)
    await until(lambda: one.statistics().load[:2] == (0, 0))


def test_an_interrupt_cancels_the_call_and_the_client_goes_on(nats_url: str, namespace: str) -> None:
    ready = threading.Event()
    calls = threading.Event()
    stop = threading.Event()
    cancelled: list[int] = []

    async def serve() -> None:
        async with server_rig(nats_url, namespace) as server:
            one = await server.worker("w1", make_pool())
            ready.set()
            await asyncio.to_thread(calls.wait)
            await until(lambda: one.statistics().load.running == 1)
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda: one.statistics().load.running == 0)
            cancelled.append(one.statistics().tasks["cancelled"])
            await asyncio.to_thread(stop.wait)

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    try:
        assert ready.wait(PATIENCE_S)
        with connect_sync(nats_url, namespace=namespace) as client:
            with pytest.raises(KeyboardInterrupt):
                calls.set()
                client.call("images.nap", 1000)
            assert client.call("images.echo", "still here") == "still here"
    finally:
        calls.set()
        stop.set()
        server.join()
    assert cancelled == [1]


# -- faults --------------------------------------------------------------------------------------------------------


async def test_everything_goes_on_after_the_server_was_restarted(nats_server: Any, namespace: str) -> None:
    pool, go = make_pool(), asyncio.Event()

    @pool.task
    async def wait() -> str:
        await go.wait()
        return "told"

    async with server_rig(nats_server.url, namespace) as server:
        one, client = await server.worker("w1", pool), await server.client()
        assert await client.call("images.echo", 1) == 1
        async with client.lease("images", slots=2, ttl_s=30) as lease:
            running = asyncio.ensure_future(client.call("images.wait"))
            await until(lambda: one.statistics().load.running == 1)
            await asyncio.to_thread(nats_server.restart)
            assert await client.options(timeout_s=PATIENCE_S).call("images.echo", 2) == 2
            assert await lease.call("echo", 3) == 3
            go.set()
            assert await running == "told"  # its answer was kept, or asked for
        await until(lambda: one.statistics().load[:2] == (0, 0))
        await until(lambda: client.statistics()["pools"]["images"]["placed"] == 0)
        fresh = await server.client()
        assert await fresh.options(timeout_s=PATIENCE_S).call("images.echo", 4) == 4
