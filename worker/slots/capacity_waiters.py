"""Routers that were refused for want of room: who is told first when there is some.

Without it, a full pool belongs to whoever got there first: a router hears of each slot that its own tasks free, and
takes it for its next request, while another one can only try from time to time and finds everything taken.

Pure: no clock, no randomness.
"""

from __future__ import annotations

from typing import Final

KEEP_S: Final = 2.0
"""Whoever still waits asks again sooner than that."""
MOST: Final = 10_000


class CapacityWaiters:
    """By reply subject, longest waiting first."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, int]] = {}
        """Until when it counts, and how many slots it asked for."""

    def __len__(self) -> int:
        return len(self._waiting)

    def refused(self, reply: str, slots: int, now: float) -> None:
        """A request for so many slots was turned away. It keeps its place if it had one."""
        if reply and (reply in self._waiting or len(self._waiting) < MOST):
            self._waiting[reply] = (now + KEEP_S, slots)

    def told(self, reply: str, free: int) -> None:
        """It hears of so much room anyhow."""
        waiting = self._waiting.get(reply)
        if waiting is not None and waiting[1] <= free:
            del self._waiting[reply]

    def invite(self, free: int, now: float) -> list[str]:
        """Take out those whom `free` slots are enough for, one after the other; and those who waited for too long."""
        invited: list[str] = []
        for reply, (until, slots) in list(self._waiting.items()):
            if until <= now:
                del self._waiting[reply]
            elif slots <= free:
                del self._waiting[reply]
                invited.append(reply)
                free -= slots
                if free <= 0:
                    break
        return invited

    def clear(self) -> None:
        self._waiting.clear()

    def __repr__(self) -> str:
        return f"CapacityWaiters({len(self._waiting)})"
