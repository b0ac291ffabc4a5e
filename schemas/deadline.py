"""The deadline that code runs under, handed down from a task to the calls that it makes.

Worker and dispatcher never import each other; this is the one thing they share. A worker sets it around each task, a
client inside that task inherits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

DEADLINE: ContextVar[float | None] = ContextVar("gangline_deadline", default=None)
"""For hot paths, which ask at every request or set it for every task: what follows is one call more."""


def current_deadline() -> float | None:
    """When the surrounding task must be done, in seconds of the loop's monotonic clock; None is never."""
    return DEADLINE.get()


@contextmanager
def deadline(at: float | None) -> Iterator[None]:
    """Run the block under a deadline. An outer deadline that is earlier stays in force."""
    outer = DEADLINE.get()
    if at is None or (outer is not None and outer < at):
        at = outer
    reset = DEADLINE.set(at)
    try:
        yield
    finally:
        DEADLINE.reset(reset)


def begin_under(at: float | None) -> None:
    """Run the rest of this context under exactly that deadline: for code that was given a context of its own, as the
    start of a task is. Cheaper than `deadline`, and never undone."""
    DEADLINE.set(at)
