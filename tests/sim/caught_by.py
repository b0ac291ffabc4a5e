"""For each planted bug, the seed that catches it with the least work: what the quick suite tries first.

A seed is only a hint. It stands in `caught_by.json`; should it no longer catch its bug, the test looks through all
seeds and says so. The whole suite does not read it. To make the file anew:

    python -m tests.sim.caught_by
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from . import aim_mutants, clock_mutants, durable_mutants, gang_mutants
from .mutants import MUTANTS

FILE: Final = Path(__file__).with_suffix(".json")
LEAST: Final = 15
"""So many plans are played even if the first of them catches it: a later one may be cheaper."""

MOST_CPU_S: Final = 3.0
"""A plan that takes longer is no hint; with some bugs a few never end."""


assert gang_mutants and durable_mutants and clock_mutants and aim_mutants, "declare their own among MUTANTS"


class TooLong(KeyboardInterrupt):
    """Goes through the loop and its tasks as no other kind of exception does."""


def _too_long(*_: object) -> None:
    raise TooLong


def hints() -> dict[str, int]:
    """Seeds by the mutants' ids."""
    found: dict[str, int] = json.loads(FILE.read_text())
    return found


def cheapest(name: str) -> tuple[str, int | None, int]:
    """The id, the seed that catches it in the fewest turns of the loop (None: none does), and how many those are."""
    logging.disable()
    mutant = next(each for each in MUTANTS if each.id == name)
    best: tuple[int, int] | None = None
    signal.signal(signal.SIGVTALRM, _too_long)
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        for played, plan in enumerate(mutant.plans()):
            if played >= LEAST and best is not None:
                break
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
            try:
                report = mutant.play(plan)
            except TooLong:
                continue
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if mutant.catches(report) and (best is None or report.callbacks < best[0]):
                best = (report.callbacks, plan.seed)
    return (name, None, 0) if best is None else (name, best[1], best[0])


def main(only: list[str]) -> int:
    ids = [mutant.id for mutant in MUTANTS]
    if unknown := set(only) - set(ids):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    known = hints() if FILE.exists() else {}
    with ProcessPoolExecutor() as pool:
        for name, seed, turns in pool.map(cheapest, only or ids):
            print(f"{name}: {'got away' if seed is None else f'seed {seed}, {turns} turns'}", flush=True)
            known.pop(name, None)
            if seed is not None:
                known[name] = seed
    FILE.write_text(json.dumps({name: known[name] for name in ids if name in known}, indent=2) + "\n")
    return 0 if known.keys() >= set(ids) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
