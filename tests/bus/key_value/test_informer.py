"""Following a part of a bucket: what an informer promises on both kinds of bus, and what it does when storage lags
behind, refuses, or is away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline.bus.key_value.informer import STORED_WITHIN_S, Absent, BucketInformer
from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, Bus, KeyValue, KvEntry, NotPermitted, StorageUnavailable
from gangline.schemas.errors.base import ClosedError, Disconnected, Unavailable
from gangline.telemetry.logs import logger_for

from ...support.bus.buckets import pass_unstored, store_unseen
from ...support.logs import records_of
from ..conftest import Collected

Change = tuple[str, Any, Any]


class Follower:
    """An informer of `a.*`, and what it told."""

    def __init__(self, bus: Bus, bucket: Callable[[], Any], **settings: Any) -> None:
        self.told: Collected[Change] = Collected()
        self.informer = BucketInformer[Any](
            bus,
            bucket,
            **{
                "observed": "a.*",
                "parse": lambda entry: json.loads(entry.value),
                "on_change": lambda key, old, new: self.told((key, old, new)),
                "resync_s": 60.0,
                "kind": "test",
                "what": "the tests",
                "log": logger_for("test"),
                **settings,
            },
        )

    def changes(self) -> list[Change]:
        """Of what was told since the last time, what is new."""
        return [change for change in self.told.take() if change[1] != change[2]]


@asynccontextmanager
async def following(bus: Bus, bucket: str, **settings: Any) -> AsyncIterator[Follower]:
    async def opened() -> KeyValue:
        return await bus.bucket(bucket, BucketSettings())

    follower = Follower(bus, opened, **settings)
    try:
        yield follower
    finally:
        await follower.informer.stop()


async def test_what_stands_is_listed_and_what_changes_is_told_with_what_was_before(connect, namespace):
    kv = await (await connect()).bucket(namespace, BucketSettings())
    await kv.put("a.one", b"1")
    await kv.put("b.other", b"1")
    async with following(await connect("follower"), namespace) as follower:
        await follower.informer.ready()
        assert follower.changes() == [("a.one", None, 1)] and list(follower.informer) == ["a.one"]
        revision = await kv.put("a.one", b"2")
        await kv.put("a.two", b"3")
        await follower.told.until(lambda told: {("a.one", 1, 2), ("a.two", None, 3)} <= set(told))
        assert follower.informer.get("a.one") == 2 and follower.informer.revision("a.one") == revision
        await kv.delete("a.one")
        await follower.told.until(lambda told: ("a.one", 2, None) in told)
        assert list(follower.informer) == ["a.two"] and follower.informer.get("b.other") is None


async def test_a_refresh_finds_what_nobody_saw_pass(connect, namespace):
    kv = await (await connect()).bucket(namespace, BucketSettings())
    await kv.put("a.one", b"1")
    async with following(await connect("follower"), namespace, on_passing=lambda _entry: True) as follower:
        await follower.informer.ready()
        follower.told.take()
        await kv.put("a.two", b"2")
        await kv.delete("a.one")
        await follower.informer.refresh("a.one", "a.two")
        assert follower.changes() == [("a.two", None, 2), ("a.one", 1, None)]


async def test_values_need_not_be_kept(connect, namespace):
    kv = await (await connect()).bucket(namespace, BucketSettings())
    revision = await kv.put("a.one", b"1")
    await kv.put("a.two", b"broken")
    unreadable: list[str] = []
    said = {"on_unreadable": lambda entry, _error: unreadable.append(entry.key)}
    async with following(await connect("follower"), namespace, keep=False, **said) as follower:
        await follower.informer.ready()
        await follower.informer.refresh()
        assert follower.changes() == [("a.one", None, 1), ("a.one", None, 1)] and unreadable == ["a.two"]
        assert follower.informer.get("a.one") is None and follower.informer.revision("a.one") == revision
        await kv.delete("a.one")
        await follower.told.until(lambda told: ("a.one", None, None) in told)


async def test_what_passes_can_be_taken_without_reading_it(connect, namespace):
    kv = await (await connect()).bucket(namespace, BucketSettings())
    passed: Collected[KvEntry] = Collected()
    async with following(await connect("follower"), namespace, on_passing=lambda entry: not passed(entry)) as follower:
        await follower.informer.ready()
        await kv.put("a.one", b"1")
        await passed.count(1)
        await follower.informer.refresh()
        assert follower.changes() == [("a.one", None, 1)]


async def test_patterns_can_be_listed_one_after_the_other_and_what_depends_on_the_first(connect, namespace):
    kv = await (await connect()).bucket(namespace, BucketSettings())
    await kv.put("b.one", b"1")
    asked = []

    def listed():
        yield "a.*"
        asked.append(len(follower.informer))
        if len(follower.informer):
            yield "b.*"

    async with following(await connect("follower"), namespace, listed=listed) as follower:
        await follower.informer.ready()
        assert asked == [0] and follower.changes() == []
        await kv.put("a.one", b"1")
        await follower.told.count(1)
        follower.told.take()
        await follower.informer.refresh()
        assert asked[-1] == 1 and follower.changes() == [("b.one", None, 1)]


async def test_of_a_bucket_that_nobody_has_made_nothing_is_known(connect, namespace):
    bus = await connect("follower")

    async def only_read() -> KeyValue:
        return await bus.bucket(namespace, BucketSettings(), make=False)

    follower = Follower(bus, only_read)
    try:
        await follower.informer.ready()
        assert follower.informer.pulled and len(follower.informer) == 0
        await (await (await connect()).bucket(namespace, BucketSettings())).put("a.one", b"1")
        await follower.told.until(lambda told: told == [("a.one", None, 1)])
    finally:
        await follower.informer.stop()


BUCKET = "bucket"


class Odd:
    """A bucket that shows what the test says, where it says something; a bus.port.key_value.KeyValue."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv
        self.listed: list[KvEntry] | None = None
        self.fails: Exception | None = None
        self.reads: list[str] = []
        self.lists = 0
        self.before_get: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def entries(self, *patterns: str) -> list[KvEntry]:
        self.lists += 1
        if self.fails is not None:
            raise self.fails
        return await self._kv.entries(*patterns) if self.listed is None else self.listed

    async def get(self, key: str) -> KvEntry | None:
        self.reads.append(key)
        found = await self._kv.get(key)
        if self.before_get is not None:
            await self.before_get()
        return found


