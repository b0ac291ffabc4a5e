"""Presence and the keys it owns, by themselves, on a bucket in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, Conflict, KvEntry, StorageUnavailable
from gangline.runtime.clock import Environment
from gangline.schemas.errors.base import WorkerIdTaken
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.workers import Heartbeat, Registration
from gangline.schemas.wire import codec
from gangline.telemetry.logs import logger_for
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.registration.registrar import KeyLost, OwnedKey, Registrar, WorkerEvent, epoch_of, owner_of

from ...support.rows import in_rows

ID = WorkerId("images", "w1")
NAMES = Names("rig")


class Presence:
    """One process's presence; several may share a hub."""

    def __init__(self, hub: MemoryServer, instance: str = "one", epoch: int = 7) -> None:
        self.hub = hub
        self.instance = instance
        self.epoch = epoch
        self.slots = 2
        self.lost: list[str] = []
        self.confirmed = 0

    async def __aenter__(self) -> Presence:
        self.bus = self.hub.connect(self.instance)
        self.kv = await self.bus.bucket(NAMES.ledger_bucket, BucketSettings())
        self.registrar = Registrar(
            self.bus,
            self.kv,
            NAMES,
            ID,
            instance=self.instance,
            settings=WorkerSettings(),
            ambient=Environment(),
            registration=lambda: Registration(
                pool="images", worker="w1", epoch=self.epoch, instance=self.instance, slots=self.slots
            ),
            heartbeat=lambda: Heartbeat(
                epoch=self.epoch, instance=self.instance, running=0, reserved=0, total=self.slots
            ),
            on_lost=self.lost.append,
            on_confirmed=self._confirm,
            log=logger_for("test"),
        )
        return self

    def _confirm(self) -> None:
        self.confirmed += 1

    async def __aexit__(self, *error: object) -> None:
        await self.registrar.stop()
        await self.bus.close()

    async def serve(self) -> int:
        previous = await self.registrar.claim()
        await self.registrar.publish()
        return previous

    def values(self) -> dict[str, Any]:
        return {e.key: codec.from_json(e.value) for e in self.hub.peek(NAMES.ledger_bucket)}


async def test_both_keys_stand_while_it_lives_and_expire_when_it_is_gone():
    async with Presence(MemoryServer()) as presence:
        assert await presence.serve() == 0
        await asyncio.sleep(100.0)
        assert sorted(presence.values()) == ["alive.images.w1", "reg.images.w1"]
        await presence.registrar.stop()
        await asyncio.sleep(4.0)
        assert sorted(presence.values()) == ["reg.images.w1"]
        await asyncio.sleep(60.0)
        assert presence.values() == {}


async def test_a_predecessors_registration_is_no_loss_to_one_that_has_not_published_yet():
    hub = MemoryServer()
    async with Presence(hub, "one", epoch=41) as first:
        await first.serve()
    async with Presence(hub, "two") as second:
        await second.registrar.claim()
        second.registrar.rewrite()  # a new epoch after a freeze, or a reconnect, in the middle of a start
        await asyncio.sleep(1.0)
        assert second.lost == []
        await second.registrar.publish()
        second.registrar.rewrite()
        await asyncio.sleep(1.0)
        assert second.lost == []
        assert second.values()["reg.images.w1"]["instance"] == "two"


async def test_of_two_that_start_at_once_one_wins():
    hub = MemoryServer()
    async with Presence(hub, "one") as first, Presence(hub, "two") as second:
        results = await asyncio.gather(first.serve(), second.serve(), return_exceptions=True)
        assert sorted(type(result) for result in results if isinstance(result, Exception)) == [WorkerIdTaken]
        winner = first if results[0] == 0 else second
        assert winner.values()["reg.images.w1"]["instance"] == winner.instance


async def test_one_that_was_away_goes_on_if_nobody_took_its_id():
    async with Presence(MemoryServer()) as presence:
        await presence.serve()
        presence.hub.partition(presence.bus)
        await asyncio.sleep(10.0)
        assert "alive.images.w1" not in presence.values()
        presence.hub.heal(presence.bus)
        await asyncio.sleep(3.0)
        assert "alive.images.w1" in presence.values()
        assert presence.lost == []
        assert presence.confirmed == 1, "other keys may have been lost with it"


