"""How sets and their gangs are learnt, from a ledger and events that the test writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, Bus, KeyValue, KvEntry
from gangline.dispatcher.gangs.set_registry import SetDiscovery
from gangline.schemas.messages.gangs import GangEvent, GangEventKind
from gangline.schemas.names import Names
from gangline.schemas.records.gangs import GangRecord, GangSetRecord, GangSpec, GangState

from ...support.bus.buckets import store_unseen
from ...support.dispatcher.fakes import turns

NAMES = Names("test")
RESYNC_S = 60.0
"""The tests say when all is read."""
SET = {"gangs": 1, "gang": {"pool": "train", "size": 1}}


class Diary:
    """A census that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.sets: dict[str, GangSetRecord] = {}
        self.gangs: dict[str, int] = {}

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        self.told.append(("declared", name, record.gangs if record is not None else None))
        if record is None:
            self.sets.pop(name, None)
        else:
            self.sets[name] = record

    async def seen(self, record: GangRecord, revision: int) -> None:
        self.told.append(("seen", record.id, record.generation, str(record.state)))
        self.gangs[record.id] = revision

    def gone(self, gang: str, generation: int, reason: str) -> None:
        self.told.append(("gone", gang, generation, reason))

    def vanished(self, gang: str) -> None:
        self.told.append(("vanished", gang))
        self.gangs.pop(gang, None)

    def leaving(self, gang: str, generation: int) -> None:
        self.told.append(("leaving", gang, generation))

    def take(self) -> list[tuple[object, ...]]:
        told, self.told = self.told, []
        return told


class SetLedger:
    def __init__(self, hub: MemoryServer, kv: KeyValue, diary: Diary, feed: SetDiscovery) -> None:
        self.hub, self.kv, self.diary, self.feed = hub, kv, diary, feed
        self.bus = hub.connect("coordinator")

    async def declare(self, name: str, **fields: object) -> None:
        record = GangSetRecord.model_validate({**SET, **fields})
        await self.kv.put(NAMES.gangset_key(name), record.model_dump_json().encode())

    async def record(self, gang: str, state: GangState = GangState.FORMED, *, gangset: str | None = "llm") -> None:
        spec = GangSpec.model_validate(SET["gang"])
        record = GangRecord(id=gang, state=state, spec=spec, gangset=gangset)
        await self.kv.put(NAMES.gang_key(gang), record.model_dump_json().encode())

    async def tell(self, kind: GangEventKind, gang: str, *, gangset: str | None = "llm", **facts: object) -> None:
        event = GangEvent(kind=kind, gang=gang, generation=2, size=1, gangset=gangset, **facts)  # type: ignore[arg-type]
        self.bus.publish(NAMES.gang_event(gang), event.model_dump_json().encode())
        await turns()


@pytest.fixture
async def scene() -> AsyncIterator[SetLedger]:
    hub = MemoryServer()
    bus = hub.connect("router")
    kv = await bus.bucket(NAMES.ledger_bucket, BucketSettings())
    diary = Diary()
    feed = feed_of(bus, kv, diary)
    await feed.informer.ready()
    try:
        yield SetLedger(hub, await hub.connect("operator").bucket(NAMES.ledger_bucket, BucketSettings()), diary, feed)
    finally:
        await feed.informer.stop()


def feed_of(bus: Bus, kv: KeyValue, diary: Diary) -> SetDiscovery:
    async def ledger() -> KeyValue:
        return kv

    return SetDiscovery(bus, ledger, NAMES, diary, resync_s=RESYNC_S)


async def test_a_pull_reads_sets_and_the_gangs_of_sets_alone(scene: SetLedger) -> None:
    await scene.record("job", gangset=None)
    await scene.feed.informer.refresh()
    assert scene.diary.take() == []
    await scene.declare("llm", gangs=3)
    await scene.record("llm-1")
    await turns()
    scene.diary.take()
    await scene.feed.informer.refresh()
    assert scene.diary.take() == [("declared", "llm", 3), ("seen", "llm-1", 1, "formed")]


