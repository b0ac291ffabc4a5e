"""What may be tuned in a coordinator. Each field gives unit, bound and advice."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ...schemas.errors.base import InvalidSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Settings of the gang core, in seconds unless the name says otherwise. The defaults suit a local network.

    Raises:
        InvalidSettings: a value out of its bounds, with the bound in the text.
    """

    hold_s: float = 2.0
    """How long a worker keeps tentative slots without a commit. Longer than `hold_wait_s` and a slow commit."""
    hold_wait_s: float = 0.5
    """A hold not answered for so long counts as refused. Well below `hold_s`."""
    hold_margin_s: float = 0.25
    """A commit is not sent any more when a hold has less than this left."""
    refused_first_s: float = 0.025
    """Wait after a refused hold or commit; doubles each time, with jitter."""
    refused_max_s: float = 0.5
    """... up to this."""
    starve_after_s: float = 5.0
    """When the head of the queue has waited so long, slots are kept for it as they become free. It then has its slots
    within the longest task or lease on the workers chosen for it, plus `keep_renew_s` and one hold."""
    keep_renew_s: float = 0.5
    """How often keeps are renewed, and with that how soon it is seen that they suffice."""
    keep_s: float = 2.0
    """How long a worker keeps slots when not asked again. At least three times `keep_renew_s`."""
    backfill_depth: int = 16
    """How many gangs behind a waiting head are looked at for back-fill, each time. At least 0."""
    stop_margin_s: float = 1.0
    """A worker that has not confirmed a teardown so long after the grace time is waited for no longer."""
    resend_s: float = 1.0
    """How often an unconfirmed teardown is sent again."""
    restart_max_s: float = 30.0
    """Longest wait before a restart."""
    stable_after_s: float = 60.0
    """A gang that stayed ready for so long starts its backoff from the beginning at the next failure."""
    repair_s: float = 10.0
    """`restart_member`: when the lost members are not replaced within this, the whole gang restarts. Its survivors hold
    slots while they wait, so without this bound two gangs could wait for each other for ever."""
    ping_s: float = 0.5
    """How often each worker with members is pinged."""
    confirm_s: float = 0.2
    """A worker without responders is asked again after this; twice in a row means gone."""
    ended_keep_s: float = 60.0
    """How long the end of a gang is remembered, so that its id is not used again and its owner is told the reason."""
    ended_keep: int = 10_000
    """Most of these."""
    max_queued: int = 10_000
    """Gangs that may wait; one more is refused at once."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise InvalidSettings(f"{field.name} is {value}: give a number from 0 on")
        bounds = [
            (self.hold_wait_s + self.hold_margin_s < self.hold_s, "hold_wait_s + hold_margin_s must be below hold_s"),
            (self.keep_renew_s * 3 <= self.keep_s, "keep_s must be at least three times keep_renew_s"),
            (self.refused_first_s > 0, "refused_first_s must be above 0: a refused gang must not try in a tight loop"),
            (min(self.keep_renew_s, self.ping_s, self.confirm_s, self.resend_s) > 0, "intervals must be above 0"),
        ]
        for holds, text in bounds:
            if not holds:
                raise InvalidSettings(text)
