"""Epochs and fences: numbers that only grow, so that what is of the past can be told and refused.

Pure: no clock, no randomness; part of worker.slots.admission_core, whose laws it keeps.
"""

from __future__ import annotations

from typing import Final

FENCE_BITS: Final = 20
"""Grants of one epoch are counted below these bits."""


def next_epoch(previous: int, wall: float) -> int:
    """The epoch after `previous`: milliseconds of Unix time, or one more if the clock was set back.

    Milliseconds, since a worker that lost its memory (and the ledger with it) still starts above its past.
    """
    return max(previous + 1, int(wall * 1000))


class FencingTokens:
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
