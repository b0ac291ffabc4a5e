"""The checker's own books, fed by hand: what they accept, and what they report."""

from __future__ import annotations

import itertools
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


def test_one_slot_too_many_breaks_l1(script):
    script.grant(slots=2)
    script.start(cost=3)
    assert script.broken() == ["L1"]


def test_a_resize_downwards_breaks_nothing_until_something_is_granted(script):
    script.start(cost=3)
    script.record("resize", total=2)
    assert script.broken() == []
    script.model.slots = 2
    script.grant()
    assert script.broken() == ["L1"]


def test_task_code_on_too_many_slots_breaks_l1(script):
    script.start(cost=4)
    script.model.body_started(1, "r1", 4, None, None)
    script.model.body_started(2, "r2", 1, None, None)
    assert script.broken() == ["L1"]


def test_an_end_without_a_start_breaks_l2(script):
    script.record("end", id="s.1", cost=1)
    assert script.broken() == ["L2"]


def test_a_lease_that_ends_twice_breaks_l2(script):
    script.grant()
    script.record("release", token="t")
    script.record("expire", token="t")
    assert script.broken() == ["L2"]


def test_counters_that_differ_from_the_journal_break_l2(script):
    script.grant()
    script.model.load = lambda: Load(0, 0, 4)
    script.model.look(reachable=True)
    assert script.broken() == ["L2"]


def test_a_second_task_on_a_single_use_token_breaks_l3(script):
    script.grant(slots=2)
    script.start("s.1", token="t")
    script.start("s.2", token="t")
    assert script.broken() == ["L3"]


def test_more_tasks_than_slots_of_a_lease_break_l3(script):
    script.grant(single_use=False)
    script.start("s.1", token="t")
    script.start("s.2", token="t")
    assert script.broken() == ["L3"]


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


def test_a_start_from_an_envelope_of_another_epoch_breaks_l5(script):
    script.start(epoch=6)
    assert script.broken() == ["L5"]


def test_a_lease_that_survives_its_epoch_breaks_l5(script):
    script.grant()
    script.model.record({"event": "epoch", "epoch": 8, "total": 4}, 1000)
    assert script.broken() == ["L5"]


def test_a_start_after_a_long_freeze_without_a_new_epoch_breaks_l5(script):
    script.model.froze(serving=True)
    script.now += 1.5
    script.model.thawed()
    script.start()
    assert script.broken() == ["L5"]


def test_a_start_long_after_its_callers_deadline_breaks_l5(script):
    script.start()
    script.model.body_started(1, "r1", 1, None, script.now - 3.0)
    assert script.broken() == ["L5"]


def test_grants_and_plain_starts_of_a_draining_worker_break_l11(script):
    script.record("drain")
    script.grant()
    script.start()
    assert script.broken() == ["L11", "L11"]


def test_a_drain_honours_what_was_granted(script):
    script.grant()
    script.record("drain")
    script.model.task_delivered("s.1", 7, "t")
    script.model.refused("s.1", "draining")
    assert script.broken() == ["L11"]


def test_leaving_with_something_held_breaks_l11(script):
    script.grant()
    script.record("leave")
    assert script.broken() == ["L11"]


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


def test_more_than_a_seat_has_idle_breaks_l1(script):
    script.record("grant", token="seat", slots=1, single_use=False, ttl_s=10.0, gang="g")
    script.start("s.1", token="seat")
    script.record("grant", token="a", slots=1, single_use=True, ttl_s=5.0, gang="g", seat="seat")
    assert script.broken() == ["L1"]
