"""The kinds of faults that are drawn."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bench.chaos.faults import FAULTS, SERVER_FAULTS, order
from bench.chaos.system import System


@pytest.mark.parametrize("kind", FAULTS)
def test_a_seed_draws_the_same_fault_again(kind: str, tmp_path: Path) -> None:
    system = System(tmp_path, 1)
    texts = [FAULTS[kind](system, Random(seed))[0] for seed in (1, 1)]
    assert texts[0] == texts[1]


def test_every_kind_comes_once_before_any_comes_twice() -> None:
    assert sorted(order(5)) == sorted(FAULTS)
    assert order(5) == order(5)
    assert {tuple(order(seed)) for seed in range(5)} != {tuple(order(5))}
    assert set(FAULTS) >= SERVER_FAULTS


def test_kinds_can_be_named() -> None:
    assert sorted(order(5, ("twins", "nothing"))) == ["nothing", "twins"]
