"""Settings of the coordinator's decisions, each with unit, bounds and advice."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

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
    """If a gang was ready for this long, its backoff starts from the beginning at the next failure."""
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
