"""Seeds with gangs and without planted bugs: no law is broken."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from gangline.testing.sim.plan.gang_draw import draw_gang_plan
from gangline.testing.sim.plan.gang_plan import Breaking, GangKind
from gangline.testing.sim.plan.histories import (
    draw_lost_ledger_plan,
    draw_repairs_plan,
    draw_roll_plan,
    is_busy_when_the_ledger_is_lost,
)
from gangline.testing.sim.plan.plan import COORDINATOR_FAULTS, draw_plan
from gangline.testing.sim.run import run, total_outcomes

from ..scale import repetitions

FIRST = int(os.environ.get("SIM_FROM", "0"))
SEEDS = int(os.environ.get("SIM_GANG_SEEDS", repetitions(0, whole=12)))
QUICK = [3, 6, 9]
"""All that befalls gangs befalls some of these."""

BATCHES = [range(FIRST + first, FIRST + first + 25) for first in range(0, SEEDS, 25)] or [QUICK]


@pytest.mark.parametrize("seeds", BATCHES, ids=str)
def test_no_law_is_broken_by_gangs(seeds):
    reports = [run(seed, gangs=True) for seed in seeds]
    broken = [str(report) for report in reports if not report.ok]
    assert not broken, "\n\n".join(broken)
    # A simulation in which nothing happens breaks no law either.
    befell: Counter[str] = Counter()
    for report in reports:
        befell.update(report.gangs)
    assert (
        min(befell["formed"], befell["members"]) > 2 * len(reports) and befell["torn: released"] and befell["meetings"]
    )
    assert befell["torn: owner_lost"] and befell["torn: worker_lost"] and befell["torn: replaced"]
    assert total_outcomes(reports)["acquired"] > len(reports) * 2 / 5


@pytest.mark.parametrize("seed", range(FIRST, FIRST + repetitions(1, whole=6)))
@pytest.mark.parametrize("draw", [draw_repairs_plan, draw_roll_plan])
def test_no_law_is_broken_by_a_second_fault_during_a_repair(draw, seed):
    report = run(seed, plan=draw(seed))
    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + int(os.environ.get("SIM_LOST", repetitions(2, whole=10)))))
def test_no_law_is_broken_and_no_gang_ends_when_the_ledger_is_lost(seed):
    report = run(seed, plan=draw_lost_ledger_plan(seed))
    assert report.ok, str(report)
    if not is_busy_when_the_ledger_is_lost(seed):
        assert report.gangs == {"formed": 6, "torn down": 6, "torn: replaced": 2, "torn: released": 1}, "2 members each"


def test_plans_with_gangs_are_those_without_and_more():
    for seed in range(20):
        plain, plan = draw_plan(seed), draw_gang_plan(seed)
        assert plan == draw_gang_plan(seed) and plan.gangs is not None and plain.gangs is None
        assert set(plan.steps) <= set(plain.steps) and set(plain.events) <= set(plan.events)
        assert [worker.name for worker in plain.workers] == [w.name for w in plan.workers[: len(plain.workers)]]
        if plain.calm:
            assert plan.calm


def test_plans_hold_every_kind_of_gang_and_of_trouble():
    plans = [draw_gang_plan(seed) for seed in range(100)]
    traffic = [plan.gangs for plan in plans if plan.gangs is not None]
    steps = [step for gangs in traffic for step in gangs.steps]
    assert {step.kind for step in steps} == set(GangKind)
    assert {step.breaking for step in steps} == set(Breaking)
    assert {len(gangs.coordinators) for gangs in traffic} == {1, 2, 3}
    assert {event.accident for plan in plans for event in plan.events} >= set(COORDINATOR_FAULTS)
