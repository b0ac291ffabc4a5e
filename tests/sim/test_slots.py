"""The checker's own books, fed by hand: what they accept, and what they report."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gangline.schemas.wire.frames import Load
from gangline.testing.sim.calls.slots import Terms, WorkerModel
from gangline.testing.sim.history.checker import Checker, Trace


class Script:
    """One worker process of four slots, told record by record."""

    def __init__(self) -> None:
        self.now = 10.0
        self.trace = Trace(lambda: self.now)
        self.checker = Checker(lambda: self.now, self.trace, lambda: None)
        self.model = WorkerModel(
            node="w0.1",
            checker=self.checker,
            clock=lambda: self.now,
            load=lambda: Load(self.model.running, self.model.reserved, 4),
            drain_grace_s=3.0,
            slots=4,
        )
        self._turns = itertools.count(1)

    def record(self, event: str, **facts: Any) -> None:
        self.model.record({"event": event, "epoch": 7, "total": 4, **facts}, next(self._turns))

    def grant(self, token: str = "t", slots: int = 1, *, single_use: bool = True, claim_s: float = 2.0) -> None:
        self.record("grant", token=token, slots=slots, single_use=single_use, ttl_s=5.0)
        self.model.granted(token, Terms(slots=slots, ttl_s=5.0, claim_s=claim_s, single_use=single_use))

    def start(self, task_id: str = "s.1", *, token: str | None = None, cost: int = 1, epoch: int = 7) -> None:
        self.model.task_delivered(task_id, epoch, token)
        self.record("start", id=task_id, token=token, cost=cost)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.model.look(reachable=True)

    def broken(self) -> list[str]:
        """The laws that were broken so far."""
        self.model.check_turn()
        return [violation.law for violation in self.checker.violations]


@pytest.fixture
def script() -> Script:
    return Script()


def test_a_whole_life_breaks_nothing(script):
    script.grant()
    script.start(token="t")
    script.record("use", token="t")
    script.record("end", id="s.1", cost=1)
    script.start("s.2", cost=4)
    script.record("end", id="s.2", cost=4)
    script.record("drain")
    script.record("leave")
    assert script.broken() == []
    assert (script.model.reserved, script.model.running) == (0, 0)


BREACHES: dict[str, tuple[list[str], Callable[[Script], object]]] = {
    "one slot too many": (["L1"], lambda s: (s.grant(slots=2), s.start(cost=3))),
    "task code on too many slots": (
        ["L1"],
        lambda s: (
            s.start(cost=4),
            s.model.body_started(1, "r1", 4, None, None),
            s.model.body_started(2, "r2", 1, None, None),
        ),
    ),
    "an end without a start": (["L2"], lambda s: s.record("end", id="s.1", cost=1)),
    "a lease that ends twice": (
        ["L2"],
        lambda s: (s.grant(), s.record("release", token="t"), s.record("expire", token="t")),
    ),
    "a second task on a single use token": (
        ["L3"],
        lambda s: (s.grant(slots=2), s.start("s.1", token="t"), s.start("s.2", token="t")),
    ),
    "more tasks than slots of a lease": (
        ["L3"],
        lambda s: (s.grant(single_use=False), s.start("s.1", token="t"), s.start("s.2", token="t")),
    ),
    "a start from an envelope of another epoch": (["L5"], lambda s: s.start(epoch=6)),
    "a lease that survives its epoch": (
        ["L5"],
        lambda s: (s.grant(), s.model.record({"event": "epoch", "epoch": 8, "total": 4}, 1000)),
    ),
    "a start long after its callers deadline": (
        ["L5"],
        lambda s: (s.start(), s.model.body_started(1, "r1", 1, None, s.now - 3.0)),
    ),
    "grants and plain starts of a draining worker": (
        ["L11", "L11"],
        lambda s: (s.record("drain"), s.grant(), s.start()),
    ),
    "a drain that refuses what was granted": (
        ["L11"],
        lambda s: (
            s.grant(),
            s.record("drain"),
            s.model.task_delivered("s.1", 7, "t"),
            s.model.refused("s.1", "draining"),
        ),
    ),
    "leaving with something held": (["L11"], lambda s: (s.grant(), s.record("leave"))),
    "more than a seat has idle": (
        ["L1"],
        lambda s: (
            s.record("grant", token="seat", slots=1, single_use=False, ttl_s=10.0, gang="g"),
            s.start("s.1", token="seat"),
            s.record("grant", token="a", slots=1, single_use=True, ttl_s=5.0, gang="g", seat="seat"),
        ),
    ),
}
"""What is done to a worker, and the laws that this breaks."""


def test_each_breach_is_reported_under_its_law():
    for name, (laws, act) in BREACHES.items():
        script = Script()
        act(script)
        assert (name, script.broken()) == (name, laws)


def test_a_resize_downwards_breaks_nothing_until_something_is_granted(script):
    script.start(cost=3)
    script.record("resize", total=2)
    assert script.broken() == []
    script.model.slots = 2
    script.grant()
    assert script.broken() == ["L1"]


def test_counters_that_differ_from_the_journal_break_l2(script):
    script.grant()
    script.model.load = lambda: Load(0, 0, 4)
    script.model.look(reachable=True)
    assert script.broken() == ["L2"]


def test_an_unclaimed_grant_that_stays_breaks_l4(script):
    script.grant(claim_s=2.0)
    script.wait(2.2)
    assert script.broken() == []
    script.wait(0.2)
    assert script.broken() == ["L4"]


def test_a_lease_that_outlives_its_last_renewal_breaks_l4(script):
    script.grant(single_use=False)
    assert script.model.renewal_delivered("t", 5.0)
    script.wait(5.9)
    assert script.broken() == []
    script.wait(0.2)
    assert script.broken() == ["L4"]


def test_a_frozen_worker_is_given_the_time_it_stood_still(script):
    script.grant()
    script.model.froze(serving=True)
    script.wait(30)
    script.model.thawed()
    script.model.look(reachable=True)
    assert script.broken() == []


def test_a_start_on_an_expired_lease_breaks_l5(script):
    script.grant(single_use=False, claim_s=2.0)
    script.now += 2.1
    script.start(token="t")
    assert script.broken() == ["L5"]


def test_a_late_renewal_extends_nothing_and_must_not_be_taken(script):
    script.grant(single_use=False, claim_s=2.0)
    script.now += 2.1
    assert not script.model.renewal_delivered("t", 5.0)
    script.model.renewed("t")
    assert script.broken() == ["L5"]


@pytest.mark.parametrize("token", ["never-granted", "t"])
def test_a_start_on_an_unknown_or_ended_token_breaks_l5(script, token):
    script.grant()
    script.record("release", token="t")
    script.start(token=token)
    assert script.broken() == ["L5"]


def test_a_start_after_a_long_freeze_without_a_new_epoch_breaks_l5(script):
    script.model.froze(serving=True)
    script.now += 1.5
    script.model.thawed()
    script.start()
    assert script.broken() == ["L5"]


def test_a_drain_that_never_ends_breaks_l11(script):
    script.record("drain")
    script.now += 16
    script.model.look(reachable=False)
    assert script.broken() == []
    script.model.look(reachable=True)
    assert script.broken() == ["L11"]


def test_slots_of_a_seat_that_are_held_by_a_token_of_their_own_count_once(script):
    script.record("grant", token="seat", slots=2, single_use=False, ttl_s=10.0, gang="g")
    script.record("grant", token="a", slots=1, single_use=True, ttl_s=5.0, gang="g", seat="seat")
    script.record("grant", token="b", slots=1, single_use=False, ttl_s=5.0, gang="g", seat="seat")
    assert script.model.reserved == 2
    script.start("s.1", token="a")
    script.record("use", token="a")
    script.start("s.2", token="b")
    assert (script.model.reserved, script.model.running) == (0, 2)
    script.record("release", token="b")
    script.record("end", id="s.1", cost=1)
    assert (script.model.reserved, script.model.running) == (1, 1)
    script.record("end", id="s.2", cost=1)
    assert script.broken() == [] and script.model.reserved == 2
