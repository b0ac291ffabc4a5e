"""When something is to be done about which task. Setting the same again moves it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final

_SLACK: Final = 64


class Due(StrEnum):
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


_ALL: Final = tuple(Due)
Entry = tuple[Due, int]
"""With the task's sequence."""


class Agenda:
    """Entries with a time each, of the monotonic clock."""

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[Entry, float] = {}
        self._heap: list[tuple[float, Entry]] = []  # may hold entries that were moved or cancelled since

    def __repr__(self) -> str:
        return f"<Agenda {len(self._at)} entries, next at {self.next_at}>"

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._at

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._at)

    def __bool__(self) -> bool:
        return bool(self._at)

    def at(self, entry: Entry) -> float | None:
        return self._at.get(entry)

    def set(self, entry: Entry, at: float) -> None:
        self._at[entry] = at
        heappush(self._heap, (at, entry))
        if len(self._heap) > _SLACK + 4 * len(self._at):
            self._heap = [(when, key) for key, when in self._at.items()]
            heapify(self._heap)

    def cancel(self, entry: Entry) -> None:
        self._at.pop(entry, None)

    def forget(self, seq: int) -> None:
        """Cancel all that is to be done about a task."""
        if self._at:
            for due in _ALL:
                self._at.pop((due, seq), None)

    @property
    def next_at(self) -> float | None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Entry]:
        """Take out what is due, earliest first; what becomes due meanwhile comes too."""
        while True:
            at = self.next_at
            if at is None or at > now:
                return
            _, entry = heappop(self._heap)
            del self._at[entry]
            yield entry
