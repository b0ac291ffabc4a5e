"""Seeds with accidents that are aimed at steps of gangs, standing sets and streams: no law is broken."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import pytest

from gangline.testing.sim.plan.gang_draw import draw_gang_plan
from gangline.testing.sim.plan.plan import OF_OWNERS, Accident, Moment, draw_plan
from gangline.testing.sim.plan.variants import AIMED_AT, draw_aims, with_aims
from gangline.testing.sim.run import run
from gangline.testing.sim.stage.stage import Aimer

from ..scale import repetitions

FIRST = int(os.environ.get("SIM_FROM", "0"))
SEEDS = {
    "plain": int(os.environ.get("SIM_SEEDS", repetitions(1, whole=6))),
    "gangs": int(os.environ.get("SIM_GANG_SEEDS", repetitions(1, whole=10))),
}


@pytest.mark.parametrize(("kind", "seed"), [(kind, FIRST + seed) for kind in SEEDS for seed in range(SEEDS[kind])])
def test_no_law_is_broken_by_accidents_at_the_worst_moments(kind, seed):
    report = run(seed, aims=True, gangs=kind == "gangs")
    assert report.ok, str(report)


def test_all_moments_are_aimed_at_and_owners_are_killed_at_each_of_theirs():
    aims = [aim for seed in range(100) for aim in draw_aims(draw_gang_plan(seed))]
    assert {aim.moment for aim in aims if aim.accident is Accident.SERVER_RESTART} == set(AIMED_AT)
    assert {aim.moment for aim in aims if aim.accident is Accident.CLIENT_CRASH} == set(OF_OWNERS)
    assert {aim.accident for aim in aims if aim.moment is Moment.TO_RUN} == {Accident.PARTITION, Accident.WORKER_CRASH}
    assert {aim.moment for seed in range(20) for aim in draw_aims(draw_plan(seed))} == {Moment.STREAM}


@pytest.mark.long
def test_each_moment_that_is_aimed_at_occurs(monkeypatch):
    passes, seen = Aimer.passes, set()

    def passed(self, moment, gang=""):
        seen.add(moment)
        passes(self, moment, gang)

    monkeypatch.setattr(Aimer, "passes", passed)
    for seed in range(30):
        run(seed, aims=True, gangs=True)
        if seen >= set(AIMED_AT):
            return
    pytest.fail(f"these do not: {set(AIMED_AT) - seen}")


def test_nothing_but_the_aims_is_another():
    more: Counter[int] = Counter()
    for draw, seed in itertools.product((draw_plan, draw_gang_plan), range(20)):
        plan, aimed = draw(seed), with_aims(draw(seed))
        assert not plan.aims and aimed.aims == draw_aims(plan)
        assert (aimed.steps, aimed.events) == (plan.steps, plan.events)
        assert not aimed.calm
        if not any(aim.moment is Moment.TO_RUN for aim in aimed.aims):
            assert aimed.gangs == plan.gangs
            continue
        assert plan.gangs is not None and aimed.gangs is not None
        assert aimed.gangs.steps[:-1] == plan.gangs.steps, "and a gang whose owner is cut off"
        more[seed] += 1
    assert more


@pytest.mark.parametrize(
    "accident", [Accident.CLIENT_CRASH, pytest.param(Accident.SERVER_RESTART, marks=pytest.mark.long)]
)
def test_what_is_aimed_happens(accident):
    """Of the seeds that aim so: an accident of that kind is told at a moment that no event of the plan has."""
    told: Counter[str] = Counter()
    for seed in range(30):
        plan = with_aims(draw_gang_plan(seed))
        kinds = {aim.accident for aim in plan.aims}
        if kinds != {accident} or any(event.accident is accident for event in plan.events):
            continue
        lines: list[str] = []
        run(seed, plan=plan, echo=lines.append)
        told[accident] += sum(f" {accident.value} " in line for line in lines)
        if told[accident]:
            return
    pytest.fail(f"no {accident.value} in 30 seeds")
