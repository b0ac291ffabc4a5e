"""Limits that a task declares, as one worker keeps them: for all of its executions, whoever sent them. Pure.

`max_running` holds over all workers of the pool: a worker starts no more than its share allows (see
worker.slots.share_core).

Executions on the seats of gangs do not count: their slots are granted with the gang, and its members may wait for each
other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from ...runtime.rate import RateLimiter, burst_of
from ...schemas.records.workers import TaskPolicy
from .share_core import ShareCore

MOST_WAITING: Final = 1024
"""Routers that are remembered after a refusal. Others try again after a pause."""


class MethodLimit:
    """The executions of one method on one worker."""

    __slots__ = ("_by_key", "_per_key", "_rate", "_waiting", "changed", "max_running", "running", "share")

    def __init__(self, policy: TaskPolicy) -> None:
        self.max_running = policy.max_running
        """Over all workers."""
        self.share: ShareCore | None = None
        """This worker's part of `max_running`; None: all of it."""
        self.changed: Callable[[], None] = _nothing
        """Called when the share may have to change: a caller was refused for lack of it, or an execution has ended."""
        self._per_key = policy.per_key
        rate = policy.rate_per_s
        self._rate = (
            None if rate is None else RateLimiter(rate_per_s=rate, burst=burst_of(rate), now=float("-inf"), full=True)
        )
        self.running: dict[object, str | None] = {}
        """The records of those that count, and their keys."""
        self._by_key: Counter[str] = Counter()
        self._waiting: dict[str, None] = {}
        """Reply subjects of routers that were refused, in order."""

    def __repr__(self) -> str:
        return f"MethodLimit({len(self.running)} running, {len(self._waiting)} waiting)"

    def allows(self, key: str | None, now: float) -> bool:
        """Whether one more, with this key, may start."""
        if self.max_running is not None and len(self.running) >= self._room(now):
            if self.share is not None:
                self.share.refused(now)
                self.changed()
            return False
        if self._per_key is not None and key is not None and self._by_key[key] >= self._per_key:
            return False
        return self._rate is None or self._rate.ready(now)

    def _room(self, now: float) -> int:
        assert self.max_running is not None
        return self.max_running if self.share is None else self.share.usable(now)

    @property
    def pressed(self) -> bool:
        """Whether routers wait here."""
        return bool(self._waiting)

    def begin(self, record: object, key: str | None, now: float) -> None:
        """It starts; it was allowed to."""
        self.running[record] = key
        if key is not None:
            self._by_key[key] += 1
        if self._rate is not None:
            self._rate.take(now)

    def end(self, record: object) -> str | None:
        """Its code has stopped. Returns the reply subject of a router that may now try again."""
        key = self.running.pop(record)
        if key is not None:
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
        if self.share is not None:
            self.changed()
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
        if self.share is None:  # a share may have become less than what runs
            assert self.max_running is None or len(self.running) <= self.max_running, self
        assert self._by_key == Counter(key for key in self.running.values() if key is not None), self
        assert self._per_key is None or all(count <= self._per_key for count in self._by_key.values()), self


def method_limits(policies: Mapping[str, TaskPolicy]) -> dict[str, MethodLimit]:
    """The limits by method, of those that have any."""
    return {method: MethodLimit(policy) for method, policy in policies.items() if policy.limited}


def _nothing() -> None:
    """Nobody cares."""
