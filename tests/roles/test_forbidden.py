"""What a role does not need is refused by the server, and is told at once where somebody asks for it."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.port.bus import NotPermitted
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import NoWorkers, WorkerIdTaken
from gangline.schemas.names import Names
from gangline.worker.pool.pool import Pool

from ..processes import ForkServer
from ..support.rows import case
from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, Site, cut
from .pool import pool as images

pytestmark = pytest.mark.server


async def test_who_connects_without_its_inbox_prefix_is_told_so(site: Site):
    with pytest.raises(NotPermitted, match=r"set `inbox_prefix`"):
        await site.bus("producer", inbox_prefix="_INBOX")


async def test_a_producer_who_calls_like_a_router_is_told_so_at_once(site: Site):
    await site.worker()
    producer = await site.client("producer")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted, match="KV_GANGLINE_LEDGER"):
            await producer.options(timeout_s=3600).call("images.double", 1)
        with pytest.raises(NotPermitted):
            async with producer.options(timeout_s=3600).lease("images"):
                pass
        with pytest.raises(NotPermitted, match=r"gangline\.gang\.acquire"):
            async with producer.gang(pool="images", size=1):
                pass
        with pytest.raises(NotPermitted):
            await producer.workers()
        with pytest.raises(NotPermitted, match=r"images\.w1\.drain"):
            await producer.drain("images.w1")
    # What the tests of what is allowed look for.
    refused = await site.refused()
    assert any("images.w1.drain" in line for line in refused)


async def test_a_producer_cannot_cancel_what_the_server_still_holds_back(site: Site):
    await site.dispatcher()
    producer = await site.client("producer")
    later = await producer.options(delay_s=3600).submit("images.double", 1)
    schedules = await TaskStreams(await site.bus("operator"), Names()).schedules()
    await until(lambda: schedules.last(Names().schedule(later.id)))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted, match=r"STREAM\.PURGE|GANGLINE_RESULTS"):
            await later.cancel()
    assert await (await site.client("operator")).job(later.id).cancel()


async def test_a_router_that_is_cut_to_a_pool_cannot_use_another(site_of):
    site: Site = site_of(cut("operator", "worker", "shop=router:images", "router"))
    video = Pool("video", slots=1)
    video.task(name="play")(images.tasks["double"].function)
    await site.worker()
    await site.worker("v1", pool=video)
    shop = await site.client("shop")
    assert await shop.call("images.double", 2) == 4
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises((NotPermitted, NoWorkers)) as caught:
            await shop.options(timeout_s=3600).call("video.play", 1)
    assert caught.type is NotPermitted
    assert await shop.call("images.double", 3) == 6


async def test_a_worker_cannot_take_the_place_of_another(site_of):
    site: Site = site_of(cut("operator", "coordinator", "one=worker:images.w1", "two=worker:images.w2"))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted, match=r"alive\.images\.w1"):
            await site.worker("w1", user="two")
    await site.worker("w1", user="one")
    await site.worker("w2", user="two")
    with pytest.raises(WorkerIdTaken):
        await site.worker("w1", user="two")


async def test_a_part_that_is_started_as_another_role_says_so_and_ends(site: Site):
    await site.everything()

    async def refuse(part: Dispatcher | Coordinator | Gateway, match: str | None = None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(NotPermitted, match=match):
                await part.start()
        await part.stop()

    for user in ("producer", "router", "gateway"):
        with case(user):
            bus = await site.bus(user)
            await refuse(Dispatcher(bus))
            await refuse(Coordinator(bus=bus))
            if user != "gateway":
                await refuse(Gateway(await site.bus(user)), r"gangline\.call\.>")
            with pytest.raises(NotPermitted):
                await site.worker("w3", user=user)


COMMANDS = {
    "workers": "the roles router, gateway, worker, dispatcher, coordinator, observer and operator may",
    "stats images.w1": "the roles observer and operator may",
    "drain images.w1": "the role operator may",
    "gang acquire images 1": "the roles router, owner and operator may",
    "call images.double [1]": "the roles router, gateway, ",
    "health --node here --timeout 0.5": "publish to '$SRV.PING'",
}


@pytest.mark.processes
async def test_a_command_says_once_what_is_forbidden_and_which_role_may_do_it(site_of, forks: ForkServer):
    site = site_of(cut("shop=producer"))
    options = ["-s", site.server.url, "--user", "shop", "--password", PASSWORD, "--inbox-prefix", "_INBOX.shop"]
    for command, roles in COMMANDS.items():
        what = ["-m", "gangline.cli", *command.split(), *options]
        done = await asyncio.to_thread(forks.run, what, timeout=PATIENCE_S)
        told = done.stderr.splitlines()
        first = "gangline: the nats-server forbids this user to "
        with case(command, done):
            assert (done.returncode, done.stdout, len(told)) == (3, "", 1)
            assert told[0].startswith(first) and roles in told[0]


@pytest.mark.processes
async def test_a_command_that_can_do_without_what_is_forbidden_does_not_speak_of_it(site_of, forks: ForkServer):
    """An observer may create no consumers, so it reads dead letters one by one."""
    site = site_of(cut("dispatcher", "eye=observer"))
    bus = await site.bus("dispatcher")
    stream = await TaskStreams(bus, Names(), TaskStorage()).dead()
    await stream.publish("gangline.dead.images.double", b"[1]", headers={"Gangline-Job": "images.dead"})
    options = ["-s", site.server.url, "--user", "eye", "--password", PASSWORD, "--inbox-prefix", "_INBOX.eye"]
    what = ["-m", "gangline.cli", "dead", "rm", "images.other", *options]
    done = await asyncio.to_thread(forks.run, what, timeout=PATIENCE_S)
    told = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(told)) == (1, "", 2), done
    assert "dead rm images.other was not recorded" in told[0] and "no dead letter of job" in told[1]
