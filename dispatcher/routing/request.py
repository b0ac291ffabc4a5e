"""A request on its way to a worker, and the line in which requests wait for one. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from ...schemas.names import WorkerId
from .outcome import TryOutcome
from .worker_table import WorkerEntry


class RouteStay(Protocol):
    """A request's stay with the route that chose its pool."""

    def settled(self) -> None:
        """It no longer counts on a worker."""

    def sent(self) -> None:
        """A try of it was sent."""


class RoutedRequest:
    """One request on its way to a worker, through all its tries."""

    # No slots: what most requests never set stands in the class, which makes one of them cheaper to make.

    slots: int | None = None
    """Slots to reserve; None: what the task costs."""
    key: str | None = None
    model: str | None = None
    labels: Mapping[str, str] | None = None
    idempotent: bool | None = None
    """None: as the task declares."""
    in_line = True
    """Whether it may wait for a worker with room."""
    patient = False
    """Whether the caller ends the wait itself (it has a deadline); else `saturated_wait_s` does."""
    repeatable = False
    """`idempotent`, or what the task of the last try declares."""
    number = 0
    queue: Hashable = None
    waits = False
    queued_at = 0.0
    """Since when it has been waiting to be taken, refusals included."""
    attempts = 0
    avoid: set[WorkerEntry] | None = None
    worker: WorkerEntry | None = None
    """Where it is placed and charged; None while it is not."""
    cost = 0
    """Slots charged there."""
    asked_at: float | None = None
    """Loop time at which a worker was first looked for."""
    last: WorkerId | None = None
    """Where the last try went."""
    uncertain: TryOutcome | None = None
    """The fate of a try that may have started something and was repeated: whatever error comes, it may have run."""
    fate: TryOutcome | None = None
    """What became of the last try."""
    waiter: object | None = None
    """The shell's own attachment."""
    endpoint: str | None = None
    """The endpoint whose route it follows, so that it leaves a pool that leaves the route. None: it means the pool."""
    moved = False
    """It waited before, in another pool: that too many wait is no reason to refuse it."""
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
    """What can wait."""

    number: int
    """Order of arrival; kept over retries, so that a retry gets its old place back."""
    queue: Hashable
    """The class it waits in."""
    waits: bool
    """Whether it waits now; belongs to WaitQueue."""


W = TypeVar("W", bound=Waiting)


class WaitQueue(Generic[W]):
    """Lines by class, each a heap on `number`; those that left are dropped when they come up.

    A *class* is of requests that the same workers could take. Within it the order of arrival is strict, so that a
    request that needs many slots is not starved by those that need one; a class whose workers are full does not hold up
    another.
    """

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
