"""Who lives, judged from heartbeats, keys, answers and outages."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings
from gangline.coordinator.ledger.worker_registry import WorkerRegistry
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.workers import Heartbeat, Registration
from gangline.telemetry.logs import logger_for

NAMES = Names()
W1 = WorkerId("train", "w1")


def registration(instance: str = "a", *, epoch: int = 1, state: str = "serving") -> Registration:
    return Registration(pool="train", worker="w1", epoch=epoch, instance=instance, slots=4, state=state)


def heartbeat(instance: str = "a", *, epoch: int = 1, running: int = 0) -> Heartbeat:
    return Heartbeat(epoch=epoch, instance=instance, running=running, reserved=0, total=4)


class Audience:
    def __init__(self) -> None:
        self.told: list[tuple] = []

    def worker_seen(self, facts) -> None:
        self.told.append(("seen", facts.epoch, facts.draining))

    def load_seen(self, worker, epoch, load) -> None:
        self.told.append(("load", load.running))

    def worker_gone(self, worker, reason) -> None:
        self.told.append(("gone", reason))

    def kinds(self) -> list[str]:
        return [item[0] for item in self.told]


class WatchedRegistry:
    def __init__(self) -> None:
        self.hub = MemoryServer()
        self.beating = True

    async def open(self) -> None:
        self.kv = await self.hub.connect("worker").bucket(NAMES.ledger_bucket, BucketSettings())
        self.bus = self.hub.connect("census")
        own = await self.bus.bucket(NAMES.ledger_bucket, BucketSettings())
        self.registry = WorkerRegistry(own, NAMES, ServiceSettings(), logger_for("test"))
        self.bus.on_connection(self.registry.on_connection)
        self.listener = self.registry.listener = Audience()
        await self.registry.start()

    async def register(self, **fields) -> None:
        await self.kv.put(NAMES.registration_key(W1), registration(**fields).model_dump_json().encode(), ttl_s=60)

    async def beat(self, **fields) -> None:
        await self.kv.put(NAMES.alive_key(W1), heartbeat(**fields).model_dump_json().encode(), ttl_s=3)

    async def begin(self) -> None:
        """It is registered, and lives for a second."""
        await self.register()
        await self.live(1)

    async def live(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.beat()
            await asyncio.sleep(1)


@pytest.fixture
async def watched():
    made = WatchedRegistry()
    await made.open()
    yield made
    await made.registry.stop()


async def test_a_worker_is_seen_with_its_first_heartbeat_and_then_by_its_load(watched):
    await watched.register()
    await asyncio.sleep(0.5)
    assert watched.listener.told == []
    await watched.beat()
    await watched.beat(running=2)
    await asyncio.sleep(0.1)
    assert watched.listener.told == [("seen", 1, False), ("load", 2)]
    assert len(watched.registry) == 1


async def test_a_heartbeat_of_another_instance_says_nothing_of_this_one(watched):
    await watched.register()
    await watched.beat(instance="b")
    await asyncio.sleep(0.5)
    assert watched.listener.told == []


@pytest.mark.parametrize("left", [True, False])
async def test_nothing_is_kept_of_a_silent_worker_that_is_gone(watched, left):
    await watched.begin()
    worker_registry = watched.registry
    if left:
        await watched.kv.delete(NAMES.alive_key(W1))
    worker_registry._silent.suspect(W1, "")
    assert "gone" not in watched.listener.kinds() and len(worker_registry._silent) == 1
    if left:
        await asyncio.sleep(0.05)
        assert watched.listener.told[-1] == ("gone", "left")
    else:
        worker_registry._entries[W1].lives = False
        await watched.kv.delete(NAMES.alive_key(W1))
        await watched.kv.delete(NAMES.registration_key(W1))
        await worker_registry.pull(asyncio.get_running_loop().time())
    assert len(worker_registry._silent) == 0
    await worker_registry.stop()


async def test_a_worker_whose_registration_went_lives_while_its_heart_beats(watched):
    await watched.begin()
    await watched.kv.delete(NAMES.registration_key(W1))
    await watched.live(8)
    assert "gone" not in watched.listener.kinds()


async def test_an_outage_of_storage_ends_nobody(watched):
    await watched.begin()
    for _ in range(16):
        await asyncio.sleep(0.5)
        watched.registry.outage()
    assert "gone" not in watched.listener.kinds()
    await asyncio.sleep(3.5)
    assert "gone" in watched.listener.kinds()


async def test_while_we_are_not_connected_nobody_is_silent(watched):
    await watched.begin()
    watched.hub.disconnect(watched.bus)
    await watched.live(10)
    watched.hub.reconnect(watched.bus)
    await watched.live(5)
    assert "gone" not in watched.listener.kinds()


async def test_our_own_freeze_is_nobodys_silence(watched):
    await watched.begin()
    # As after ten seconds without a turn of our loop.
    watched.registry._freeze.last_at -= 10
    watched.registry._entries[W1].heard_at -= 10
    await watched.kv.delete("none")
    await watched.live(4)
    assert "gone" not in watched.listener.kinds()


async def test_a_worker_that_nobody_answered_for_is_told_of_anew_by_its_next_heartbeat(watched):
    await watched.begin()
    watched.registry.doubt(W1)
    await watched.registry.pull(asyncio.get_running_loop().time())
    assert watched.listener.kinds() == ["seen"]
    await watched.beat()
    await asyncio.sleep(0.1)
    assert watched.listener.kinds() == ["seen", "seen"]


async def test_a_reading_that_is_older_than_the_feed_takes_nothing_back(watched):
    await watched.register(epoch=2)
    await watched.beat(epoch=2)
    await asyncio.sleep(0.1)
    watched.registry.merge([(registration(epoch=1), 0)], [(W1, heartbeat(epoch=1))])
    (facts,) = watched.registry.living(set())
    assert facts.epoch == 2


async def test_only_workers_with_members_are_presumed_to_live_and_only_while_we_have_not_listened_long(watched):
    await watched.register()
    await asyncio.sleep(0.1)
    assert watched.registry.living(set()) == ()
    assert len(watched.registry.living({W1})) == 1
    await asyncio.sleep(4)
    assert watched.listener.kinds() == ["gone"]
    assert watched.registry.living({W1}) == ()


async def test_what_cannot_be_read_is_left_out(watched):
    await watched.kv.put(NAMES.registration_key(W1), b"{}")
    await watched.kv.put(NAMES.alive_key(W1), b"nonsense")
    await watched.kv.put("reg.train", b"{}")
    await watched.registry.pull(asyncio.get_running_loop().time())
    assert watched.listener.told == [] and len(watched.registry) == 0


async def test_a_pull_that_began_after_the_question_is_not_repeated(watched):
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    await watched.registry.pull(asked_at)
    watched.hub.storage_down()
    await watched.registry.pull(asked_at)
    with pytest.raises(Exception, match="unavailable"):
        await watched.registry.pull(loop.time() + 1)