class LateLedger:
    """Storage that has what was written only when it was asked so often; a bus.port.key_value.KeyValue."""

    def __init__(self, kv: KeyValue, looks: int) -> None:
        self._kv = kv
        self.looks = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def get(self, key: str) -> KvEntry | None:
        self.looks -= 1
        return await self._kv.get(key) if self.looks < 0 else None


@pytest.mark.parametrize(("looks", "found"), [(3, True), (1000, False)])
async def test_a_set_that_storage_has_not_yet_is_looked_up_again(scene: SetLedger, looks: int, found: bool) -> None:
    late, diary = LateLedger(scene.kv, looks), Diary()
    feed = feed_of(scene.bus, late, diary)  # type: ignore[arg-type]
    await feed.informer.ready()
    await scene.declare("llm", gangs=2)
    await asyncio.sleep(2.5)
    assert (("declared", "llm", 2) in diary.take()) is found
    asked = late.looks
    await asyncio.sleep(5.0)
    assert late.looks == asked, "it is not asked for ever: the next pull sees it"
    await feed.informer.stop()


async def test_a_formed_gang_is_looked_up_and_so_is_its_set_if_that_is_new(scene: SetLedger) -> None:
    record = GangSetRecord.model_validate(SET)
    store_unseen(scene.hub, NAMES.ledger_bucket, NAMES.gangset_key("llm"), record.model_dump_json().encode())
    await scene.record("llm-1")
    await scene.tell(GangEventKind.FORMED, "llm-1")
    assert scene.diary.take() == [("declared", "llm", 1), ("seen", "llm-1", 1, "formed")]
    await scene.tell(GangEventKind.RECOVERED, "llm-1")
    assert scene.diary.take() == [("seen", "llm-1", 1, "formed")]


async def test_what_must_not_be_used_any_more_is_told_at_once(scene: SetLedger) -> None:
    await scene.tell(GangEventKind.RETIRING, "llm-1")
    await scene.tell(GangEventKind.MEMBER_LOST, "llm-1")
    await scene.tell(GangEventKind.TORN_DOWN, "llm-1", reason="crashed")
    await scene.tell(GangEventKind.RESTARTING, "llm-1", reason="crashed")
    await scene.tell(GangEventKind.ENDED, "llm-1", reason="released")
    await scene.tell(GangEventKind.QUEUED, "llm-1")
    await scene.tell(GangEventKind.ENDED, "job", gangset=None)
    assert scene.diary.take() == [
        ("leaving", "llm-1", 2),
        ("leaving", "llm-1", 2),
        ("gone", "llm-1", 2, "crashed"),
        ("gone", "llm-1", 1, "crashed"),
        ("gone", "llm-1", 2, "released"),
    ]


async def test_what_is_missing_once_may_come_back_and_what_is_missing_twice_is_gone(scene: SetLedger) -> None:
    await scene.declare("llm")
    await scene.record("llm-1")
    await scene.feed.informer.refresh()
    scene.diary.take()
    pulls = scene.feed.informer.pulls
    scene.hub.stop()
    scene.hub.start()  # the bucket was in memory
    await asyncio.sleep(1)
    assert scene.feed.informer.pulls == pulls + 1 and scene.diary.take() == []
    await scene.declare("llm")
    await scene.record("llm-1")
    await turns()
    scene.diary.take()
    await scene.feed.informer.refresh()
    assert [entry[0] for entry in scene.diary.take()] == ["declared", "seen"]
    await scene.kv.delete(NAMES.gang_key("llm-1"))
    await scene.feed.informer.refresh()
    scene.diary.take()
    await scene.feed.informer.refresh()
    assert ("vanished", "llm-1") in scene.diary.take()


async def test_what_cannot_be_read_changes_nothing(scene: SetLedger, caplog: pytest.LogCaptureFixture) -> None:
    await scene.declare("llm", gangs=2)
    await turns()
    scene.diary.take()
    await scene.kv.put(NAMES.gangset_key("llm"), b'{"gangs": -1}')
    await scene.kv.put(NAMES.gang_key("llm-1"), b"rubbish")
    await turns()
    await scene.feed.informer.refresh()
    scene.bus.publish(NAMES.gang_event("llm-1"), b"rubbish")
    await turns()
    assert scene.diary.take() == []
    assert "unreadable record gangset.llm" in caplog.text and "unreadable event" in caplog.text
