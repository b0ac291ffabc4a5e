"""What may be tuned in a router. Each field gives unit, bound and advice."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_DEADLINE_S, MAX_TTL_S
from ...schemas.text import plain

LOST_AFTER_S: Final = 3.0
"""Time to live of a worker's heartbeat key; routers and server agree on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of one router. The defaults suit a local network.

    Raises:
        InvalidSettings: a value out of its bounds, with the bound in the text.
    """

    node: str = field(default_factory=lambda: os.environ.get("GANGLINE_NODE", "") or socket.gethostname())
    """Name of this machine; workers that registered the same are preferred. Default: $GANGLINE_NODE, else the host's
    name. Empty: no preference."""
    zone: str = field(default_factory=lambda: os.environ.get("GANGLINE_ZONE", ""))
    """Failure domain of this machine; second preference after the node. Default: $GANGLINE_ZONE, else none."""
    max_queued: int = 10_000
    """Requests that may wait for a slot, per pool; one more raises QueueFull at once. 0: never wait."""
    max_attempts: int = 10_000
    """Most times that one request is sent before it gives up with Saturated. At least 1. The deadline, or
    `saturated_wait_s` without one, usually ends it first."""
    backoff_first_s: float = 0.025
    """The first retry is at once; the next waits so long, at most (jitter takes off up to half). Doubles each time."""
    backoff_max_s: float = 0.5
    """... up to this. A sign of room ends the wait earlier."""
    saturated_wait_s: float = 60.0
    """A request without a deadline raises Saturated when no request like it was taken by a worker for so long."""
    no_workers_wait_s: float = 1.0
    """How long a request waits for a worker to appear when its pool has none; then NoWorkers. Long enough to bridge a
    worker's restart if there is only one. 0: at once."""
    default_timeout_s: float | None = None
    """Deadline of calls that give none. None: a call waits as long as its task runs."""
    stale_after_s: float = 10.0
    """A worker's load that was not confirmed for so long counts as unknown, that is, as having room."""
    lost_after_s: float = LOST_AFTER_S
    """A worker not heard of for so long (while we are connected) gets nothing new, and is looked up in the ledger:
    it is lost when its heartbeat key has expired. At least three heartbeats."""
    unconfirmed_after_s: float = 30.0
    """A call to a worker that is not heard of ends as lost after so long, too, if the ledger says nothing of the worker
    meanwhile. More: calls wait longer for a server that is slow to come back. Durable tasks wait for the ledger
    however long that takes."""
    check_after_s: float = 2.0
    """A task without an answer for so long is asked for (CHECK); the interval then doubles up to 16 s."""
    probe_first_s: float = 0.1
    """A reservation not answered for so long is released and tried elsewhere; doubles with each try."""
    probe_max_s: float = 1.0
    """... up to this."""
    claim_s: float = 2.0
    """A selected slot that is neither used nor renewed for so long frees itself at the worker: how long it stays taken
    after this process vanished. It is renewed three times as often. At least 1 for selections."""
    reconcile_s: float = 5.0
    """How often registrations are pulled again, in case a change was missed."""
    stream_window: int = 64
    """Items of a streamed result that a worker may be ahead of its reader. At least 1."""
    shadow_timeout_s: float = 5.0
    """A copy of a request to a shadow pool is told to stop after so long, whatever the request's own deadline."""
    max_shadows: int = 100
    """Copies that may be under way to one shadow pool; further ones are dropped, and counted."""
    max_releases_kept: int = 10_000
    """Releases and cancellations kept while disconnected, to be sent on reconnection."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        if self.default_timeout_s is not None:
            check_bounds(self, (("default_timeout_s", 0.001, MAX_DEADLINE_S),))
        if self.backoff_max_s < self.backoff_first_s:
            raise InvalidSettings("backoff_max_s must not be below backoff_first_s")
        if self.probe_max_s < self.probe_first_s:
            raise InvalidSettings("probe_max_s must not be below probe_first_s")


_BOUNDS: Final = (
    ("max_queued", 0, 10_000_000),
    ("max_attempts", 1, 1_000_000),
    ("backoff_first_s", 0.001, 60.0),
    ("backoff_max_s", 0.001, 60.0),
    ("saturated_wait_s", 0.0, MAX_DEADLINE_S),
    ("no_workers_wait_s", 0.0, MAX_DEADLINE_S),
    ("stale_after_s", 1.0, 3600.0),
    ("lost_after_s", 1.0, 3600.0),
    ("unconfirmed_after_s", 1.0, 3600.0),
    ("check_after_s", 0.1, 3600.0),
    ("probe_first_s", 0.005, 60.0),
    ("probe_max_s", 0.005, 60.0),
    ("claim_s", 0.1, MAX_TTL_S),
    ("reconcile_s", 0.5, 3600.0),
    ("stream_window", 1, 100_000),
    ("shadow_timeout_s", 0.01, MAX_DEADLINE_S),
    ("max_shadows", 0, 1_000_000),
    ("max_releases_kept", 0, 10_000_000),
)


def check_bounds(settings: Any, bounds: Iterable[tuple[str, float, float]]) -> None:
    """
    Args:
        bounds: names of fields, with the least and the most that each may be.

    Raises:
        InvalidSettings: a field is out of its bounds, or no whole number where it is declared as one.
    """
    whole = {each.name for each in fields(settings) if each.type == "int"}
    for name, low, high in bounds:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InvalidSettings(f"{name} is {value!r}, it must be between {plain(low)} and {plain(high)}")
        if name in whole and not isinstance(value, int):
            raise InvalidSettings(f"{name} is {value!r}, it must be a whole number")
