"""`python -m bench.peers`: measure the peers, and write bench/results/peers.json."""

from __future__ import annotations

import argparse
import json

from gangline.cli.console.session import run as run_loop

from .run import FULL, QUICK, run
from .store import RESULTS, save


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter loads, three rounds")
    parser.add_argument("--only", default="", help="comma-separated systems to measure; default: all")
    given = parser.parse_args()
    only = tuple(name for name in given.only.split(",") if name)
    found = run_loop(run(QUICK if given.quick else FULL, only=only, report=lambda line: print(line, flush=True)))
    save("peers", found)
    print(json.dumps(found["figures"], indent=2))
    print(f"all of it: {RESULTS / 'peers.json'}")


if __name__ == "__main__":
    main()