class FollowedBucket:
    def __init__(self, hub: MemoryServer, bus: Any, kv: KeyValue, odd: Odd, follower: Follower) -> None:
        self.hub, self.bus, self.kv, self.odd, self.follower = hub, bus, kv, odd, follower
        self.informer = follower.informer

    def changes(self) -> list[Change]:
        return self.follower.changes()

    def store(self, key: str, value: bytes | None) -> None:
        """Nobody sees it pass."""
        store_unseen(self.hub, BUCKET, key, value)

    def passes(self, key: str, value: bytes) -> None:
        """Storage does not have it."""
        pass_unstored(self.hub, self.hub.connect("elsewhere"), BUCKET, key, value)


@asynccontextmanager
async def followed(**settings: Any) -> AsyncIterator[FollowedBucket]:
    hub = MemoryServer()
    bus = hub.connect("follower")
    odd = Odd(await bus.bucket(BUCKET, BucketSettings()))

    async def opened() -> Odd:
        return odd

    follower = Follower(bus, opened, **settings)
    kv = await hub.connect("writer").bucket(BUCKET, BucketSettings())
    try:
        yield FollowedBucket(hub, bus, kv, odd, follower)
    finally:
        await follower.informer.stop()


async def test_all_is_listed_again_in_time_and_after_a_reconnection():
    async with followed(resync_s=5.0) as bucket:
        await bucket.informer.ready()
        bucket.store("a.one", b"1")
        await asyncio.sleep(5.5)
        assert bucket.changes() == [("a.one", None, 1)]
        bucket.hub.disconnect(bucket.bus)
        bucket.store("a.one", b"2")
        await asyncio.sleep(20.0)
        assert bucket.changes() == []
        bucket.hub.reconnect(bucket.bus)
        await asyncio.sleep(0.1)
        assert bucket.changes() == [("a.one", 1, 2)]


async def test_everything_that_a_list_shows_is_told_again():
    async with followed() as bucket:
        bucket.store("a.one", b"1")
        await bucket.informer.ready()
        await bucket.informer.refresh()
        assert bucket.follower.told.take() == [("a.one", None, 1), ("a.one", 1, 1)]


@pytest.mark.parametrize("stored", [True, False])
async def test_what_passes_counts_when_storage_has_it_and_is_asked_for_only_for_a_while(stored):
    async with followed() as bucket:
        await bucket.informer.ready()
        bucket.passes("a.one", b"1")
        await asyncio.sleep(STORED_WITHIN_S / 2)
        assert bucket.changes() == [] and len(bucket.odd.reads) > 5
        if stored:
            bucket.store("a.one", b"1")
        await asyncio.sleep(STORED_WITHIN_S)
        assert bucket.changes() == ([("a.one", None, 1)] if stored else [])
        reads = len(bucket.odd.reads)
        await asyncio.sleep(20.0)
        assert len(bucket.odd.reads) == reads


