"""The slot limiter: counts a worker's used slots in one place, for every path.

The shape is that of trio's `CapacityLimiter`: slots are acquired on behalf of a *borrower*, the total can be changed
live, `statistics()` is frozen. There are two differences. Nothing here ever waits: a full worker refuses, and the
caller goes elsewhere. And a borrower's slots are either *reserved* (granted to a lease, idle) or *running* (used by a
task), and move between the two without being free in between.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import dataclass
from typing import Final

from ...schemas.limits import MAX_SLOTS

Borrower = object
"""Whatever holds slots: compared by identity or equality, must be hashable. Here leases and tasks."""


class LimiterError(RuntimeError):
    """A slot was released twice, or used by a borrower that has none: a bug in this package, never a user's mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatistics:
    """A snapshot of a SlotLimiter."""

    total: int
    reserved: int
    """Slots granted and idle."""
    running: int
    """Slots with a task on them."""
    borrowers: int
    """How many leases and tasks hold slots."""

    @property
    def free(self) -> int:
        """Slots that can be acquired now; 0 after a downward resize until the slots in use fit."""
        return max(0, self.total - self.reserved - self.running)


class SlotLimiter:
    """Counts slots. Not thread-safe: belongs to one event loop.

    Laws (see worker.slots.admission_core): reserved + running never exceed `total`, except after a downward resize, and
    then nothing is acquired until they fit (L1). Every acquire has exactly one release; a second one raises (L2).
    """

    __slots__ = ("_reserved", "_running", "on_free", "reserved", "running", "total")

    def __init__(self, total: int) -> None:
        """`total` is the number of slots, from 0 (nothing can be acquired) to MAX_SLOTS."""
        _check_total(total)
        self.total = total
        self.reserved = 0
        """Sum of `_reserved`."""
        self.running = 0
        """Sum of `_running`."""
        self._reserved: dict[Borrower, int] = {}
        """Idle slots by lease; never 0."""
        self._running: dict[Borrower, int] = {}
        """Used slots by task; never 0."""
        self.on_free: Callable[[], None] | None = None
        """Called last when slots have become free; may take some before anybody else can."""

    def __repr__(self) -> str:
        return f"SlotLimiter(total={self.total}, running={self.running}, reserved={self.reserved}, free={self.free})"

    @property
    def free(self) -> int:
        """Slots that can be acquired now, never negative."""
        free = self.total - self.reserved - self.running
        return free if free > 0 else 0

    @property
    def runners(self) -> KeysView[Borrower]:
        """The running borrowers in start order; a view."""
        return self._running.keys()

    def reserve_nowait(self, borrower: Borrower, slots: int = 1) -> bool:
        """Acquire idle slots for a lease. False, with nothing taken, if fewer than `slots` are free.

        Returns a bool instead of raising trio's WouldBlock: on a busy worker "full" is the common answer.
        """
        if slots < 1:
            _check_slots(slots)
        if borrower in self._reserved:
            raise LimiterError(f"{borrower!r} already holds slots: release them first")
        if self.reserved + self.running + slots > self.total:
            return False
        self._reserved[borrower] = slots
        self.reserved += slots
        return True

    def run_nowait(self, borrower: Borrower, slots: int = 1) -> bool:
        """Acquire slots for a task that starts at once. False, with nothing taken, if fewer than `slots` are free."""
        if slots < 1:
            _check_slots(slots)
        if borrower in self._running:
            raise LimiterError(f"{borrower!r} already runs: release it first")
        if self.reserved + self.running + slots > self.total:
            return False
        self._running[borrower] = slots
        self.running += slots
        return True

    def start(self, lease: Borrower, task: Borrower, slots: int = 1) -> None:
        """Put a task on idle slots of a lease. It never fails because the worker is full: that is what the lease is
        for.

        Raises:
            LimiterError: the lease has fewer idle slots than that.
        """
        if slots < 1:
            _check_slots(slots)
        idle = self._reserved.get(lease, 0)
        if idle < slots:
            raise LimiterError(f"{lease!r} has {idle} idle slots, {slots} were to start")
        if task in self._running:
            raise LimiterError(f"{task!r} already runs: release it first")
        self._take(lease, idle, slots)
        self._running[task] = slots
        self.running += slots

    def finish(self, task: Borrower, lease: Borrower | None = None) -> int:
        """Free a task's slots, or return them to a lease that continues. Returns how many.

        Raises:
            LimiterError: the task holds none (it was finished before).
        """
        slots = self._running.pop(task, 0)
        if not slots:
            raise LimiterError(f"{task!r} holds no slots: finished twice?")
        self.running -= slots
        if lease is not None:
            self._reserved[lease] = self._reserved.get(lease, 0) + slots
            self.reserved += slots
        elif self.on_free is not None:
            self.on_free()
        return slots

    def release(self, lease: Borrower) -> int:
        """Free the idle slots of a lease; slots in use stay with their tasks. Returns how many, maybe 0."""
        slots = self._reserved.get(lease, 0)
        if slots:
            self._take(lease, slots, slots)
            if self.on_free is not None:
                self.on_free()
        return slots

    def move(self, lease: Borrower, heir: Borrower, slots: int | None = None) -> int:
        """Give idle slots of one borrower (None: all it has) to another, never free in between. Returns how many.

        Raises:
            LimiterError: it has fewer idle slots than that.
        """
        idle = self._reserved.get(lease, 0)
        slots = idle if slots is None else slots
        if slots > idle:
            raise LimiterError(f"{lease!r} has {idle} idle slots, {slots} were to be moved")
        if slots:
            self._take(lease, idle, slots)
            self._reserved[heir] = self._reserved.get(heir, 0) + slots
            self.reserved += slots
        return slots

    def resize(self, total: int) -> None:
        """Change the number of slots. If more are held, nobody loses them, but nothing is acquired until they fit."""
        _check_total(total)
        self.total = total
        if self.on_free is not None:
            self.on_free()

    def statistics(self) -> SlotStatistics:
        return SlotStatistics(
            total=self.total,
            reserved=self.reserved,
            running=self.running,
            borrowers=len(self._reserved) + len(self._running),
        )

    def check(self) -> None:
        """Raise AssertionError if the sums do not match."""
        assert self.reserved == sum(self._reserved.values()), self
        assert self.running == sum(self._running.values()), self
        assert all(slots > 0 for slots in self._reserved.values()), self
        assert all(slots > 0 for slots in self._running.values()), self

    def holders(self) -> list[Borrower]:
        """All borrowers with idle slots."""
        return list(self._reserved)

    def held(self, borrower: Borrower) -> tuple[int, int]:
        """`(reserved, running)` slots of one borrower."""
        return self._reserved.get(borrower, 0), self._running.get(borrower, 0)

    def _take(self, lease: Borrower, idle: int, slots: int) -> None:
        if idle == slots:
            del self._reserved[lease]
        else:
            self._reserved[lease] = idle - slots
        self.reserved -= slots


