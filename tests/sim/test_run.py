"""Seeds without planted bugs: no law is broken."""

from __future__ import annotations

import os
import sys

import pytest

from gangline.testing.sim.__main__ import main
from gangline.testing.sim.plan.histories import draw_absences_plan
from gangline.testing.sim.plan.plan import SERVER_FAULTS, StepKind, draw_plan
from gangline.testing.sim.run import run, total_outcomes

from ..scale import repetitions

SEEDS = int(os.environ.get("SIM_SEEDS", repetitions(6, whole=30)))
FIRST = int(os.environ.get("SIM_FROM", "0"))
BATCH = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BATCH))
def test_no_law_is_broken(first):
    reports = [run(seed) for seed in range(first, min(first + BATCH, FIRST + SEEDS))]
    broken = [str(report) for report in reports if not report.ok]
    assert not broken, "\n\n".join(broken)
    # A simulation in which nothing happens breaks no law either.
    total = total_outcomes(reports)
    assert total["ok"] > 4 * len(reports)
    assert total["cancelled"] and total["deadline_exceeded"] and total["leased"] and total["selection_used"]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + repetitions(1, whole=6)))
def test_no_law_is_broken_by_a_worker_that_is_away_again_and_again(seed):
    report = run(seed, plan=draw_absences_plan(seed))
    assert report.ok, str(report)


def test_plans_are_the_same_every_time_and_differ_by_seed():
    assert draw_plan(5) == draw_plan(5)
    assert len({draw_plan(seed).summary() for seed in range(50)}) > 40


def test_plans_hold_every_kind_of_step_and_some_are_calm():
    plans = [draw_plan(seed) for seed in range(100)]
    assert {step.kind for plan in plans for step in plan.steps} == set(StepKind)
    assert 5 < sum(plan.calm for plan in plans) < 50


def test_some_plans_have_servers_that_fall_silent_or_do_not_hear_each_other():
    plans = [draw_plan(seed) for seed in range(200)]
    for fault in SERVER_FAULTS:
        having = [plan for plan in plans if any(event.accident is fault for event in plan.events)]
        assert 5 < len(having) < 50 and not any(plan.calm for plan in having)
        assert any(event.for_s > 3.5 for plan in having for event in plan.events if event.accident is fault)


def test_the_command_says_what_it_ran(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "2", "--from", "3", "--processes", "1"])
    assert main() == 0
    assert "2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "3"), ("journal start",)),
        pytest.param(("--from", "6", "--gangs"), ("coordinators", "journal form", "gangs: "), marks=pytest.mark.long),
        pytest.param(
            ("--from", "3", "--durable"),
            ("dispatchers", "runs durable tasks", "durable tasks: "),
            marks=pytest.mark.long,
        ),
    ],
)
def test_the_command_shows_every_event_on_request(capsys, monkeypatch, options, words):
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "1", "--trace", *options])
    assert main() == 0
    output = capsys.readouterr().out
    assert [word for word in words if word not in output] == []


def test_the_command_fails_when_a_law_is_broken(capsys, monkeypatch, caplog):
    from gangline.worker.slots.limiter import SlotLimiter

    caplog.set_level("CRITICAL")
    monkeypatch.setattr(SlotLimiter, "release", lambda self, lease: 0)
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "3", "--processes", "1", "--stop"])
    assert main() == 1
    said = capsys.readouterr().out
    assert "laws broken in 1 seeds: 0" in said
    assert "journal grant" in said
