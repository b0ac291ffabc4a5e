"""Law L6: what the ledger shows, and when."""

from __future__ import annotations

import asyncio

import pytest

from gangline.testing.sim.calls.ledger import QUIET_S, LedgerWatch
from gangline.testing.sim.calls.slots import LeaseModel, WorkerModel
from gangline.testing.sim.history.checker import Checker, Trace

KEY = "lease.alpha.w0.t"


class WatchedLedger:
    """A worker with one lease, and a bucket."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.keys: set[str] = set()
        self.checker = Checker(clock, Trace(clock), lambda: None)
        self.watch = LedgerWatch(self.checker, lambda: self.keys)
        self.worker = WorkerModel(node="w0.1", checker=self.checker, clock=clock, load=lambda: None, drain_grace_s=3.0)
        self.lease = LeaseModel(token="t", slots=1, single_use=True, epoch=1, ttl_s=5.0, due_at=clock() + 2.0)
        self.worker.leases["t"] = self.lease

    @property
    def laws(self) -> list[str]:
        return [violation.law for violation in self.checker.violations]


@pytest.fixture
async def ledger() -> WatchedLedger:
    return WatchedLedger()


async def test_a_grant_that_shows_in_time_is_well(ledger):
    ledger.watch.granted(ledger.worker, ledger.lease)
    ledger.keys.add(KEY)
    await asyncio.sleep(1)
    assert ledger.laws == []


async def test_a_grant_that_does_not_show_breaks_l6(ledger):
    ledger.watch.granted(ledger.worker, ledger.lease)
    await asyncio.sleep(1)
    assert ledger.laws == ["L6"]


async def test_a_grant_that_ended_meanwhile_need_not_show(ledger):
    ledger.watch.granted(ledger.worker, ledger.lease)
    ledger.lease.ended = "release"
    await asyncio.sleep(1)
    assert ledger.laws == []


async def test_a_key_that_stays_after_the_end_breaks_l6(ledger):
    ledger.keys.add(KEY)
    ledger.watch.ended(ledger.worker, ledger.lease)
    await asyncio.sleep(1)
    assert ledger.laws == ["L6"]


async def test_milliseconds_count_only_when_all_is_quiet(ledger):
    ledger.watch.disturb()
    ledger.watch.granted(ledger.worker, ledger.lease)
    await asyncio.sleep(1)
    ledger.watch.settle()
    ledger.watch.granted(ledger.worker, ledger.lease)
    await asyncio.sleep(1)
    assert ledger.laws == []
    await asyncio.sleep(QUIET_S)
    ledger.watch.granted(ledger.worker, ledger.lease)
    await asyncio.sleep(1)
    assert ledger.laws == ["L6"]


async def test_keys_of_a_dead_worker_go_within_their_time_to_live(ledger):
    ledger.watch.disturb()
    ledger.keys.add(KEY)
    ledger.worker.dead = True
    ledger.watch.worker_died(ledger.worker)
    await asyncio.sleep(6.9)
    assert ledger.laws == []
    await asyncio.sleep(0.2)
    assert ledger.laws == ["L6"]


async def test_what_a_dead_worker_wrote_may_arrive_late_and_lives_from_then_on(ledger):
    ledger.watch.disturb()
    ledger.worker.dead = True
    ledger.watch.worker_died(ledger.worker)
    await asyncio.sleep(6)
    ledger.keys.add(KEY)
    ledger.watch.delivered()
    await asyncio.sleep(6.9)
    assert ledger.laws == []
    await asyncio.sleep(0.2)
    assert ledger.laws == ["L6"]
