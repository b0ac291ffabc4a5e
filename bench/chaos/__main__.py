"""Faults on the whole system in real processes, drawn from a seed, judged by what every process recorded.

    make chaos                              ten minutes of faults, with a random seed that is printed
    python -m bench.chaos --seed 7 --minutes 2
    python -m bench.chaos --seed 7 --only twins,"kill server" --keep /tmp/records
    python -m bench.chaos --seeds 1-20 --minutes 3
                                            one after the other, with one table of all at the end

A cluster of three nats-servers with a proxy on every link, two coordinators, two dispatchers, four workers of four
slots, and three clients that use all features. Processes are killed, frozen, duplicated, restarted and cut off, and
lose their rights on the servers; links are slow and jitter; clients ask for up to 50 times as much as there are slots;
servers are killed, frozen, cut off, lose their disks, are all away, and have no room. The ledger of odd seeds is in
memory, that of even ones on disk. Everything runs on 127.0.0.1 and ends with this command. The same seed produces the
same faults; their exact moments depend on the machine. Exit code 1: a law was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
import traceback
from pathlib import Path

from bench.chaos.faults import FAULTS
from bench.chaos.report import Seed, summary, tables
from bench.chaos.run import chaos
from gangline.cli.console.session import run


def _say(line: str) -> None:
    print(line, flush=True)


async def _play(given: argparse.Namespace, seed: int, only: tuple[str, ...]) -> Seed:
    _say(f"seed {seed}, {given.minutes:g} minutes of faults")
    outcome = await chaos(seed, given.minutes, say=_say, only=only, keep=_folder(given, seed))
    _say("")
    _say(tables(outcome.played, outcome.history, outcome.verdicts))
    for note in outcome.notes:
        _say(f"note: {note}")
    again = f"python -m bench.chaos --seed {seed} --minutes {given.minutes:g}"
    _say(f"\n{'BROKEN' if outcome.broken else 'all laws held'}; again: {again}")
    return Seed.of(seed, given.minutes, outcome.played, outcome.history, outcome.verdicts)


def _folder(given: argparse.Namespace, seed: int) -> Path | None:
    keep: Path | None = given.keep
    return keep if keep is None or len(given.seeds) == 1 else keep / str(seed)


async def _play_all(given: argparse.Namespace, only: tuple[str, ...]) -> int:
    """Exit code 1: a law was broken, or a run did not finish."""
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # ignore repeated signals: the cleanup must not be interrupted
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    done: list[Seed] = []
    try:
        for seed in given.seeds:
            try:
                done.append(await _play(given, seed, only))
            except Exception as error:  # an error of this run; the others still run
                text = f"NO VERDICT: {type(error).__name__}: {error}"
                _say(f"seed {seed}: {text}\n{traceback.format_exc()}")
                failed = Seed(seed=seed, minutes=given.minutes, played=(), outcomes={}, verdicts={}, failed=text)
                done.append(failed)
    finally:
        if len(given.seeds) > 1 and done:  # also for the runs done so far if it is interrupted
            _say(f"\n{summary(done)}")
    return 0 if all(seed.held for seed in done) else 1


def _seeds(text: str) -> list[int]:
    """`7`, `1-20` or `3,5,9-12`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(text)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="determines the faults, their targets and order; random if not given")
    parser.add_argument("--seeds", type=_seeds, help="several, one after the other: 1-20, or 3,5,9-12")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults continue, per seed (10)")
    parser.add_argument("--only", default="", help=f"kinds of faults: {', '.join(FAULTS)}")
    parser.add_argument("--keep", type=Path, help="leave all records and logs in this folder")
    given = parser.parse_args()
    only = tuple(kind.strip() for kind in given.only.split(",") if kind.strip())
    unknown = [kind for kind in only if kind not in FAULTS]
    if unknown or given.minutes < 0:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--minutes must not be negative")
    if given.seed is not None and given.seeds is not None:
        parser.error("give --seed or --seeds")
    logging.getLogger("gangline").setLevel(logging.ERROR)  # do not log that our own connection is lost and restored
    given.seeds = given.seeds or [random.randrange(1_000_000) if given.seed is None else given.seed]
    try:
        return run(_play_all(given, only))
    except asyncio.CancelledError:
        return 130


if __name__ == "__main__":
    sys.exit(main())
