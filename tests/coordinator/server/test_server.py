"""Coordinators and real workers on a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.port.bus import BucketSettings, Conflict, KvEntry, KvWrite, Storage
from gangline.coordinator.election.election_core import ElectionSettings
from gangline.coordinator.model import events as on
from gangline.coordinator.service import CoordinatorState
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.messages.gangs import AcquireRequest
from gangline.schemas.names import Names, public_id
from gangline.schemas.records.gangs import GangRecord, LeaderRecord
from gangline.worker.service import Worker

from ...processes import ForkServer
from ...scale import repetitions
from ...support.coordinator.real_workers import RealWorkersSystem
from ...support.coordinator.rig import CoordinatorSystem, check_atomic
from ...waiting import PATIENCE_S, until

pytestmark = pytest.mark.server


QUICK = ElectionSettings(alive_ttl_s=2.0)
"""For leaders in this process that are to be lost."""


# -- plain requests ---------------------------------------------------------------------------------------------------


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


# -- leadership -------------------------------------------------------------------------------------------------------


class Process:
    """`gangline coordinator` as a process."""

    def __init__(self, forks: ForkServer, url: str, namespace: str) -> None:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("NATS_", "OTEL_", "GANGLINE_"))},
            "NATS_URL": url,
            "GANGLINE_NAMESPACE": namespace,
        }
        ours, theirs = os.pipe()
        try:
            what = ["-m", "gangline.cli", "coordinator", "--log-format", "json"]
            self.process = forks.start(what, environment=environment, stderr=theirs)
        finally:
            os.close(theirs)
        self.actions: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self._reader.start()

    def _read(self, log: int) -> None:
        with os.fdopen(log) as lines:
            for line in lines:
                try:
                    self.actions.append(json.loads(line)["action"])
                except ValueError:
                    self.actions.append(line.strip())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)


@pytest.fixture
def process(forks: ForkServer, nats_url: str, namespace: str) -> Iterator[Process]:
    made = Process(forks, nats_url, namespace)
    yield made
    made.close()


async def leader_of(system: RealWorkersSystem, key: str = Names.leader_key) -> LeaderRecord:
    entry = await system.ledger.get(key)
    assert entry is not None
    return LeaderRecord.model_validate_json(entry.value)


async def signs_of_life(system: CoordinatorSystem, key: str, count: int) -> None:
    """Wait until that key has been written so often from now on."""
    seen: list[int] = []
    watch = await system.ledger.watch(key, lambda entry: seen.append(entry.revision))
    first = len(seen)
    await until(lambda: len(seen) >= first + count, f"{key} is written {count} times")
    await watch.unsubscribe()


@pytest.mark.processes
async def test_a_standby_takes_over_from_a_frozen_leader_while_gangs_run_on(open_system, nats_url, namespace, process):
    system = await open_system(nats_url)
    await until(lambda: "coordinator.leads" in process.actions)
    for name in ("w1", "w2"):
        await system.serve(name)
    wanted = {"id": "g", "owner_token": "t", "pool": "train", "size": 4, "ttl_s": 600, "strategy": "spread"}
    gang = await system.insist("acquire", wanted)  # a starved leader may be without leadership for a while
    entry = await system.ledger.get(Names.leader_key)
    assert entry is not None
    second = await system.coordinator("second")
    await signs_of_life(system, Names.leader_alive_key, 2)
    assert second.state is CoordinatorState.STANDBY

    process.signal(signal.SIGSTOP)
    await second.wait_leading()
    # The server still delivers to the frozen one as well: it must not answer when it goes on.
    waiting = asyncio.create_task(system.owner.acquire(pool="train", size=8))
    await system.event("queued", nth=2)

    # What the frozen one would write, it would write on its own fence.
    with pytest.raises(Conflict):
        await system.ledger.commit(
            [KvWrite(key="gang.zombie", value=b"{}", condition_key=Names.leader_key, revision=entry.revision)]
        )
    process.signal(signal.SIGCONT)
    await until(lambda: "coordinator.yields" in process.actions)
    assert (await leader_of(system)).instance == second.instance
    await asyncio.sleep(0.5)
    assert not waiting.done()
    found = await system.owner.ask("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", 1)
    assert "torn_down" not in [event["kind"] for event in system.events]
    await system.owner.release(gang)
    await system.owner.release(await waiting)
    assert system.slots_in_use == 0
    assert system.watcher.broken == []


@pytest.mark.parametrize(
    "shard",
    [{}, pytest.param({"shard": "s", "pools": ("train", "more")}, marks=pytest.mark.long)],
    ids=["all pools", "one shard"],
)
async def test_the_writes_of_one_that_only_believes_to_lead_are_refused(open_system, nats_url, namespace, shard):
    system = await open_system(nats_url, election=QUICK)
    await system.serve("w1")
    first = await system.lead("first", **shard)
    system.election = None  # the second is not to be lost
    second = await system.coordinator("second", **shard)
    term = first.term
    assert term is not None and first._context is not None
    elector = first._context.elector
    # As one that was frozen between its look at the clock and its writes: it hears of nothing, and goes on.
    elector.trusted = lambda: True
    elector.tell = lambda event: None
    await until(lambda: second.state is CoordinatorState.LEADING)
    assert first.term is term and term.core.leading

    gang = await system.owner.acquire(pool="train", size=2)
    revisions = []
    await system.ledger.watch("gang.*", lambda entry: revisions.append((entry.key, entry.revision)))
    moment = term._context.clock.moment()
    request = AcquireRequest.model_validate({"pool": "train", "size": 2, "id": "zombie", "owner_token": "z"})
    term._executor.request_server._waiting[10**9] = _Silent()
    term.feed(on.AcquireAsked(**moment, request=request, reply_to=10**9, new_id="x", new_token="y"))
    await until(lambda: term.metrics.statistics()["commits_refused"] >= 1)
    await asyncio.sleep(0.5)
    assert "gang.zombie" not in [key for key, _ in revisions]
    assert await system.ledger.get("gang.zombie") is None
    assert [entry.key for entry in await system.ledger.entries(system.names.members_of(gang="zombie"))] == []
    # What it held in vain comes back by itself, since it tells nobody.
    await until(lambda: system.slots_in_use == 2)
    assert (await leader_of(system, first.shard.leader_key)).instance == second.instance
    del elector.trusted, elector.tell
    elector.deposed()
    await until(lambda: first.term is None)
    await system.owner.release(gang)
    await until(lambda: system.slots_in_use == 0)  # until then it held again and again
    assert system.watcher.broken == []


class _Silent:
    operation = "acquire"
    acquire = None
    final = True

    class responder:  # noqa: N801
        @staticmethod
        def fail(error: GanglineError) -> None: ...
        @staticmethod
        def reply(reply: Any) -> None: ...


# -- accidents of servers ---------------------------------------------------------------------------------------------


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
    await signs_of_life(system, system.names.alive_key(worker.id), repetitions(2, whole=4))
    found = await system.insist("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", 1)
    assert await system.ledger.get(system.names.member_key(worker.id, gang["id"])) is not None
    assert "torn_down" not in [event["kind"] for event in system.events]
    await system.owner.release(gang)
    assert system.slots_in_use == 0


def bus_of(system: RealWorkersSystem) -> list[bool]:
    return [worker.bus.connected for worker in system.served] + [system.owner.bus.connected]


async def test_gangs_on_file_survive_a_long_outage_of_the_server(open_system, nats_server, namespace):
    system = await open_system(nats_server.url, BucketSettings(storage=Storage.FILE), election=QUICK)
    worker = await system.serve("w1")
    coordinator = await system.lead()
    gang = await system.owner.acquire(pool="train", size=2, ttl_s=600)
    nats_server.kill()
    await until(lambda: coordinator.state is CoordinatorState.STANDBY)
    await asyncio.sleep(worker.settings.heartbeat_ttl_s + 0.5)
    await asyncio.to_thread(nats_server.start)
    await coordinator.wait_leading()
    await system.event("recovered", gang["id"])
    await signs_of_life(system, system.names.alive_key(worker.id), repetitions(2, whole=4))
    found = await system.insist("get", {"id": gang["id"]})
    assert (found["state"], found["generation"]) == ("formed", 1)
    assert "torn_down" not in [event["kind"] for event in system.events]


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
    gangs = repetitions(6, whole=100)
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
