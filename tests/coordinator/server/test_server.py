"""Coordinators and real workers on a real nats-server."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.port.bus import BucketSettings, KvEntry, Storage
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import public_id
from gangline.schemas.records.gangs import GangRecord
from gangline.worker.service import Worker

from ...support.coordinator.real_workers import RealWorkersSystem
from ...support.coordinator.rig import CoordinatorSystem, check_atomic
from ...waiting import PATIENCE_S, until

pytestmark = pytest.mark.server


async def test_a_gang_by_plain_requests_from_acquire_to_release(open_system, nats_url, namespace):
    system = await open_system(nats_url)
    for name in ("w1", "w2"):
        await system.serve(name, slots=2)
    await system.lead()

    async def request(subject, body):
        data = json.dumps(body).encode()
        return await system.owner.bus.request(f"{namespace}.{subject}", data, timeout_s=PATIENCE_S)

    async def ask(subject, body):
        return json.loads((await request(subject, body)).data)

    gang = await ask("gang.acquire", {"pool": "train", "size": 4})
    assert (gang["state"], len(gang["seats"]), gang["generation"]) == ("formed", 4, 1)
    assert len({seat["token"] for seat in gang["seats"]}) == 4 and gang["fence"] > 0
    assert gang["rendezvous"]["port"] > 0

    for seat in gang["seats"]:
        body = {"token": seat["token"], "method": "double", "arguments": [seat["rank"]]}
        assert await ask(f"worker.{seat['pool']}.{seat['worker']}.dispatch", body) == 2 * seat["rank"]

    owned = {"id": gang["id"], "owner_token": gang["owner_token"]}
    assert (await ask("gang.renew", owned))["state"] == "formed"
    got = await ask("gang.get", {"id": gang["id"]})
    assert got["owner_token"] is None
    assert [seat["token"] for seat in got["seats"]] == [public_id(seat["token"]) for seat in gang["seats"]]
    assert [one["id"] for one in (await ask("gang.list", {}))["gangs"]] == [gang["id"]]
    assert (await ask("gang.release", owned))["state"] == "ended"
    assert system.slots_in_use == 0
    assert [event["kind"] for event in system.events] == ["queued", "formed", "ready", "torn_down", "ended"]
    refused = await request("gang.renew", owned)
    assert refused.headers["Nats-Service-Error-Code"] == "410"
    assert "released" in refused.headers["Nats-Service-Error"]
    assert system.watcher.broken == []


async def signs_of_life(system: CoordinatorSystem, key: str, count: int) -> None:
    """Wait until that key has been written so often from now on."""
    seen: list[int] = []
    watch = await system.ledger.watch(key, lambda entry: seen.append(entry.revision))
    first = len(seen)
    await until(lambda: len(seen) >= first + count, f"{key} is written {count} times")
    await watch.unsubscribe()


@pytest.mark.parametrize("storage", [Storage.MEMORY, pytest.param(Storage.FILE, marks=pytest.mark.long)])
async def test_gangs_survive_a_quick_restart_of_the_server(open_system, nats_server, namespace, storage):
    system = await open_system(nats_server.url, BucketSettings(storage=storage))
    worker = await system.serve("w1")
    coordinator = await system.lead()
    gang = await system.owner.acquire(pool="train", size=2, ttl_s=600)
    await asyncio.to_thread(nats_server.restart)
    await coordinator.wait_leading()
    await until(lambda: all(bus_of(system)))
    found = await system.insist("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", 1)
    await signs_of_life(system, system.names.alive_key(worker.id), 2)
    found = await system.insist("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", 1)
    assert await system.ledger.get(system.names.member_key(worker.id, gang["id"])) is not None
    assert "torn_down" not in [event["kind"] for event in system.events]
    await system.owner.release(gang)
    assert system.slots_in_use == 0


def bus_of(system: RealWorkersSystem) -> list[bool]:
    return [worker.bus.connected for worker in system.served] + [system.owner.bus.connected]


async def test_a_lost_connection_of_a_worker_is_told_of_by_the_server_where_it_offers_that(open_system):
    config = """
    accounts {
      SYS { users: [{user: sys, password: sys}], exports: [{stream: "$SYS.ACCOUNT.APP.DISCONNECT"}] }
      APP { users: [{user: app, password: app}], jetstream: enabled,
            imports: [{stream: {account: SYS, subject: "$SYS.ACCOUNT.APP.DISCONNECT"}}] }
    }
    system_account: SYS
    """
    with EmbeddedServer(config=config) as server:
        system = await open_system(server.url.replace("nats://", "nats://app:app@"))
        try:
            for name in ("w1", "w2"):
                await system.serve(name, slots=2, heartbeat_ttl_s=600.0)
            # Nothing else would find it while the test waits.
            await system.lead(settings=CoordinatorSettings(ping_s=3600.0), silence_s=60.0)
            await system.owner.acquire(pool="train", size=2, strategy="spread", restart="fail")
            await abort(system.served[1])
            torn = await system.event("torn_down")
            assert torn["reason"].startswith("worker_lost: train.w2: no responders")
        finally:
            await system.close()


async def test_a_lost_worker_is_noticed_while_somebody_watches_all_that_passes(open_system, nats_url, namespace):
    system = await open_system(nats_url)
    watcher = await system.bus("everything")
    await watcher.subscribe(f"{namespace}.>", lambda message: None)
    await watcher.flush()
    for name in ("w1", "w2"):
        await system.serve(name, slots=2, heartbeat_ttl_s=600.0)
    await system.lead(silence_s=60.0)  # pings alone can find it while the test waits
    await system.owner.acquire(pool="train", size=2, strategy="spread", restart="fail")
    await abort(system.served[1])
    torn = await system.event("torn_down")
    assert torn["reason"].startswith("worker_lost: train.w2: no responders")
    assert (await system.event("ended"))["gang"] == torn["gang"]


async def abort(worker: Worker) -> None:
    """As a process that is killed: nothing is taken away, the connection is gone."""
    await worker.bus.close()
    await worker.abort()


@pytest.mark.timeout(600)
async def test_no_gang_is_partial_or_lost_when_the_streams_leader_dies_during_grants(open_system):
    gangs = 6
    with EmbeddedCluster(3) as cluster:
        system = await open_system(",".join(cluster.urls), BucketSettings(storage=Storage.FILE, replicas=3))
        try:
            for number in range(4):
                await system.serve(f"w{number}", slots=16)
            await system.lead()
            await system.coordinator("second")
            looking = asyncio.create_task(look_for_partial_gangs(system))
            asked = [asyncio.create_task(granted(system, number)) for number in range(gangs)]
            await until(lambda: sum(task.done() for task in asked) >= gangs // 5, within_s=3 * PATIENCE_S)
            info = await system.owner.bus.api.call(f"STREAM.INFO.KV_{system.names.ledger_bucket}", what="look")
            cluster.server(info["cluster"]["leader"]).kill()
            await asyncio.gather(*asked)
            await until(lambda: system.slots_in_use == 0)
            looking.cancel()
            await asyncio.wait([looking])
        finally:
            await system.close()
        assert system.watcher.broken == []


async def granted(system: RealWorkersSystem, number: int) -> None:
    """Acquire a gang through whatever happens; the ledger must have what was reported, and it must stay; release it."""
    owned = {"id": f"g{number}", "owner_token": f"t{number}"}
    gang = await system.insist("acquire", {"pool": "train", "size": 4, "strategy": "spread", "ttl_s": 600, **owned})
    assert gang["state"] == "formed"
    for _ in range(2):
        record = GangRecord.model_validate_json((await read(system, f"gang.g{number}")).value)
        assert (record.state, record.generation) == ("formed", gang["generation"])
        assert [seat.token for seat in record.seats] == [public_id(seat["token"]) for seat in gang["seats"]]
        await asyncio.sleep(0.2)
    found = await system.insist("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", gang["generation"])
    await system.insist("release", owned)


async def read(system: RealWorkersSystem, key: str) -> KvEntry:
    while True:
        try:
            entry = await system.ledger.get(key)
        except GanglineError:
            await asyncio.sleep(0.1)
        else:
            assert entry is not None
            return entry


async def look_for_partial_gangs(system: RealWorkersSystem) -> None:
    """What is written while a list is read may be in it in part, so a breach counts if the next list has it, too."""
    before: list[str] = []
    while True:
        try:
            found = check_atomic(await system.ledger.entries("gang.*", "member.>"))
        except GanglineError:
            pass
        else:
            system.watcher.broken += [breach for breach in found if breach in before]
            before = found
        await asyncio.sleep(0.05)
