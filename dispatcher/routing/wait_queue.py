"""Requests that wait for a worker, in order of arrival. Pure.

There is one line for each *class* of requests: those that the same workers could take. Within a class the order is
strict, so that a request that needs many slots is not starved by those that need one; a class whose workers are full
does not hold up another.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What can wait."""

    number: int
    """Order of arrival; kept over retries, so that a retry gets its old place back."""
    queue: Hashable
    """The class it waits in."""
    waits: bool
    """Whether it waits now; belongs to WaitQueue."""


W = TypeVar("W", bound=Waiting)


class WaitQueue(Generic[W]):
    """Lines by class, each a heap on `number`; those that left are dropped when they come up."""

    __slots__ = ("_lines", "size")

    def __init__(self) -> None:
        self._lines: dict[Hashable, list[tuple[int, W]]] = {}
        self.size = 0
        """How many wait."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[W]:
        """All that wait, oldest first."""
        waiting = {number: item for line in self._lines.values() for number, item in line if item.waits}
        return iter([waiting[number] for number in sorted(waiting)])

    def has_line(self, queue: Hashable) -> bool:
        """Whether somebody of the class waits."""
        return self._head(queue) is not None

    def add(self, item: W) -> None:
        """Let it wait at the place that its number gives it."""
        assert not item.waits, item
        item.waits = True
        self.size += 1
        heapq.heappush(self._lines.setdefault(item.queue, []), (item.number, item))

    def remove(self, item: W) -> bool:
        """Take it out; False when it did not wait."""
        if not item.waits:
            return False
        item.waits = False
        self.size -= 1
        if self.size == 0:
            self._lines.clear()
        else:
            self._head(item.queue)  # drops a class that nobody waits in any more
        return True

    def sweep(self) -> None:
        """Forget those that left at once, since they are about to wait in another line: here they would seem to wait
        again."""
        for queue, line in list(self._lines.items()):
            line[:] = [entry for entry in line if entry[1].waits]
            heapq.heapify(line)
            if not line:
                del self._lines[queue]

    def heads(self) -> list[W]:
        """The first of each class, oldest first."""
        if len(self._lines) == 1:
            (queue,) = self._lines
            head = self._head(queue)
            return [] if head is None else [head]
        found = [head for queue in list(self._lines) if (head := self._head(queue)) is not None]
        found.sort(key=lambda item: item.number)
        return found

    def next_after(self, item: W) -> W | None:
        """Who is first in the class of one that has just been taken out."""
        return self._head(item.queue)

    def _head(self, queue: Hashable) -> W | None:
        line = self._lines.get(queue)
        if line is None:
            return None
        while line:
            item = line[0][1]
            # One that left and came back stands in the heap twice with one number; either entry will do.
            if item.waits:
                return item
            heapq.heappop(line)
        del self._lines[queue]
        return None
