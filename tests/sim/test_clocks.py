"""Seeds in processes whose clocks differ, without planted bugs: no law is broken."""

from __future__ import annotations

import os

import pytest

from gangline.runtime.timers import CLOCKS_DIFFER
from gangline.testing.sim.plan.durable_draw import draw_durable_plan
from gangline.testing.sim.plan.gang_draw import draw_gang_plan
from gangline.testing.sim.plan.plan import draw_plan
from gangline.testing.sim.plan.variants import FASTEST, SLOWEST, draw_machine, with_clocks
from gangline.testing.sim.run import run, total_outcomes

from ..scale import repetitions

FIRST = int(os.environ.get("SIM_FROM", "0"))
SEEDS = {
    "plain": int(os.environ.get("SIM_SEEDS", repetitions(2, whole=10))),
    "gangs": int(os.environ.get("SIM_GANG_SEEDS", repetitions(1, whole=6))),
    "durable": int(os.environ.get("SIM_DURABLE_SEEDS", 6)),
}
KINDS = {"plain": {}, "gangs": {"gangs": True}, "durable": {"durable": True}}


BATCHES = [
    pytest.param(
        kind, range(first, min(first + 6, FIRST + SEEDS[kind])), marks=[pytest.mark.long] * (kind == "durable")
    )
    for kind in KINDS
    for first in range(FIRST, FIRST + SEEDS[kind], 6)
]


@pytest.mark.parametrize(("kind", "seeds"), BATCHES)
def test_no_law_is_broken_where_clocks_differ(kind, seeds):
    reports = [run(seed, clocks=True, **KINDS[kind]) for seed in seeds]
    broken = [str(report) for report in reports if not report.ok]
    assert not broken, "\n\n".join(broken)
    assert total_outcomes(reports)["ok"]


@pytest.mark.parametrize("draw", [draw_plan, draw_gang_plan, draw_durable_plan])
def test_nothing_but_the_clocks_is_another(draw):
    plan = draw(3)
    assert not plan.clocks and with_clocks(plan).clocks
    assert with_clocks(plan).steps == plan.steps and with_clocks(plan).events == plan.events


def test_machines_differ_as_much_as_is_promised_to_be_borne_and_no_more():
    machines = [draw_machine(seed, "w0", exact=False) for seed in range(50)]
    rates = {machine.monotonic.rate for machine in machines}
    assert (min(rates), max(rates)) == (SLOWEST, FASTEST)
    assert SLOWEST >= FASTEST * (1 - CLOCKS_DIFFER)
    assert any(abs(machine.wrong_s(20.0)) > 60 for machine in machines)
    assert machines[3] == draw_machine(3, "w0", exact=False) != draw_machine(3, "w1", exact=False)


def test_a_machine_whose_clocks_are_kept_right_has_a_right_wall_clock():
    machines = [draw_machine(seed, "d0", exact=True) for seed in range(50)]
    assert all(abs(machine.wrong_s(60.0)) < 0.05 and machine.monotonic.ahead_s > 0 for machine in machines)


def test_a_seed_with_clocks_replays_exactly():
    assert run(3, clocks=True).digest == run(3, clocks=True).digest != run(3).digest
