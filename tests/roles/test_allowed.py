"""Everything works for the roles that need it, from end to end, and nothing of it meets a refusal."""

from __future__ import annotations

import asyncio
import base64
import json
import os

import pytest

from gangline.bus.port.bus import BucketSettings, ConnectionEvent, Message, Storage
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.dispatcher.client.history import HistoryReader
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.schemas.errors.base import JobDead
from gangline.schemas.names import Names
from gangline.schemas.permissions.roles import INBOXES
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker, WorkerState

from ..bus.conftest import collect, happens
from ..processes import ForkServer
from ..waiting import PATIENCE_S, until, until_read
from .conftest import PASSWORD, SERVERS, Site, ask, cut
from .pool import pool as images

pytestmark = pytest.mark.server


async def test_a_producer_calls_through_a_gateway(producing: Site):
    await producing.everything()
    producer = await producing.bus("producer")
    answer = await producer.request("gangline.call.images.double", b"[21]", timeout_s=PATIENCE_S)
    assert answer.data == b"42"
    assert await producing.refused() == []


async def test_a_router_calls_streams_chooses_leases_and_forms_gangs(site: Site):
    await site.everything()
    router = await site.client("router")
    assert await router.call("images.double", 1) == 2
    assert [item async for item in router.stream("images.count", 200)] == list(range(200))
    async with router.choose_worker("images") as selection:
        assert await router.dispatch(selection, "double", 2) == 4
    async with router.lease("images", slots=2, ledger="sync") as lease:
        assert await lease.call("double", 3) == 6
    async with router.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]
    w1 = "gangline.worker.images.w1"
    granted = await ask(router._bus, f"{w1}.reserve", slots=1, ttl_s=600)  # as other languages do it
    assert await ask(router._bus, f"{w1}.dispatch", token=granted["token"], method="double", arguments=[4]) == 8
    assert (await ask(router._bus, "gangline.gang.list"))["missing"] == []
    assert await site.refused() == []


async def test_a_producer_submits_and_follows_what_becomes_of_it(producing: Site):
    await producing.everything()
    producer = await producing.client("producer")
    job = await producer.submit("images.double", 21)
    assert await job.result(PATIENCE_S) == 42
    told = await producer.options(events=True).submit("images.report")
    kinds = [type(event).__name__ async for event in told.events()]
    assert {"JobEvent", "JobProgress"} == set(kinds)
    items = await producer.submit("images.count", 20)
    assert [item async for item in items.items()] == list(range(20))
    # So much that the server asks for acknowledgements on the way (flow control).
    pages = await producer.submit("images.pages", 60, 100_000)
    assert sum([len(item) async for item in pages.items()]) == 6_000_000
    large = await producer.submit("images.text", 900_000)
    assert len(await large.result(PATIENCE_S)) == 900_000
    again = producer.options(idempotency_key="once")
    assert await (await again.submit("images.double", 4)).result(PATIENCE_S) == 8
    assert await (await again.submit("images.double", 4)).result(PATIENCE_S) == 8
    assert (await (await producer.options(delay_s=3600.0).submit("images.double", 3)).status()).state == "scheduled"
    late = await producer.options(delay_s=1.0).submit("images.double", 3)
    assert await late.result(PATIENCE_S) == 6
    assert await producing.refused() == []


async def test_tasks_that_were_published_by_hand_are_delayed_or_become_dead_letters(site: Site):
    await site.everything()
    producer, operator = await site.client("producer"), await site.client("operator")
    first = await producer.submit("images.double", 1)
    await first.result(PATIENCE_S)
    delayed = {"Gangline-Job": "late", "Gangline-Delay": "1s"}
    await producer._bus.request("gangline.task.images.double", b"[2]", timeout_s=PATIENCE_S, headers=delayed)
    assert await producer.job("late").result(PATIENCE_S) == 4
    key = "$KV.GANGLINE_RESULTS.result.late"
    get = "$JS.API.STREAM.MSG.GET.KV_GANGLINE_RESULTS"
    stored = (await ask(producer._bus, get, last_by_subj=key))["message"]
    assert json.loads(base64.b64decode(stored["data"]))["result"] == 4
    await operator._bus.request("gangline.task.astray", b"", timeout_s=PATIENCE_S)
    await until_read(operator.dead_letters, lambda letters: [each.reason for each in letters] == ["malformed"])
    await until_read(producer.queues, lambda queues: [each.endpoint for each in queues] == ["images"])
    assert await site.refused() == []


