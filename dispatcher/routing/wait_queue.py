"""The queue in which requests wait, in the order of their arrival; tenants take turns. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from ...runtime.timers import Pace


class QueueItem(Protocol):
    """An item of a WaitQueue."""

    number: int
    """Order of arrival; kept across retries, so that a retry gets its old place back."""
    queue: Hashable
    """The class it waits in."""
    tenant: str
    """The account that it belongs to; empty: Gangline's own."""
    waits: object | None
    """The WaitQueue in which it waits now; None: it does not wait. Set by WaitQueue."""
    pace: Pace | None
    """The part of the queue in which it waits. Set by WaitQueue."""


W = TypeVar("W", bound=QueueItem)


class TenantTurns:
    """Whose turn it is among tenants that wait for the same: the one that has got the least, divided by its weight
    (start-time fair queueing). Time in which a tenant does not wait earns it nothing, and it neither gains nor loses by
    leaving for a moment: one that always waits with a single request gets its whole share.
    """

    __slots__ = ("_served", "_start", "_waiting", "_weight_of")

    def __init__(self, weight_of: Callable[[str], float] | None = None) -> None:
        """
        Args:
            weight_of: the weight of a tenant; None: 1 for all. Gangline's own account has 1.
        """
        self._weight_of = weight_of
        self._waiting: dict[str, int] = {}
        """By tenant that waits: how many times it has entered."""
        self._served: dict[str, float] = {}
        """By tenant: what it has got, divided by its weight. Kept while anybody waits."""
        self._start = 0.0
        """What the tenant that got something last had got before: a tenant that enters had no turn before this one."""

    def enter(self, tenant: str) -> None:
        """It waits. May be called again; then it waits until it has left as often."""
        count = self._waiting.get(tenant, 0)
        if not count:
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._start)
        self._waiting[tenant] = count + 1

    def leave(self, tenant: str) -> None:
        """It no longer waits."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            if not self._waiting:
                self._served.clear()
                self._start = 0.0

    def take(self, tenant: str, amount: float) -> None:
        """A waiting tenant gets this much."""
        self._start = start = self._served[tenant]
        self._served[tenant] = start + amount / self._weight(tenant)

    def served(self, tenant: str, more: float = 0.0) -> float:
        """What a waiting tenant has got, and will have with `more`; the turn is the tenant's with the lowest."""
        return self._served[tenant] + more / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self._weight_of(tenant) if tenant and self._weight_of is not None else 1.0


class _Line(Generic[W]):
    """One class: a heap for each tenant, and whose turn it is."""

    __slots__ = ("_owner", "_queue", "heaps", "paces", "turns")

    def __init__(self, owner: WaitQueue[W], queue: Hashable, turns: TenantTurns) -> None:
        self._owner = owner
        self._queue = queue
        self.heaps: dict[str, list[tuple[int, W]]] = {}
        self.paces: dict[str, Pace] = {}
        self.turns = turns

    def push(self, item: W) -> None:
        heap = self.heaps.get(item.tenant)
        if heap is None:
            self.turns.enter(item.tenant)
            heap = self.heaps[item.tenant] = []
            self.paces[item.tenant] = Pace()
        item.pace = pace = self.paces[item.tenant]
        pace.size += 1
        heapq.heappush(heap, (item.number, item))

    def heads(self) -> list[W]:
        """The first of each tenant."""
        return [item for tenant in list(self.heaps) if (item := self._first(tenant)) is not None]

    def next_of(self, heads: list[W]) -> W | None:
        """The one of the tenant whose turn it is."""
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda item: (self.turns.served(item.tenant), item.number))

    def _first(self, tenant: str) -> W | None:
        heap = self.heaps[tenant]
        while heap:
            item = heap[0][1]
            # An item that left and came back is in the heap twice with the same number; either entry will do. One that
            # left may wait in another queue, or in another class.
            if item.waits is self._owner and item.queue == self._queue:
                return item
            heapq.heappop(heap)
        del self.heaps[tenant], self.paces[tenant]
        self.turns.leave(tenant)
        return None


class WaitQueue(Generic[W]):
    """Queues by class, each ordered by `number`; removed items are dropped when they reach the top.

    A *class* has requests that the same workers could take. Within it, the order of arrival of one tenant is strict, so
    that a request for many slots is not starved by requests for one; a class whose workers are full does not block
    another. Tenants take turns, by the slots that each has got while others waited, divided by its weight: one that
    waits with a thousand requests gets no more than one that waits with a few. An item that its tenant's quota holds
    back is passed over, with those of the tenant behind it.
    """

    __slots__ = ("_held_back", "_lines", "_weight_of", "size")

    def __init__(
        self, weight_of: Callable[[str], float] | None = None, held_back: Callable[[W], bool] | None = None
    ) -> None:
        """
        Args:
            weight_of: the weight of a tenant; None: 1 for all. Gangline's own account has 1.
            held_back: whether an item must wait for others of its tenant; None: no item must.
        """
        self._lines: dict[Hashable, _Line[W]] = {}
        self._weight_of = weight_of
        self._held_back = held_back
        self.size = 0
        """Number of waiting items."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[W]:
        """All waiting items, oldest first."""
        entries = (entry for line in self._lines.values() for heap in line.heaps.values() for entry in heap)
        waiting = {number: item for number, item in entries if item.waits is self}
        return iter([waiting[number] for number in sorted(waiting)])

    def has_line(self, queue: Hashable) -> bool:
        """Whether the class has waiting items that no quota holds back."""
        return self._head(queue) is not None

    def add(self, item: W) -> None:
        """Add an item at the place given by its number."""
        assert item.waits is None, item
        item.waits = self
        self.size += 1
        line = self._lines.get(item.queue)
        if line is None:
            line = self._lines[item.queue] = _Line(self, item.queue, TenantTurns(self._weight_of))
        line.push(item)

    def take(self, item: W, slots: int, now: float) -> None:
        """Remove an item that gets this many slots now."""
        line = self._lines[item.queue]
        line.turns.take(item.tenant, slots)
        if item.pace is not None:
            item.pace.took(now)
        self.remove(item)

    def remove(self, item: W) -> bool:
        """Remove an item; False if it was not waiting here."""
        if item.waits is not self:
            return False
        item.waits = None
        if item.pace is not None:
            item.pace.size -= 1
            item.pace = None
        self.size -= 1
        if self.size == 0:
            self._lines.clear()
        else:
            self._head(item.queue)  # drops the class if it is empty
        return True

    def pace(self, item: W) -> Pace | None:
        """How fast those of its class and tenant get slots; None: none waits."""
        line = self._lines.get(item.queue)
        return None if line is None else line.paces.get(item.tenant)

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

    def first_of(self, item: W) -> W | None:
        """The first item in the class of `item` of the same tenant."""
        line = self._lines.get(item.queue)
        return None if line is None else next((head for head in line.heads() if head.tenant == item.tenant), None)

    def _head(self, queue: Hashable) -> W | None:
        line = self._lines.get(queue)
        if line is None:
            return None
        heads = line.heads()
        if not heads:
            del self._lines[queue]
        elif self._held_back is not None:
            heads = [item for item in heads if not self._held_back(item)]
        return line.next_of(heads)
