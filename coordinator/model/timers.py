"""What is to be done when. Names instead of timers: setting a name again moves it."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

Name = tuple[str, ...]


class Agenda:
    """Names with a time each."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[Name, float] = {}
        self._heap: list[tuple[float, Name]] = []  # may hold entries that were moved or cancelled since

    def __repr__(self) -> str:
        return f"<Agenda {len(self._at)} entries, next at {self.next_at}>"

    def __contains__(self, name: Name) -> bool:
        return name in self._at

    def set(self, name: Name, at: float) -> None:
        self._at[name] = at
        heappush(self._heap, (at, name))
        if len(self._heap) > 64 + 4 * len(self._at):
            self._heap = [(when, key) for key, when in self._at.items()]
            heapify(self._heap)

    def cancel(self, name: Name) -> None:
        self._at.pop(name, None)

    def clear(self) -> None:
        self._at.clear()
        self._heap.clear()

    @property
    def next_at(self) -> float | None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Name]:
        """Take out what is due, earliest first; what becomes due meanwhile comes too."""
        while True:
            at = self.next_at
            if at is None or at > now:
                return
            _, name = heappop(self._heap)
            del self._at[name]
            yield name