@in_rows("garbage", [b"", b"hello", b"[1]", b'{"instance": 7}'])
async def test_a_key_that_somebody_overwrote_with_garbage_is_written_again(garbage: bytes):
    hub = MemoryServer()
    async with Presence(hub) as one, Presence(hub, "two", 9) as two:
        await one.kv.put("alive.images.w1", garbage)
        await one.registrar.claim()
        await one.registrar.publish()
        for key in ("alive.images.w1", "reg.images.w1"):
            await one.kv.put(key, garbage)
            one.registrar.rewrite()
            await asyncio.sleep(1.5)
            assert one.values()[key]["instance"] == "one"
        assert one.lost == []
        with pytest.raises(WorkerIdTaken):
            await two.registrar.claim()


@in_rows("garbage", [b"", b"hello"])
async def test_garbage_over_the_heartbeat_of_one_that_lives_gives_its_id_to_nobody_else(garbage: bytes):
    hub = MemoryServer()
    async with Presence(hub) as one, Presence(hub, "two", 9) as two:
        await one.serve()
        await one.kv.put("alive.images.w1", garbage)
        with pytest.raises(WorkerIdTaken):
            await two.registrar.claim()
        assert one.lost == []
        assert one.values()["alive.images.w1"]["instance"] == "one"


async def test_one_that_was_away_does_not_write_over_garbage_where_a_successor_may_be():
    hub = MemoryServer()
    async with Presence(hub) as one, Presence(hub, "two", 9) as two:
        await one.serve()
        hub.partition(one.bus)
        await asyncio.sleep(5.0)
        await two.serve()
        await two.kv.put("alive.images.w1", b"garbage")
        hub.heal(one.bus)
        one.registrar.beat()
        await asyncio.sleep(1.5)
        assert one.lost == [""]
        assert two.lost == []
        assert two.values()["alive.images.w1"]["instance"] == "two"


async def test_heartbeats_are_seen_by_observers_every_second_while_storage_has_no_leader():
    hub = MemoryServer()
    async with Presence(hub) as presence:
        await presence.serve()
        seen: list[float] = []
        watcher = hub.connect("watcher")
        kv = await watcher.bucket(NAMES.ledger_bucket, BucketSettings())
        await kv.observe("alive.images.*", lambda entry: seen.append(asyncio.get_running_loop().time()))
        hub.storage_down()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(8.0)
        gaps = [b - a for a, b in zip([began, *seen], seen, strict=False)]
        assert len(seen) >= 7
        assert max(gaps) <= 1.1
        await watcher.close()


async def test_events_are_broadcast_with_who_and_when():
    async with Presence(MemoryServer()) as presence:
        heard: list[Any] = []
        listener = presence.hub.connect("listener")
        await listener.subscribe(NAMES.events, lambda message: heard.append((message.subject, message.data)))
        presence.registrar.announce(WorkerEvent.JOINED, why="test")
        await asyncio.sleep(0.05)
        subject, data = heard[0]
        assert subject == "rig.event.worker.images.w1"
        body = codec.from_json(data)
        assert (body["event"], body["worker"], body["epoch"], body["why"]) == ("joined", "w1", 7, "test")
        await listener.close()
        presence.hub.disconnect(presence.bus)
        presence.registrar.announce(WorkerEvent.LEFT)  # nobody may hear it, and nothing breaks


async def test_a_start_without_storage_gives_up_after_its_time():
    async with Presence(MemoryServer()) as presence:
        presence.hub.storage_down()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailable):
            await presence.registrar.claim()
        assert 10.0 <= asyncio.get_running_loop().time() - began < 16.0


