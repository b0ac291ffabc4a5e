"""What a role does not need is refused by the server, and is told at once where somebody asks for it."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from gangline.bus.port.bus import BucketSettings, NotPermitted, Storage
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.jobs.storage import TaskStorage, TaskStreams
from gangline.schemas.errors.base import NoWorkers, WorkerIdTaken
from gangline.schemas.names import Names
from gangline.schemas.permissions.roles import Role
from gangline.worker.pool.pool import Pool

from ..processes import ForkServer
from ..support.rows import case
from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, Site, cut
from .pool import pool as images

pytestmark = pytest.mark.server

P, R, OWN, G, W, D, C, V = (role for role in Role if role is not Role.OPERATOR)
LEDGER, RESULTS = "$KV.GANGLINE_LEDGER", "$KV.GANGLINE_RESULTS"
API = "$JS.API"

# Who may publish there, besides the operator. The worker is images.w1.
PUBLISH: dict[str, set[Role]] = {
    "gangline.call.images.double": {P},
    "gangline.task.images.double": {P},
    "gangline.sched.later": {D},
    "gangline.sched.images.later": {D},
    "gangline.due.images.double": set(),
    "gangline.queue.images.cancel": {P},
    **{f"gangline.queue.images.{name}": {P, V} for name in ("get", "stats", "why", "wait")},
    "gangline.worker.images.w1.frames": {R, G, D},
    "gangline.worker.images.w1.jobs": {D},
    **{f"gangline.worker.images.w1.{name}": {C} for name in ("hold", "unhold", "keep", "form", "teardown", "ping")},
    **{f"gangline.worker.images.w1.{name}": {R} for name in ("reserve", "renew", "release", "schemas")},
    "gangline.worker.images.w1.dispatch": {R, OWN},
    "gangline.worker.images.w1.stats": {V},
    **{f"gangline.worker.images.w1.{name}": set() for name in ("drain", "resize")},
    **{f"gangline.gang.{name}": {R, OWN} for name in ("acquire", "renew", "release")},
    **{f"gangline.gang.{name}": {R, OWN, V} for name in ("get", "list", "why")},
    "gangline.gang.end": set(),
    "gangline.gang.report": set(),
    "gangline.gang.report.images.w1": {W},
    "gangline.gang.report.images.w2": set(),
    "gangline.gang.report.other.w1": set(),
    "gangline.gang-shard.east.list": {C},
    "gangline.gang-talk.g.1.1.0": {W},
    # The private subjects.
    "_GANGLINE.gangline.call.images.double": {P},
    "_GANGLINE.gangline.task.images.double": set(),
    "_GANGLINE.gangline.queue.images.cancel": {P},
    "_GANGLINE.gangline.worker.images.w1.x.frames": {R, G, D},
    "_GANGLINE.gangline.worker.images.w1.x.jobs": {D},
    **{f"_GANGLINE.gangline.worker.images.w1.x.{name}": {C} for name in ("hold", "form", "teardown", "ping")},
    "_GANGLINE.gangline.worker.images.w1.x.reserve": {R},
    "_GANGLINE.gangline.worker.images.w1.x.drain": set(),
    "_GANGLINE.gangline.gang.acquire": {R, OWN},
    "_GANGLINE.gangline.gang.report": set(),
    "_GANGLINE.gangline.gang-shard.east.list": {C},
    "_GANGLINE.gangline.worker.images.w1.x.stats": {V},
    "_GANGLINE.gangline.dispatcher.d.ping": {D, V},
    "gangline.dead.images.double": {D},
    "gangline.job.j.state": {D},
    "gangline.job.j.item": {D},
    "gangline.job.j.progress": {W, D},
    "gangline.job.images.j.state": {D},
    "gangline.job.images.j.progress": {W, D},
    "gangline.dispatcher.d.ping": {D, V},
    "gangline.dispatcher.d.stats": {V},
    "gangline.event.worker.images.w1": {W},
    "gangline.event.worker.images.w2": set(),
    "gangline.event.gang.g": {C},
    "gangline.event.task.images": {D},
    "gangline.event.route.images": {R, G, D},
    "gangline.event.dispatcher.d": {D},
    # Keys.
    f"{LEDGER}.reg.images.w1": {W},
    f"{LEDGER}.alive.images.w1": {W},
    f"{LEDGER}.lease.images.w1.token": {W},
    f"{LEDGER}.reg.images.w2": set(),
    f"{LEDGER}.alive.images.w2": set(),
    f"{LEDGER}.lease.images.w2.token": set(),
    f"{LEDGER}.member.images.w1.g": {C},
    f"{LEDGER}.gang.g": {C},
    f"{LEDGER}.leader": {C},
    f"{LEDGER}.leader_alive.east": {C},
    f"{LEDGER}.gangset.s": {C},
    f"{RESULTS}.result.j": {D},
    f"{RESULTS}.result.images.j": {D},
    f"{RESULTS}.try.images.j": {D},
    f"{RESULTS}.try.images.images.j": {D},
    f"{RESULTS}.turn.images": {D},
    "$KV.GANGLINE_ROUTES.images": set(),
    "$O.GANGLINE_OBJECTS.C.n": {D},
    # Others' inboxes: only who answers.
    "_INBOX.somebody.r.1": {G, W, C},
    "_R_.another.account": {G, W, C},
    # The audit trail: each operator in its own name, and nobody changes it.
    "gangline-audit.somebody": set(),
    **{f"{API}.STREAM.{verb}.GANGLINE_AUDIT": set() for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")},
    f"{API}.STREAM.MSG.GET.GANGLINE_AUDIT": {V},
    # The history: each process in its own name, and nobody changes it.
    "gangline-history.worker.images.w1": {W},
    "gangline-history.worker.images.w2": set(),
    "gangline-history.coordinator.c1": {C},
    "gangline-history.dispatcher.d1": {D},
    **{f"{API}.STREAM.{verb}.GANGLINE_HISTORY": set() for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")},
    f"{API}.STREAM.CREATE.GANGLINE_HISTORY": {D, C},
    f"{API}.STREAM.MSG.GET.GANGLINE_HISTORY": {V},
    # JetStream.
    f"{API}.STREAM.INFO.GANGLINE_TASKS": {P, D, V},
    f"{API}.STREAM.MSG.GET.GANGLINE_TASKS": {P, D, V},
    f"{API}.STREAM.MSG.DELETE.GANGLINE_TASKS": {D},
    **{f"{API}.STREAM.PURGE.GANGLINE_{name}": set() for name in ("TASKS", "JOBS", "DEAD")},
    f"{API}.STREAM.CREATE.GANGLINE_TASKS": {D},
    **{f"{API}.STREAM.{verb}.GANGLINE_TASKS": set() for verb in ("DELETE", "UPDATE")},
    f"{API}.STREAM.CREATE.KV_GANGLINE_LEDGER": {G, D, C},
    f"{API}.STREAM.PURGE.KV_GANGLINE_LEDGER": {D, C},
    f"{API}.CONSUMER.CREATE.KV_GANGLINE_LEDGER.c": {R, G, D, C},
    f"{API}.STREAM.DELETE.KV_GANGLINE_LEDGER": set(),
    f"{API}.STREAM.MSG.GET.KV_GANGLINE_LEDGER": {R, G, W, D, C, V},
    f"{API}.STREAM.MSG.GET.KV_GANGLINE_RESULTS": {P, D, V},
    # What is stored would go, as it is, wherever the request says.
    f"{API}.DIRECT.GET.KV_GANGLINE_RESULTS": set(),
    f"{API}.DIRECT.GET.KV_GANGLINE_RESULTS.{RESULTS}.result.j": set(),
    f"{API}.DIRECT.GET.KV_GANGLINE_LEDGER": set(),
    f"{API}.STREAM.CREATE.ANYTHING": set(),
    # Taking tasks.
    f"{API}.CONSUMER.CREATE.GANGLINE_TASKS.q": {D},
    f"{API}.CONSUMER.CREATE.GANGLINE_TASKS.q.gangline.task.images.double": set(),
    f"{API}.CONSUMER.DURABLE.CREATE.GANGLINE_TASKS.q": set(),
    f"{API}.CONSUMER.MSG.NEXT.GANGLINE_TASKS.q": {D},
    f"{API}.CONSUMER.DELETE.GANGLINE_TASKS.q": {D},
    "$JS.ACK.GANGLINE_TASKS.q.1.1.1.1.0": {D},
    f"{API}.CONSUMER.CREATE.GANGLINE_DEAD.q": set(),
    f"{API}.CONSUMER.CREATE.GANGLINE_JOBS.q": set(),
}

# Likewise who may subscribe. `<queue>` after a blank.
SUBSCRIBE: dict[str, set[Role]] = {
    ">": set(),
    "gangline.>": set(),
    "_INBOX.>": set(),
    "_INBOX.somebody.>": set(),
    "gangline.call.>": set(),
    "gangline.call.> gangline-gateway": {G},
    "gangline.call.> others": set(),
    "gangline.task.>": set(),
    "gangline.task.images.double": set(),
    "gangline.worker.images.w1.*": {W},
    "gangline.worker.images.w2.*": set(),
    "gangline.worker.images.*.*": set(),
    "gangline.gang.*": {C},
    "gangline.gang.report.*.*": {C},
    "gangline.gang-shard.east.*": {C},
    "_GANGLINE.>": set(),
    "_GANGLINE.gangline.>": set(),
    "_GANGLINE.gangline.call.>": set(),
    "_GANGLINE.gangline.call.> gangline-gateway": {G},
    "_GANGLINE.gangline.worker.images.w1.*.*": {W},
    "_GANGLINE.gangline.worker.images.w2.*.*": set(),
    "_GANGLINE.gangline.worker.images.w2.x.*": set(),
    "_GANGLINE.gangline.gang.*": {C},
    "_GANGLINE.gangline.gang-shard.east.*": {C},
    "_GANGLINE.gangline.queue.images.*": {D},
    "_GANGLINE.gangline.dispatcher.d.*": {D},
    "gangline.gang-talk.g.1.1.all": {W},
    "gangline.queue.images.*": {D},
    "gangline.dispatcher.d.*": {D},
    "gangline.job.>": {V},
    "gangline.job.j.>": {P, V},
    "gangline.job.images.j.*": {P, V},
    "gangline.dead.>": {V},
    "gangline.event.gang.*": {R, G, D, V},
    "gangline.event.worker.images.w1": {V},
    "gangline-audit.*": {V},
    "gangline-history.>": {V},
    f"{LEDGER}.alive.images.*": {R, G, D, C, V},
    f"{LEDGER}.reg.images.*": {R, G, D, V},
    f"{LEDGER}.lease.images.w1.*": {V},
    f"{LEDGER}.gang.*": {V},
    f"{LEDGER}.>": {V},
    f"{RESULTS}.result.j": {P, V},
    f"{RESULTS}.result.images.j": {P, V},
    f"{RESULTS}.>": {V},
    "$KV.GANGLINE_ROUTES.>": {R, G, D, V},
    "$JS.ACK.>": set(),
    "$JS.API.>": set(),
    "$SRV.PING": {G, W, D, C},
    "$SRV.PING.gangline-worker": {W},
    "$SRV.PING.gangline-coordinator": {C},
    "$SRV.INFO.something-else": set(),
}

SHARED = (
    *("producer", "router", "owner", "gateway", "dispatcher", "coordinator", "observer", "operator"),
    "worker=worker:images.w1",
)


async def refused(site: Site, user: str, commands: dict[str, str]) -> set[str]:
    """Names of the commands that the server refuses. It is asked without a client of ours, on one connection: what it
    refuses, it says before it answers the PING behind it."""
    address = urlsplit(site.server.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    identity = {"user": user, "pass": PASSWORD, "verbose": False, "pedantic": False}
    writer.write(f"CONNECT {json.dumps(identity)}\r\nPING\r\n".encode())
    assert b"-ERR" not in await reader.readuntil(b"PONG\r\n")
    found = set()
    for name, command in commands.items():
        writer.write(f"{command}PING\r\n".encode())
        if b"-ERR 'Permissions Violation" in await reader.readuntil(b"PONG\r\n"):
            found.add(name)
    writer.close()
    await writer.wait_closed()
    return found


def publications(*subjects: str) -> dict[str, str]:
    return {subject: f"PUB {subject} 0\r\n\r\n" for subject in subjects}


def subscriptions(*subjects: str) -> dict[str, str]:
    return {subject: f"SUB {subject} {sid}\r\nUNSUB {sid}\r\n" for sid, subject in enumerate(subjects, 1)}


async def test_a_role_may_what_it_needs_and_no_more(site_of):
    site: Site = site_of(cut(*SHARED))
    for role in (role for role in Role if role is not Role.OPERATOR):
        with case(role):
            not_published = await refused(site, role.value, publications(*PUBLISH))
            assert not_published == {subject for subject, roles in PUBLISH.items() if role not in roles}
            not_heard = await refused(site, role.value, subscriptions(*SUBSCRIBE))
            assert not_heard == {subject for subject, roles in SUBSCRIBE.items() if role not in roles}


async def test_operators_may_all_but_hear_what_others_are_answered(site: Site):
    assert await refused(site, "operator", publications(*PUBLISH, "gangline-audit.operator")) == {
        "_INBOX.somebody.r.1",
        "_R_.another.account",
        "gangline-audit.somebody",
        *(
            f"{API}.STREAM.{verb}.{stream}"
            for stream in ("GANGLINE_AUDIT", "GANGLINE_HISTORY")
            for verb in ("UPDATE", "DELETE", "PURGE", "MSG.DELETE")
        ),
        *(f"gangline-history.{writer}" for writer in ("worker.images.w1", "worker.images.w2")),
        *("gangline-history.coordinator.c1", "gangline-history.dispatcher.d1"),
        f"{API}.STREAM.CREATE.ANYTHING",
    }
    answers = ("_GANGLINE.gangline.>", "_INBOX.>", "_INBOX.router.>", ">")
    assert await refused(site, "operator", subscriptions("gangline.>", *answers)) == set(answers)


# -- told clearly, and soon -------------------------------------------------------------------------------------------


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


async def test_a_router_who_submits_is_told_so_at_once(site: Site):
    await site.dispatcher()
    router = await site.client("router")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted, match="GANGLINE_SCHED"):
            await router.submit("images.double", 1)
        with pytest.raises(NotPermitted):
            await router.set_route("images", {"to": {"other": 1}})


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


async def test_a_producer_cannot_forge_a_result(site: Site):
    await site.dispatcher()
    bus = await site.bus("producer")
    results = await bus.bucket(Names().results_bucket, BucketSettings(storage=Storage.FILE))
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted):
            await results.put("result.mine", b"{}")
    assert await results.get("result.mine") is None


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


# -- parts that run as somebody else ----------------------------------------------------------------------------------


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
