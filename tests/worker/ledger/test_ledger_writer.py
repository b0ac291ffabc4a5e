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

from ...support.rows import in_rows


class Ledger:
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

    async def __aenter__(self) -> Ledger:
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
    async with Ledger() as ledger:
        ledger.grant("a")
        await asyncio.sleep(0.05)
        assert ledger.tokens() == ["a"]
        ledger.end("a")
        await asyncio.sleep(0.05)
        assert ledger.tokens() == []
        assert ledger.writer.statistics().recorded == 0


@in_rows("ttl_s", [0.5, 3.0, 7.3, 10.0])
async def test_a_lease_never_ends_later_than_its_record_says_and_the_slack(ttl_s):
    async with Ledger() as ledger:
        ledger.grant("a", ttl_s, text=str(ledger.now + ttl_s))
        for _ in range(60):
            await asyncio.sleep(0.13)
            due_at = ledger.now + ttl_s
            ledger.leases["a"] = (str(due_at), due_at)
            ledger.writer.renewed("a", due_at)
            await asyncio.sleep(0.05)
            (entry,) = ledger.hub.peek(ledger.names.ledger_bucket)
            assert due_at <= float(entry.value) + LEASE_SLACK_S


async def test_an_end_while_the_write_is_under_way_takes_the_key_away_again():
    async with Ledger() as ledger:
        ledger.grant("a")
        while not ledger.writer.statistics().recorded:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)
        ledger.end("a")
        await asyncio.sleep(0.05)
        assert ledger.tokens() == []
        statistics = ledger.writer.statistics()
        assert (statistics.written, statistics.deleted, statistics.recorded) == (1, 1, 0)


async def test_leases_that_last_for_a_moment_cost_nothing_whenever_the_flush_comes():
    async with Ledger() as ledger:
        ledger.grant("long", ttl_s=60.0)
        for number in range(100):
            ledger.grant(f"t{number}")
            await asyncio.sleep(0.005)
            ledger.end(f"t{number}")
        await asyncio.sleep(0.05)
        assert ledger.tokens() == ["long"]
        assert ledger.writes == 1
        assert ledger.writer.statistics().cancelled_out == 100


async def test_a_key_outlives_its_lease_by_two_seconds_at_most():
    async with Ledger() as ledger:
        ledger.grant("a", ttl_s=3.5)
        await asyncio.sleep(3.5)
        assert ledger.tokens() == ["a"]
        await asyncio.sleep(2.0)
        assert ledger.tokens() == []


async def test_a_lease_in_steady_use_is_rewritten_about_once_a_second_and_never_missing():
    async with Ledger() as ledger:
        ledger.grant("a", ttl_s=2.0)
        for _ in range(500):
            await asyncio.sleep(0.02)
            ledger.renew("a", 2.0)
            assert ledger.tokens() == ["a"]
        assert ledger.writes <= 12


async def test_storage_that_is_away_is_told_the_end_of_the_story_when_it_is_back():
    async with Ledger() as ledger:
        ledger.grant("stays", ttl_s=60.0)
        await asyncio.sleep(0.05)
        ledger.hub.storage_down()
        ledger.end("stays")
        ledger.grant("comes", ttl_s=60.0)
        ledger.grant("passes", ttl_s=60.0)
        await asyncio.sleep(3.0)
        ledger.end("passes")
        assert ledger.writer.statistics().retried > 0
        ledger.hub.storage_back()
        await asyncio.sleep(3.0)
        assert ledger.tokens() == ["comes"]
        assert ledger.writer.statistics().pending == 0


async def test_waits_between_retries_grow_and_stay_bounded():
    async with Ledger() as ledger:
        ledger.hub.storage_down()
        ledger.grant("a", ttl_s=500.0)
        await asyncio.sleep(60.0)
        assert 10 < ledger.writer.statistics().retried < 80


async def test_comparing_rewrites_what_the_server_lost_and_deletes_what_it_kept_too_long():
    async with Ledger() as ledger:
        await ledger.kv.put("lease.images.w1.old", b"of an earlier process", ttl_s=600.0)
        await ledger.kv.put("lease.images.w2.theirs", b"of another worker", ttl_s=600.0)
        ledger.grant("a", ttl_s=600.0)
        ledger.grant("b", ttl_s=600.0)
        await asyncio.sleep(0.05)
        await ledger.kv.delete(ledger.key("a"))
        ledger.writer.reconcile()
        assert await ledger.writer.settle(5.0)
        assert sorted(ledger.tokens()) == ["a", "b", "theirs"]


async def test_comparing_goes_on_until_storage_answers():
    async with Ledger() as ledger:
        ledger.grant("a", ttl_s=600.0)
        await asyncio.sleep(0.05)
        await ledger.kv.delete(ledger.key("a"))
        ledger.hub.storage_down()
        ledger.writer.reconcile()
        assert not await ledger.writer.settle(2.0)
        ledger.hub.storage_back()
        assert await ledger.writer.settle(10.0)
        assert ledger.tokens() == ["a"]


async def test_a_write_that_may_have_happened_is_deleted_when_its_lease_ends():
    async with Ledger() as ledger:
        ledger.grant("a")
        writing = asyncio.create_task(ledger.writer.write_now("a"))
        await asyncio.sleep(0)
        ledger.end("a")
        await writing
        await asyncio.sleep(0.05)
        assert ledger.tokens() == []


async def test_write_now_of_a_lease_that_is_gone_or_a_storage_that_is_away_raises():
    async with Ledger() as ledger:
        with pytest.raises(LookupError):
            await ledger.writer.write_now("nobody")
        ledger.hub.storage_down()
        ledger.leases["a"] = ("lease", ledger.now + 5)
        with pytest.raises(StorageUnavailable):
            await ledger.writer.write_now("a")
