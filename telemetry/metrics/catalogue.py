"""All metrics in one place, and those that are put together from several parts of a process.

Importing this module registers every metric. `METRICS` is what docs/reference/metrics.md, the dashboards and the alerts
are made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from . import connection as connection  # registers its metrics
from . import coordinator, durable, router_and_worker
from .instruments import REGISTERED, MetricInfo, counter, gauge

SOURCES: Final = {
    "slots": router_and_worker.busy_slots,
    "calls": router_and_worker.waiting_calls,
    "jobs": durable.wanted_by_jobs,
    "gangs": coordinator.wanted_by_gangs,
}


def _wanted() -> Iterable[tuple[tuple[str, ...], float]]:
    found: dict[tuple[str, ...], float] = {}
    for source, read in SOURCES.items():
        for where, number in read():
            found[*where, source] = found.get((*where, source), 0.0) + number
    return list(found.items())


gauge(
    "gangline.pool.slots_wanted",
    "{slot}",
    "Slots that the pool would need now, by who needs them; the sum over all processes and sources is how large the "
    "pool should be",
    ("namespace", "pool", "source"),
    _wanted,
)

history_records: Final = counter(
    "gangline.history.records", "{record}", "Records of the history, by outcome", ("namespace", "writer", "outcome")
)

METRICS: Final[Mapping[str, MetricInfo]] = REGISTERED

ATTRIBUTES: Final = {
    "namespace": "the namespace of the system",
    "shard": "the shard of the coordinator; empty: it is that of all pools",
    "pool": "a pool; `_other` for names that are no longer in use, if there are too many",
    "worker": "the worker's name within its pool",
    "endpoint": "the endpoint that callers named",
    "method": "the task",
    "code": "the code of an [error](errors.md)",
    "outcome": "what became of it: for tasks `ok` or an error's code; for shadows `sent`, then `ok`, `failed`, "
    "`refused`, `late` or `lost`, or `dropped`; for batches `refused` or `unknown`; for the history `written` or "
    "`dropped`",
    "event": "for leases `granted`, `expired`, `released`; for gangs `held`, `refused`, `freed`, `formed`, "
    "`torn_down`, `stopped`, `failed`, `alone`",
    "reason": "why: for rejections `full`, `draining`, `stale`, `expired`; for epochs `frozen`, ...; for gangs the "
    "cause, such as `worker_lost`, `crashed`, `drained`, `preempted`, `released`; for dead letters their reason",
    "kind": "`restart` of a whole gang, or `repair` of members",
    "what": "what the batch was for: `form`, `close`, ...",
    "obstacle": "what gangs wait for: `slots` (too few are free), `order` (a gang is ahead), `quota` (of their "
    "tenant), `backoff` (refused a moment ago), `impossible` (not even all slots would do); what submitted tasks wait "
    "for: `slots`, `workers` (their pool has none), `size` (they need more slots than any worker has), `limit` (or a "
    "rate), `order` (of their key), `backoff` (the next attempt), `paused` (by the route), `takeover` (of the queue), "
    "`unread` (the dispatcher has enough others)",
    "source": "who needs the slots: `slots` (tasks that run, and leases), `calls` (requests that wait in routers), "
    "`jobs` (submitted tasks that could start), `gangs` (gangs that wait)",
    "file": "`credentials`, `certificate` (of the client) or `authority` (the CA file)",
    "writer": "`worker`, `coordinator` or `dispatcher`",
}
"""What the attributes mean."""
