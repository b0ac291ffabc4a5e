"""`gangline bench`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...console.options import json_option, reporting
from ...console.output import echo

if TYPE_CHECKING:
    from ....bench.run import Results


@click.command(short_help="Measure speed on this machine, against raw NATS.")
@click.option("--quick", is_flag=True, help="Shorter runs: less precise figures in half the time.")
@json_option
@click.option("--debug", is_flag=True, envvar="GANGLINE_DEBUG", help="Show tracebacks of errors.")
def command(quick: bool, as_json: bool, debug: bool) -> None:
    """Measure speed on this machine, against raw NATS.

    Starts an embedded nats-server. The baseline is nats-py's request and reply between two processes; it is compared
    with Gangline's clients, workers and coordinator, all with default settings and messages of 100 bytes. The two run
    alternately, five times; each figure is the median of the ratios. Takes one to two minutes.

    Needs nothing but this package with its `server` extra.
    """
    from ....bench.run import FULL, QUICK, run
    from ...console.output import print_json
    from ...console.session import run as run_loop

    def report(what: str) -> None:
        echo(f"gangline: {what}", err=True)

    def measure() -> None:
        results = run_loop(run(QUICK if quick else FULL, report=report))
        if as_json:
            print_json(results.to_json())
        else:
            _show(results)

    reporting(measure, debug)()


def _show(results: Results) -> None:
    from ....bench.table import rows
    from ...console.output import Listing, console

    out = console()
    out.print(Listing(("FIGURE", "MEDIAN", "WORST TO BEST", "TARGET", "MET"), rows(results), right=("MEDIAN",)))
    about = results.to_json()["about"]
    out.print(", ".join(f"{name} {value}" for name, value in about.items()))
