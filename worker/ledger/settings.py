"""A worker's settings: frozen and validated at construction; each documents its unit, bounds and when to change it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ...bus.port.bus import BucketSettings
from ...bus.streams.history_recorder import HistorySettings
from ...runtime.clock import Environment
from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_DEADLINE_S, MAX_SLOTS, MAX_TTL_S, MIN_TTL_S
from ...schemas.names import check_name
from ...schemas.text import plain

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "max_lease_ttl_s": (MIN_TTL_S, MAX_TTL_S),
    "max_claim_s": (0.05, MAX_TTL_S),
    "freeze_after_s": (0.5, 3600.0),
    "drain_grace_s": (0.0, MAX_DEADLINE_S),
    "lifespan_start_s": (1.0, 86_400.0),
    "model_load_s": (1.0, 86_400.0),
    "hook_stop_s": (0.1, 3600.0),
    "heartbeat_s": (0.1, 60.0),
    "heartbeat_ttl_s": (1.0, 600.0),
    "start_timeout_s": (1.0, 600.0),
    "answer_retention_s": (1.0, 3600.0),
    "answer_retention_count": (1_000, 10_000_000),
    "answer_retention_bytes": (1 << 20, 1 << 34),
    "unsent_bytes": (1 << 20, 1 << 34),
    "stream_window": (1, 100_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of one worker. Usually only `id`, `node`, `zone` and `address` need a value.

    Raises:
        InvalidSettings: names the field, its bounds and the given value.
    """

    id: str | None = None
    """The worker's name within its pool: letters, digits, `_` and `-`. None: `<host>-<pid>-<4 random>`, new at each
    start. Give a stable one (the pod name) so that operators can recognise it."""
    slots: int | None = None
    """Initial number of slots, 0 (paused) to a million. None: what the pool declares."""
    node: str = field(default_factory=lambda: os.environ.get("GANGLINE_NODE", "") or socket.gethostname())
    """Machine: routers prefer workers on their own. Default: $GANGLINE_NODE, else the host's name."""
    zone: str = field(default_factory=lambda: os.environ.get("GANGLINE_ZONE", ""))
    """Failure domain: the second preference. Default: $GANGLINE_ZONE, else none."""
    address: str = ""
    """Where other processes can reach this one, host or host:port; shown to callers, not used by Gangline itself."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that callers can select by; they override the pool's."""

    max_lease_ttl_s: float = 3600.0
    """Longest time to live that a lease may request, in seconds; 1 to 86400. A holder that is gone blocks its slots for
    that time."""
    max_claim_s: float = 300.0
    """Longest claim timeout that a `reserve` may request, in seconds. Routers request 2."""
    freeze_after_s: float = 1.0
    """A worker that was not scheduled for longer than this checks that its id is still its own and takes a new epoch;
    in seconds, 0.5 to 3600. Keep it below the timeouts of callers and below `heartbeat_ttl_s` - `heartbeat_s` (after
    that another process may take the id), and above the longest time that a task blocks the event loop. If the log
    shows new epochs under load, move blocking code to threads before you raise this."""
    drain_grace_s: float = 30.0
    """Cancel tasks still running this many seconds after the drain began; 0 cancels at once. Keep it below the time
    between your process manager's SIGTERM and SIGKILL."""
    lifespan_start_s: float = 600.0
    """How long each `@pool.lifespan` may take until it yields, in seconds; 1 to 86400. Then the worker does not
    start."""
    model_load_s: float = 600.0
    """How long `@pool.model_loader` may take for one model, in seconds; 1 to 86400. Then it is cancelled, and the tasks
    that wait for the model fail."""
    hook_stop_s: float = 30.0
    """How long `@pool.model_unloader` may take for one model, and each `@pool.lifespan` from its yield to its end, in
    seconds; 0.1 to 3600. Then it is cancelled, and no longer waited for."""

    heartbeat_s: float = 1.0
    """Time between heartbeats, in seconds; 0.1 to 60."""
    heartbeat_ttl_s: float = 3.0
    """A worker without a heartbeat for this long counts as lost, in seconds; at least two heartbeats. The server rounds
    up to whole seconds."""
    start_timeout_s: float = 10.0
    """How long to wait for storage at start, in seconds; 1 to 600. Keep it above a cluster's election (4 to 9)."""

    answer_retention_s: float = 60.0
    """How long an answer can be sent again to a caller that lost it, in seconds; 1 to 3600."""
    answer_retention_count: int = 100_000
    """Maximum number of answers kept."""
    answer_retention_bytes: int = 64 << 20
    """Maximum bytes of answers kept; raise it if results are large and connections unreliable. A second budget of the
    same size holds undelivered items of durable tasks."""
    unsent_bytes: int = 64 << 20
    """Maximum bytes of answers kept while there is no connection; the oldest are dropped first."""
    stream_window: int = 64
    """How many items a stream may be ahead of a reader that gives no window; 1 to 100000."""

    send_tracebacks: bool = True
    """Whether callers get the traceback of a failed task. Set False if callers must not see it."""
    bucket: BucketSettings = field(default_factory=BucketSettings)
    """How to create the ledger if it does not exist. In a cluster: three replicas, on file."""
    history: HistorySettings | None = None
    """What to record in the history; None: as the environment says, which is to record unless GANGLINE_HISTORY is
    `off`. `HistorySettings(enabled=False)`: nothing."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InvalidSettings(f"{name} is {value!r}: give a number from {plain(low)} to {plain(high)}")
        if self.heartbeat_ttl_s < 2 * self.heartbeat_s:
            raise InvalidSettings(
                f"heartbeat_ttl_s is {self.heartbeat_ttl_s:g}: give at least twice heartbeat_s ({self.heartbeat_s:g}), "
                "or one late heartbeat makes the worker count as lost"
            )
        if self.slots is not None and not (type(self.slots) is int and 0 <= self.slots <= MAX_SLOTS):
            raise InvalidSettings(f"slots is {self.slots!r}: give a whole number from 0 to {MAX_SLOTS}")
        if self.id is not None:
            check_name(self.id, "worker")
        for label, text in self.labels.items():
            if not isinstance(label, str) or not isinstance(text, str):
                raise InvalidSettings(f"label {label!r} is {text!r}: labels are text")

    def worker_name(self, ambient: Environment) -> str:
        """`id`, or a new, readable and unique one."""
        if self.id is not None:
            return self.id
        host = "".join(c if c.isalnum() and c.isascii() or c in "-_" else "-" for c in socket.gethostname())
        host = host.lstrip("-_")[:80]  # a command would take `-` for the beginning of an option
        return f"{host or 'worker'}-{os.getpid()}-{ambient.random.getrandbits(16):04x}"

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
