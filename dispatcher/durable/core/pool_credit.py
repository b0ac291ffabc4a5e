"""The pools that tasks of the endpoint go to: which one each, who waits there, and what is free.

Laws:

1. A task stays with its pool while the weights do not change; if the pool has no room it waits for it.
2. Credit is deducted when a task is started, from the smallest lease that has room for it.
3. While the head of a pool's line takes more slots than any lease has free, it and those that take fewer have their
   turns: for `turn_s` nobody passes it, so that enough slots of one worker can become free; then for as long whoever
   fits goes by, so that a worker that never becomes free keeps nobody else waiting; and so on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Final

from ....schemas.messages.submission import Submission
from ....schemas.records.routes import RouteRecord
from ...traffic.route_core import choose_pool
from ..policies.priority_order import Place, ReadyQueue
from .events import PoolSeen

_EXACT: Final = 8
_HAIR: Final = 1e-9
"""A timer that fires at the computed time must not be a rounding error too early."""
_REMEMBERED: Final = 100_000


class PoolCredit:
    """One pool."""

    __slots__ = (
        "blocked_at",
        "costs",
        "free",
        "free_slots",
        "known",
        "largest",
        "limit",
        "line",
        "name",
        "once",
        "running",
        "told",
        "workers",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = False
        self.workers = 0
        self.largest = 0
        """Most slots of one living worker; 0: none lives."""
        self.costs: Mapping[str, int] = {}
        self.once: frozenset[str] = frozenset()
        """Methods of tasks that may not be run twice."""
        self.limit: int | None = None
        """Most tasks of the endpoint that run there at once."""
        self.line = ReadyQueue()
        self.free: list[int] = []
        """Free slots of each lease that has any, ascending."""
        self.free_slots = 0
        """... together."""
        self.running = 0
        """Tasks."""
        self.blocked_at: float | None = None
        """Since when a head that does not fit has held up somebody who takes fewer slots; law 3."""
        self.told: tuple[int, int] | None = None
        """What the last Want said; None: nothing was said of the pool yet."""

    def __repr__(self) -> str:
        return f"PoolCredit({self.name}, {len(self.line)} in line, {self.running} running, free={self.free})"

    def credit(self, free: tuple[int, ...]) -> None:
        self.free = sorted(slots for slots in free if slots > 0)
        self.free_slots = sum(self.free)

    def take(self, cost: int) -> None:
        """Law 2."""
        at = bisect_left(self.free, cost)
        left = self.free.pop(at) - cost
        self.free_slots -= cost
        if left:
            insort(self.free, left)

    @property
    def full(self) -> bool:
        """The route allows no more of its tasks there."""
        return self.limit is not None and self.running >= self.limit

    def next(self, now: float, turn_s: float) -> Place | None:
        """Who starts next, if there is room: the head of its line, or who goes by it."""
        if self.full:
            return None
        head, most = self.line.first(), self.free[-1] if self.free else 0
        if head is None or self.line.cost(head[1]) <= most:
            self.blocked_at = None
            return head
        if self.line.smallest == self.line.cost(head[1]):
            self.blocked_at = None
        elif self.blocked_at is None:
            self.blocked_at = now
        return self.line.first(most) if self._passing(now, turn_s) else None

    def turn_ends_at(self, now: float, turn_s: float) -> float | None:
        """When others' turn comes; None: there are none."""
        if self.blocked_at is None or self.full:
            return None
        return self.blocked_at + (self._turn(now, turn_s) + 1) * turn_s

    def _turn(self, now: float, turn_s: float) -> int:
        """From 0; the even ones are the head's."""
        return 0 if self.blocked_at is None else int((now - self.blocked_at) / turn_s + _HAIR)

    def _passing(self, now: float, turn_s: float) -> bool:
        return self._turn(now, turn_s) % 2 == 1

    def lacks(self, most: int, now: float, turn_s: float) -> tuple[int, int]:
        """What more is needed: slots in all, and slots that the next takes.

        Args:
            most: so many tasks may start now, for whatever other limits there are.
        """
        head = self.line.first()
        if self.limit is not None:
            most = min(most, self.limit - self.running)
        if head is None or most <= 0:
            return (0, 0)
        largest = self.line.smallest if self._passing(now, turn_s) else self.line.cost(head[1])
        slots = min(self.line.slots, most * max(largest, -(-self.line.slots // len(self.line))))
        if self.free and largest <= self.free[-1]:
            slots -= self.free_slots
        if slots <= 0:
            return (0, 0)
        return (slots if slots <= _EXACT else 1 << (slots - 1).bit_length(), largest)


class PoolCredits:
    """All of them, by name."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._views: dict[str, PoolCredit] = {}
        self[endpoint].told = (0, 0)
        self._route = RouteRecord()
        self._weights = self._route.pools(endpoint)
        self._chosen: dict[str, str] = {}
        """Pool by key, as long as the weights last."""
        self._explicit = False

    def __iter__(self) -> Iterator[PoolCredit]:
        return iter(self._views.values())

    def __getitem__(self, name: str) -> PoolCredit:
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = PoolCredit(name)
        return view

    def route(self, route: RouteRecord, explicit: bool) -> None:
        """Draw by these weights from now on."""
        self._route = route
        self._weights = route.pools(self._endpoint)
        self._explicit = explicit
        self._chosen.clear()
        for name in (*self._weights, *route.limits):
            self[name].told = self[name].told or (0, 0)
        for view in self._views.values():
            view.limit = route.limits.get(view.name)

    def seen(self, event: PoolSeen) -> bool:
        """Learn of a pool. True: tasks in line may take other slots now, or another number of workers."""
        view = self[event.pool]
        before = (view.largest, dict(view.costs))
        view.known, view.workers, view.largest = event.known, event.workers, event.largest
        view.costs, view.once = event.costs, event.once
        return before != (view.largest, dict(view.costs))

    def choose(self, task: Submission, draw: float) -> PoolCredit:
        """Law 1."""
        if task.pool is not None:
            return self[task.pool]
        if len(self._weights) == 1:
            return self[next(iter(self._weights))]
        if task.key is None or not self._route.by_key:
            return self[choose_pool(self._route, self._endpoint, None, draw)]
        chosen = self._chosen.get(task.key)
        if chosen is None:
            if len(self._chosen) > _REMEMBERED:
                self._chosen.clear()
            chosen = self._chosen[task.key] = choose_pool(self._route, self._endpoint, task.key, draw)
        return self[chosen]

    def knows(self, task: Submission) -> bool:
        """Whether there is, or was, anybody who might run it."""
        if task.pool is not None:
            return self[task.pool].known
        if self._explicit:
            return True
        if len(self._weights) == 1:
            return self[next(iter(self._weights))].known
        return any(self[name].known for name in self._weights)
