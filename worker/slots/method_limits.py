"""Limits that a task declares, as one worker keeps them: for all of its executions, whoever sent them. Pure.

`max_running` and the rate hold over all workers of the pool: a worker starts no more than its shares allow (see
worker.slots.share_core). The limit of a key holds on each worker by itself.

Executions on the seats of gangs do not count: their slots are granted with the gang, and its members may wait for each
other.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sized
from typing import Final

from ...runtime.rate import HAIR_S, burst_of
from ...schemas.records.workers import TaskPolicy
from .share_core import ShareCore

MOST_WAITING: Final = 1024
"""Routers that are remembered after a refusal. Others try again after a pause."""


class DividedLimit:
    """A limit that the workers of the pool divide: which of its units are in use here."""

    __slots__ = ("changed", "share", "units")

    def __init__(self, units: int) -> None:
        self.units = units
        """Over all workers."""
        self.share: ShareCore | None = None
        """This worker's part; None: all of it."""
        self.changed: Callable[[], None] = _nothing
        """Called when the share may have to change: a caller was refused for lack of it, or an execution has ended."""

    @property
    def interval_s(self) -> float:
        """Of a rate: how long a unit is in use after each start; 0: it is none."""
        return 0.0

    def in_use(self, now: float) -> int:
        """How many units are in use."""
        raise NotImplementedError

    def idle_at(self) -> float | None:
        """When the next unit becomes idle by itself, if any does. Call `in_use` before."""
        return None

    def use(self, count: int, now: float) -> None:
        """Count units as in use from now on."""

    def room(self, now: float) -> int:
        """How many may start now; below 0: a share has become less than what runs."""
        return (self.units if self.share is None else self.share.usable(now)) - self.in_use(now)

    def allows(self, now: float) -> bool:
        """Whether one more may start; if not, the worker wants a larger share."""
        if self.room(now) > 0:
            return True
        if self.share is not None:
            self.share.refused(now)
            self.changed()
        return False


class Executions(DividedLimit):
    """`max_running`: a unit is in use while an execution runs."""

    __slots__ = ("_running",)

    def __init__(self, units: int, running: Sized) -> None:
        super().__init__(units)
        self._running = running

    def in_use(self, now: float) -> int:
        return len(self._running)


class Starts(DividedLimit):
    """A rate: a unit is in use for a while after each start. With B units and B / rate seconds, at most B + rate * t
    start in any t seconds."""

    __slots__ = ("_interval_s", "_times")

    def __init__(self, rate_per_s: float) -> None:
        super().__init__(burst_of(rate_per_s))
        self._interval_s = self.units / rate_per_s
        self._times: deque[float] = deque()
        """When the units in use were used, oldest first."""

    @property
    def interval_s(self) -> float:
        return self._interval_s if self.share is None else self.share.interval_s

    def in_use(self, now: float) -> int:
        times, over = self._times, now - self.interval_s + HAIR_S
        while times and times[0] <= over:
            times.popleft()
        return len(times)

    def idle_at(self) -> float | None:
        return self._times[0] + self.interval_s if self._times else None

    def use(self, count: int, now: float) -> None:
        self._times.extend([now] * count)


class MethodLimit:
    """The executions of one method on one worker."""

    __slots__ = ("_at_once", "_by_key", "_per_key", "_waiting", "divided", "running", "starts")

    def __init__(self, policy: TaskPolicy) -> None:
        self.running: dict[object, str | None] = {}
        """The records of those that count, and their keys."""
        self.starts = None if policy.rate_per_s is None else Starts(policy.rate_per_s)
        self._at_once = None if policy.max_running is None else Executions(policy.max_running, self.running)
        self.divided = tuple[DividedLimit, ...](each for each in (self._at_once, self.starts) if each is not None)
        """Those that hold over all workers. In this order: nobody asks for units of the rate without room to run."""
        self._per_key = policy.per_key
        self._by_key: Counter[str] = Counter()
        self._waiting: dict[str, None] = {}
        """Reply subjects of routers that were refused, in order."""

    def __repr__(self) -> str:
        return f"MethodLimit({len(self.running)} running, {len(self._waiting)} waiting)"

    def allows(self, key: str | None, now: float) -> bool:
        """Whether one more, with this key, may start."""
        if self._per_key is not None and key is not None and self._by_key[key] >= self._per_key:
            return False
        for each in self.divided:
            if not each.allows(now):
                if each is self.starts and self._at_once is not None and self._at_once.share is not None:
                    self._at_once.share.needed(now)
                return False
        return True

    @property
    def pressed(self) -> bool:
        """Whether routers wait here."""
        return bool(self._waiting)

    def begin(self, record: object, key: str | None, now: float) -> None:
        """It starts; it was allowed to."""
        self.running[record] = key
        if key is not None:
            self._by_key[key] += 1
        if self.starts is not None:
            self.starts.use(1, now)

    def end(self, record: object) -> str | None:
        """Its code has stopped. Returns the reply subject of a router that may now try again."""
        key = self.running.pop(record)
        if key is not None:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
        if self._at_once is not None:
            self._at_once.changed()
        return next(iter(self.invited(1)), None)

    def invited(self, count: int) -> list[str]:
        """Reply subjects of routers that may now try again: at most so many."""
        replies = list(self._waiting)[:count]
        for reply in replies:
            del self._waiting[reply]
        return replies

    def refused(self, reply: str) -> None:
        """A router was refused, and wants to know when one has ended."""
        if reply and len(self._waiting) < MOST_WAITING:
            self._waiting[reply] = None

    def check(self) -> None:
        """Raise AssertionError if it has miscounted. For tests."""
        if self._at_once is not None and self._at_once.share is None:  # a share may have become less than what runs
            assert len(self.running) <= self._at_once.units, self
        assert self._by_key == Counter(key for key in self.running.values() if key is not None), self
        assert self._per_key is None or all(count <= self._per_key for count in self._by_key.values()), self


def method_limits(policies: Mapping[str, TaskPolicy]) -> dict[str, MethodLimit]:
    """The limits by method, of those that have any."""
    return {method: MethodLimit(policy) for method, policy in policies.items() if policy.limited}


def _nothing() -> None:
    """Nobody cares."""
