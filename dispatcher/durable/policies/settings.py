"""What may be tuned in a durable dispatcher. Each field gives unit, bound and advice."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Final

from ....schemas.errors.base import InvalidSettings
from ....schemas.limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S, MAX_SLOTS
from ...routing.settings import check_bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    """Settings of one durable dispatcher. What a route or a task says of itself goes before these.

    Raises:
        InvalidSettings: a value out of its bounds, with the bound in the text.
    """

    node: str = field(default_factory=lambda: os.environ.get("GANGLINE_NODE", "") or socket.gethostname())
    """Machine, as discovery shows it. Default: $GANGLINE_NODE, else the host's name."""
    max_attempts: int = 5
    """How often a task that is declared idempotent is started before it becomes a dead letter. One that is not is
    started once. 1 to 10000."""
    backoff_s: float = 1.0
    """Wait before the second try; doubles with each. Jitter takes off up to half. 0 to 86400."""
    backoff_max_s: float = 300.0
    """... up to this. 0 to 86400."""
    result_ttl_s: float = 3600.0
    """How long results are kept. 0: not at all."""
    result_inline_bytes: int = 512 * 1024
    """Results up to so many bytes stand in the bucket of results, larger ones in the object store. 1024 to 2**23, and
    never more than the server takes in a message."""
    unknown_after_s: float = 30.0
    """Tasks of an endpoint that no pool and no route has are dead letters after so long. 0 to 30 days."""
    age_step_s: float = 10.0
    """A task gains one step of priority for each so many seconds that it waits: less is fairer to old tasks of low
    priority, more is stricter. 0.1 to 86400."""
    window_tasks: int = 4096
    """Tasks of one queue that are looked at ahead, for priorities, keys and limits to be judged. 1 to 1000000."""
    window_bytes: int = 32 * 1024 * 1024
    """... and bytes of them. At least 65536."""
    lease_slots: int = 8
    """Most slots of one lease on a worker. More is cheaper, fewer share a busy worker sooner. 1 to 1000000."""
    lease_ttl_s: float = 2.0
    """How long a lease outlives a dispatcher that vanished. Below `frozen_after_s`, so that what a frozen dispatcher
    still sends is refused before anybody takes its queues over. 1 to 60."""
    idle_s: float = 0.25
    """Slots that nothing is there for are given back after so long. 0.01 to 60."""
    turn_s: float = 1.0
    """A lease is asked for anew after so long, so that others get their share of a busy worker. 0.05 to 3600."""
    ping_s: float = 0.5
    """How often dispatchers ask after each other, and after workers that run their tasks. 0.05 to 10."""
    worker_gone_after_s: float = 1.0
    """A worker at whose subjects nobody has listened for so long is looked up in the ledger at once (one that is
    silent: after the router's `lost_after_s`). When its heartbeat has expired it is lost, and its tasks start
    elsewhere. 0.1 to 60."""
    freeze_after_s: float = 1.0
    """After a gap of so long in our own running we ask whether our queues are still ours. 0.5 to 10."""
    frozen_after_s: float = 2.5
    """A dispatcher that has not answered for so long loses its queues. 1.5 to 60."""
    look_s: float = 1.0
    """How often new endpoints, and messages that are nobody's, are looked for. 0.1 to 60."""
    grace_s: float = 0.0
    """How long `stop` lets running tasks finish before it hands them over. They run on either way. 0 to 30 days."""
    start_timeout_s: float = 15.0
    """How long a start waits for storage, in a cluster that holds an election for example. 0 to 600."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        if self.backoff_max_s < self.backoff_s:
            raise InvalidSettings("backoff_max_s must not be below backoff_s")
        if self.lease_ttl_s >= self.frozen_after_s:
            raise InvalidSettings(
                "lease_ttl_s must be below frozen_after_s: a frozen dispatcher's leases must end first"
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
    ("grace_s", 0.0, MAX_DEADLINE_S),
    ("start_timeout_s", 0.0, 600.0),
)
