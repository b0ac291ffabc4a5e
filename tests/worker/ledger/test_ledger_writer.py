"""The ledger writer, by itself, on a bucket in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, StorageUnavailable
from gangline.runtime.clock import Environment
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.workers import LEASE_SLACK_S
from gangline.telemetry.logs import logger_for
from gangline.worker.ledger.ledger_writer import DesiredState, LedgerWriter


class Bench:
    """A writer whose leases are a plain dict: token -> (text, when it ends)."""

    def __init__(self) -> None:
        self.hub = MemoryServer(storage_timeout_s=1.0)
        self.bus = self.hub.connect("worker")
        self.names = Names("rig")
        self.leases: dict[str, tuple[str, float]] = {}
        self.granted: set[str] = set()
        self.writes = 0
        self.hub.tap(on_change=self._count)

    def _count(self, *_: Any) -> None:
        self.writes += 1

    async def __aenter__(self) -> Bench:
        kv = await self.bus.bucket(self.names.ledger_bucket, BucketSettings())
        self.kv = kv
        self.writer = LedgerWriter(
            kv, self.names, WorkerId("images", "w1"), self.describe, ambient=Environment(), log=logger_for("test")
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.writer.stop()
        await self.bus.close()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def describe(self, token: str) -> DesiredState | None:
        if token not in self.leases:
            return None
        text, due_at = self.leases[token]
        return DesiredState(value=text.encode(), expires_in_s=due_at - self.now)

    def grant(self, token: str, ttl_s: float = 10.0, text: str = "lease") -> None:
        self.leases[token] = (text, self.now + ttl_s)
        self.granted.add(token)
        self.writer.changed(token)

    def end(self, token: str) -> None:
        del self.leases[token]
        self.writer.ended(token)

    def renew(self, token: str, ttl_s: float) -> None:
        self.leases[token] = ("renewed", self.now + ttl_s)
        self.writer.renewed(token, self.now + ttl_s)

    def tokens(self) -> list[str]:
        """Whose keys stand there; the last part of a key that is of none that was ever granted."""
        known = {self.key(token): token for token in self.granted}
        found = [entry.key for entry in self.hub.peek(self.names.ledger_bucket)]
        return [known.get(key, key.rpartition(".")[2]) for key in found]

    def key(self, token: str) -> str:
        return self.names.lease_key(WorkerId("images", "w1"), token)


async def test_a_grant_is_visible_within_fifty_milliseconds_and_so_is_its_end():
    async with Bench() as bench:
        bench.grant("a")
        await asyncio.sleep(0.05)
        assert bench.tokens() == ["a"]
        bench.end("a")
        await asyncio.sleep(0.05)
        assert bench.tokens() == []
        assert bench.writer.statistics().recorded == 0


@pytest.mark.parametrize("ttl_s", [0.5, 3.0, 7.3, 10.0])
async def test_a_lease_never_ends_later_than_its_record_says_and_the_slack(ttl_s):
    async with Bench() as bench:
        bench.grant("a", ttl_s, text=str(bench.now + ttl_s))
        for _ in range(60):
            await asyncio.sleep(0.13)
            due_at = bench.now + ttl_s
            bench.leases["a"] = (str(due_at), due_at)
            bench.writer.renewed("a", due_at)
            await asyncio.sleep(0.05)
            (entry,) = bench.hub.peek(bench.names.ledger_bucket)
            assert due_at <= float(entry.value) + LEASE_SLACK_S


async def test_what_comes_and_goes_within_one_flush_costs_nothing():
    async with Bench() as bench:
        for number in range(100):
            bench.grant(f"t{number}")
            bench.end(f"t{number}")
        await asyncio.sleep(0.05)
        assert bench.writes == 0
        assert bench.writer.statistics().cancelled_out == 100


async def test_what_ended_before_the_flush_is_not_kept_until_then():
    async with Bench() as bench:
        bench.grant("a")
        bench.grant("b")
        bench.end("a")
        assert bench.writer.statistics().pending == 1
        await asyncio.sleep(0.05)
        assert bench.tokens() == ["b"]


async def test_an_end_while_the_write_is_under_way_takes_the_key_away_again():
    async with Bench() as bench:
        bench.grant("a")
        while not bench.writer.statistics().recorded:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        bench.end("a")
        await asyncio.sleep(0.05)
        assert bench.tokens() == []
        statistics = bench.writer.statistics()
        assert (statistics.written, statistics.deleted, statistics.recorded) == (1, 1, 0)


async def test_an_end_that_is_told_twice_or_of_an_unknown_lease_does_nothing():
    async with Bench() as bench:
        bench.grant("a")
        bench.end("a")
        bench.writer.ended("a")
        bench.writer.ended("never")
        await asyncio.sleep(0.05)
        assert bench.writer.statistics().cancelled_out == 1
        assert bench.writes == 0


async def test_leases_that_last_for_a_moment_cost_nothing_whenever_the_flush_comes():
    async with Bench() as bench:
        bench.grant("long", ttl_s=60.0)
        for number in range(100):
            bench.grant(f"t{number}")
            await asyncio.sleep(0.005)
            bench.end(f"t{number}")
        await asyncio.sleep(0.05)
        assert bench.tokens() == ["long"]
        assert bench.writes == 1
        assert bench.writer.statistics().cancelled_out == 100


async def test_in_a_steady_stream_each_grant_that_lasts_is_visible_in_time():
    async with Bench() as bench:
        for number in range(100):
            bench.grant(f"t{number}", ttl_s=60.0)
            await asyncio.sleep(0.003)
            visible = set(bench.tokens())
            assert all(f"t{old}" in visible for old in range(number - 12)), number


async def test_a_key_outlives_its_lease_by_two_seconds_at_most():
    async with Bench() as bench:
        bench.grant("a", ttl_s=3.5)
        await asyncio.sleep(3.5)
        assert bench.tokens() == ["a"]
        await asyncio.sleep(2.0)
        assert bench.tokens() == []


async def test_a_lease_in_steady_use_is_rewritten_about_once_a_second_and_never_missing():
    async with Bench() as bench:
        bench.grant("a", ttl_s=2.0)
        for _ in range(500):
            await asyncio.sleep(0.02)
            bench.renew("a", 2.0)
            assert bench.tokens() == ["a"]
        assert bench.writes <= 12


async def test_a_claim_that_becomes_a_long_lease_is_rewritten():
    async with Bench() as bench:
        bench.grant("a", ttl_s=2.0)
        await asyncio.sleep(0.1)
        bench.renew("a", 60.0)
        await asyncio.sleep(30.0)
        assert bench.tokens() == ["a"]


async def test_storage_that_is_away_is_told_the_end_of_the_story_when_it_is_back():
    async with Bench() as bench:
        bench.grant("stays", ttl_s=60.0)
        await asyncio.sleep(0.05)
        bench.hub.storage_down()
        bench.end("stays")
        bench.grant("comes", ttl_s=60.0)
        bench.grant("passes", ttl_s=60.0)
        await asyncio.sleep(3.0)
        bench.end("passes")
        assert bench.writer.statistics().retried > 0
        bench.hub.storage_back()
        await asyncio.sleep(3.0)
        assert bench.tokens() == ["comes"]
        assert bench.writer.statistics().pending == 0


async def test_waits_between_retries_grow_and_stay_bounded():
    async with Bench() as bench:
        bench.hub.storage_down()
        bench.grant("a", ttl_s=500.0)
        await asyncio.sleep(60.0)
        assert 10 < bench.writer.statistics().retried < 80


async def test_a_lost_connection_is_waited_for():
    async with Bench() as bench:
        bench.hub.disconnect(bench.bus)
        bench.grant("a", ttl_s=60.0)
        await asyncio.sleep(1.0)
        bench.hub.reconnect(bench.bus)
        await asyncio.sleep(3.0)
        assert bench.tokens() == ["a"]


async def test_comparing_rewrites_what_the_server_lost_and_deletes_what_it_kept_too_long():
    async with Bench() as bench:
        await bench.kv.put("lease.images.w1.old", b"of an earlier process", ttl_s=600.0)
        await bench.kv.put("lease.images.w2.theirs", b"of another worker", ttl_s=600.0)
        bench.grant("a", ttl_s=600.0)
        bench.grant("b", ttl_s=600.0)
        await asyncio.sleep(0.05)
        await bench.kv.delete(bench.key("a"))
        bench.writer.reconcile()
        assert await bench.writer.settle(5.0)
        assert sorted(bench.tokens()) == ["a", "b", "theirs"]


async def test_a_bucket_that_vanished_is_filled_again():
    async with Bench() as bench:
        bench.grant("a", ttl_s=600.0)
        bench.grant("b", ttl_s=600.0)
        await asyncio.sleep(0.05)
        bench.hub.stop()
        bench.end("b")
        await asyncio.sleep(0.5)
        bench.hub.start()
        bench.writer.reconcile()
        await asyncio.sleep(3.0)
        assert bench.tokens() == ["a"]
        assert bench.writer.statistics().recorded == 1


async def test_comparing_goes_on_until_storage_answers():
    async with Bench() as bench:
        bench.grant("a", ttl_s=600.0)
        await asyncio.sleep(0.05)
        await bench.kv.delete(bench.key("a"))
        bench.hub.storage_down()
        bench.writer.reconcile()
        assert not await bench.writer.settle(2.0)
        bench.hub.storage_back()
        assert await bench.writer.settle(10.0)
        assert bench.tokens() == ["a"]


async def test_write_now_returns_the_revision_and_leaves_nothing_to_flush():
    async with Bench() as bench:
        bench.grant("a")
        revision = await bench.writer.write_now("a")
        entry = await bench.kv.get(bench.key("a"))
        assert entry is not None
        assert entry.revision == revision
        await asyncio.sleep(0.1)
        assert bench.writes == 1


async def test_a_write_that_may_have_happened_is_deleted_when_its_lease_ends():
    async with Bench() as bench:
        bench.grant("a")
        writing = asyncio.create_task(bench.writer.write_now("a"))
        await asyncio.sleep(0)
        bench.end("a")
        await writing
        await asyncio.sleep(0.05)
        assert bench.tokens() == []


async def test_write_now_of_a_lease_that_is_gone_or_a_storage_that_is_away_raises():
    async with Bench() as bench:
        with pytest.raises(LookupError):
            await bench.writer.write_now("nobody")
        bench.hub.storage_down()
        bench.leases["a"] = ("lease", bench.now + 5)
        with pytest.raises(StorageUnavailable):
            await bench.writer.write_now("a")


async def test_a_stopped_writer_writes_nothing_more():
    async with Bench() as bench:
        bench.grant("a")
        await bench.writer.stop()
        await bench.writer.stop()
        bench.grant("b")
        bench.writer.reconcile()
        await asyncio.sleep(1.0)
        assert bench.tokens() == []
        assert repr(bench.writer) == "LedgerWriter(images.w1, 0 keys, 2 pending)"
