"""Code that runs under a deadline, as that of a task does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gangline.schemas.deadline import UNDER


class Surrounding:
    """What a task's context is to the code in it."""

    def __init__(self, at: float | None) -> None:
        self.deadline = at


@contextmanager
def deadline(at: float | None) -> Iterator[None]:
    """Run the block with a deadline."""
    reset = UNDER.set(Surrounding(at))
    try:
        yield
    finally:
        UNDER.reset(reset)
