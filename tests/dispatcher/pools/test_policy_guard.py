"""A user's policy may fail in any way: requests go on, and nothing leaks."""

from __future__ import annotations

import asyncio
import random

import pytest

import gangline
from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.pools.pool import GuardedPolicy, guarded
from gangline.dispatcher.routing.policy import Candidates, PowerOfTwo, Requirements, Sticky
from gangline.dispatcher.routing.worker_table import WorkerEntry as Entry
from gangline.errors import GanglineError
from gangline.schemas.names import Names, WorkerId
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ...scale import repetitions
from ...support.logs import records_of

HOOKS = ("choose", "routed", "completed", "worker_lost")


class Failing(PowerOfTwo):
    """Fails in some of its hooks, some of the time."""

    def __init__(self, chance: random.Random, hooks: set[str], rate: float) -> None:
        self.chance, self.hooks, self.rate = chance, hooks, rate
        self.routed_now = 0

    def _maybe(self, hook: str) -> None:
        if hook in self.hooks and self.chance.random() < self.rate:
            raise RuntimeError(f"{hook} fails")

    def choose(self, candidates: Candidates, request: Requirements) -> Entry | None:
        self._maybe("choose")
        return super().choose(candidates, request)

    def routed(self, worker: Entry, request: Requirements) -> None:
        self.routed_now += 1
        self._maybe("routed")

    def completed(self, worker: Entry, request: Requirements) -> None:
        self.routed_now -= 1
        self._maybe("completed")

    def worker_lost(self, worker: Entry) -> None:
        self._maybe("worker_lost")


def _pool() -> gangline.Pool:
    pool = gangline.Pool("images", slots=2)

    @pool.task
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return pool


@pytest.mark.parametrize("seed", range(repetitions(1, whole=10)))
async def test_a_policy_that_fails_is_never_in_the_way(seed: int) -> None:
    chance = random.Random(seed)
    policy = Failing(chance, set(chance.sample(HOOKS, chance.randint(1, 4))), chance.choice((0.1, 1.0)))
    hub, names, pool = MemoryServer(), Names("policies"), _pool()

    def worker(name: str) -> Worker:
        return Worker(pool, bus=hub.connect(name), names=names, settings=WorkerSettings(id=name))

    async def ask(client: Client) -> None:
        try:
            how = chance.randrange(4)
            if how == 0:
                async with client.choose_worker("images") as selection:
                    assert await client.dispatch(selection, "nap", 0.01) == 0.01
            elif how == 1:
                async with client.lease("images") as lease:
                    assert await lease.call("nap", 0.01) == 0.01
            elif how == 2:
                async with asyncio.timeout(chance.uniform(0, 0.05)):
                    await client.call("images.nap", 1.0)
            else:
                assert await client.options(key=str(chance.randrange(3))).call("images.nap", 0.02) == 0.02
        except (TimeoutError, GanglineError):
            pass  # cancelled, or its worker left

    async with Client(hub.connect("client"), names=names, policy=lambda _: policy) as client, worker("w1"):
        leaver = worker("w2")
        await leaver.start()
        asking = [asyncio.ensure_future(ask(client)) for _ in range(30)]
        await asyncio.sleep(0.05)
        await leaver.stop()
        await asyncio.gather(*asking)
        await asyncio.sleep(5)
        counts = client.statistics()["pools"]["images"]
        assert (counts["placed"], counts["waiting"], policy.routed_now) == (0, 0, 0)
        assert await asyncio.gather(*(client.call("images.nap", 0.5) for _ in range(2))) == [0.5, 0.5]


def test_a_failure_is_logged_with_its_traceback_at_first_and_ever_more_rarely(caplog) -> None:
    guard = guarded(Failing(random.Random(1), set(HOOKS), 1.0), "images")
    assert isinstance(guard, GuardedPolicy)
    for _ in range(250):
        guard.worker_lost(Entry(WorkerId("images", "w1"), "i"))
    assert guard.failures == {"worker_lost": 250}
    said = records_of(caplog, "gangline.dispatcher")
    assert len(said) == 3
    assert said[0].exc_info is not None and "Failing.worker_lost of pool images" in caplog.text


def test_our_own_policies_are_not_wrapped() -> None:
    for policy in (Sticky(), PowerOfTwo()):
        assert guarded(policy, "images") is policy


async def test_a_selection_is_dispatched_only_by_the_client_that_made_it() -> None:
    hub, names, pool = MemoryServer(), Names("selections"), _pool()
    async with (
        Worker(pool, bus=hub.connect("w1"), names=names),
        Client(hub.connect("one"), names=names) as one,
        Client(hub.connect("two"), names=names) as two,
    ):
        await two.call("images.nap", 0.0)
        async with one.choose_worker("images") as selection:
            with pytest.raises(gangline.errors.WrongClient, match="dispatch it with that one"):
                await two.dispatch(selection, "nap", 0.0)
            assert await one.dispatch(selection, "nap", 0.0) == 0.0
