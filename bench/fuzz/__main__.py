"""Hostile messages to every kind of subject ("door") of a running system, determined by a seed.

    make fuzz                               one seed, ten minutes; the seed is printed
    python -m bench.fuzz --seeds 1-20 --minutes 10
    python -m bench.fuzz --seed 7 --count 5000 --only frames,gateway --keep /tmp/logs

A nats-server, a coordinator, a dispatcher, a gateway and two workers run in their own processes, all on 127.0.0.1.
First, users of each role send the headers that the server itself obeys (batches, schedules, rollup and so on), and an
observer compares all streams and the wire with what their permissions allow. Then valid messages for every door are
mutated in structure and bytes; valid requests in between must be served. Now and then the coordinator, the dispatcher
or the gateway does not run for 2.5 s. Exit code 1: something happened that the sender's permissions do not allow, a
process exited, an exception was not handled, a request was not answered, memory grew, something was left behind, or a
log was flooded. A seed always produces the same messages; their timing, and the ids of the system, differ.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path

from bench.fuzz.run import fuzz
from gangline.cli.console.session import run


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


async def _all(given: argparse.Namespace) -> int:
    broken = total = 0
    for seed in given.seed:
        keep = None if given.keep is None else given.keep / str(seed)
        only = tuple(filter(None, given.only.split(",")))
        verdict = await fuzz(seed, seconds=60 * given.minutes, most=given.count, only=only, keep=keep)
        print(f"seed {seed}: {verdict.text()}\n", flush=True)
        total += verdict.sent.total()
        broken += bool(verdict.findings)
    print(f"{total} messages, {len(given.seed)} seeds, {broken} broken")
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", "--seeds", type=_seeds, help="one, or a range: 1-20; random if not given")
    parser.add_argument("--minutes", type=float, default=1.0, help="per seed, at most (1)")
    parser.add_argument("--count", type=int, help="messages per seed, at most")
    parser.add_argument("--only", default="", help="doors, separated by commas")
    parser.add_argument("--keep", type=Path, help="leave the logs in this folder")
    given = parser.parse_args()
    given.seed = given.seed or [random.randrange(1_000_000)]
    logging.getLogger("gangline").setLevel(logging.ERROR)
    return run(_all(given))


if __name__ == "__main__":
    sys.exit(main())
