"""What is to be done when. Pure: whoever has a queue sets a timer of the event loop, for its `next_at`."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

_SLACK: Final = 64
"""Outdated entries that are not worth a look."""

K = TypeVar("K", bound=tuple[Any, ...])


class TimerQueue(Generic[K]):
    """Keys with a time each; setting a key again moves it. Of those with the same time the smallest key is first, so
    that the order depends on nothing else. A heap with lazy deletion: moving and cancelling cost no search.
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []  # may hold entries that were moved or cancelled since

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._at)} entries, next at {self.next_at}>"

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[K]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def at(self, key: K) -> float | None:
        return self._at.get(key)

    def set(self, key: K, at: float) -> None:
        self._at[key] = at
        heappush(self._heap, (at, key))
        if len(self._heap) > _SLACK + 4 * len(self._at):
            self._heap = [(when, each) for each, when in self._at.items()]
            heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Idempotent."""
        self._at.pop(key, None)

    def clear(self) -> None:
        self._at.clear()
        self._heap.clear()

    @property
    def next_at(self) -> float | None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[K]:
        """Take out what is due, earliest first; what becomes due meanwhile comes too."""
        while True:
            at = self.next_at
            if at is None or at > now:
                return
            _, key = heappop(self._heap)
            del self._at[key]
            yield key
