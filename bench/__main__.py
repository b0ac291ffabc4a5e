"""`python -m bench`: measure everything, and write it to bench/results/latest.json."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gangline.bench.run import FULL, QUICK, run
from gangline.bench.table import rows
from gangline.cli.session import run as run_loop

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter loads")
    parser.add_argument("--json", action="store_true", help="print JSON, not a table")
    given = parser.parse_args()
    results = run_loop(run(QUICK if given.quick else FULL, report=print if not given.json else lambda _: None))
    found = results.to_json()
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(found, indent=2) + "\n")
    if given.json:
        print(json.dumps(found))
        return
    for row in rows(results):
        print(" | ".join(f"{cell:<28}" for cell in row))


if __name__ == "__main__":
    main()
