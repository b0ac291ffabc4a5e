"""What a chaos run prints, and which seeds it is asked for."""

from __future__ import annotations

import pytest

from bench.chaos.__main__ import _seeds
from bench.chaos.report import Played, Seed, summary
from gangline.testing.kit.records import SentRequest, SystemHistory


def played(kind: str, recovery_s: float | None) -> Played:
    return Played(kind=kind, text=kind, at_s=1.0, took_s=1.0, recovery_s=recovery_s)


def seed(number: int, *faults: Played, broken: tuple[str, ...] = ()) -> Seed:
    told = SentRequest(id="c1", kind="call", pid=1, asked=1.0, due=2.0, ok=True, answers=1)
    return Seed.of(number, 3.0, faults, SystemHistory(requests=[told]), {"L1 capacity": broken, "L6 ledger": ()})


def test_many_seeds_are_summed_up_by_kind_of_fault() -> None:
    seeds = [
        seed(1, played("twins", 2.0), played("delay", 1.0)),
        seed(2, played("twins", 4.0), played("twins", 9.0), broken=("5 slots of w1",)),
        seed(3, played("delay", None)),
    ]
    text = summary(seeds)
    lines = [line.split() for line in text.splitlines()]
    assert ["twins", "3", "4.0", "s", "9.0", "s"] in lines
    assert ["delay", "2", "1.0", "s", "1.0", "s", "1"] in lines
    assert ["call", "3", "ok", "3"] in lines
    assert ["2", "2", "6.5", "s", "9.0", "s", "1", "BROKEN", "L1", "capacity", "1"] in lines
    assert "BROKEN L1 capacity: seed 2: 5 slots of w1" in text
    assert text.endswith("2 of 3 seeds held all laws, 9 minutes of faults")


def test_a_run_without_a_verdict_holds_nothing() -> None:
    failed = Seed(seed=4, minutes=3.0, played=(), outcomes={}, verdicts={}, failed="NO VERDICT: TimeoutError")
    assert not failed.held
    assert "NO VERDICT" in summary([failed]) and "0 of 1" in summary([failed])


@pytest.mark.parametrize(("text", "seeds"), [("7", [7]), ("1-4", [1, 2, 3, 4]), ("3,5, 9-11", [3, 5, 9, 10, 11])])
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert _seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "4-1"])
def test_what_names_no_seed_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        _seeds(text)
