from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from gangline.coordinator.model.events import Cause
from gangline.coordinator.model.gang import (
    FINAL,
    TRANSITIONS,
    GangStep,
    Move,
    RestartDecision,
    backoff_s,
    decide,
    move,
    states_diagram,
)
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.runtime.state_machine import IllegalMove
from gangline.schemas.records.gangs import GangSpec

from ...support.rows import in_rows

SETTINGS = CoordinatorSettings()


def verdict(cause: Cause, *, failures: int = 0, some_left: bool = True, repairing: bool = False, **spec: object):
    asked = GangSpec.model_validate({"pool": "p", "size": 2, **spec})
    how = {"some_left": some_left, "repairing": repairing}
    return decide(asked, cause, failures=failures, streak=failures, draw=0.5, settings=SETTINGS, **how)


def test_restart_gang_is_the_default():
    assert verdict(Cause.CRASHED).fate is RestartDecision.RESTART


def test_restart_member_repairs_and_a_failed_repair_restarts_the_gang():
    first, second = (verdict(Cause.CRASHED, restart="restart_member", failures=failures) for failures in (0, 1))
    assert (first.fate, first.delay_s, second.fate) == (RestartDecision.REPAIR, 0.0, RestartDecision.REPAIR)
    assert second.delay_s == verdict(Cause.CRASHED).delay_s > 0, "repaired at once, and then with the backoff"
    for worse in ({"repairing": True, "some_left": False}, {"some_left": False}):
        found = verdict(Cause.CRASHED, restart="restart_member", failures=1, **worse)
        assert found.fate is RestartDecision.RESTART and found.delay_s > 0
    late = verdict(Cause.NOT_REPAIRED, restart="restart_member", failures=1, repairing=True)
    assert (late.fate, late.counted) == (RestartDecision.RESTART, False) and late.delay_s > 0
    for cause, fate in ((Cause.CRASHED, RestartDecision.REPAIR), (Cause.PREEMPTED, RestartDecision.RESTART)):
        found = verdict(cause, restart="restart_member", failures=1, repairing=True)
        assert (found.fate, found.counted, found.delay_s) == (fate, False, 0.0)


@in_rows("cause", [cause for cause in Cause if cause not in FINAL])
def test_fail_ends_at_any_failure(cause):
    assert verdict(cause, restart="fail").fate is RestartDecision.END


@in_rows(("cause", "policy"), itertools.product(sorted(FINAL), ["restart_gang", "restart_member", "fail"]))
def test_nothing_brings_back_what_nobody_wants(cause, policy):
    assert verdict(cause, restart=policy).fate is RestartDecision.END


def test_the_bound_counts_failures_of_the_gang():
    assert verdict(Cause.CRASHED, failures=2, max_restarts=3).fate is RestartDecision.RESTART
    assert verdict(Cause.CRASHED, failures=3, max_restarts=3).fate is RestartDecision.END
    assert verdict(Cause.CRASHED, failures=0, max_restarts=0).fate is RestartDecision.END
    assert verdict(Cause.CRASHED, failures=10_000, max_restarts=None).fate is RestartDecision.RESTART


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.DRAINED])
def test_what_is_planned_is_not_counted_and_not_delayed(cause):
    found = verdict(cause, failures=3, max_restarts=3)
    assert (found.fate, found.counted, found.delay_s) == (RestartDecision.RESTART, False, 0.0)


def test_the_backoff_doubles_with_jitter_up_to_its_bound():
    spec = GangSpec.model_validate({"pool": "p", "size": 2, "backoff_s": 1.0})
    assert [backoff_s(spec, streak, 1.0, SETTINGS) for streak in (0, 1, 2, 10, 10_000)] == [1, 2, 4, 30, 30]
    assert backoff_s(spec, 1, 0.0, SETTINGS) == 1.0


@dataclass
class Thing:
    id: str
    step: GangStep


def test_a_move_that_the_table_does_not_have_raises_and_changes_nothing():
    for step in GangStep:
        for what in Move:
            thing = Thing("g", step)
            if (step, what) in TRANSITIONS:
                move(thing, what)
                assert thing.step is TRANSITIONS[step, what]
            else:
                with pytest.raises(IllegalMove, match=f"gang g cannot be {what.value} while it is {step.value}"):
                    move(thing, what)
                assert thing.step is step


def reachable(start: GangStep) -> set[GangStep]:
    found = {start}
    while True:
        more = {after for (before, _), after in TRANSITIONS.items() if before in found} | found
        if more == found:
            return found
        found = more


def test_every_step_can_be_reached_and_every_step_can_end():
    assert reachable(GangStep.QUEUED) == set(GangStep)
    assert all(GangStep.ENDED in reachable(step) for step in GangStep)
    assert not [before for before, _ in TRANSITIONS if before is GangStep.ENDED]


def test_the_diagram_has_every_transition():
    lines = states_diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert len(lines) == len(TRANSITIONS) + 3
    assert "    holding --> committing: held" in lines