async def test_a_question_asked_while_a_key_is_read_is_not_answered_by_that_reading():
    async with followed() as bucket:
        await bucket.informer.ready()

        async def written_meanwhile() -> None:
            bucket.odd.before_get = None
            bucket.store("a.one", b"1")
            bucket.informer.look_up("a.one")

        bucket.odd.before_get = written_meanwhile
        bucket.informer.look_up("a.one")
        await asyncio.sleep(0.1)
        assert bucket.changes() == [("a.one", None, 1)] and bucket.odd.reads == ["a.one"] * 2


def entry(key: str, value: bytes, revision: int) -> KvEntry:
    return KvEntry(key=key, value=value, revision=revision)


@pytest.mark.parametrize(
    ("absent", "first", "second"),
    [
        (Absent.GONE, [("a.new", 2, 1), ("a.gone", 1, None)], []),
        (Absent.ASK, [], []),
        (Absent.TWICE, [], [("a.gone", 1, None)]),
    ],
)
async def test_a_list_from_a_copy_that_lags_behind_is_judged_as_was_said(absent, first, second):
    async with followed(absent=absent) as bucket:
        old = await bucket.kv.put("a.new", b"1")
        await bucket.kv.put("a.new", b"2")
        await bucket.kv.put("a.gone", b"1")
        await bucket.informer.ready()
        bucket.changes()
        bucket.odd.listed = [entry("a.new", b"1", old)]
        for expected in (first, second):
            await bucket.informer.refresh()
            assert bucket.changes() == expected
        if absent is Absent.ASK:
            assert set(bucket.odd.reads) == {"a.new", "a.gone"}


async def test_what_is_missing_once_and_comes_back_has_to_be_missing_twice_again():
    async with followed(absent=Absent.TWICE) as bucket:
        revision = await bucket.kv.put("a.one", b"1")
        await bucket.informer.ready()
        bucket.changes()
        for listed in ([], [entry("a.one", b"1", revision)], []):
            bucket.odd.listed = listed
            await bucket.informer.refresh()
            assert bucket.changes() == []
        await bucket.informer.refresh()
        assert bucket.changes() == [("a.one", 1, None)]


async def test_what_was_deleted_does_not_come_back_with_an_old_list():
    async with followed() as bucket:
        revision = await bucket.kv.put("a.one", b"1")
        await bucket.informer.ready()
        await bucket.kv.delete("a.one")
        await asyncio.sleep(0.1)
        assert bucket.changes() == [("a.one", None, 1), ("a.one", 1, None)]
        bucket.odd.listed = [entry("a.one", b"1", revision)]
        await bucket.informer.refresh()
        assert bucket.changes() == []
        bucket.odd.listed = None
        await bucket.kv.put("a.one", b"2")
        await asyncio.sleep(0.1)
        assert bucket.changes() == [("a.one", None, 2)]


async def test_a_value_that_cannot_be_read_changes_nothing_and_is_told_of_once(caplog):
    async with followed() as bucket:
        await bucket.kv.put("a.one", b"1")
        await bucket.informer.ready()
        bucket.follower.told.take()
        await bucket.kv.put("a.one", b"{")
        await asyncio.sleep(0.1)
        await bucket.informer.refresh()
        assert bucket.follower.told.take() == [] and bucket.informer.get("a.one") == 1
        assert caplog.text.count("unreadable record a.one") == 1
        await bucket.kv.put("a.one", b"2")
        await asyncio.sleep(0.1)
        assert bucket.changes() == [("a.one", 1, 2)]


async def test_storage_that_is_away_removes_nothing_and_is_told_of_once(caplog):
    async with followed(resync_s=5.0) as bucket:
        await bucket.kv.put("a.one", b"1")
        await bucket.informer.ready()
        bucket.changes()
        bucket.odd.fails = StorageUnavailable("away", may_have_started=False)
        with pytest.raises(StorageUnavailable):
            await bucket.informer.refresh()
        lists = bucket.odd.lists
        await asyncio.sleep(60.0)
        assert bucket.changes() == [] and bucket.informer.get("a.one") == 1
        assert 10 < bucket.odd.lists - lists < 25
        warnings = [record for record in records_of(caplog, "gangline.test") if record.levelno == logging.WARNING]
        assert [record.getMessage() for record in warnings] == ["cannot read the tests: away"]
        bucket.store("a.one", b"2")
        bucket.odd.fails = None
        await asyncio.sleep(5.1)
        assert bucket.changes() == [("a.one", 1, 2)]


