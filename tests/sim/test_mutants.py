"""The checker catches planted bugs: for each law, several ways to break it. One that gets away means that the plans or
the checker are too weak.

The quick suite plants one bug a law, those of `QUICK`; the whole suite plants all. The seeds in `caught_by.json` are
tried first, then all from the first.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from .caught_by import hints
from .mutants import MUTANTS, Mutant

QUICK: Final = {
    "L1": "one-slot-too-many-is-granted",
    "L2": "a-failing-use-of-a-lease-keeps-its-slots",
    "L3": "a-single-use-token-stays-good-after-its-task",
    "L4": "nothing-expires-by-itself",
    "L5": "a-freeze-goes-unnoticed",
    "L6": "the-ledger-is-written-when-there-is-time",
    "L7": "the-last-member-is-forgotten",
    "L8": "a-restart-has-the-number-of-what-it-replaces",
    "L9": "whoever-claims-to-lead-leads",
    "L10": "a-schedule-that-comes-as-a-task-is-run-as-one",
    "L11": "a-drain-leaves-while-tasks-run",
    "L12": "a-router-forgets-to-count-down",
    "board": "slots-are-free-if-the-last-heartbeat-says-so",
    "busy": "a-refused-attach-is-repeated-at-once",
    "declared": "dispatchers-do-not-keep-declared-limits",
    "doubt": "the-servers-word-that-nobody-listens-is-ignored",
    "fence": "a-new-ledger-counts-from-one",
    "hang": "a-reserve-is-awaited-past-its-callers-deadline",
    "idle": "a-lease-that-was-not-had-is-not-asked-for-again",
    "limit": "each-worker-keeps-the-limit-for-itself",
    "limit-rate": "units-of-a-rate-are-given-up-while-they-are-in-use",
    "limit-waits": "a-unit-that-is-idle-is-never-given-up",
    "listed": "a-new-owner-says-that-it-has-read-what-was-there-when-it-took-the-queue",
    "loss": "a-deletion-is-believed-that-storage-refuses",
    "max-running": "what-runs-is-not-counted",
    "order": "whoever-has-room-goes-first",
    "outcome": "a-duplicate-runs-again",
    "per-key": "one-more-of-a-key-may-run",
    "rate": "nobody-looks-at-the-rate",
    "roll": "a-new-leader-counts-a-failure-that-is-being-repaired-again",
    "roll-out": "a-new-dispatcher-looks-only-at-what-runs",
    "secret": "the-ledger-has-the-tokens-of-seats",
    "tenant": "tenants-take-no-turns",
    "turn": "the-newest-of-a-line-starts",
}
"""For each law, the bug that is caught with the least work."""

HINTS: Final = hints()


def planted(mutant: Mutant) -> Any:
    return pytest.param(mutant, id=mutant.id, marks=() if QUICK[mutant.law] == mutant.name else pytest.mark.long)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what is broken off
@pytest.mark.parametrize("mutant", [planted(mutant) for mutant in MUTANTS])
def test_the_simulator_catches(mutant: Mutant, monkeypatch, caplog):
    caplog.set_level("CRITICAL")
    mutant.plant(monkeypatch)
    others = []
    for plan in mutant.likely(HINTS.get(mutant.id, [])):
        report = mutant.play(plan)
        if mutant.catches(report):
            return
        others += [str(violation) for violation in report.violations[:1]]
    pytest.fail(f"{mutant.id} got away in {mutant.seeds} seeds; other laws broken: {others[:5]}")


def test_each_law_has_a_planted_bug_in_the_quick_suite_and_those_of_the_design_have_two():
    assert QUICK.keys() == {mutant.law for mutant in MUTANTS}
    assert {f"{law}-{name}" for law, name in QUICK.items()} <= {mutant.id for mutant in MUTANTS}
    laws = [mutant.law for mutant in MUTANTS]
    assert [law for law in (f"L{number}" for number in range(1, 13)) if laws.count(law) < 2] == []


def test_a_hint_only_changes_what_is_tried_first():
    mutant = next(mutant for mutant in MUTANTS if mutant.seeds < 100 and not mutant.needs(mutant.draw(0)))
    usual = [plan.seed for plan in mutant.plans()]
    assert 0 not in usual and [plan.seed for plan in mutant.likely([])] == usual
    likely = [plan.seed for plan in mutant.likely([usual[7], 0, usual[3]])]  # the plan of 0 cannot show the bug
    assert likely == [usual[7], usual[3], *(seed for seed in usual if seed not in (usual[7], usual[3]))]
