"""A seed replays exactly, also in another process, where sets have another order."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import pytest

from gangline.testing.sim.run import run

from .mutants import MUTANTS

KINDS = {"plain": {}, "gangs": {"gangs": True}, "durable": {"durable": True}}
SEEDS = {"plain": 7, "gangs": 6, "durable": 3}
HASHES = ("4242", "1")
SCRIPT = """
import json, sys
from gangline.testing.sim.run import run
print(json.dumps([run(seed, **kind).digest for seed, kind in json.loads(sys.argv[1])]))
"""


@pytest.mark.long
@pytest.mark.parametrize("hashes", HASHES)
def test_seeds_replay_in_another_process_with_other_hashes(hashes):
    """One process for all kinds of plans: a new interpreter, since hashes are settled when it starts."""
    plans = [(seed, KINDS[kind]) for kind, seed in SEEDS.items()]
    here = [run(seed, **kind).digest for seed, kind in plans]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(plans)],
        env=os.environ | {"PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == here
    assert len(set(here)) == len(plans)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("plain", 3),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("plain", 14), ("gangs", 32), ("durable", 8))),
    ],
)
def test_a_seed_replays_exactly(kind, seed):
    assert run(seed, **KINDS[kind]).digest == run(seed, **KINDS[kind]).digest


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_seed_that_ends_in_unhandled_exceptions_replays_whenever_garbage_is_collected(monkeypatch, caplog):
    """A task whose exception nobody looks at is garbage, and when that is collected depends on what ran before."""
    caplog.set_level("CRITICAL")
    mutant = next(each for each in MUTANTS if each.name == "a-duplicate-runs-again")
    usual = gc.get_threshold()
    mutant.plant(monkeypatch)
    plan = mutant.draw(3)
    digests = set()
    try:
        for threshold in (1_000_000, 900, 700, 500, 300, 5):
            gc.set_threshold(threshold, 10, 10)
            digests.add(mutant.play(plan).digest)
    finally:
        gc.set_threshold(*usual)
    assert len(digests) == 1
