"""Settings of the durable dispatcher: unit, bounds and advice for each."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Final

from ....bus.streams.history_recorder import HistorySettings
from ....schemas.errors.base import InvalidSettings
from ....schemas.limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S, MAX_SLOTS
from ....schemas.permissions.quotas import Quotas
from ...routing.settings import check_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    """Settings of one durable dispatcher. Options of a route or a task override them.

    Raises:
        InvalidSettings: a value is out of bounds; the text has the bounds.
    """

    node: str = field(default_factory=lambda: os.environ.get("GANGLINE_NODE", "") or socket.gethostname())
    """Machine, as discovery shows it. Default: $GANGLINE_NODE, else the host's name."""
    max_attempts: int = 5
    """Maximum number of attempts of a task declared idempotent, before it becomes a dead letter. Other tasks are
    started once. 1 to 10000."""
    backoff_s: float = 1.0
    """Wait before the second attempt; doubles with each further one. Jitter shortens it by up to half. 0 to 86400."""
    backoff_max_s: float = 300.0
    """Longest wait between attempts. 0 to 86400."""
    result_ttl_s: float = 3600.0
    """How long results are kept; 0: they are not kept."""
    result_inline_bytes: int = 512 * 1024
    """Results up to this size are stored in the results bucket, larger ones in the object store. 1024 to 2**23, and at
    most the server's message size."""
    unknown_after_s: float = 30.0
    """A task whose endpoint has neither a pool nor a route becomes a dead letter after this time. 0 to 30 days."""
    age_step_s: float = 10.0
    """A waiting task gains one step of priority each time this passes. A shorter time favours old tasks of low
    priority, a longer one enforces priorities more strictly. 0.1 to 86400."""
    window_tasks: int = 4096
    """How many tasks of one queue are read ahead, to apply priorities, keys and limits. 1 to 1000000."""
    window_bytes: int = 32 * 1024 * 1024
    """How many bytes of tasks are read ahead. At least 65536."""
    lease_slots: int = 8
    """Maximum number of slots in one lease on a worker. Larger leases cost less; smaller ones share a busy worker
    sooner. 1 to 1000000."""
    lease_ttl_s: float = 2.0
    """Time to live of a lease whose dispatcher is gone. Below `frozen_after_s`, so that requests of a frozen dispatcher
    are refused before another one takes over its queues. 1 to 60."""
    idle_s: float = 0.25
    """Unused slots are returned after this time. 0.01 to 60."""
    turn_s: float = 1.0
    """A lease is replaced by a new one after this time, so that others get their share of a busy worker. 0.05 to
    3600."""
    ping_s: float = 0.5
    """Interval at which a dispatcher pings other dispatchers and the workers that run its tasks. 0.05 to 10."""
    worker_gone_after_s: float = 1.0
    """A worker without responders for this time is looked up in the ledger (a silent one after the router's
    `lost_after_s`). If its heartbeat has expired, it is lost and its tasks start elsewhere. 0.1 to 60."""
    freeze_after_s: float = 1.0
    """A dispatcher that was not scheduled for this time checks whether it still owns its queues. 0.5 to 10."""
    frozen_after_s: float = 2.5
    """A dispatcher that does not answer for this time loses its queues. 1.5 to 60."""
    look_s: float = 1.0
    """Interval of the search for new endpoints and for messages that belong to no endpoint. 0.1 to 60."""
    count_delayed_s: float = 10.0
    """Interval at which delayed tasks are counted, for metrics; longer if there are more than 1,000 for each second of
    it. 0: never. 0 to 3600."""
    grace_s: float = 0.0
    """How long `stop` waits for running tasks before it hands them over to other dispatchers. They continue to run in
    any case. 0 to 30 days."""
    start_timeout_s: float = 15.0
    """How long to wait for storage at start, for example during a cluster's election. 0 to 600."""
    quotas: Quotas = field(default_factory=Quotas)
    """What tenants may use; of these, a dispatcher follows `priority`, `queued_tasks`, `queued_bytes` (at most
    `window_tasks` and `window_bytes`), `schedules`, `schedule_every_s`, `delayed_tasks`, `delayed_bytes` and
    `endpoints`. The same for all dispatchers."""

    history: HistorySettings | None = None
    """What to record in the history, and how to create its stream; None: as the environment says, which is to record
    unless GANGLINE_HISTORY is `off`. `HistorySettings(enabled=False)`: nothing is recorded."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        if self.backoff_max_s < self.backoff_s:
            raise InvalidSettings("backoff_max_s must not be below backoff_s")
        if self.lease_ttl_s >= self.frozen_after_s:
            raise InvalidSettings(
                "lease_ttl_s must be below frozen_after_s: a frozen dispatcher's leases must end first"
            )
        for quota in (self.quotas.others, *self.quotas.named.values()):
            for name, value, window in (
                ("queued_tasks", quota.queued_tasks, self.window_tasks),
                ("queued_bytes", quota.queued_bytes, self.window_bytes),
            ):
                if value is not None and value > window:
                    raise InvalidSettings(
                        f"quota {name} is {value}, but a dispatcher reads no more than {window} ahead in each queue, "
                        f"and would not see what is above: lower it, or raise {name.replace('queued', 'window')}"
                    )


_BOUNDS: Final = (
    ("max_attempts", 1, MAX_ATTEMPTS),
    ("backoff_s", 0.0, MAX_BACKOFF_S),
    ("backoff_max_s", 0.0, MAX_BACKOFF_S),
    ("result_ttl_s", 0.0, MAX_RESULT_TTL_S),
    ("result_inline_bytes", 1024, 1 << 23),
    ("unknown_after_s", 0.0, MAX_DEADLINE_S),
    ("age_step_s", 0.1, 86_400.0),
    ("window_tasks", 1, 1_000_000),
    ("window_bytes", 65_536, 1 << 40),
    ("lease_slots", 1, MAX_SLOTS),
    ("lease_ttl_s", 1.0, 60.0),
    ("idle_s", 0.01, 60.0),
    ("turn_s", 0.05, 3600.0),
    ("ping_s", 0.05, 10.0),
    ("worker_gone_after_s", 0.1, 60.0),
    ("freeze_after_s", 0.5, 10.0),
    ("frozen_after_s", 1.5, 60.0),
    ("look_s", 0.1, 60.0),
    ("count_delayed_s", 0.0, 3600.0),
    ("grace_s", 0.0, MAX_DEADLINE_S),
    ("start_timeout_s", 0.0, 600.0),
)