async def test_a_producer_cancels_and_asks_why(producing: Site):
    await producing.everything()
    producer = await producing.client("producer")
    failing = await producer.options(backoff_s=60, max_attempts=3).submit("images.fail")
    await until_read(failing.status, lambda status: status.state == "waiting")
    assert [obstacle.kind for obstacle in (await failing.why()).obstacles] == ["backoff"]
    assert await failing.cancel()
    running = await producer.submit("images.wait")
    await until_read(running.status, lambda status: status.state == "running")
    assert await producer.job(running.id).cancel()
    assert await producing.refused() == []


async def test_an_operator_does_all_that_operators_do(site: Site):
    await site.everything()
    producer, operator = await site.client("producer"), await site.client("operator")
    dead = await producer.options(max_attempts=1).submit("images.fail")
    with pytest.raises(JobDead):
        await dead.result(PATIENCE_S)
    # Once the server has confirmed what the client may have read already.
    await until_read(operator.queues, lambda queues: [each.dead for each in queues] == [1])
    assert [letter.job for letter in await operator.dead_letters()] == [dead.id]
    with pytest.raises(JobDead):
        await (await operator.replay(dead.id)).result(PATIENCE_S)
    await operator.drop(dead.id)
    later = await producer.options(cron="@every 1h").submit("images.double", 1)
    assert await operator.job(later.id).cancel()
    assert [info.name for info in await operator.workers()] == ["images.w1", "images.w2"]
    router = await site.client("router")
    async with router.lease("images", ledger="sync"):
        assert "router" in [lease.owner for lease in await operator.leases()]
    for client in (router, operator):
        assert (await client.schemas("images"))["double"].parameters["required"]
    assert (await operator.stats("images.w1")).load.total == 4
    assert (await operator.resize("images.w1", 2)).slots == 2
    assert (await operator.drain("images.w1")).draining
    assert await site.refused() == []


async def test_gateways_dispatchers_and_routers_say_how_many_requests_wait_in_them(site: Site):
    await site.everything()
    operator, producer = await site.bus("operator"), await site.client("producer")
    router, heard = await site.client("router"), collect()
    await operator.subscribe("gangline.event.router.*", heard)
    await operator.flush()
    async with router.lease("images", slots=4), router.lease("images", slots=4):
        waiting = [
            asyncio.ensure_future(router.call("images.double", 1)),
            asyncio.ensure_future(producer._bus.request("gangline.call.images.double", b"[1]", timeout_s=PATIENCE_S)),
        ]
        job = await producer.submit("images.double", 1)

        async def all_say_so() -> bool:
            events = [json.loads(message.data) for message in heard.items]
            return len({event["router"] for event in events if event["waiting"].get("images")}) == 3

        await until(all_say_so, lambda: f"{[message.data for message in heard.items[-6:]]}")
    await asyncio.gather(*waiting)
    assert await job.result(PATIENCE_S) == 2
    assert await site.refused() == []


async def test_routes_and_standing_sets_are_declared_by_operators_and_followed(site: Site):
    await site.everything()
    operator, router = await site.client("operator"), await site.client("router")
    producer = await site.client("producer")
    await operator.set_route("pics", {"to": {"images": 1}})
    router.router.routes.start()
    await until(lambda: "pics" in router.router.routes.known)
    assert await router.call("pics.double", 2) == 4
    assert await (await producer.submit("pics.double", 3)).result(PATIENCE_S) == 6
    told = collect()
    await operator._bus.subscribe("gangline.event.route.pics", told)
    routes = await operator._bus.bucket(Names().routes_bucket, BucketSettings())
    await routes.put("pics", b"this is no route")
    await told.count(3)  # whoever follows the routes says so
    await operator.delete_route("pics")
    ledger = await operator.router.ledger()
    await ledger.put("gangset.pair", b'{"gangs": 1, "gang": {"pool": "images", "size": 2}}')
    await until(lambda: "pair" in router.router.sets.statistics())
    assert await router.options(timeout_s=PATIENCE_S).call("pair.double", 4) == 8
    async with router.lease("pair") as lease:
        assert await lease.call("double", 5) == 10
    assert await (await producer.submit("pair.double", 6)).result(PATIENCE_S) == 12
    await ledger.delete("gangset.pair")
    assert await site.refused() == []


async def test_a_second_dispatcher_takes_over_from_one_that_leaves(site: Site):
    await site.worker()
    first = await site.dispatcher()
    producer = await site.client("producer")
    assert await (await producer.submit("images.double", 1)).result(PATIENCE_S) == 2
    second = await site.dispatcher()
    await first.stop()
    assert await (await producer.submit("images.double", 2)).result(PATIENCE_S) == 4
    assert second.statistics().queues
    assert await site.refused() == []


