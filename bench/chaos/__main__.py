"""Faults on the whole system in real processes, drawn from a seed, judged by what every process wrote down.

    make chaos                              ten minutes of faults, of a seed that is drawn and told
    python -m bench.chaos --seed 7 --minutes 2
    python -m bench.chaos --seed 7 --only twins,"kill server" --keep /tmp/records

A cluster of three nats-servers with a proxy on every link, two coordinators, two dispatchers, four workers of four
slots, and three clients that ask for all there is. Processes are killed, frozen, doubled, restarted and cut off;
servers are killed, frozen, cut off and lose their disks. Everything is on 127.0.0.1 and ends with this command. The
same seed plays the same faults; their exact moments depend on the machine. Exit code 1: a law was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import sys
from pathlib import Path

from bench.chaos.faults import FAULTS
from bench.chaos.report import tables
from bench.chaos.run import chaos
from gangline.cli.session import run


def _say(line: str) -> None:
    print(line, flush=True)


async def _play(given: argparse.Namespace, seed: int, only: tuple[str, ...]) -> bool:
    """Whether all laws held."""
    _say(f"seed {seed}, {given.minutes:g} minutes of faults")
    outcome = await chaos(seed, given.minutes, say=_say, only=only, keep=given.keep)
    _say("")
    _say(tables(outcome.played, outcome.history, outcome.verdicts))
    for note in outcome.notes:
        _say(f"note: {note}")
    again = f"python -m bench.chaos --seed {seed} --minutes {given.minutes:g}"
    _say(f"\n{'BROKEN' if outcome.broken else 'all laws held'}; again: {again}")
    return not outcome.broken


async def _play_all(given: argparse.Namespace, first: int, only: tuple[str, ...]) -> int:
    me = asyncio.current_task()
    assert me is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # however often: the end is not to be cut short
        asyncio.get_running_loop().add_signal_handler(number, me.cancel)
    held = [await _play(given, seed, only) for seed in range(first, first + given.seeds)]
    return 0 if all(held) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="what faults, on whom, in which order; drawn if not given")
    parser.add_argument("--seeds", type=int, default=1, help="play so many, one after the other (1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults go on, for each seed (10)")
    parser.add_argument("--only", default="", help=f"kinds of faults: {', '.join(FAULTS)}")
    parser.add_argument("--keep", type=Path, help="leave all records and logs in this folder")
    given = parser.parse_args()
    only = tuple(kind.strip() for kind in given.only.split(",") if kind.strip())
    unknown = [kind for kind in only if kind not in FAULTS]
    if unknown or given.minutes < 0 or given.seeds < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--minutes and --seeds must not be negative")
    logging.getLogger("gangline").setLevel(logging.ERROR)  # that our own connection comes and goes is no news
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    try:
        return run(_play_all(given, seed, only))
    except asyncio.CancelledError:
        return 130


if __name__ == "__main__":
    sys.exit(main())
