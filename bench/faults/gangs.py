"""All scenarios of gangs and calls under faults, as one table with median and worst.

    python -m bench.faults.gangs --repetitions 20
    python -m bench.faults.gangs --only killed,failover --repetitions 3 --verbose

killed, frozen    a member's process is killed, frozen: how soon the others are told, and whether all slots come back
failover          the leading coordinator is killed at each step of a grant and of a teardown, while a gang runs
deposed           a leader is frozen just before it writes, overtaken, and continued
cluster           three nats-servers; the leader of the ledger's stream dies while 100 gangs are granted (n / 10 times)
deadlock          two gangs of 2 on 3 slots, 100 rounds (n / 20 times)
flood             a gang of 8 wants all slots of a pool that is kept full by calls
standing          a member of a standing gang dies under load
rolling           all standing gangs are replaced under load
forming           time to form 8 over 4, the same among 1,000 more workers, and 64 over 16
twins             a worker is frozen until a second process of its id serves, and then wakes, under calls (n / 4 times)

Every scenario has its own embedded nats-server and real worker and coordinator processes. A reader of every revision
of the ledger checks laws L7 to L9 meanwhile (gangline.testing.kit). Exit code 1: a law was broken, or a target was
missed. The figures depend on the machine; use one that is otherwise idle. 20 repetitions of everything take about 25
minutes.
"""

from __future__ import annotations

import sys

from bench.faults.cluster import stream_leader_killed
from bench.faults.contention import eight_under_flood, two_on_three
from bench.faults.deposed import two_leaders
from bench.faults.failover import leader_killed
from bench.faults.forming import time_to_form
from bench.faults.members import member_lost
from bench.faults.standing import all_replaced, member_killed
from bench.faults.suite import Scenario, main
from bench.faults.twins import woken_twin

SCENARIOS: dict[str, Scenario] = {
    "killed": lambda trial: member_lost(trial, "killed"),
    "frozen": lambda trial: member_lost(trial, "frozen"),
    "failover": leader_killed,
    "deposed": two_leaders,
    "cluster": lambda trial: stream_leader_killed(trial.fewer(10)),
    "deadlock": lambda trial: two_on_three(trial.fewer(20)),
    "flood": eight_under_flood,
    "standing": member_killed,
    "rolling": all_replaced,
    "forming": time_to_form,
    "twins": lambda trial: woken_twin(trial.fewer(4)),
}


if __name__ == "__main__":
    sys.exit(main(__doc__, SCENARIOS))