def _check_slots(slots: int) -> None:
    if slots < 1:
        raise ValueError(f"slots must be at least 1, not {slots}")


def _check_total(total: int) -> None:
    if not 0 <= total <= MAX_SLOTS:
        raise ValueError(f"total must be from 0 to {MAX_SLOTS}, not {total}")


WAITER_S: Final = 2.0
"""How long a refusal counts. A router that still waits asks again sooner."""
MOST_WAITERS: Final = 10_000


class CapacityWaiters:
    """Routers that were refused because the worker was full, by reply subject. The longest waiting is told first when
    slots are free.

    Without it, the router that came first keeps a full pool: it learns of each slot that its own tasks free, and takes
    it for its next request, while other routers can only try from time to time and find no free slot.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, int]] = {}
        """When it expires, and how many slots were requested."""

    def __len__(self) -> int:
        return len(self._waiting)

    def refused(self, reply: str, slots: int, now: float) -> None:
        """A request for `slots` was refused. A router that waits already keeps its place."""
        if reply and (reply in self._waiting or len(self._waiting) < MOST_WAITERS):
            self._waiting[reply] = (now + WAITER_S, slots)

    def told(self, reply: str, free: int) -> None:
        """The router is told of `free` slots anyway."""
        waiting = self._waiting.get(reply)
        if waiting is not None and waiting[1] <= free:
            del self._waiting[reply]

    def invite(self, free: int, now: float) -> list[str]:
        """Remove and return the routers for which `free` slots are enough, one after another; drop those that
        expired."""
        invited: list[str] = []
        for reply, (until, slots) in list(self._waiting.items()):
            if until <= now:
                del self._waiting[reply]
            elif slots <= free:
                del self._waiting[reply]
                invited.append(reply)
                free -= slots
                if free <= 0:
                    break
        return invited

    def clear(self) -> None:
        self._waiting.clear()

    def __repr__(self) -> str:
        return f"CapacityWaiters({len(self._waiting)})"
