"""Settings of a router, with unit, bounds and advice for each."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_DEADLINE_S, MAX_TTL_S
from ...schemas.permissions.quotas import Quotas
from ...schemas.text import plain

LOST_AFTER_S: Final = 3.0
"""Time to live of a worker's heartbeat key; routers and the server use the same value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """Settings of one router. The defaults suit a local network.

    Raises:
        InvalidSettings: a value is out of bounds; the text names the bounds.
    """

    node: str = field(default_factory=lambda: os.environ.get("GANGLINE_NODE", "") or socket.gethostname())
    """Name of this machine; workers registered with the same name are preferred. Default: $GANGLINE_NODE, else the
    host's name. Empty: no preference."""
    zone: str = field(default_factory=lambda: os.environ.get("GANGLINE_ZONE", ""))
    """Failure domain of this machine; second preference after the node. Default: $GANGLINE_ZONE, else none."""
    max_queued: int = 10_000
    """Maximum number of requests that wait for a slot, per pool; one more raises QueueFull at once. 0: never wait."""
    max_empty_pools: int = 1000
    """Maximum number of pools without workers that are followed at once, at least 1. Callers may name pools that do not
    exist. One more replaces those that were not used for longest; if all have waiting requests, it raises QueueFull.
    Dispatchers of submitted tasks have no such limit."""
    max_attempts: int = 10_000
    """Maximum number of attempts per request before Saturated is raised. At least 1. Usually the deadline, or
    `saturated_wait_s` without one, ends it first."""
    backoff_first_s: float = 0.025
    """The first retry is immediate; this is the maximum wait before the second (jitter subtracts up to half). Doubles
    with each retry."""
    backoff_max_s: float = 0.5
    """Upper limit of the backoff. A sign of free slots ends the wait early."""
    saturated_wait_s: float = 60.0
    """A request without a deadline raises Saturated if no worker accepted a request like it for this many seconds."""
    no_workers_wait_s: float = 1.0
    """How long a request waits for a worker if its pool has none; then NoWorkers. The default bridges a restart of the
    only worker. 0: fail at once."""
    default_timeout_s: float | None = None
    """Deadline of calls without one, in seconds. None: a call waits as long as its task runs."""
    stale_after_s: float = 10.0
    """A worker's load that was not confirmed for this many seconds counts as unknown: the worker is assumed to have
    free slots."""
    lost_after_s: float = LOST_AFTER_S
    """A worker that was silent for this many seconds (while connected) gets nothing new and is looked up in the ledger:
    it is lost if its heartbeat key has expired. At least three heartbeats."""
    unconfirmed_after_s: float = 30.0
    """A call to a silent worker also ends as lost after this many seconds if the ledger cannot be read meanwhile. A
    larger value makes calls wait longer for a server that is slow to come back. Durable tasks wait for the ledger as
    long as it takes."""
    check_after_s: float = 2.0
    """A task without an answer for this many seconds is checked (CHECK); the interval then doubles up to 16 s."""
    probe_first_s: float = 0.1
    """A reservation not answered within this many seconds is released and tried elsewhere; doubles with each
    attempt."""
    probe_max_s: float = 1.0
    """Upper limit of the reservation timeout."""
    claim_s: float = 2.0
    """A selected slot that is neither used nor renewed for this many seconds frees itself at the worker: how long it
    stays taken after this process disappears. It is renewed after each third of this time. At least 1 for
    selections."""
    reconcile_s: float = 5.0
    """Interval at which registrations are read again, in seconds, in case a change was missed."""
    stream_window: int = 64
    """How many items of a streamed result the worker may be ahead of the reader. At least 1."""
    shadow_timeout_s: float = 5.0
    """A copy of a request to a shadow pool is cancelled after this many seconds, whatever the request's deadline."""
    max_shadows: int = 100
    """Maximum number of copies in progress per shadow pool; further ones are dropped and counted."""
    max_releases_kept: int = 10_000
    """Maximum number of releases and cancellations kept while disconnected, to be sent after the reconnect."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Tenants (accounts of callers) that wait for the same slots get them in these proportions; the `weight` of its
    quota for those that are not named. Only gateways know the tenants of their callers. Above 0."""
    quotas: Quotas = field(default_factory=Quotas)
    """What tenants may use; of these, a router follows `slots` and `weight`."""

    def __post_init__(self) -> None:
        check_bounds(self, _BOUNDS)
        if self.default_timeout_s is not None:
            check_bounds(self, (("default_timeout_s", 0.001, MAX_DEADLINE_S),))
        for tenant, weight in self.tenant_weights.items():
            if not 0.001 <= weight <= 1000:
                raise InvalidSettings(
                    f"the weight of tenant {tenant!r} is {weight!r}, it must be between 0.001 and 1000"
                )
        if self.backoff_max_s < self.backoff_first_s:
            raise InvalidSettings("backoff_max_s must not be below backoff_first_s")
        if self.probe_max_s < self.probe_first_s:
            raise InvalidSettings("probe_max_s must not be below probe_first_s")

    def weight_of(self, tenant: str) -> float:
        """Slots for a tenant that waits, relative to others."""
        named = self.tenant_weights.get(tenant)
        return self.quotas.weight_of(tenant) if named is None else named


_BOUNDS: Final = (
    ("max_queued", 0, 10_000_000),
    ("max_empty_pools", 1, 10_000_000),
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
        bounds: names of fields with their minimum and maximum.

    Raises:
        InvalidSettings: a field is out of bounds, or not a whole number although declared as one.
    """
    whole = {each.name for each in fields(settings) if each.type == "int"}
    for name, low, high in bounds:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise InvalidSettings(f"{name} is {value!r}, it must be between {plain(low)} and {plain(high)}")
        if name in whole and not isinstance(value, int):
            raise InvalidSettings(f"{name} is {value!r}, it must be a whole number")
