"""Seeds in which called tasks declare `max_running`, without planted bugs: no law is broken."""

from __future__ import annotations

import os

import pytest

from gangline.testing.sim.plan.histories import draw_contended_plan
from gangline.testing.sim.plan.plan import draw_plan
from gangline.testing.sim.plan.variants import with_limits
from gangline.testing.sim.run import run, total_outcomes

from ..scale import repetitions

FIRST = int(os.environ.get("SIM_FROM", "0"))
SEEDS = int(os.environ.get("SIM_SEEDS", repetitions(3, whole=10)))


def test_no_law_is_broken_where_limits_hold_over_all_workers():
    reports = [run(seed, limits=True) for seed in range(FIRST, FIRST + SEEDS)]
    broken = [str(report) for report in reports if not report.ok]
    assert not broken, "\n\n".join(broken)
    assert total_outcomes(reports)["ok"] > 5 * len(reports)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + repetitions(1, whole=6)))
def test_who_waits_for_a_unit_gets_one_under_contention(seed):
    report = run(seed, plan=draw_contended_plan(seed))
    assert report.ok, str(report)


def test_nothing_but_the_limits_and_the_calls_of_their_tasks_is_another():
    plan = draw_plan(3)
    limited = with_limits(plan)
    assert not plan.limits and limited.max_running.keys() == {"work", "again"}
    assert limited.events == plan.events and limited.workers == plan.workers
    assert [step.number for step in limited.steps] == [step.number for step in plan.steps]
