"""Epochs and fences: numbers that only grow, so that what is of the past can be told and refused.

Pure: no clock, no randomness; part of worker.slots.admission_core, whose laws it keeps.
"""

from __future__ import annotations

from typing import Final

FENCE_BITS: Final = 20
"""Grants of one epoch are counted below these bits."""

TICK_S: Final = 0.25
"""How often a running worker notes that it runs. Messages are looked at more often; see FreezeGuard."""


def next_epoch(previous: int, wall: float) -> int:
    """The epoch after `previous`: milliseconds of Unix time, or one more if the clock was set back.

    Milliseconds, since a worker that lost its memory (and the ledger with it) still starts above its past.
    """
    return max(previous + 1, int(wall * 1000))


class Fences:
    """Fences of the leases that are not written to the ledger first: `epoch * 2**20 + count`.

    Comparable within one worker only. They grow within an epoch by counting and over epochs by the epoch, which grows
    by at least one per millisecond: only a worker that granted over a million leases per millisecond could overtake
    its next epoch. Below 2**63 until the year 2248, so that they fit a signed 64-bit integer everywhere.
    """

    __slots__ = ("_last",)

    def __init__(self, epoch: int) -> None:
        self._last = epoch << FENCE_BITS

    def next(self) -> int:
        self._last += 1
        return self._last

    def new_epoch(self, epoch: int) -> None:
        """Go on from a later epoch."""
        self._last = max(self._last, epoch << FENCE_BITS)


class FreezeGuard:
    """Notices that the process did not run for a while: stopped, swapped out, or its loop blocked by a task.

    What piled up in the socket meanwhile was sent by callers who may have given up. After a freeze asyncio runs the
    sockets before the timers, so the gap must be looked for on entry of every message, not by a timer alone.
    """

    __slots__ = ("_after_s", "last_at")

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s = after_s
        self.last_at = now

    def tick(self, now: float) -> bool:
        """The timer's look, every TICK_S: True after a freeze. Resets the gap."""
        frozen = now - self.last_at > self._after_s
        self.last_at = now
        return frozen

    def frozen(self, now: float) -> bool:
        """A message's look. True after a freeze, once."""
        if now - self.last_at > self._after_s:
            self.last_at = now
            return True
        return False

    def stall_s(self, now: float) -> float:
        """For how long, beyond the timer's own period, the loop may not have run: messages may be so much older than
        they look, and what is left of their deadlines is so much less."""
        stall_s = now - self.last_at - TICK_S
        return stall_s if stall_s > 0.0 else 0.0