async def test_several_writes_of_an_owner_at_once_do_not_hurt_each_other():
    async with Presence(MemoryServer()) as presence:
        key = OwnedKey(presence.kv, "alive.images.w1", "one", lambda: True)
        body = codec.to_json({"instance": "one"})
        await asyncio.gather(*(key.write(lambda: body, 60.0) for _ in range(3)))
        await key.write(lambda: body, 60.0)
        await key.delete()
        assert presence.values() == {}
        assert key.recreated == 0


async def test_a_write_that_is_overtaken_does_not_bring_back_what_was_true_before(monkeypatch: pytest.MonkeyPatch):
    """Its first answer is lost, and it is made again after a later write: the worker has a new epoch by then."""
    async with Presence(MemoryServer()) as presence:
        key, epoch = OwnedKey(presence.kv, "k", "one", lambda: True), 1

        def body() -> bytes:
            return codec.to_json({"instance": "one", "epoch": epoch})

        put, held = presence.kv.put, asyncio.Event()

        async def put_late(*arguments: Any, **options: Any) -> int:
            monkeypatch.setattr(presence.kv, "put", put)
            await put(*arguments, **options)
            await held.wait()
            raise Conflict("the key has another revision")

        monkeypatch.setattr(presence.kv, "put", put_late)
        first = asyncio.create_task(key.write(body, 60.0))
        await asyncio.sleep(0.1)
        epoch = 2
        await key.write(body, 60.0)
        held.set()
        await first
        assert presence.values()["k"]["epoch"] == 2


async def test_an_owner_deletes_what_its_own_cancelled_write_has_just_changed(monkeypatch: pytest.MonkeyPatch):
    """A worker without tasks leaves in the moment in which it writes that it drains."""
    async with Presence(MemoryServer()) as presence:
        key, body = OwnedKey(presence.kv, "k", "one", lambda: True), codec.to_json({"instance": "one"})
        await key.write(lambda: body, 60.0)
        read, late = key.read, [body]

        async def read_too_early() -> KvEntry | None:
            found = await read()
            while late:
                await presence.kv.put("k", late.pop())
            return found

        monkeypatch.setattr(OwnedKey, "read", lambda _: read_too_early())
        await key.delete()
        assert presence.values() == {}


async def test_an_owner_neither_overwrites_nor_deletes_anothers_key():
    async with Presence(MemoryServer()) as presence:
        await presence.kv.put("k", codec.to_json({"instance": "other"}))
        key = OwnedKey(presence.kv, "k", "one", lambda: True)
        with pytest.raises(KeyLost, match="belongs to instance other"):
            await key.write(lambda: codec.to_json({"instance": "one"}), 60.0)
        await key.delete()
        assert presence.values()["k"] == {"instance": "other"}


@in_rows("value", [b"", b"{", b"[1]", b'{"instance": 5, "epoch": -1}', b'{"epoch": "7"}'])
def test_unreadable_entries_name_neither_owner_nor_epoch(value):
    entry = KvEntry(key="k", value=value, revision=1)
    assert (owner_of(entry), epoch_of(entry)) == ("", 0)


@in_rows("had", [False, True])
async def test_not_even_a_delete_that_storage_would_refuse_is_sent_for_the_key_of_another(had: bool):
    async with Presence(MemoryServer()) as presence:
        key, passed = OwnedKey(presence.kv, "k", "one", lambda: True), []
        if had:
            await key.write(lambda: codec.to_json({"instance": "one"}), 60.0)
        await presence.kv.put("k", codec.to_json({"instance": "other"}))
        await presence.hub.connect("router").subscribe("$KV.>", lambda message: passed.append(message.headers))
        await key.delete()
        await asyncio.sleep(0.1)
        assert passed == [] and presence.values()["k"] == {"instance": "other"}


async def test_only_the_last_confirmation_that_was_asked_for_comes():
    async with Presence(MemoryServer()) as presence:
        await presence.serve()
        told: list[str] = []
        presence.registrar.confirm(lambda: told.append("first"))
        await asyncio.sleep(0)  # its heartbeat is on the way: begun before the second was asked for
        presence.registrar.confirm(lambda: told.append("second"))
        await asyncio.sleep(1.5)
        assert told == ["second"]
