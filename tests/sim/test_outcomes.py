"""Requests end once, in time, and are told the truth."""

from __future__ import annotations

import pytest

from gangline.schemas.errors.base import Saturated, WorkerLost
from gangline.testing.sim.calls.outcomes import Outcomes, lost_worker
from gangline.testing.sim.history.checker import Checker, Trace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checker(clock) -> Checker:
    return Checker(clock, Trace(clock), lambda: None)


@pytest.fixture
def excused() -> set[str]:
    """Requests that something befell on their way."""
    return set()


@pytest.fixture
def outcomes(checker, clock, excused) -> Outcomes:
    return Outcomes(checker, lambda request: request.id in excused, lambda worker, since: worker != "living")


def begin(outcomes, *, idempotent=False):
    return outcomes.begin("r1", "c0.1", idempotent=idempotent, timeout_s=3.0)


def look_at(outcomes, clock, now):
    clock.now = now
    outcomes.look()


def laws(checker):
    return [violation.law for violation in checker.violations]


def test_a_request_that_runs_and_answers_breaks_nothing(outcomes, checker):
    request = begin(outcomes)
    outcomes.body_started("r1", "w0.1")
    outcomes.body_returned("r1")
    outcomes.succeeded(request, "done", "done")
    assert laws(checker) == []
    assert outcomes.counts() == {"ok": 1}


@pytest.mark.parametrize(("ran", "value"), [(False, "done"), (True, "other")])
def test_a_result_that_no_task_returned_is_reported(outcomes, checker, ran, value):
    request = begin(outcomes)
    if ran:
        outcomes.body_started("r1", "w0.1")
        outcomes.body_returned("r1")
    outcomes.succeeded(request, value, "done")
    assert laws(checker) == ["outcome"]


@pytest.mark.parametrize(("idempotent", "broken"), [(False, ["outcome"]), (True, [])])
def test_a_second_start_is_reported_unless_the_task_is_idempotent(outcomes, checker, idempotent, broken):
    begin(outcomes, idempotent=idempotent)
    outcomes.body_started("r1", "w0.1")
    outcomes.body_started("r1", "w1.1")
    assert laws(checker) == broken


@pytest.mark.parametrize("started_first", [True, False])
def test_never_started_must_be_true_now_and_later(outcomes, checker, started_first):
    request = begin(outcomes)
    if started_first:
        outcomes.body_started("r1", "w0.1")
    outcomes.failed(request, "saturated", may_have_started=False)
    if not started_first:
        outcomes.body_started("r1", "w0.1")
    assert laws(checker) == ["outcome"]


def test_two_outcomes_are_one_too_many(outcomes, checker):
    request = begin(outcomes)
    outcomes.cancelled(request)
    outcomes.failed(request, "saturated", may_have_started=True)
    assert laws(checker) == ["outcome"]


def test_a_request_past_its_deadline_hangs(outcomes, checker, clock):
    begin(outcomes)
    look_at(outcomes, clock, 3.4)
    assert laws(checker) == []
    look_at(outcomes, clock, 3.6)
    assert laws(checker) == ["hang"]


def test_a_frozen_client_has_time_after_its_thaw(outcomes, checker, clock):
    begin(outcomes)
    outcomes.client_froze("c0.1")
    look_at(outcomes, clock, 20.0)
    outcomes.client_thawed("c0.1")
    outcomes.look()
    assert laws(checker) == []
    look_at(outcomes, clock, 20.6)
    assert laws(checker) == ["hang"]


def test_requests_of_a_dead_client_ask_for_nothing(outcomes, checker, clock):
    begin(outcomes)
    outcomes.client_died("c0.1")
    look_at(outcomes, clock, 100.0)
    assert laws(checker) == []
    assert outcomes.open == 0


@pytest.mark.parametrize("may_have_started", [False, True])
def test_a_caller_is_not_left_in_doubt_about_what_nobody_received(outcomes, checker, clock, may_have_started):
    request = begin(outcomes)
    outcomes.reached("r1", heard=False)
    clock.now = 1.0
    outcomes.failed(request, "worker_lost", may_have_started=may_have_started)
    assert laws(checker) == ["doubt"] * may_have_started


@pytest.mark.parametrize("reason", ["heard", "lost on the way", "just now", "not sent"])
def test_there_may_be_doubt_about_what_somebody_may_have_received(outcomes, checker, clock, excused, reason):
    request = begin(outcomes)
    if reason != "not sent":
        outcomes.reached("r1", heard=reason == "heard")
        outcomes.reached("r1", heard=False)
    excused |= {"r1"} if reason == "lost on the way" else set()
    clock.now = 0.01 if reason == "just now" else 1.0
    outcomes.failed(request, "worker_lost", may_have_started=True)
    assert laws(checker) == []


def test_who_lives_is_not_told_to_be_lost(outcomes, checker):
    outcomes.failed(begin(outcomes), "worker_lost", may_have_started=True, lost="dead")
    assert laws(checker) == []
    request = outcomes.begin("r2", "c0.1", idempotent=False, timeout_s=3.0)
    outcomes.failed(request, "worker_lost", may_have_started=True, lost="living")
    assert laws(checker) == ["loss"]


def test_what_is_lost_is_told_by_its_error():
    lost = WorkerLost("w1 vanished with the task", details={"worker": "alpha.w1"})
    assert lost_worker(lost) == "w1"
    assert lost_worker(Saturated("no room", details={"worker": "alpha.w1"})) is None
