"""The checker catches planted bugs: for each law, several ways to break it. One that gets away means that the plans or
the checker are too weak."""

from __future__ import annotations

import pytest

from gangline.testing.sim.run import run

from . import durable_mutants, gang_mutants
from .mutants import MUTANTS, Mutant

assert gang_mutants and durable_mutants, "declare their own among MUTANTS"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what is broken off
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_simulator_catches(mutant: Mutant, monkeypatch, caplog):
    caplog.set_level("CRITICAL")
    mutant.plant(monkeypatch)
    seen = []
    for plan in mutant.plans():
        report = run(plan.seed, plan=plan)
        seen += [str(violation) for violation in report.violations[:1]]
        if any(violation.law == mutant.law for violation in report.violations):
            return
    pytest.fail(f"{mutant.id} got away in {mutant.seeds} seeds; other laws broken: {seen[:5]}")


def test_every_law_of_the_issue_has_two_mutants():
    planted = [mutant.law for mutant in MUTANTS]
    for law in ("L1", "L2", "L3", "L4", "L5", "L6", "L7", "L8", "L9", "L10", "L11", "L12"):
        assert planted.count(law) >= 2, law
