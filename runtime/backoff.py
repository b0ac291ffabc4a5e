"""How long to wait before the next try. Pure: whoever waits draws the randomness."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLINGS: Final = 40
"""By then every wait is at its most."""


def exponential_s(first_s: float, most_s: float, failures: int) -> float:
    """The wait after so many failures before the last one: `first_s`, doubling with each, up to `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS))


class Backoff:
    """`first_s`, doubling to `most_s` with each failure. Reset by a success."""

    __slots__ = ("_first_s", "_most_s", "failures")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0

    @property
    def delay_s(self) -> float:
        """What `next_s` gives, without jitter."""
        return exponential_s(self._first_s, self._most_s, self.failures)

    def next_s(self, draw: float = 0.0) -> float:
        """How long to wait now, in seconds; counts one more failure. Jitter takes off up to half: `draw` is a random
        number in [0, 1)."""
        delay_s = self.delay_s
        self.failures += 1
        return delay_s * (1.0 - draw / 2)

    def reset(self) -> None:
        self.failures = 0

    def __repr__(self) -> str:
        return f"Backoff({self._first_s:g}, {self._most_s:g}, failures={self.failures})"
