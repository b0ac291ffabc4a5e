"""For each planted bug, the seeds that catch it with the least work: what the suite tries first.

They are only hints. They stand in `caught_by.json`; should none of them catch its bug any more, the test looks through
all seeds, which may take a minute. There are several, since a change of the product changes what happens
in a seed. To make the file anew, for all bugs or for those named:

    python -m tests.sim.caught_by [id ...]
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

from . import clock_mutants, durable_mutants, gang_mutants, limit_mutants
from .mutants import MUTANTS

FILE: Final = Path(__file__).with_suffix(".json")
HINTS: Final = 3
"""So many seeds are kept for a bug."""

LEAST: Final = 15
"""So many plans are played even if the first of them catch it: a later one may be cheaper."""

MOST_CPU_S: Final = 3.0
"""A plan that takes longer is no hint; with some bugs a few never end."""


PLANTED: Final = (gang_mutants, durable_mutants, clock_mutants, limit_mutants)
"""They declare their own among MUTANTS."""


class TooLong(KeyboardInterrupt):
    """Goes through the loop and its tasks as no other kind of exception does."""


def _too_long(*_: object) -> None:
    raise TooLong


def hints() -> dict[str, list[int]]:
    """Seeds by the mutants' ids, the best first."""
    found: dict[str, list[int]] = json.loads(FILE.read_text())
    return found


def cheapest(name: str) -> tuple[str, list[tuple[int, int]]]:
    """The id, and the plans that catch it in the fewest turns of the loop: how many turns, and the seed."""
    logging.disable()
    mutant = next(each for each in MUTANTS if each.id == name)
    known = hints().get(name, []) if FILE.exists() else []
    caught: list[tuple[int, int]] = []
    signal.signal(signal.SIGVTALRM, _too_long)
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        for played, plan in enumerate(mutant.likely(known)):
            if played >= LEAST and caught:
                break
            signal.setitimer(signal.ITIMER_VIRTUAL, MOST_CPU_S)
            try:
                report = mutant.play(plan)
            except TooLong:
                continue
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if mutant.catches(report):
                caught.append((report.callbacks, plan.seed))
    return name, sorted(caught)[:HINTS]


def main(only: list[str]) -> int:
    ids = [mutant.id for mutant in MUTANTS]
    if unknown := set(only) - set(ids):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    known = hints() if FILE.exists() else {}
    with ProcessPoolExecutor() as pool:
        for name, caught in pool.map(cheapest, only or ids):
            print(
                f"{name}: {', '.join(f'seed {seed}, {turns} turns' for turns, seed in caught) or 'got away'}",
                flush=True,
            )
            known.pop(name, None)
            if caught:
                known[name] = [seed for _, seed in caught]
    lines = [f"  {json.dumps(name)}: {json.dumps(known[name])}" for name in ids if name in known]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0 if known.keys() >= set(ids) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
