"""The command line and the table shared by the suites of scenarios."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping

from bench.faults.figures import Row, table
from bench.faults.trial import Trial
from gangline.cli.console.session import run

Scenario = Callable[[Trial], Awaitable[list[Row]]]


async def _all(scenarios: Mapping[str, Scenario], names: list[str], trial: Trial) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        try:
            rows += await scenarios[name](trial)
        except (AssertionError, TimeoutError) as error:
            rows.append(Row(name=name, broken=[str(error)]))
    return rows


def main(about: str | None, scenarios: Mapping[str, Scenario]) -> int:
    """Run the scenarios given on the command line and print the table; returns 1 if a law was broken or a target was
    missed."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--only", default=",".join(scenarios), help=f"of {', '.join(scenarios)}")
    parser.add_argument("--verbose", action="store_true", help="one line for each repetition, on stderr")
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in scenarios]
    if unknown or given.repetitions < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--repetitions must be at least 1")

    def report(line: str) -> None:
        if given.verbose:
            print(line, file=sys.stderr, flush=True)

    rows = run(_all(scenarios, names, Trial(repetitions=given.repetitions, report=report)))
    print(table(rows))
    return 1 if any(row.broken or row.missed for row in rows) else 0
