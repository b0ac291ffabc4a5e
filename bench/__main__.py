"""`python -m bench`: measure everything, including peers; results go to bench/results/.

All named figures are in one JSON object, `bench/results/all.json`; `--json` prints it as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from bench import report
from bench.peers import run as peers
from bench.peers.store import RESULTS, save
from gangline.bench.run import FULL, LONG, run
from gangline.bench.table import rows
from gangline.cli.console.session import run as run_loop


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter loads")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    parser.add_argument("--no-peers", action="store_true", help="only figures that need no peers")
    parser.add_argument("--docs", action="store_true", help="also write the page and the chart for the docs")
    given = parser.parse_args()
    say: Callable[[str], None] = (lambda _: None) if given.json else (lambda line: print(line, flush=True))
    ours = run_loop(run(FULL if given.quick else LONG, report=say))
    save("latest", ours.to_json())
    if not given.no_peers:
        save("peers", run_loop(peers.run(peers.QUICK if given.quick else peers.FULL, report=say)))
    found = report.together()
    save("all", found)
    if given.docs:
        report.write()
    if given.json:
        print(json.dumps(found))
        return
    for row in rows(ours):
        print(" | ".join(f"{cell:<28}" for cell in row))
    if not given.no_peers:
        _peers(found)
    print(f"all of it: {RESULTS / 'all.json'}")


def _peers(found: dict[str, Any]) -> None:
    for name in peers.NAMES:
        value = found["figures"].get(name)
        print(f"{name:<32} {'not measured' if value is None else f'{value:g}'}")
    for name, why in found["peers"]["missing"].items():
        print(f"without {name}: {why}")


if __name__ == "__main__":
    main()
