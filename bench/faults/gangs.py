"""All scenarios of gangs under faults, as one table with median and worst.

    python -m bench.faults.gangs --repetitions 20
    python -m bench.faults.gangs --only killed,failover --repetitions 3 --verbose

killed, frozen    a member's process is killed, frozen: how soon the others hear of it, and whether all comes back
failover          the leading coordinator is killed at each step of a grant and of a teardown, while a gang runs on
deposed           a leader is frozen in the instant before it writes, overtaken, and continued
cluster           three nats-servers; the leader of the ledger's stream dies while 100 gangs are granted (n / 10 times)
deadlock          two gangs of 2 on 3 slots, 100 rounds (n / 20 times)
flood             a gang of 8 wants all slots of a pool that is kept full by calls
standing          a member of a standing gang dies under load
rolling           all standing gangs are replaced under load
forming           time to form 8 over 4, the same among 1,000 more workers, and 64 over 16

Every scenario has its own embedded nats-server and real worker and coordinator processes. A reader of every revision
of the ledger judges law L7 all the while (bench.faults.audit). The exit code is 1 when a law was broken or a target
missed. The figures depend on the machine; run it on one that is otherwise idle. All of it takes about 25 minutes with
20 repetitions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable

from bench.faults.cluster import stream_leader_killed
from bench.faults.contention import eight_under_flood, two_on_three
from bench.faults.deposed import two_leaders
from bench.faults.failover import leader_killed
from bench.faults.figures import Report, Row, table
from bench.faults.forming import time_to_form
from bench.faults.members import member_lost
from bench.faults.standing import all_replaced, member_killed
from gangline.cli.session import run

Scenario = Callable[[int, Report], Awaitable[list[Row]]]

SCENARIOS: dict[str, Scenario] = {
    "killed": lambda repetitions, report: member_lost("killed", repetitions, report),
    "frozen": lambda repetitions, report: member_lost("frozen", repetitions, report),
    "failover": leader_killed,
    "deposed": two_leaders,
    "cluster": lambda repetitions, report: stream_leader_killed(max(1, repetitions // 10), report),
    "deadlock": lambda repetitions, report: two_on_three(max(1, repetitions // 20), report),
    "flood": eight_under_flood,
    "standing": member_killed,
    "rolling": all_replaced,
    "forming": time_to_form,
}


async def _all(names: list[str], repetitions: int, report: Report) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        try:
            rows += await SCENARIOS[name](repetitions, report)
        except (AssertionError, TimeoutError) as error:
            rows.append(Row(name=name, broken=[str(error)]))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--only", default=",".join(SCENARIOS), help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--verbose", action="store_true", help="one line for each repetition, on stderr")
    given = parser.parse_args()
    names = given.only.split(",")
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown or given.repetitions < 1:
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--repetitions must be at least 1")

    def report(line: str) -> None:
        if given.verbose:
            print(line, file=sys.stderr, flush=True)

    rows = run(_all(names, given.repetitions, report))
    print(table(rows))
    return 1 if any(row.broken or row.late for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
