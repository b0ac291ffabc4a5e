"""When something is to be done about which task."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ....runtime.timers import TimerQueue


class TimerKind(StrEnum):
    """What is to be done."""

    DEADLINE = "deadline"
    """The job may run no longer."""
    TIMEOUT = "timeout"
    """The try may run no longer."""
    RETRY = "retry"
    """The next try's turn has come."""
    UNKNOWN = "unknown"
    """Nobody knows the endpoint: it is dead."""
    MISFIT = "misfit"
    """No worker is large enough: it is dead."""


_ALL: Final = tuple(TimerKind)
Entry = tuple[TimerKind, int]
"""With the task's sequence."""


class TaskTimers(TimerQueue[Entry]):
    """By the monotonic clock."""

    __slots__ = ()

    def forget(self, seq: int) -> None:
        """Cancel all that is to be done about a task."""
        if self:
            for due in _ALL:
                self.cancel((due, seq))
