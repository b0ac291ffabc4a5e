"""Limits starts per second. Pure."""

from __future__ import annotations

from math import floor
from typing import Final

HAIR_S: Final = 1e-9
"""A timer that fires at the computed time must not be a rounding error too early."""


class RateLimiter:
    """Limits starts per second with the generic cell rate algorithm (ITU-T I.371), a leaky bucket without a timer.

    Unless told otherwise, it starts empty: the first start comes after a whole interval. Another dispatcher that
    started tasks before, under the same limit, has used at most the full bucket since, so both together never exceed
    the limit.
    """

    __slots__ = ("_interval_s", "_tat", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: int, now: float, full: bool = False) -> None:
        """
        Args:
            rate_per_s: starts a second in the long run. Above 0.
            burst: starts at once after a pause; at least 1.
            now: the start time.
            full: start with a full bucket: `burst` starts are allowed at once.
        """
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._interval_s = 1.0 / rate_per_s
        self._tat = now if full else now + burst * self._interval_s
        """Theoretical arrival time: when the bucket is full again if nothing more starts."""

    def __repr__(self) -> str:
        return f"RateLimiter({self.rate_per_s:g}/s, burst={self.burst})"

    @property
    def next_at(self) -> float:
        """When the next start is (or was) allowed."""
        return self._tat - (self.burst - 1) * self._interval_s

    def ready(self, now: float) -> bool:
        return now >= self.next_at - HAIR_S

    def take(self, now: float) -> None:
        """Something starts."""
        assert self.ready(now), "started too early"
        self._tat = max(self._tat, now) + self._interval_s

    def allowed(self, now: float, until: float) -> int:
        """How many starts are allowed from `now` to `until`, if each comes as early as possible."""
        first = max(self.next_at, now - (self.burst - 1) * self._interval_s)
        return 0 if until < first - HAIR_S else 1 + floor((until - first + HAIR_S) * self.rate_per_s)

    def more_at(self, now: float) -> float | None:
        """When one more start than now is allowed; None: the bucket is full."""
        if self.next_at > now:
            return self.next_at
        allowed = self.allowed(now, now)
        return self.next_at + allowed * self._interval_s if allowed < self.burst else None


def burst_of(rate_per_s: float) -> int:
    """How many starts a rate without a burst of its own allows at once: those of a tenth of a second."""
    return max(1, int(rate_per_s / 10))
