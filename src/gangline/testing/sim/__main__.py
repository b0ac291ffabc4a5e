"""`python -m gangline.testing.sim`: run seeds and report broken laws."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Unpack

from .run import PlanKind, Report, drawing, run, run_many, total_outcomes


def main() -> int:
    """Exit code 0: no law was broken."""
    parser = argparse.ArgumentParser(prog="python -m gangline.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first one (default 0)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--gangs", action="store_true", help="with gangs, their owners and coordinators")
    kinds.add_argument("--durable", action="store_true", help="with durable tasks, their dispatchers and routes")
    parser.add_argument("--clocks", action="store_true", help="in processes whose clocks differ")
    parser.add_argument("--aims", action="store_true", help="accidents at steps of gangs, standing sets and streams")
    parser.add_argument("--limits", action="store_true", help="called tasks declare max_running, and some a rate")
    parser.add_argument("--processes", type=int, default=None, help="default: one for each processor")
    parser.add_argument("--trace", action="store_true", help="show every event; in this process, one seed at a time")
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    began = time.perf_counter()
    kind = PlanKind(
        gangs=arguments.gangs,
        durable=arguments.durable,
        clocks=arguments.clocks,
        aims=arguments.aims,
        limits=arguments.limits,
    )
    reports: Iterable[Report]
    if arguments.trace:
        reports = (_traced(seed, **kind) for seed in seeds)
    else:
        reports = run_many(seeds, **kind, processes=arguments.processes)
    done: list[Report] = []
    for report in reports:
        done.append(report)
        if not report.ok:
            _say(str(report))
            if arguments.stop:
                break
    broken = sorted(report.seed for report in done if not report.ok)
    _say(_summary(done, time.perf_counter() - began))
    if broken:
        _say(f"laws broken in {len(broken)} seeds: {', '.join(map(str, broken))}")
    return 1 if broken else 0


def _traced(seed: int, **kind: Unpack[PlanKind]) -> Report:
    _say(f"seed {seed}: {drawing(**kind)(seed).summary()}")
    report = run(seed, **kind, echo=_say)
    _say(str(report))
    return report


def _summary(reports: list[Report], seconds: float) -> str:
    virtual_s = sum(report.virtual_s for report in reports)
    events = sum(report.events for report in reports)
    outcomes = ", ".join(f"{name} {count}" for name, count in total_outcomes(reports).most_common())
    return (
        f"{len(reports)} seeds in {seconds:.1f} s ({virtual_s / 3600:.1f} virtual hours, {events} events)\n"
        f"requests: {outcomes}"
        f"{_told('gangs', (report.gangs for report in reports))}"
        f"{_told('durable tasks', (report.durable for report in reports))}"
    )


def _told(what: str, counts: Iterable[dict[str, int]]) -> str:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return f"\n{what}: " + ", ".join(f"{name} {count}" for name, count in total.most_common()) if total else ""


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
