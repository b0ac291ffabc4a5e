"""Client, gateway and workers through a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gangline import errors
from gangline.dispatcher.client.sync import connect_sync
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.schemas.names import public_id
from gangline.schemas.wire import codec, headers
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...processes import ForkedProcess, ForkServer
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


async def test_every_error_of_a_call(server: ServerRig) -> None:
    await server.worker("w1", make_pool())
    client = await server.client()
    with pytest.raises(errors.TaskFailed, match="as asked") as caught:
        await client.call("images.fails")
    assert caught.value.remote_type == "ValueError" and "raise ValueError" in caught.value.remote_traceback
    with pytest.raises(errors.UnknownMethod, match="count, echo, fails, nap, who"):
        await client.call("images.nope")
    with pytest.raises(errors.InvalidArguments):
        await client.call("images.nap", "long")
    with pytest.raises(errors.PayloadTooLarge):
        await client.call("images.echo", b"x" * 2_000_000)
    with pytest.raises(errors.DeadlineExceeded) as late:
        await client.options(timeout_s=0.2).call("images.nap", 10)
    assert late.value.may_have_started
    with pytest.raises(errors.NoWorkers):
        await client.call("nobody.echo")
    assert await client.call("images.echo", 1) == 1


async def test_sessions_and_models_stick(server: ServerRig) -> None:
    pool = Pool("images", slots=8, max_models=2)

    @pool.model_loader
    async def load(model_id: str) -> str:
        return f"{model_id} loaded"

    @pool.task
    async def who() -> str:
        task = current_task()
        if task.model_id is not None:
            await task.model()
        return task.worker

    for name in ("w1", "w2", "w3"):
        await server.worker(name, pool)
    client, other = await server.client(), await server.client()
    homes = {key: await client.options(key=key).call("images.who") for key in map(str, range(30))}
    assert len(set(homes.values())) == 3
    assert homes == {key: await other.options(key=key).call("images.who") for key in homes}
    models = {model: await client.options(model=model).call("images.who") for model in "abc"}
    assert len(set(models.values())) == 3  # each to a worker with the fewest models
    view = other.router.pools["images"].core.view
    known = {name.removeprefix("images."): model for model, name in models.items()}
    # A heartbeat tells every router.
    await until(lambda: {name: ",".join(each.models) for name, each in view.workers.items()} == known)
    assert models == {model: await other.options(model=model).call("images.who") for model in models}


async def test_a_drain_loses_nothing(server: ServerRig) -> None:
    leaving, _ = [await server.worker(name, make_pool()) for name in ("w1", "w2")]
    client = await server.client()
    calls = [asyncio.ensure_future(client.call("images.nap", 0.05)) for _ in range(100)]
    await until(lambda: leaving.statistics().load.running > 0)
    await client.drain("images.w1")
    assert await asyncio.gather(*calls) == [0.05] * 100
    assert {await client.call("images.who") for _ in range(10)} == {"images.w2"}


# -- the gateway, as the stock CLI uses it -------------------------------------------------------------------------


async def test_the_gateway_answers_plain_requests(server: ServerRig) -> None:
    """As the stock CLI asks."""
    await server.worker("w1", make_pool())
    await server.stack.enter_async_context(Gateway(await server.bus("gateway"), names=server.names))
    bus, echo = await server.bus("asker"), server.names.call("images", "echo")
    answer = await bus.request(echo, b'{"value": [1, 2]}', timeout_s=PATIENCE_S)
    assert answer.data == b"[1,2]" and (answer.headers or {})[headers.WORKER] == "images.w1"
    msgpack = {"Content-Type": "application/msgpack"}
    packed = await bus.request(echo, codec.pack([b"\x00"]), timeout_s=PATIENCE_S, headers=msgpack)
    assert codec.unpack(packed.data) == b"\x00"
    wrong = await bus.request(server.names.call("images", "nope"), b"", timeout_s=PATIENCE_S)
    assert (wrong.headers or {})[headers.ERROR_CODE] == "404"


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


HOLDER = """
import asyncio, sys
from gangline.dispatcher.client.client import connect

