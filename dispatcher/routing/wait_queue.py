"""The queue in which requests wait, in the order of their arrival. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """An item of a WaitQueue."""

    number: int
    """Order of arrival; kept across retries, so that a retry gets its old place back."""
    queue: Hashable
    """The class it waits in."""
    waits: bool
    """Whether it is waiting now; set by WaitQueue."""


W = TypeVar("W", bound=Waiting)


class WaitQueue(Generic[W]):
    """Queues by class, each a heap ordered by `number`; removed items are dropped when they reach the top.

    A *class* has requests that the same workers could take. Within it, the order of arrival is strict, so that a
    request for many slots is not starved by requests for one; a class whose workers are full does not block another.
    """

    __slots__ = ("_lines", "size")

    def __init__(self) -> None:
        self._lines: dict[Hashable, list[tuple[int, W]]] = {}
        self.size = 0
        """Number of waiting items."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[W]:
        """All waiting items, oldest first."""
        waiting = {number: item for line in self._lines.values() for number, item in line if item.waits}
        return iter([waiting[number] for number in sorted(waiting)])

    def has_line(self, queue: Hashable) -> bool:
        """Whether the class has waiting items."""
        return self._head(queue) is not None

    def add(self, item: W) -> None:
        """Add an item at the place given by its number."""
        assert not item.waits, item
        item.waits = True
        self.size += 1
        heapq.heappush(self._lines.setdefault(item.queue, []), (item.number, item))

    def remove(self, item: W) -> bool:
        """Remove an item; False if it was not waiting."""
        if not item.waits:
            return False
        item.waits = False
        self.size -= 1
        if self.size == 0:
            self._lines.clear()
        else:
            self._head(item.queue)  # drops the class if it is empty
        return True

    def sweep(self) -> None:
        """Drop removed items at once, because they are about to wait in another queue: here they would seem to wait
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
        """The first item in the class of an item that was just removed."""
        return self._head(item.queue)

    def _head(self, queue: Hashable) -> W | None:
        line = self._lines.get(queue)
        if line is None:
            return None
        while line:
            item = line[0][1]
            # An item that left and came back is in the heap twice with the same number; either entry will do.
            if item.waits:
                return item
            heapq.heappop(line)
        del self._lines[queue]
        return None