async def test_coordinators_of_shards_speak_to_each_other(site: Site):
    await site.coordinator(shard="east", pools=["images"])
    await site.coordinator(shard="west", pools=["video"])
    await site.worker()
    router, operator = await site.client("router"), await site.bus("operator")
    async with router.gang(pool="images", size=1):

        async def all_listed() -> bool:
            listed = await ask(operator, "gangline.gang.list")
            assert len(listed["gangs"]) == 1
            return not listed["missing"]  # a shard that does not answer within a second is

        await until(all_listed)
    assert await site.refused() == []


async def test_discovery_finds_everybody(site: Site):
    await site.everything()
    operator = await site.bus("operator")
    found = collect()
    await operator.subscribe(f"{operator.inbox}.found", found)

    def names(messages: list[Message]) -> list[str]:
        return sorted(json.loads(message.data)["name"] for message in messages)

    operator.publish("$SRV.PING", reply=f"{operator.inbox}.found")
    every = ["coordinator", "dispatcher", "gateway", "worker", "worker"]
    await found.until(lambda messages: names(messages) == [f"gangline-{name}" for name in every])
    for name in set(every):
        for verb in ("INFO", "STATS"):
            told = await operator.request(f"$SRV.{verb}.gangline-{name}", timeout_s=PATIENCE_S)
            assert json.loads(told.data)["name"] == f"gangline-{name}"
    assert await site.refused() == []


@pytest.mark.parametrize("part", ["dispatcher", "coordinator"])
async def test_a_ledger_that_went_with_its_server_is_made_again_and_workers_wait_for_that(site: Site, part):
    site._ledger = True  # nobody else makes it
    _, worker = await asyncio.gather(getattr(site, part)(), site.worker())
    assert worker.state is WorkerState.SERVING
    router = await site.client("router")
    assert await router.call("images.double", 1) == 2
    bus = router._bus
    await happens(bus, ConnectionEvent.RECONNECTED, site.server.restart)
    assert await router.options(timeout_s=PATIENCE_S).call("images.double", 2) == 4
    # They ask, each time, and are told to wait.
    assert [line for line in await site.refused() if "STREAM.CREATE.KV_GANGLINE_LEDGER" not in line] == []


@pytest.mark.long
async def test_a_router_lists_thousands_of_keys(site: Site):
    operator = await site.bus("operator", storage_timeout_s=PATIENCE_S)
    router = await site.bus("router", storage_timeout_s=PATIENCE_S)
    settings, name = BucketSettings(storage=Storage.MEMORY), Names().ledger_bucket
    written = await operator.bucket(name, settings)
    await asyncio.gather(*(written.put(f"lease.p.w.t{number}", b"{}") for number in range(1100)))
    assert len(await (await router.bucket(name, settings)).entries("lease.*.*.*")) == 1100
    assert await site.refused() == []


async def test_operators_and_probes_use_the_command_line(site: Site, forks: ForkServer):
    await site.everything()

    async def run(user: str, *command: str) -> str:
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NATS_")},
            "NATS_URL": site.server.url,
            "NATS_USER": user,
            "NATS_PASSWORD": PASSWORD,
            "GANGLINE_INBOX_PREFIX": f"{INBOXES}.{user}",
        }
        arguments = ["-m", "gangline.cli", *command]
        done = await asyncio.to_thread(forks.run, arguments, environment=environ, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "w1" in await run("operator", "workers", "--json")
    assert await run("router", "call", "images.double", "[4]") == "8\n"
    assert "gangline-worker" in await run("worker", "health", "--node", "w1")
    assert await site.refused() == []


async def test_each_role_writes_its_own_history_and_an_observer_reads_all_of_it(site_of):
    history = HistorySettings(storage=Storage.MEMORY, max_bytes=1 << 20)
    site: Site = site_of(cut(*SERVERS[:-2], "observer", "w1=worker:images.w1"))
    await site.coordinator(shell=ServiceSettings(history=history))
    bus = await site.bus("dispatcher")
    async with Dispatcher(bus, settings=DispatcherSettings(history=history)):
        await site.make_ledger()
        settings = WorkerSettings(id="w1", start_timeout_s=PATIENCE_S, history=history)
        async with Worker(images, bus=await site.bus("w1"), settings=settings):
            reader = HistoryReader(await site.bus("observer"), Names())
            both = {"worker", "coordinator"}
            await until_read(reader.records, lambda found: {each.by.partition(".")[0] for each in found} >= both)
    assert "worker_left" in {record.kind.value for record in await reader.records()}
    assert await site.refused() == []
