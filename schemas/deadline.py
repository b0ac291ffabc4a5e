"""The current deadline, which a task passes on to the calls it makes.

Worker and dispatcher never import each other; they share only this module. A worker sets the deadline around each
task, and a client inside that task inherits it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Bounded(Protocol):
    """The surroundings of running code: a task's context."""

    deadline: float | None
    """The deadline, in seconds of the loop's monotonic clock; None: no deadline."""


UNDER: ContextVar[Bounded | None] = ContextVar("gangline_under", default=None)
"""Set for each task, in a context of its own, to the object that `current_task` returns. One variable serves both
purposes, since setting another one costs as much as running a short task. Outside of all tasks it is None."""


def current_deadline() -> float | None:
    """The deadline of the surrounding task, in seconds of the loop's monotonic clock; None: no deadline."""
    under = UNDER.get()
    return None if under is None else under.deadline
