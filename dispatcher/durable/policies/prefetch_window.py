"""How many messages to ask for, so that enough can be seen to judge priorities, keys and limits, and not too many."""

from __future__ import annotations

from typing import Final

_BATCH: Final = 16
"""Asked for when a 16th of the window is free: one request for each message would cost more than the messages."""
AT_ONCE: Final = 128
"""On their way at once, as a rule. However many there are, the next come as soon as these are taken; answers of
workers, and with them the next starts, wait behind no more than these."""


class PrefetchWindow:
    """What is in hand and on its way. A bound of bytes can be passed by what was on its way already, if messages are
    suddenly larger than those before."""

    __slots__ = ("_bytes", "_mean", "asked", "bytes", "count", "held")

    def __init__(self, *, count: int, bytes_: int) -> None:
        self.count = count
        self._bytes = bytes_
        self._mean = 1024.0
        self.held = 0
        """Messages in hand."""
        self.bytes = 0
        """... and their bytes."""
        self.asked = 0
        """Messages pulled that have not come."""

    def __repr__(self) -> str:
        return f"PrefetchWindow({self.held} of {self.count}, {self.bytes} bytes, {self.asked} asked for)"

    def delivered(self) -> None:
        """A message came, known or not."""
        self.asked = max(0, self.asked - 1)

    def add(self, size: int) -> None:
        """A new one is kept."""
        self.held += 1
        self.bytes += size
        self._mean += (size - self._mean) / min(self.held, 64)

    def remove(self, size: int) -> None:
        self.held -= 1
        self.bytes -= size

    def ask(self, most: int | None = None) -> int:
        """How many to ask for now, of whom `most` may be on their way; they count as asked for. 0: none."""
        mean = max(1.0, self._mean)
        fit = max(1, min(self.count, int(self._bytes / mean)))
        free = min(self.count - self.held, int((self._bytes - self.bytes) / mean))
        if not self.held:
            free = fit
        batch = fit // _BATCH
        if most is not None:
            free, batch = min(free, most), min(batch, most // 2)
        room = free - self.asked
        if room < max(1, batch):
            return 0
        self.asked += room
        return room
