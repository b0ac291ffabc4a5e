"""All scenarios of durable tasks under faults, as one table with median and worst.

    python -m bench.faults.durable --repetitions 20
    python -m bench.faults.durable --only worker,dispatcher --repetitions 3 --verbose

worker        one of four workers is killed while 1,000 tasks run
dispatcher    the dispatcher that owns the queue is killed, with another one standing by
server        the one nats-server is killed and started again
cluster       three nats-servers; the leader of the task stream is killed for good
per-key       at most 3 tasks of each of 10 keys at once, two dispatchers, one of them killed (n / 4 times)
hoarding      two workers, one long task and seven short ones (n / 4 times)
long          a task of 90 s starts once
frozen        a worker is frozen for 60 s; its answers afterwards are ignored

Every scenario has its own embedded nats-server and real processes. The workers record each start and end
(bench.faults.tasks): every acknowledged task must end with the correct result, none may be started twice except after a
kill, and nothing may be left in the stream. Exit code 1: one of these failed, or a target was missed. The figures
depend on the machine; use one that is otherwise idle.
"""

from __future__ import annotations

import sys

from bench.faults.killed_under_tasks import (
    dispatcher_killed,
    limit_per_key,
    server_killed,
    stream_leader_killed,
    worker_killed,
)
from bench.faults.long_tasks import frozen_worker, long_task, no_hoarding
from bench.faults.suite import Scenario, main

SCENARIOS: dict[str, Scenario] = {
    "worker": worker_killed,
    "dispatcher": dispatcher_killed,
    "server": server_killed,
    "cluster": stream_leader_killed,
    "per-key": lambda trial: limit_per_key(trial.fewer(4)),
    "hoarding": lambda trial: no_hoarding(trial.fewer(4)),
    "long": long_task,
    "frozen": frozen_worker,
}


if __name__ == "__main__":
    sys.exit(main(__doc__, SCENARIOS))
