"""Chooses the pool of a request on a route, and queues requests while all pools are at their limits. Pure.

Laws, which `check` asserts and tests quote:

1. Without a key, the chance of a pool is its share of the weight of the pools that may take the request: those with a
   weight above 0 that have workers and are below their limit.
2. With a key (and `by_key`), the pool depends only on the key and the weights. When weights change, only as many keys
   move as the shares change (weighted rendezvous hashing).
3. A request that entered a pool is counted there once, until it leaves. Entering never exceeds a limit; after a limit
   was lowered, no request enters until fewer are inside.
4. Waiting requests enter by age; one whose key belongs to a full pool blocks only those of that pool.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from ...schemas.records.routes import RouteRecord
from ..routing.wait_queue import QueueItem, WaitQueue
from ..routing.worker_table import fingerprint, score

Draw = Callable[[], float]
"""A random number in [0, 1)."""

_FULL: Final = 2.0**64


def draw_pool(weights: Iterable[tuple[str, float]], chance: float) -> str | None:
    """A pool drawn by weight; `chance` is a random number in [0, 1). None: there is none with a weight above 0."""
    row = [(pool, weight) for pool, weight in weights if weight > 0]
    return _drawn(row, chance * _total(row)) if row else None


def _total(row: Sequence[tuple[str, float]]) -> float:
    return math.fsum(weight for _, weight in row)


def _drawn(row: Sequence[tuple[str, float]], target: float) -> str:
    reached = 0.0
    for pool, weight in row:
        reached += weight
        if target < reached:
            return pool
    return row[-1][0]


def home_pool(weights: Iterable[tuple[str, float]], key: str) -> str | None:
    """The home pool of a key: weighted rendezvous hashing (Schindelhauer & Schomaker 2005). The same in every
    process."""
    print_ = fingerprint(key)
    best: str | None = None
    least = math.inf
    for pool, weight in weights:
        if weight > 0:
            # An exponential variate of rate `weight`: the smallest wins, with a probability equal to the pool's share.
            distance = -math.log((score(print_, _print_of(pool)) + 0.5) / _FULL) / weight
            if best is None or distance < least:  # it is infinite if the weight is hardly above 0
                best, least = pool, distance
    return best


def choose_pool(route: RouteRecord, endpoint: str, key: str | None, chance: float) -> str:
    """The pool of one request, from the route alone."""
    weights = route.pools(endpoint).items()
    found = home_pool(weights, key) if key is not None and route.by_key else draw_pool(weights, chance)
    assert found is not None, "a route has a weight above 0"
    return found


@lru_cache(maxsize=4096)
def _print_of(pool: str) -> int:
    # Not the name alone: a worker of the same name would then prefer the same keys.
    return fingerprint(f"pool {pool}")


class RouteRequest(QueueItem, Protocol):
    """A request on a route."""

    @property
    def key(self) -> str | None:
        """Session or shard key."""


class Admitted(NamedTuple):
    """A waiting request enters that pool now."""

    request: RouteRequest
    pool: str


class PoolShare:
    """One pool of a route, and the requests that entered it by this route and have not left."""

    __slots__ = ("inside", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.inside = 0

    def __repr__(self) -> str:
        return f"PoolShare({self.name}, inside={self.inside})"


class RouteCore:
    """The traffic of one endpoint over its pools."""

    def __init__(
        self,
        endpoint: str,
        record: RouteRecord,
        *,
        draw: Draw,
        deserted: Callable[[str], bool],
        numbers: Iterator[int] | None = None,
    ) -> None:
        """
        Args:
            deserted: whether a pool has been without workers for so long that others get its share.
            numbers: order of arrival, shared with the pools that requests enter.
        """
        self.endpoint = endpoint
        self.record = record
        self._shares: dict[str, PoolShare] = {}
        """Of the pools of the route, and of those that requests have not left since it changed."""
        self._draw = draw
        self._deserted = deserted
        self._numbers = numbers or itertools.count(1)
        self.line: WaitQueue[RouteRequest] = WaitQueue()
        """Requests that wait because of limits."""
        self._weights: Sequence[tuple[str, float]] = ()
        self._limits: Mapping[str, int] = {}
        self._follow(record)

    @property
    def inside(self) -> dict[str, int]:
        """Number of requests in each pool that has any."""
        return {name: share.inside for name, share in self._shares.items() if share.inside}

    @property
    def idle(self) -> bool:
        """Whether no request is inside or waiting."""
        return not self.inside and not self.line

    def takes(self, pool: str) -> bool:
        """Whether requests of this endpoint may use that pool."""
        return any(name == pool for name, _ in self._weights)

    def others(self, pool: str) -> bool:
        """Whether another pool of the route has workers."""
        return any(name != pool and not self._deserted(name) for name, _ in self._weights)

    # -- requests -------------------------------------------------------------------------------------------------

    def draw(self, key: str | None) -> PoolShare | None:
        """The pool of a request without special needs, whether that pool has workers or not; None: the route has limits
        or copies. The caller counts the request inside."""
        if self._special or self.line.size:
            return None
        if key is not None and self._by_key:
            return self._shares[self._home(key)]
        chance = self._draw() * self._total
        for reached, share in self._reached:
            if chance < reached:
                return share
        return share

    def _join(self, pool: str) -> None:
        share = self._shares.get(pool)
        if share is None:
            share = self._shares[pool] = PoolShare(pool)
        share.inside += 1

    def enter(self, request: RouteRequest, drawn: str | None = None) -> str | None:
        """The pool in which the request is counted until `leave`; None: it waits. A request that was here before keeps
        its place in the order of arrival.

        Args:
            drawn: the pool that was drawn for it before.
        """
        if not request.number:
            request.number = next(self._numbers)
        if self.line:
            # Requests wait, so some pool is full; older requests go first.
            request.queue = self._class_of(request)
            if self._waits_before(request):
                self.line.add(request)
                return None
        pool = self._choose(request.key, drawn)
        if pool is None:
            request.queue = self._class_of(request)
            self.line.add(request)
            return None
        self._join(pool)
        return pool

    def leave(self, pool: str) -> list[Admitted]:
        """A request that entered the pool has ended or moves elsewhere."""
        self._shares[pool].inside -= 1
        return self.pump()

    def withdraw(self, request: RouteRequest) -> bool:
        """The caller gave up while the request waited; False if it was not waiting. Others of its class may proceed
        then."""
        return self.line.remove(request)

    def changed(self, record: RouteRecord) -> list[Admitted]:
        """Use a new route. Requests inside stay in their pools."""
        self.record = record
        self._follow(record)
        waiting = list(self.line)
        for request in waiting:
            self.line.remove(request)
        for request in waiting:
            request.queue = self._class_of(request)
            self.line.add(request)
        return self._pump()

    def pump(self) -> list[Admitted]:
        """Admit all requests that can enter."""
        return self._pump() if self.line else []

    def check(self) -> None:
        """Assert the laws; tests call it after every event."""
        assert all(share.inside >= 0 for share in self._shares.values()), self._shares
        assert self._weights, self.record
        for head in self.line.heads():
            assert self._choose(head.key) is None, head

    def __repr__(self) -> str:
        return f"RouteCore({self.endpoint}, inside={self.inside}, waiting={len(self.line)})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _follow(self, record: RouteRecord) -> None:
        self._weights = [(pool, weight) for pool, weight in record.pools(self.endpoint).items() if weight > 0]
        self._total = _total(self._weights)
        self._limits = record.limits
        self._special = bool(record.limits or record.shadow)
        self._by_key = record.by_key
        kept = {name: share for name, share in self._shares.items() if share.inside}
        self._shares = kept | {name: kept.get(name) or PoolShare(name) for name, _ in self._weights}
        reached = itertools.accumulate(weight for _, weight in self._weights)
        self._reached = [(upto, self._shares[name]) for upto, (name, _) in zip(reached, self._weights, strict=True)]

    def _class_of(self, request: RouteRequest) -> str | None:
        """Requests of one class go to the same pools."""
        return self._home(request.key) if request.key is not None and self.record.by_key else None

    def _home(self, key: str) -> str:
        alive = [(pool, weight) for pool, weight in self._weights if not self._deserted(pool)]
        home = home_pool(alive or self._weights, key)
        assert home is not None
        return home

    def _choose(self, key: str | None, drawn: str | None = None) -> str | None:
        if key is not None and self.record.by_key:
            home = self._home(key)
            return home if self._has_room(home) else None
        if drawn is None or not self.takes(drawn):
            drawn = _drawn(self._weights, self._draw() * self._total)
        if (not self._limits or self._has_room(drawn)) and not self._deserted(drawn):
            return drawn
        open_ = [(pool, weight) for pool, weight in self._weights if self._has_room(pool)]
        alive = [(pool, weight) for pool, weight in open_ if not self._deserted(pool)]
        if alive or all(self._deserted(pool) for pool, _ in self._weights):
            return draw_pool(alive or open_, self._draw())
        return None  # pools with workers are full: slots become free sooner than new workers start

    def _has_room(self, pool: str) -> bool:
        limit = self._limits.get(pool)
        return limit is None or self._shares[pool].inside < limit

    def _waits_before(self, request: RouteRequest) -> bool:
        if not self.line.has_line(request.queue):
            return False
        head = self.line.next_after(request)
        return head is not None and head.number < request.number

    def _pump(self) -> list[Admitted]:
        admitted: list[Admitted] = []
        for head in self.line.heads():
            following: RouteRequest | None = head
            while following is not None and (pool := self._choose(following.key)) is not None:
                self.line.remove(following)
                self._join(pool)
                admitted.append(Admitted(following, pool))
                following = self.line.next_after(following)
        return admitted
