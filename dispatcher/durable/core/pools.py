"""The pools of a queue: their free slots, the tasks that wait for them, and which pool a task goes to.

Laws:

1. A task stays with its pool while the weights do not change; if the pool has no room, the task waits for it.
2. A start takes its slots from the smallest lease that has room.
3. If the head of a line needs more slots than any lease has free, turns of `turn_s` alternate. In the first, nobody
   passes it, so that enough slots of one worker can become free. In the second, tasks that fit pass it, so that a
   worker that never becomes free blocks nobody else; and so on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ....schemas.messages.submission import Submission
from ....schemas.records.routes import RouteRecord
from ....schemas.records.workers import TaskPolicy
from ...routing.wait_queue import TenantTurns
from ...traffic.route_core import choose_pool
from ..policies.start_order import Place, ReadyQueue
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
        "methods",
        "name",
        "near",
        "once",
        "policies",
        "running",
        "told",
        "workers",
    )

    def __init__(self, name: str, turns: TenantTurns | None = None) -> None:
        self.name = name
        self.known = False
        self.near = ""
        """The name that was perhaps meant by that of an unknown pool."""
        self.workers = 0
        self.largest = 0
        """The most slots of one live worker; 0: there is none."""
        self.costs: Mapping[str, int] = {}
        self.once: frozenset[str] = frozenset()
        """Methods of tasks that must not run twice."""
        self.methods: frozenset[str] = frozenset()
        """What its live workers can run; empty: not known."""
        self.policies: Mapping[str, TaskPolicy] = {}
        """What tasks declare about their executions, by method."""
        self.limit: int | None = None
        """Maximum number of the endpoint's tasks that may run there at once."""
        self.line = ReadyQueue(turns)
        self.free: list[int] = []
        """Free slots of each lease that has any, ascending."""
        self.free_slots = 0
        """Their sum."""
        self.running = 0
        """Number of running tasks."""
        self.blocked_at: float | None = None
        """Since when a head that does not fit has blocked a task that needs fewer slots; law 3."""
        self.told: tuple[int, int] | None = None
        """The last RequestSlots; None: none yet."""

    def __repr__(self) -> str:
        return f"PoolCredit({self.name}, {len(self.line)} in line, {self.running} running, free={self.free})"

    def near_for(self, task: Submission) -> str:
        """` (did you mean 'words'?)`, or nothing. Tenants are not told the names of others' pools."""
        return f" (did you mean {self.near!r}?)" if self.near and not task.tenant else ""

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
        """Whether the route allows no more of its tasks there."""
        return self.limit is not None and self.running >= self.limit

    def next(self, now: float, turn_s: float) -> Place | None:
        """The task that starts next if slots are free: the head of the line, or one that passes it."""
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
        """When the next turn starts; None: nobody is blocked."""
        if self.blocked_at is None or self.full:
            return None
        return self.blocked_at + (self._turn(now, turn_s) + 1) * turn_s

    def _turn(self, now: float, turn_s: float) -> int:
        """Turns count from 0; the even ones belong to the head."""
        return 0 if self.blocked_at is None else int((now - self.blocked_at) / turn_s + _HAIR)

    def _passing(self, now: float, turn_s: float) -> bool:
        return self._turn(now, turn_s) % 2 == 1

    def lacks(self, most: int | None, now: float, turn_s: float) -> tuple[int, int]:
        """How many more slots are needed: in total, and by the next task.

        Args:
            most: how many tasks other limits allow to start now; None: any number.
        """
        head = self.line.first()
        if self.limit is not None:
            left = self.limit - self.running
            most = left if most is None else min(most, left)
        if head is None or (most is not None and most <= 0):
            return (0, 0)
        largest, slots = self.line.smallest if self._passing(now, turn_s) else self.line.cost(head[1]), self.line.slots
        if most is not None:
            slots = min(slots, most * max(largest, -(-slots // len(self.line))))
        if self.free and largest <= self.free[-1]:
            slots -= self.free_slots
        if slots <= 0:
            return (0, 0)
        return (slots if slots <= _EXACT else 1 << (slots - 1).bit_length(), largest)


class PoolCredits:
    """All pools by name. Call `touch` after changing anything that decides about a pool's starts."""

    def __init__(self, endpoint: str, weight_of: Callable[[str], float] | None = None) -> None:
        """
        Args:
            weight_of: the weight of a tenant; None: 1 for all.
        """
        self._endpoint = endpoint
        self._weight_of = weight_of
        self._views: dict[str, PoolCredit] = {}
        self.startable: dict[str, PoolCredit] = {}
        """Pools where a task may start: changed since the last check, or between turns (law 3)."""
        self.untold: dict[str, PoolCredit] = {}
        """Pools that may need another number of slots than the last RequestSlots said."""
        self.common: TenantTurns | None = None
        """Whose turn it is in all pools, while a limit of the queue makes tenants compete across pools; None: each pool
        has its own turns."""
        self.add(endpoint).told = (0, 0)
        self._route = RouteRecord()
        self._weights = self._route.pools(endpoint)
        self._only: PoolCredit | None = self[endpoint]
        """The pool of the route, if it has just one."""
        self._chosen: dict[str, str] = {}
        """Pool by key, while the weights stay the same."""
        self._explicit = False

    def __iter__(self) -> Iterator[PoolCredit]:
        return iter(self._views.values())

    def __getitem__(self, name: str) -> PoolCredit:
        return self._views[name]

    def add(self, name: str) -> PoolCredit:
        """The pool of this name; a new one, unless it is known already."""
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = PoolCredit(name, self.common or TenantTurns(self._weight_of))
            self.touch(view)
        return view

    def touch(self, view: PoolCredit) -> None:
        """Its line, its free slots, its running tasks or its limit has changed."""
        self.startable[view.name] = self.untold[view.name] = view

    def route(self, route: RouteRecord, explicit: bool) -> None:
        """Choose pools by this route from now on."""
        self._route = route
        self._weights = route.pools(self._endpoint)
        self._explicit = explicit
        self._chosen.clear()
        for name in (*self._weights, *route.limits):
            pool = self.add(name)
            pool.told = pool.told or (0, 0)
        self._only = self[next(iter(self._weights))] if len(self._weights) == 1 else None
        for view in self._views.values():
            view.limit = route.limits.get(view.name)
            self.touch(view)

    def share_turns(self, share: bool) -> None:
        """Whether tenants compete across pools. Only while all lines are empty."""
        self.common = TenantTurns(self._weight_of) if share else None
        for view in self._views.values():
            assert not view.line, view
            view.line = ReadyQueue(self.common or TenantTurns(self._weight_of))

    def seen(self, event: PoolSeen) -> bool:
        """Update a pool. True: tasks may need other slots now, fit no worker, or follow other limits."""
        view = self.add(event.pool)
        before = (view.largest, dict(view.costs), dict(view.policies))
        view.known, view.workers, view.largest = event.known, event.workers, event.largest
        view.costs, view.once, view.policies = event.costs, event.once, event.policies
        view.near, view.methods = event.near, event.methods
        return before != (view.largest, dict(view.costs), dict(view.policies))

    def choose(self, task: Submission, draw: float) -> PoolCredit:
        """Law 1."""
        if task.pool is not None:
            return self.add(task.pool)
        if self._only is not None:
            return self._only
        if task.key is None or not self._route.by_key:
            return self[choose_pool(self._route, self._endpoint, None, draw)]
        chosen = self._chosen.get(task.key)
        if chosen is None:
            if len(self._chosen) > _REMEMBERED:
                self._chosen.clear()
            chosen = self._chosen[task.key] = choose_pool(self._route, self._endpoint, task.key, draw)
        return self[chosen]

    def policy(self, pool: str, method: str) -> TaskPolicy | None:
        """What a task declares there; None: nothing, as far as is known."""
        view = self._views.get(pool)
        return None if view is None else view.policies.get(method)

    def allows(self, pool: str) -> bool:
        """Whether a task of this endpoint may name this pool."""
        return pool in self._weights

    def knows(self, task: Submission) -> bool:
        """Whether a pool that might run it exists, or existed."""
        if task.pool is not None:
            return self.allows(task.pool) and self[task.pool].known
        if self._explicit:
            return True
        if self._only is not None:
            return self._only.known
        return any(self[name].known for name in self._weights)
