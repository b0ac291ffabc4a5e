"""Settings of coordinators, each with unit, bounds and advice."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, fields
from typing import Final

from ...bus.port.bus import BucketSettings
from ...bus.streams.history_recorder import HistorySettings
from ...schemas.errors.base import InvalidSettings
from ...schemas.permissions.quotas import Quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Settings of the coordinator's decisions, in seconds unless the name says otherwise. The defaults suit a local
    network.

    Raises:
        InvalidSettings: a value out of its bounds, with the bound in the text.
    """

    hold_s: float = 2.0
    """How long a worker holds slots for a gang that is not committed. Longer than `hold_wait_s` plus a slow commit."""
    hold_wait_s: float = 0.5
    """A hold that is not answered within this time counts as refused. Well below `hold_s`."""
    hold_margin_s: float = 0.25
    """A gang is not committed if one of its holds expires sooner than this."""
    refused_first_s: float = 0.025
    """Wait after a refused hold or commit; doubles each time, with jitter."""
    refused_max_s: float = 0.5
    """Longest wait after a refused hold or commit."""
    starve_after_s: float = 5.0
    """When the head of the queue has waited this long, slots are reserved for it as they become free. It then gets its
    slots after at most the longest task or lease on the workers chosen for it, plus `keep_renew_s` and one hold."""
    keep_renew_s: float = 0.5
    """Interval at which reserved slots are renewed and checked for being enough."""
    keep_s: float = 2.0
    """How long a worker keeps slots reserved without a renewal. At least three times `keep_renew_s`."""
    backfill_depth: int = 16
    """How many gangs behind a waiting head are considered for back-fill. At least 0."""
    stop_margin_s: float = 1.0
    """How long after the grace time the coordinator waits for a worker to confirm a teardown."""
    resend_s: float = 1.0
    """Interval at which an unconfirmed teardown is sent again."""
    restart_max_s: float = 30.0
    """Longest wait before a restart."""
    stable_after_s: float = 60.0
    """If a gang was ready for this long under one leader, its backoff starts from the beginning at the next failure."""
    repair_s: float = 10.0
    """`restart_member`: if the lost members are not replaced within this time, the whole gang restarts. The other
    members hold slots while they wait, so without this limit two gangs could wait for each other forever."""
    ping_s: float = 0.5
    """Interval of the pings to each worker that has members."""
    confirm_s: float = 0.2
    """A worker without responders is pinged again after this time; twice in a row means that it is gone."""
    ended_keep_s: float = 60.0
    """How long the end of a gang is remembered, so that its id is not reused and its owner can learn the reason."""
    ended_keep: int = 10_000
    """Maximum number of ended gangs remembered."""
    max_queued: int = 10_000
    """Maximum number of waiting gangs; further requests are refused at once."""
    quotas: Quotas = field(default_factory=Quotas)
    """What tenants may use. The same for all coordinators; with shards, each grants as much in its own pools."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, Quotas) and not 0 <= value < float("inf"):
                raise InvalidSettings(f"{each.name} is {value}: give a number of at least 0")
        bounds = [
            (self.hold_wait_s + self.hold_margin_s < self.hold_s, "hold_wait_s + hold_margin_s must be below hold_s"),
            (self.keep_renew_s * 3 <= self.keep_s, "keep_s must be at least three times keep_renew_s"),
            (self.refused_first_s > 0, "refused_first_s must be above 0: a refused gang must not retry in a loop"),
            (min(self.keep_renew_s, self.ping_s, self.confirm_s, self.resend_s) > 0, "intervals must be above 0"),
        ]
        for holds, text in bounds:
            if not holds:
                raise InvalidSettings(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Settings of one coordinator process, in seconds unless the name says otherwise.

    Raises:
        InvalidSettings: a value out of its bounds.
    """

    bucket: BucketSettings = field(default_factory=BucketSettings)
    """How to create the ledger if it does not exist."""
    node: str = field(default_factory=socket.gethostname)
    """Machine name shown by service discovery and `gangline health`."""
    silence_s: float = 3.0
    """A worker that sends nothing for this time is looked up in the ledger, and counts as gone if its heartbeat key is
    gone. The workers' `heartbeat_ttl_s` or a little more; 0.5 to 60."""
    reconcile_s: float = 5.0
    """Interval at which all registrations and heartbeats are read again, in case live feeds missed one; 0.5 to 300."""
    sweep_s: float = 30.0
    """Interval of the search for member records that belong to no gang; 1 to 3600."""
    ping_wait_s: float = 1.0
    """Timeout of a ping. A timeout alone does not prove that the worker is gone; 0.1 to 10."""
    form_wait_s: float = 1.0
    """Timeout of a worker's confirmation that its members have formed, before it is asked again; 0.1 to 30."""
    form_tries: int = 3
    """How many times a worker is asked to form; after that, pings decide. 1 to 100."""
    start_timeout_s: float = 15.0
    """How long to wait for storage at start, for example during a cluster's election; 0 to 600."""
    disconnects: str = "$SYS.ACCOUNT.*.DISCONNECT"
    """Subject on which the server reports lost connections, if this account imports it; empty: none. It only speeds up
    what pings detect."""

    history: HistorySettings | None = None
    """What to record in the history, and how to create its stream; None: as the environment says, which is to record
    unless GANGLINE_HISTORY is `off`. `HistorySettings(enabled=False)`: nothing is recorded."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InvalidSettings(f"{name} is {value!r}, it must be between {low:g} and {high:g}")


_BOUNDS: Final = (
    ("silence_s", 0.5, 60.0),
    ("reconcile_s", 0.5, 300.0),
    ("sweep_s", 1.0, 3600.0),
    ("ping_wait_s", 0.1, 10.0),
    ("form_wait_s", 0.1, 30.0),
    ("form_tries", 1, 100),
    ("start_timeout_s", 0.0, 600.0),
)
