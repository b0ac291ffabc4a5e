"""Clients that are used where they were not connected: in a forked child, in another event loop, in another thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import traceback
from collections.abc import Callable

import pytest

from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.client.client import Client, connect
from gangline.dispatcher.client.sync import connect_sync
from gangline.dispatcher.durable.service import Dispatcher
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S

pytestmark = pytest.mark.server

pool = Pool("few", slots=8)
started: list[int] = []


@pool.task
async def echo(n: int) -> int:
    started.append(n)
    return n


@pool.task
async def items(n: int):
    started.append(n)
    yield n


@contextlib.asynccontextmanager
async def everything(nats_url: str, namespace: str):
    """A client, and one of each object that it makes."""
    async with contextlib.AsyncExitStack() as stack:

        async def bus():
            made = await connect_bus(ConnectionSettings.from_url(nats_url))
            stack.push_async_callback(made.close)
            return made

        names = Names(namespace)
        coordinator = await stack.enter_async_context(Coordinator(bus=await bus(), names=names))
        await coordinator.wait_leading()
        await stack.enter_async_context(Worker(pool, bus=await bus(), names=names))
        await stack.enter_async_context(Dispatcher(await bus(), names=names))
        client = await stack.enter_async_context(await connect(nats_url, namespace=namespace))
        assert await client.call("few.echo", 0) == 0
        lease = await stack.enter_async_context(client.lease("few"))
        selection = await stack.enter_async_context(client.choose_worker("few"))
        gang = await stack.enter_async_context(client.gang(pool="few"))
        job = await client.submit("few.echo", 1)
        assert await job.result(timeout_s=PATIENCE_S) == 1
        yield client, lease, selection, gang, job


def uses(client: Client, lease, selection, gang, job) -> dict[str, Callable[[], object]]:
    """What may be done with them, each as a coroutine."""

    async def each(stream) -> list[object]:
        return [item async for item in stream]

    async def enter(context) -> None:
        async with context:
            pass

    async def plain(function) -> object:
        return function()

    return {
        "call": lambda: client.call("few.echo", 7),
        "stream": lambda: each(client.stream("few.items", 7)),
        "choose": lambda: enter(client.choose_worker("few")),
        "dispatch": lambda: client.dispatch(selection, "echo", 7),
        "lease": lambda: enter(client.lease("few")),
        "lease.call": lambda: lease.call("echo", 7),
        "lease.stream": lambda: each(lease.stream("items", 7)),
        "lease.release": lambda: plain(lease.release),
        "gang": lambda: plain(lambda: enter(client.gang(pool="few"))),
        "gang.run": lambda: gang.run("echo", 7),
        "gang.call": lambda: gang.call(0, "echo", 7),
        "gang.stream": lambda: each(gang.stream(0, "items", 7)),
        "gang.ready": lambda: gang.ready(),
        "gang.events": lambda: each(gang.events()),
        "gang.release": lambda: gang.release(),
        "lease.renew": lambda: plain(lease.renew),
        "submit": lambda: client.submit("few.echo", 7),
        "workers": lambda: client.workers(),
        "job.status": lambda: job.status(),
        "job.cancel": lambda: job.cancel(),
        "job.why": lambda: job.why(),
        "job.events": lambda: each(job.events()),
    }


async def outcomes(functions: dict[str, Callable[[], object]]) -> dict[str, str]:
    found = {}
    for name, function in functions.items():
        try:
            async with asyncio.timeout(PATIENCE_S / 4):
                value = await function()
                found[name] = repr(await value if asyncio.iscoroutine(value) else value)
        except GanglineError as error:
            found[name] = f"{type(error).__name__}: {error.message}"
        except BaseException as error:
            found[name] = f"{error!r} {traceback.format_exc()[-900:]}"
    return found


def answer_of(child: int, receiving: int) -> dict[str, str]:
    with open(receiving, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


async def test_a_forked_child_and_another_loop_are_refused_before_anything_is_sent(nats_url, namespace) -> None:
    started.clear()
    async with everything(nats_url, namespace) as objects:
        with connect_sync(nats_url, namespace=namespace) as sync_client:
            assert await asyncio.to_thread(sync_client.call, "few.echo", 2) == 2
            ran = list(started)
            functions = uses(*objects)

            async def sync_call() -> object:
                return sync_client.call("few.echo", 7)

            receiving, sending = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    found = asyncio.run(outcomes({**functions, "sync": sync_call}))
                    os.write(sending, json.dumps(found).encode())
                finally:
                    os._exit(0)
            os.close(sending)
            told = await asyncio.to_thread(answer_of, child, receiving)
            assert {name: said for name, said in told.items() if not said.startswith("ClosedError")} == {}
            assert all("fork" in said for said in told.values())
            elsewhere: dict[str, str] = {}
            thread = threading.Thread(target=lambda: elsewhere.update(asyncio.run(outcomes(functions))))
            thread.start()
            await asyncio.to_thread(thread.join)
            assert {name: said for name, said in elsewhere.items() if "belongs to another event loop" not in said} == {}
            client, lease, selection, gang, job = objects
            assert [await client.call("few.echo", n) for n in (3, 4)] == [3, 4]
            assert await lease.call("echo", 5) == 5
            assert await client.dispatch(selection, "echo", 6) == 6
            assert await gang.run("echo", 8) == [8]
            assert (await job.status()).state == "done"
            assert started == [*ran, 3, 4, 5, 6, 8]