async def main():
    client = await connect(sys.argv[1], namespace=sys.argv[2])
    holds = [await client.choose_worker("images").__aenter__() for _ in range(2)]
    print("held", flush=True)
    await asyncio.sleep(100)

asyncio.run(main())
"""

SERVER = """
import asyncio, sys
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker
from gangline.worker.ledger.settings import WorkerSettings

pool = Pool("images", slots=8)

@pool.task
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"

@pool.task(idempotent=True)
async def again(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"

async def main():
    bus = await connect(ConnectionSettings.from_url(sys.argv[1]))
    async with Worker(pool, bus=bus, names=Names(sys.argv[2]), settings=WorkerSettings(id=sys.argv[3])) as worker:
        print("serving", flush=True)
        await worker.wait_closed()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def process(
    forks: ForkServer, code: str, *arguments: str, says: str, patient: bool = True
) -> AsyncIterator[ForkedProcess]:
    environment = None if patient else os.environ
    running = forks.start(["-c", code, *arguments], environment=environment, stdout=subprocess.PIPE)
    assert running.stdout is not None
    try:
        assert (await asyncio.to_thread(running.stdout.readline)).strip() == says
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


@pytest.mark.processes
async def test_a_killed_router_gives_its_reservations_back(server: ServerRig, forks: ForkServer) -> None:
    """When its claims expire; how soon that is, tests/worker/slots/test_admission_core.py tells on virtual time."""
    one, where = await server.worker("w1", make_pool(slots=2)), (server.url, server.names.namespace)
    async with process(forks, HOLDER, *where, says="held", patient=False) as holder:
        assert one.statistics().load.reserved == 2
        granted_until = one.core.next_deadline() or 0.0
        await until(lambda: (one.core.next_deadline() or 0.0) > granted_until, "both are renewed")
        holder.kill()
        client = await server.client()
        assert await client.options(timeout_s=PATIENCE_S).call("images.echo", 1) == 1
    await until(lambda: one.statistics().load[:2] == (0, 0))


@pytest.mark.processes
async def test_calls_to_a_killed_worker_are_retried_where_safe(server: ServerRig, forks: ForkServer) -> None:
    client, where = await server.client(), (server.url, server.names.namespace)
    async with (
        process(forks, SERVER, *where, "w1", says="serving"),
        process(forks, SERVER, *where, "w2", says="serving") as doomed,
    ):
        safe = [asyncio.ensure_future(client.call("images.again", 0.3)) for _ in range(50)]
        once = [asyncio.ensure_future(client.call("images.nap", 0.3)) for _ in range(50)]

        async def busy() -> bool:
            return (await client.stats("images.w2")).load.running > 0

        await until(busy)
        doomed.kill()
        assert await asyncio.gather(*safe) == ["done"] * 50
        results = await asyncio.gather(*once, return_exceptions=True)
        lost = [result for result in results if isinstance(result, errors.WorkerLost)]
        assert all(error.may_have_started for error in lost)
        assert len(lost) + results.count("done") == 50 and len(lost) <= 8
        assert client.statistics()["pools"]["images"]["placed"] == 0


@pytest.mark.processes
async def test_what_was_sent_to_a_frozen_worker_never_runs_there_later(server: ServerRig, forks: ForkServer) -> None:
    client = await server.client()
    where = (server.url, server.names.namespace, "w1")
    async with process(forks, SERVER, *where, says="serving", patient=False) as frozen:
        assert await client.call("images.nap", 0) == "done"
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            results = await asyncio.gather(
                *(client.options(timeout_s=PATIENCE_S).call("images.nap", 0.01) for _ in range(5)),
                return_exceptions=True,
            )
            assert all(isinstance(result, errors.WorkerLost) for result in results), results
            async with contextlib.AsyncExitStack() as stack:
                with pytest.raises(errors.GanglineError):
                    await stack.enter_async_context(client.options(timeout_s=1).choose_worker("images"))
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        assert await client.options(timeout_s=PATIENCE_S).call("images.nap", 0) == "done"
        stats = await client.stats("images.w1")
        assert stats.tasks["started"] == 2 and stats.load.ongoing == 0
