"""The current deadline, which a task passes on to the calls it makes; and the margin for times that another machine
measures.

Worker and dispatcher never import each other; they share only this module. A worker sets the deadline around each
task, and a client inside that task inherits it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol


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


CLOCKS_DIFFER: Final = 0.2
"""The largest difference between the rates of two machines' clocks, as a fraction of the faster one. A clock that is
being corrected may be off by a twelfth (chrony's `maxslewrate`), and the other one may be off in the other
direction."""


def margin_s(ttl_s: float) -> float:
    """How much earlier than its time to live a holder stops trusting a lease. It covers a holder's clock that is
    slower than the grantor's, and the time to notice; at most a quarter of the time to live."""
    return min(ttl_s / 4, 0.05 + ttl_s * CLOCKS_DIFFER)
