"""Things that fall due, soonest first, in one heap, so that one timer serves them all."""

from __future__ import annotations

import heapq
from typing import Final, Generic, Protocol, TypeVar

NEVER = float("inf")
"""A `due_at` that does not come: the item is over, or has no deadline."""

_SPARE: Final = 64
"""Dead entries that are not worth a look."""


class Due(Protocol):
    """What can be put in. `due_at` may move at any time; `queued_at` belongs to the heap."""

    due_at: float
    """When it falls due, by the loop's clock, in seconds. NEVER takes it out."""
    queued_at: float
    """Where the heap expects it; NEVER while it is in no heap."""


D = TypeVar("D", bound=Due)


class DeadlineHeap(Generic[D]):
    """A heap with lazy moves: what falls due later than queued (the common case: a renewal) is not touched until then,
    and what is over is dropped when it comes up, or when more than half of the heap is such. What is over before
    anybody looked (most tasks end in the turn in which they came) is never in the heap at all.
    """

    __slots__ = ("_count", "_heap", "_new")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._new: list[D] = []
        """Pushed since anybody looked."""
        self._count = 0
        """Breaks ties, so that items themselves are never compared."""

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._heap) + len(self._new)

    def push(self, item: D) -> None:
        """Queue `item`, or follow its `due_at` to an earlier time. One that has no deadline is left out."""
        due_at, queued_at = item.due_at, item.queued_at
        if due_at < queued_at:
            item.queued_at = due_at
            if queued_at == NEVER:
                self._new.append(item)
            else:
                self._queue(item)

    def pop_due(self, now: float) -> list[D]:
        """Take out all that have `due_at <= now`, soonest first."""
        if self._new:
            self._settle()
        due: list[D] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, item = heapq.heappop(heap)
            if at != item.queued_at:
                continue  # it was queued again for an earlier time, and came up then
            item.queued_at = NEVER
            if item.due_at <= now:
                due.append(item)
            else:
                self.push(item)
        return due

    def next_at(self, living: int | None = None) -> float | None:
        """When to look next; early rather than late. None: nothing is queued. `living`: as in `compact`."""
        if self._new:
            self._settle()
        if living is not None and len(self._heap) > 2 * living + _SPARE:
            self.compact(living)
        heap = self._heap
        while heap and (heap[0][0] != heap[0][2].queued_at or heap[0][2].due_at == NEVER):
            at, _, item = heapq.heappop(heap)
            if at == item.queued_at:
                item.queued_at = NEVER
        return heap[0][0] if heap else None

    def compact(self, living: int) -> None:
        """Drop dead entries if there are many more entries than `living` items."""
        if self._new:
            self._settle()
        if len(self._heap) <= 2 * living + _SPARE:
            return
        keep: list[tuple[float, int, D]] = []
        for entry in self._heap:
            item = entry[2]
            if entry[0] == item.queued_at:
                if item.due_at == NEVER:
                    item.queued_at = NEVER
                else:
                    keep.append(entry)
        heapq.heapify(keep)
        self._heap = keep

    def _settle(self) -> None:
        new, self._new = self._new, []
        for item in new:
            if item.due_at == NEVER:
                item.queued_at = NEVER
            else:
                self._queue(item)

    def _queue(self, item: D) -> None:
        self._count += 1
        heapq.heappush(self._heap, (item.queued_at, self._count, item))
