"""A request on its way to a worker, and the queue in which requests wait. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ...schemas.names import WorkerId
from .outcome import TryOutcome
from .worker_table import WorkerEntry


class RouteStay(Protocol):
    """A request's admission by the route that chose its pool."""

    def settled(self) -> None:
        """The request no longer counts on a worker."""

    def sent(self) -> None:
        """An attempt was sent."""


class RoutedRequest:
    """One request on its way to a worker, through all its attempts."""

    # No __slots__: most requests never set these, and class attributes make requests cheaper to create.

    slots: int | None = None
    """Slots to reserve; None: as many as the task takes."""
    key: str | None = None
    model: str | None = None
    labels: Mapping[str, str] | None = None
    idempotent: bool | None = None
    """None: as the task declares."""
    in_line = True
    """Whether it may wait for a worker with a free slot."""
    patient = False
    """Whether the caller ends the wait (it has a deadline); otherwise `saturated_wait_s` does."""
    repeatable = False
    """`idempotent`, or as the task of the last attempt declares."""
    number = 0
    queue: Hashable = None
    waits = False
    queued_at = 0.0
    """Since when it has been waiting to be accepted, including refusals."""
    attempts = 0
    avoid: set[WorkerEntry] | None = None
    worker: WorkerEntry | None = None
    """The worker on which it is placed and counted; None: none."""
    cost = 0
    """Slots counted there."""
    asked_at: float | None = None
    """Loop time of the first attempt to place it."""
    last: WorkerId | None = None
    """Worker of the last attempt."""
    uncertain: TryOutcome | None = None
    """Outcome of an attempt that may have started something and was retried: every later error says that it may have
    run."""
    fate: TryOutcome | None = None
    """Outcome of the last attempt."""
    waiter: object | None = None
    """For use by the caller of the core."""
    endpoint: str | None = None
    """The endpoint whose route it follows: it leaves a pool that is removed from the route. None: the caller named the
    pool."""
    moved = False
    """It has already waited in another pool, so it is not refused because the queue is full."""
    admission: RouteStay | None = None
    """None: no route chose its pool."""

    def __init__(
        self,
        *,
        method: str | None,
        slots: int | None = None,
        key: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        patient: bool = False,
        max_attempts: int = 10_000,
        queue: bool | None = None,
    ) -> None:
        self.method = method
        self.max_attempts = max_attempts
        if slots is not None:
            self.slots = slots
        if key is not None:
            self.key = key
        if model is not None:
            self.model = model
        if labels:
            self.labels = labels
        if idempotent is not None:
            self.idempotent = self.repeatable = idempotent
        if patient:
            self.patient = patient
        if queue is False:
            self.in_line = False

    def __repr__(self) -> str:
        where = "waits" if self.waits else f"on {self.worker.id}" if self.worker else "idle"
        return f"RoutedRequest(#{self.number} {self.method}, {where}, attempts={self.attempts})"


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
