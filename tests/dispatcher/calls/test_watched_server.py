"""Whoever watches everything that passes in the namespace changes nothing: that nobody serves is known as soon as the
server knows it. Heartbeats are off here, so that nothing else could find it out."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import NoWorkers
from gangline.schemas.names import Operation, WorkerId
from gangline.worker.service import Worker

from ...support.dispatcher.server_rig import ServerRig
from ...waiting import PATIENCE_S, until, until_nobody_responds
from .test_server import make_pool

pytestmark = pytest.mark.server

LONG_S = 3600.0
ROUTER = RouterSettings(node="", zone="", lost_after_s=LONG_S, check_after_s=LONG_S, no_workers_wait_s=0.0)


class WatchedRig(ServerRig):
    """With somebody who listens to all of it."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__(url, namespace)
        self.seen: set[str] = set()

    async def watch(self) -> None:
        bus = await self.bus("watcher")
        await bus.subscribe(f"{self.names.namespace}.>", lambda message: self.seen.add(message.subject))
        await bus.flush()

    async def serve(self, name: str) -> Worker:
        return await self.worker(name, make_pool(), heartbeat_ttl_s=600.0)

    async def kill(self, worker: Worker) -> None:
        """Its connection is gone, and the server knows."""
        self.stack.push_async_callback(worker.abort)
        await worker.bus.close()
        await self.until_gone(worker.id, worker.channel)

    async def until_gone(self, worker: WorkerId, channel: str) -> None:
        bus, subject = await self.bus("asks"), self.names.worker(worker, Operation.STATS, channel)
        await until_nobody_responds(lambda: bus.request(subject, timeout_s=0.5))

    async def connected(self) -> Client:
        return await self.client(lost_after_s=LONG_S, check_after_s=LONG_S, no_workers_wait_s=0.0)


@pytest.fixture
async def site(nats_url: str, namespace: str, opened: contextlib.AsyncExitStack) -> WatchedRig:
    rig = WatchedRig(nats_url, namespace)
    await opened.enter_async_context(rig.stack)
    await rig.watch()
    return rig


async def test_a_selection_whose_worker_has_gone_is_dispatched_elsewhere(site: WatchedRig) -> None:
    workers = {f"images.{name}": await site.serve(name) for name in ("w1", "w2")}
    client = await site.connected()
    async with client.choose_worker("images") as selection:
        gone = workers.pop(selection.worker)
        await site.kill(gone)
        (left,) = workers
        assert await client.dispatch(selection, "who") == left
    async with client.choose_worker("images") as selection:
        assert selection.worker == left
    with pytest.raises(NoWorkers, match="no worker"):
        await client.drain(str(gone.id))


async def test_calls_through_a_gateway_go_to_the_workers_that_are_left(site: WatchedRig) -> None:
    workers = [await site.serve(name) for name in ("w1", "w2")]
    gateway = Gateway(await site.bus("gateway"), names=site.names, router_settings=ROUTER)
    await site.stack.enter_async_context(gateway)
    bus, subject = await site.bus("outside"), site.names.call("images", "who")
    await bus.request(subject, timeout_s=PATIENCE_S)
    await site.kill(workers[0])
    answers = await asyncio.gather(*(bus.request(subject, timeout_s=PATIENCE_S) for _ in range(20)))
    assert {answer.data for answer in answers} == {b'"images.w2"'}
    # The same for callers who want to know at once that there is no gateway.
    assert (await bus.request(site.names.private(subject), timeout_s=PATIENCE_S)).data == b'"images.w2"'
    assert subject in site.seen and not any(seen.startswith("_GANGLINE.") for seen in site.seen)


async def dispatcher(site: WatchedRig, name: str) -> Dispatcher:
    settings = DispatcherSettings(frozen_after_s=60.0, grace_s=0.0)
    made = Dispatcher(await site.bus(name), names=site.names, name=name, settings=settings, router_settings=ROUTER)
    return await site.stack.enter_async_context(made)


async def test_a_job_whose_dispatcher_has_gone_is_looked_for_in_the_stream(site: WatchedRig) -> None:
    client, only = await site.connected(), await dispatcher(site, "d1")
    job = await client.submit("images.who")
    await until(lambda: "images" in only.queues)
    await only.stop()
    status = await job.status()
    assert (status.state, "no dispatcher" in (status.reason or "")) == ("queued", True)
    assert await job.cancel()


async def test_the_queue_of_a_dispatcher_that_has_gone_is_taken_over(site: WatchedRig) -> None:
    await site.serve("w1")
    client, first = await site.connected(), await dispatcher(site, "d1")
    assert await (await client.submit("images.who")).result(PATIENCE_S) == "images.w1"
    second = await dispatcher(site, "d2")
    await first.bus.close()  # all at once, as of a killed process
    assert await (await client.submit("images.who")).result(PATIENCE_S) == "images.w1"
    assert list(second.queues) == ["images"]
