"""At most so many starts a second: the generic cell rate algorithm (ITU-T I.371), a leaky bucket without a timer.

It begins empty: the first start comes after a whole interval. Whoever started tasks before (another dispatcher, under
the same limit) has used no more than the full bucket since, so that both together never exceed the limit.
"""

from __future__ import annotations

from math import floor

_HAIR = 1e-9
"""A timer that fires at the computed time must not be a rounding error too early."""


class RateLimiter:
    """One limit."""

    __slots__ = ("_interval_s", "_tat", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: int, now: float) -> None:
        """
        Args:
            rate_per_s: starts a second in the long run. Above 0.
            burst: starts at once after a pause; from 1.
            now: since when it counts.
        """
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._interval_s = 1.0 / rate_per_s
        self._tat = now + burst * self._interval_s
        """Theoretical arrival time: when the bucket is full again if nothing more starts."""

    def __repr__(self) -> str:
        return f"RateLimiter({self.rate_per_s:g}/s, burst={self.burst})"

    @property
    def next_at(self) -> float:
        """When the next start is (or was) allowed."""
        return self._tat - (self.burst - 1) * self._interval_s

    def ready(self, now: float) -> bool:
        return now >= self.next_at - _HAIR

    def take(self, now: float) -> None:
        """Something starts."""
        assert self.ready(now), "started too early"
        self._tat = max(self._tat, now) + self._interval_s

    def allowed(self, now: float, until: float) -> int:
        """How many starts are allowed from now until then, if all come as early as they may."""
        first = max(self.next_at, now - (self.burst - 1) * self._interval_s)
        return 0 if until < first - _HAIR else 1 + floor((until - first + _HAIR) * self.rate_per_s)