async def test_who_waits_gives_up_at_the_deadline_or_when_patience_ends():
    loop = asyncio.get_running_loop()
    async with followed(patience_s=3.0) as bucket:
        bucket.odd.fails = StorageUnavailable("away", may_have_started=False)
        for deadline, after_s in ((1.0, 1.0), (None, 3.0), (9.0, 3.0)):
            began_at = loop.time()
            with pytest.raises(Unavailable, match="the tests could not be read in time; nothing was sent"):
                await bucket.informer.ready(None if deadline is None else began_at + deadline)
            assert loop.time() - began_at == pytest.approx(after_s)
        bucket.hub.disconnect(bucket.bus)
        with pytest.raises(Disconnected):
            await bucket.informer.ready()
        bucket.odd.fails = None
        bucket.hub.reconnect(bucket.bus)
        await bucket.informer.ready()
        assert bucket.informer.settled


async def test_one_who_stops_waiting_does_not_stop_it_for_others():
    async with followed() as bucket:
        one, other = (asyncio.ensure_future(bucket.informer.ready()) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        await other
        assert bucket.informer.pulls == 1


async def test_what_no_wait_can_mend_is_raised_at_once_and_tried_anew_when_asked_again():
    async with followed() as bucket:
        bucket.odd.fails = NotPermitted("no")
        for _ in range(2):
            with pytest.raises(NotPermitted):
                await bucket.informer.ready()
        lists = bucket.odd.lists
        await asyncio.sleep(60.0)
        assert bucket.odd.lists == lists
        bucket.odd.fails = None
        await bucket.informer.ready()


async def test_who_can_do_without_goes_on_after_a_while():
    loop = asyncio.get_running_loop()
    async with followed(without_after_s=5.0) as bucket:
        bucket.odd.fails = NotPermitted("no")
        began_at = loop.time()
        await bucket.informer.ready()
        assert 5.0 <= loop.time() - began_at <= 6.0 and not bucket.informer.pulled
        bucket.store("a.one", b"1")
        bucket.odd.fails = None
        await asyncio.sleep(1.1)
        assert bucket.changes() == [("a.one", None, 1)]


async def test_a_bug_in_what_is_told_ends_neither_the_list_nor_the_following(caplog):
    def raises(key: str, _old: Any, new: Any) -> None:
        told.append((key, new))
        raise RuntimeError("bug")

    told: list[tuple[str, Any]] = []
    async with followed(on_change=raises) as bucket:
        bucket.store("a.one", b"1")
        bucket.store("a.two", b"2")
        await bucket.informer.ready()
        await bucket.kv.put("a.one", b"3")
        await asyncio.sleep(0.1)
        assert told == [("a.one", 1), ("a.two", 2), ("a.one", 3)]
    assert "a change of the tests failed: a.one" in caplog.text


async def test_all_that_a_list_showed_is_known_when_the_first_of_it_is_told():
    async with followed(on_change=lambda *_: seen.append(sorted(bucket.informer))) as bucket:
        seen: list[list[str]] = []
        bucket.store("a.one", b"1")
        bucket.store("a.two", b"2")
        await bucket.informer.ready()
        assert seen == [["a.one", "a.two"]] * 2


async def test_nothing_else_is_read_until_what_is_told_is_done_with():
    done = asyncio.Event()
    told: list[str] = []

    async def slowly(key: str, _old: Any, _new: Any) -> None:
        told.append(key)
        await done.wait()

    async with followed(on_change=slowly) as bucket:
        bucket.store("a.one", b"1")
        ready = asyncio.ensure_future(bucket.informer.ready())
        await bucket.kv.put("a.two", b"2")
        await asyncio.sleep(1.0)
        assert told == ["a.one"] and not ready.done() and bucket.odd.reads == []
        done.set()
        await ready
        assert told == ["a.one", "a.two"]


async def test_stopping_ends_every_wait_and_is_idempotent():
    async with followed() as bucket:
        bucket.odd.fails = StorageUnavailable("away", may_have_started=False)
        ready = asyncio.ensure_future(bucket.informer.ready())
        refresh = asyncio.ensure_future(bucket.informer.refresh())
        await asyncio.sleep(0)
        bucket.informer.close()
        for waiting in (ready, refresh):
            with pytest.raises(ClosedError, match="this router was stopped"):
                await waiting
        await bucket.informer.stop()
        await bucket.informer.stop()
        assert not bucket.informer.settled
        with pytest.raises(ClosedError):
            await bucket.informer.ready()
        bucket.passes("a.one", b"1")
        await asyncio.sleep(1.0)
        assert bucket.odd.reads == []
