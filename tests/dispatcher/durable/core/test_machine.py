"""Random histories of a queue: answers that overtake each other, takeovers with half of the writes lost, workers that
die, limits that change, doubts.

The laws are asserted by the world and the oracle at every effect, the core's own invariants after every event. When a
history ends everything heals, and every job must have ended once.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gangline.schemas.records.workers import TaskPolicy

from ....scale import repetitions
from ....support.durable.actor import Actor
from ....support.durable.walk import walk

PICK = st.integers(min_value=0, max_value=1000)
LEASES = st.lists(st.integers(min_value=1, max_value=4), max_size=3)
DRAW = st.integers(min_value=0, max_value=15).map(lambda number: number / 16)
SUBMISSION = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, "a", "a", "b"]),
        "ordered": st.booleans(),
        "priority": st.sampled_from([None, None, -1, 0, 1, 2]),
        "deadline_s": st.sampled_from([None, None, None, 2.0, 10.0]),
        "timeout_s": st.sampled_from([None, None, 1.0]),
        "backoff_s": st.sampled_from([None, 0.0]),
        "attempts": st.sampled_from([0, 0, 0, 5]),
        "method": st.sampled_from(["run", "run", "big"]),
        "pool": st.sampled_from([None, None, None, "f"]),
        "again": st.sampled_from([None, None, None, 0, 1]),
        "draw": DRAW,
    }
)
RULES = st.fixed_dictionaries(
    {
        "max_running": st.sampled_from([None, None, 1, 3]),
        "per_key": st.sampled_from([None, 1, 2]),
        "ordered": st.sampled_from([False, False, True]),
        "rate_per_s": st.sampled_from([None, None, 2.0, 4.0]),
        "burst": st.sampled_from([1, 3]),
        "paused": st.sampled_from([False, False, False, True]),
    }
)
POLICY = st.builds(
    TaskPolicy,
    max_running=st.sampled_from([None, 1, 2]),
    per_key=st.sampled_from([None, 1, 2]),
    rate_per_s=st.sampled_from([None, 2.0, 20.0]),
    priority=st.sampled_from([None, 1, -1]),
)
WEIGHTS = st.sampled_from([{}, {"e": 1}, {"e": 1, "f": 1}, {"e": 3, "f": 1}, {"f": 1}])
LIMITS = st.sampled_from([{}, {}, {"e": 1}, {"f": 2}])
ENDS = ["done", "done", "failed", "wrong", "lost", "finished anyway"]


class Queue(RuleBasedStateMachine):
    @initialize(window=st.sampled_from([4096, 4096, 6]), free=LEASES)
    def begin(self, window: int, free: list[int]) -> None:
        self.actor = Actor(window)
        self.world = self.actor.world
        self.world.credit(*free)

    @rule(submissions=st.lists(SUBMISSION, min_size=1, max_size=4), flush=st.booleans())
    def submit(self, submissions, flush: bool) -> None:
        for submission in submissions:
            self.actor.submit(**submission)
        if flush:
            self.world.flush()

    @rule(delay_s=st.sampled_from([0.0, 30.0]))
    def submit_delayed(self, delay_s: float) -> None:
        self.actor.submit_delayed(delay_s)

    @precondition(lambda self: self.world.pulled and self.world.next_undelivered() is None)
    @rule()
    def publish_nonsense(self) -> None:
        self.actor.publish_nonsense()

    @precondition(lambda self: self.world.stream)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        self.actor.cancel(pick)

    @precondition(lambda self: self.world.network)
    @rule(pick=PICK)
    def deliver_one(self, pick: int) -> None:
        self.actor.deliver_one(pick)

    @precondition(lambda self: self.world.pulled and self.world.next_undelivered() is not None)
    @rule()
    def deliver_message(self) -> None:
        self.actor.deliver_message()

    @precondition(lambda self: self.world.stream)
    @rule(pick=PICK)
    def deliver_again(self, pick: int) -> None:
        self.actor.deliver_again(pick)

    @rule(seconds=st.sampled_from([0.0625, 0.25, 1.0, 8.0, 40.0]), flush=st.booleans())
    def wait(self, seconds: float, flush: bool) -> None:
        self.world.advance(seconds, flush=flush)

    @rule(free=LEASES, pool=st.sampled_from(["e", "e", "f"]))
    def lease(self, free: list[int], pool: str) -> None:
        self.world.credit(*free, pool=pool)

    @rule(
        pool=st.sampled_from(["e", "f"]),
        largest=st.sampled_from([0, 1, 4]),
        big=st.sampled_from([1, 2, 3]),
        policies=st.dictionaries(st.sampled_from(["run", "big"]), POLICY),
    )
    def register(self, pool: str, largest: int, big: int, policies) -> None:
        self.world.pool(pool, workers=int(largest > 0), largest=largest, big=big, policies=policies)

    @precondition(lambda self: self.actor.runs())
    @rule(pick=PICK, draw=DRAW, how=st.sampled_from(ENDS))
    def end(self, pick: int, draw: float, how: str) -> None:
        self.actor.end(pick, draw, how)

    @precondition(lambda self: self.actor.runs())
    @rule(pick=PICK)
    def refuse(self, pick: int) -> None:
        self.actor.refuse(pick)

    @precondition(lambda self: self.actor.runs())
    @rule(pick=PICK)
    def kill(self, pick: int) -> None:
        self.actor.kill(pick)

    @rule(weights=WEIGHTS, limits=LIMITS, rules=RULES)
    def route(self, weights, limits, rules) -> None:
        self.actor.route(weights, limits, rules)

    @precondition(lambda self: self.world.core.open)
    @rule(seed=st.randoms(use_true_random=False), early=st.booleans())
    def take_over(self, seed, early: bool) -> None:
        self.actor.take_over(seed, early)

    @precondition(lambda self: not self.world.core.open)
    @rule()
    def recover(self) -> None:
        self.actor.recover()

    @precondition(lambda self: self.world.oracle.sure)
    @rule()
    def doubt(self) -> None:
        self.actor.doubt(True)

    @precondition(lambda self: not self.world.oracle.sure)
    @rule()
    def be_sure(self) -> None:
        self.actor.doubt(False)

    def teardown(self) -> None:
        if hasattr(self, "actor"):
            self.actor.heal()


Queue.TestCase.settings = settings(
    max_examples=repetitions(15, whole=100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestQueue = Queue.TestCase


@pytest.mark.parametrize("block", range(repetitions(1, whole=8)))
def test_the_laws_hold_in_random_histories(block):
    for seed in range(25 * block, 25 * (block + 1)):
        walk(seed)


@pytest.mark.parametrize("block", range(repetitions(1, whole=8)))
def test_the_laws_hold_in_random_histories_of_several_tenants(block):
    for seed in range(15 * block, 15 * (block + 1)):
        walk(seed, tenants=("", "lab", "shop"))
