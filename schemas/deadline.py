"""The deadline that code runs under, handed down from a task to the calls that it makes; and how far to trust a time
that another machine measures.

Worker and dispatcher never import each other; this is the one thing they share. A worker sets it around each task, a
client inside that task inherits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol


class Bounded(Protocol):
    """What code runs under: a task's own context, or no more than a time."""

    deadline: float | None
    """When it must be done, in seconds of the loop's monotonic clock; None is never."""


UNDER: ContextVar[Bounded | None] = ContextVar("gangline_under", default=None)
"""Set for each task, in a context that is its own, to what `current_task` finds: one variable for both, since to set
another costs as much as to run a short task. Outside of all tasks None, or what `deadline` set."""


class _Bound:
    __slots__ = ("deadline",)

    def __init__(self, at: float) -> None:
        self.deadline: float | None = at


def current_deadline() -> float | None:
    """When the surrounding task must be done, in seconds of the loop's monotonic clock; None is never."""
    under = UNDER.get()
    return None if under is None else under.deadline


@contextmanager
def deadline(at: float | None) -> Iterator[None]:
    """Run the block under a deadline. An outer deadline that is earlier stays in force."""
    outer = current_deadline()
    if at is None or (outer is not None and outer < at):
        yield
        return
    reset = UNDER.set(_Bound(at))
    try:
        yield
    finally:
        UNDER.reset(reset)


CLOCKS_DIFFER: Final = 0.2
"""By how much of the faster one the rates of two machines' clocks may differ. A clock that is steered back onto the
right time may be off by a twelfth (chrony's `maxslewrate`), and so may the other one, the other way."""


def margin_s(ttl_s: float) -> float:
    """How much earlier than its time to live a holder stops trusting what it holds: for a clock that is slower than
    that of whoever granted it, and a little for what it takes to notice; a quarter at most."""
    return min(ttl_s / 4, 0.05 + ttl_s * CLOCKS_DIFFER)
