"""Many waits of the same length, by one timer of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeoutQueue(Generic[T]):
    """Rings for each item once, some time after `add`, unless it is dropped before: which most of them are, so that an
    item costs two operations on a dictionary and no timer.

    Items come in about the order in which they fall due. One that is overtaken rings when the others before it do.
    """

    __slots__ = ("_due", "_loop", "_ring", "_timer")

    def __init__(self, ring: Callable[[T], None]) -> None:
        self._ring = ring
        self._due: dict[T, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, item: T, at: float) -> None:
        """Ring for it at that time of the running loop's clock, or soon after."""
        self._due[item] = at
        if self._timer is None:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_at(at, self._look)

    def __iter__(self) -> Iterator[T]:
        return iter(self._due)

    def drop(self, item: T) -> bool:
        """Do not ring for it; False when it was not there."""
        return self._due.pop(item, None) is not None

    def close(self) -> None:
        """Forget all. Idempotent."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        loop = self._loop
        assert loop is not None
        now = loop.time()
        due: list[T] = []
        next_at: float | None = None
        for item, at in self._due.items():
            if at > now:
                next_at = at
                break
            due.append(item)
        for item in due:
            del self._due[item]
        if next_at is not None:
            self._timer = loop.call_at(next_at, self._look)
        for item in due:
            self._ring(item)

    def __repr__(self) -> str:
        return f"TimeoutQueue({len(self._due)})"
