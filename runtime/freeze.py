"""Notices that a process did not run for a while: it was stopped, swapped out, or something blocked its loop.

Pure; time comes with every call. What was believed before a freeze may be untrue by now, and what piled up in the
socket meanwhile was sent by others who may have given up.
"""

from __future__ import annotations

from typing import Final

TICK_S: Final = 0.25
"""How often a running process notes that it runs. Messages are looked at more often; see FreezeDetector."""


class FreezeDetector:
    """Looks for gaps. After a freeze asyncio runs the sockets before the timers, so a gap must be looked for on entry
    of every message, not by a timer alone.

    Args:
        after_s: a longer gap between two looks is a freeze.
    """

    __slots__ = ("_after_s", "gap_s", "last_at")

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s = after_s
        self.last_at = now
        self.gap_s = 0.0
        """Between the last two looks that ended a gap."""

    def tick(self, now: float) -> bool:
        """The timer's look: True after a freeze. Ends the gap in any case."""
        self.gap_s = now - self.last_at
        self.last_at = now
        return self.gap_s > self._after_s

    def frozen(self, now: float) -> bool:
        """A message's look, where `stall_s` is wanted, too: True after a freeze, once. Ends no other gap."""
        return now - self.last_at > self._after_s and self.tick(now)

    def stall_s(self, now: float) -> float:
        """For how long, beyond the timer's own period, the loop may not have run: messages may be so much older than
        they look, and what is left of their deadlines is so much less."""
        stall_s = now - self.last_at - TICK_S
        return stall_s if stall_s > 0.0 else 0.0

    def __repr__(self) -> str:
        return f"FreezeDetector(after_s={self._after_s:g})"
