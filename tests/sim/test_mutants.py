"""The checker catches planted bugs: for each law, several ways to break it. One that gets away means that the plans or
the checker are too weak.

The seeds in `caught_by.json` are tried first, then all from the first.
"""

from __future__ import annotations

import warnings

import pytest

from .caught_by import hints
from .mutants import MUTANTS, Mutant

HINTS = hints()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what is broken off
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_simulator_catches(mutant: Mutant, monkeypatch, caplog):
    caplog.set_level("CRITICAL")
    known = HINTS.get(mutant.id, [])
    mutant.plant(monkeypatch)
    seen = []
    for plan in mutant.likely(known):
        report = mutant.play(plan)
        seen += [str(violation) for violation in report.violations[:1]]
        if mutant.catches(report):
            if plan.seed not in known:
                warnings.warn(f"caught by seed {plan.seed}, not {known}: run tests.sim.caught_by", stacklevel=1)
            return
    pytest.fail(f"{mutant.id} got away in {mutant.seeds} seeds; other laws broken: {seen[:5]}")


@pytest.mark.long
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.id in HINTS], ids=lambda mutant: mutant.id)
def test_each_hint_is_among_the_seeds_that_must_catch_the_bug(mutant: Mutant):
    missing = set(HINTS[mutant.id])
    for plan in mutant.plans():
        missing.discard(plan.seed)
        if not missing:
            return
    pytest.fail(f"not among the first {mutant.seeds} plans: {sorted(missing)}; run tests.sim.caught_by")


def test_a_hint_only_changes_what_is_tried_first():
    mutant = next(mutant for mutant in MUTANTS if mutant.seeds < 100)
    usual = [plan.seed for plan in mutant.plans()]
    assert [plan.seed for plan in mutant.likely([])] == usual
    likely = [plan.seed for plan in mutant.likely([usual[7], usual[3]])]
    assert likely == [usual[7], usual[3], *(seed for seed in usual if seed not in (usual[7], usual[3]))]


def test_a_hint_whose_plan_cannot_show_the_bug_is_passed_over():
    mutant = next(mutant for mutant in MUTANTS if mutant.seeds < 100 and not mutant.needs(mutant.draw(0)))
    assert next(mutant.likely([0])).seed == next(mutant.plans()).seed != 0


def test_every_law_has_planted_bugs_and_those_of_the_design_have_two():
    planted = [mutant.law for mutant in MUTANTS]
    for law in ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11", "L12"):
        assert planted.count(law) >= 2, law
    also = {
        "outcome",
        "doubt",
        "loss",
        "hang",
        "fence",
        "per-key",
        "order",
        "turn",
        "idle",
        "max-running",
        "declared",
        "rate",
        "roll",
        "roll-out",
        "busy",
        "secret",
        "board",
        "limit-waits",
        "listed",
    }
    assert set(planted) >= also
